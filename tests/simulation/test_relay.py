"""What is owed is delivered: after an outage, past poison, by two relays at once, and by another one when the first was killed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import psycopg
from grpc import aio

from graphd.limits import RELAY_LEASE_S
from graphd.placement import slot_of
from graphd.v1 import graph_pb2 as pb
from tests.databases import edges, problems
from tests.routers import GraphStub
from tests.simulation.check import check, owed, settled
from tests.simulation.cluster import SLOTS, Site
from tests.simulation.proxy import Mode
from tests.simulation.workload import Ledger
from tests.waiting import eventually

RETURN_S = 5.0
SLACK_S = 5.0


def follows(sources: Sequence[int], destination: int) -> list[pb.Write]:
    return [pb.Write(operation=pb.OPERATION_FOLLOW, source_id=source, destination_id=destination) for source in sources]


async def owe(site: Site, stub: GraphStub, sources: Sequence[int], destination: int, ledger: Ledger) -> None:
    """Follows of a destination whose shard the router does not reach: each is a success that is owed."""
    with site.proxies[site.shard_of(destination)].being(Mode.CUT):
        answer = await stub.BatchWrite(pb.BatchWriteRequest(writes=follows(sources, destination)), timeout=20)
    assert all(result.outcome == pb.OUTCOME_APPLIED and result.reverse_pending for result in answer.results)
    for source, result in zip(sources, answer.results, strict=True):
        ledger.keep((source, destination), result)
    assert await asyncio.to_thread(owed, site.databases) == (len(sources), 0)


async def followers(stub: GraphStub, account: int) -> list[int]:
    request = pb.ListFollowersRequest(account_id=account, page_size=1000, view=pb.VIEW_IDS)
    return sorted((await stub.ListFollowers(request, timeout=5)).ids)


async def test_a_follow_of_a_shard_that_is_down_arrives_within_5_s_of_its_return(site: Site) -> None:
    ada, bo = site.accounts("s1", 1)[0], site.accounts("s2", 1)[0]
    ledger = Ledger()
    async with site.one_router() as (_, stub):
        with site.relay():
            await asyncio.to_thread(site.servers["s2"].stop)
            result = (await stub.Follow(pb.FollowRequest(source_id=ada, destination_id=bo), timeout=10)).result
            assert result.outcome == pb.OUTCOME_APPLIED
            assert result.reverse_pending
            ledger.keep((ada, bo), result)
            edge = (await stub.GetEdge(pb.GetEdgeRequest(source_id=ada, destination_id=bo), timeout=5)).edge
            assert edge == result.edge
            await asyncio.sleep(2)  # long enough for the first tries to fail
            await asyncio.to_thread(site.servers["s2"].start)

            async def is_listed() -> bool:
                try:
                    return await followers(stub, bo) == [ada]
                except aio.AioRpcError:
                    return False

            await eventually(is_listed, RETURN_S, "ada stands among the followers of bo")
            await check(site.databases, ledger)


async def test_poison_is_parked_and_a_thousand_good_rows_behind_it_are_delivered(
    site: Site, chance: random.Random
) -> None:
    sources, cy = site.accounts("s1", 1_000), site.accounts("s2", 1)[0]
    mine = slot_of(sources[0], SLOTS)
    other = next(slot for slot in site.databases.view.topology.slots_of("s1") if slot != mine)
    stranger = site.accounts("s1", 1, first=5_000_000)[0]
    poison = {
        "a slot that is not the source's": (other, 1, sources[0], cy),
        "a kind that does not exist": (mine, 77, sources[0], cy),
        "an edge that was never written": (slot_of(stranger, SLOTS), 1, stranger, cy),
        "an id out of range": (mine, 1, sources[0], -5),
    }
    ledger = Ledger()
    async with site.one_router() as (_, stub):
        await owe(site, stub, sources, cy, ledger)
        with site.databases.connect("s1") as connection:
            for slot, kind, source, destination in poison.values():
                connection.execute(
                    "INSERT INTO outbox (slot, id, kind, source_id, destination_id, peer_slot, due)"
                    " VALUES (%s, uuidv7(), %s, %s, %s, %s, now() - interval '1 hour')",
                    (slot, kind, source, destination, slot_of(cy, SLOTS)),
                )
        with site.relay() as relay:
            await eventually(
                lambda: asyncio.to_thread(lambda: owed(site.databases) == (0, len(poison))),
                20,
                "all but the poison is delivered",
            )
            reasons = [
                reason
                for (reason,) in site.databases.rows("s1", "SELECT problem FROM outbox WHERE parked ORDER BY due")
            ]
            assert len(reasons) == len(poison)
            assert all(reasons)
            assert await followers(stub, cy) == sorted(sources)
            relay.expected_errors.add("relay.parked")
        site.databases.do("DELETE FROM outbox WHERE parked")
    await check(site.databases, ledger)


async def test_two_relays_at_once_deliver_everything(site: Site) -> None:
    sources, cy = site.accounts("s1", 1_000), site.accounts("s2", 1)[0]
    ledger = Ledger()
    async with site.one_router() as (_, stub):
        for _ in range(4):
            await owe_again(site, stub, sources, cy, ledger)
        with site.relay(), site.relay():
            await settled(site.databases)
        assert await followers(stub, cy) == sorted(sources)
    await check(site.databases, ledger)


async def owe_again(site: Site, stub: GraphStub, sources: Sequence[int], destination: int, ledger: Ledger) -> None:
    """Every edge owes its version once more: the same destination for several rows of the outbox."""
    with site.proxies[site.shard_of(destination)].being(Mode.CUT):
        answer = await stub.BatchWrite(pb.BatchWriteRequest(writes=follows(sources, destination)), timeout=20)
    for source, result in zip(sources, answer.results, strict=True):
        assert result.reverse_pending
        ledger.keep((source, destination), result)


async def test_another_relay_takes_over_what_a_killed_one_had_leased(site: Site) -> None:
    sources, cy = site.accounts("s1", 200), site.accounts("s2", 1)[0]
    ledger = Ledger()
    async with site.one_router() as (_, stub):
        await owe(site, stub, sources, cy, ledger)
    site.databases.do("UPDATE outbox SET due = now() + interval '1 hour'")
    with site.relay() as first:
        await eventually(
            lambda: asyncio.to_thread(first.reaches, site.databases.names), 10, "the relay reaches every shard"
        )
        # It believes that it reaches s2, and does not hear that its delivery fails.
        with site.proxies["s2"].being(Mode.BLACKHOLE):
            site.databases.do("UPDATE outbox SET due = now()")
            await eventually(
                lambda: asyncio.to_thread(lambda: leased(site) == len(sources)), 10, "the relay leases the rows"
            )
            first.kill()
        assert leased(site) == len(sources)
        with site.relay():
            await settled(site.databases, RELAY_LEASE_S + SLACK_S)
    assert edges(site.databases, "reverse") == edges(site.databases, "forward")
    assert problems(site.databases) == []
    await check(site.databases, ledger)


def leased(site: Site) -> int:
    """Rows that a relay has taken and put off for the time of a lease."""
    try:
        [(count,)] = site.databases.rows(
            "s1", "SELECT count(*) FROM outbox WHERE attempts > 0 AND due > now() + interval '2 s'"
        )
    except psycopg.Error:
        return 0
    return int(count)
