"""A Block is two edges on two shards: both happen, whatever dies between them, and nothing the blocked side does gets past it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import grpc
import pytest
from grpc import aio

from graphd.edge import State
from graphd.storage.catalog import Catalog
from graphd.topology import Kind
from graphd.v1 import graph_pb2 as pb
from tests.calls import write_all
from tests.databases import audit, edges
from tests.routers import GraphStub, stubs
from tests.simulation.calls import follow
from tests.simulation.check import settled
from tests.simulation.cluster import Site
from tests.simulation.faults import kill, revive
from tests.simulation.proxy import Mode

ROUNDS, LONG_ROUNDS = 4, 20
SECONDS, LONG_SECONDS = 1.5, 10.0
TRY_EVERY_S = 0.01


def block(blocker: int, blocked: int, request_id: str | None = None) -> pb.BlockRequest:
    return pb.BlockRequest(blocker_id=blocker, blocked_id=blocked, request_id=request_id)


def states(site: Site) -> dict[tuple[int, int], State]:
    audit(site.databases)
    return {key[:2]: State(version[1]) for key, version in edges(site.databases).items()}


async def test_the_edge_the_other_way_goes_when_its_shard_is_back(site: Site) -> None:
    """The blocker's shard is away: the Block is a success, and the relay ends the blocker's own follow later."""
    ada, bo = site.accounts("s1", 1)[0], site.accounts("s2", 1)[0]
    async with site.one_router() as (_, stub):
        await follow(stub, ada, bo)
        await follow(stub, bo, ada)
        with site.proxies["s2"].being(Mode.CUT):
            told = (await stub.Block(block(bo, ada), timeout=10)).result
            assert (told.outcome, told.reverse_pending) == (pb.OUTCOME_APPLIED, True)
        with site.relay():
            await settled(site.databases)
    assert states(site) == {(ada, bo): State.BLOCKED, (bo, ada): State.REMOVED}


async def test_an_unblock_first_does_what_its_block_owes(site: Site) -> None:
    """Without that the relay would undo a follow that came after both."""
    ada, bo = site.accounts("s1", 1)[0], site.accounts("s2", 1)[0]
    unblock = pb.UnblockRequest(blocker_id=bo, blocked_id=ada)
    async with site.one_router() as (_, stub):
        await follow(stub, bo, ada)
        with site.proxies["s2"].being(Mode.CUT):
            assert (await stub.Block(block(bo, ada), timeout=10)).result.reverse_pending
            with pytest.raises(aio.AioRpcError) as caught:
                await stub.Unblock(unblock, timeout=2)
            assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
        site.databases.do("UPDATE outbox SET due = now() + interval '1 hour'")
        result = await unblocked(stub, unblock)
        assert result.edge.state == pb.STATE_REMOVED
        edge = (await stub.GetEdge(pb.GetEdgeRequest(source_id=bo, destination_id=ada), timeout=5)).edge
        assert edge.state == pb.STATE_REMOVED
        assert (await follow(stub, bo, ada)).outcome == pb.OUTCOME_APPLIED
        site.databases.do("UPDATE outbox SET due = now()")
        with site.relay():
            await settled(site.databases)
    assert states(site) == {(ada, bo): State.REMOVED, (bo, ada): State.ACTIVE}


async def test_what_the_relay_pays_is_told_only_where_the_kind_is(site: Site) -> None:
    await Catalog(site.databases.catalog).add_kind(Kind(0, "quiet", events=False))
    ada, bo = site.accounts("s1", 1)[0], site.accounts("s2", 1)[0]
    async with site.one_router() as (_, stub):
        for kind in ("quiet", "follow"):
            await stub.Follow(pb.FollowRequest(source_id=bo, destination_id=ada, kind=kind), timeout=10)
        with site.proxies["s2"].being(Mode.CUT):
            for kind in ("quiet", "follow"):
                wanted = pb.BlockRequest(blocker_id=bo, blocked_id=ada, kind=kind)
                assert (await stub.Block(wanted, timeout=10)).result.reverse_pending
        with site.relay():
            await settled(site.databases)
    assert states(site) == {(ada, bo): State.BLOCKED, (bo, ada): State.REMOVED}
    assert {kind for (kind,) in site.databases.all_rows("SELECT DISTINCT kind FROM events")} == {1}


async def test_many_blocks_at_once_are_paid_at_once(site: Site) -> None:
    """What 2,000 Blocks of a few calls owe takes no more places than the calls themselves: none is shed and left to the relay."""
    ones, others = site.accounts("s1", 1_000), site.accounts("s2", 1_000)
    pairs = list(zip(ones, others, strict=True)) + list(zip(others[1:], ones[:-1], strict=True))
    async with site.one_router({"reverse_wait_s": 30}) as (_, stub):
        await write_all(
            [stub], [pb.Write(operation=pb.OPERATION_FOLLOW, source_id=b, destination_id=a) for a, b in pairs]
        )
        results = await write_all(
            [stub],
            [pb.Write(operation=pb.OPERATION_BLOCK, source_id=a, destination_id=b) for a, b in pairs],
            size=500,
            at_once=4,
        )
        assert not any(result.reverse_pending for result in results)
        # Nobody else strikes what has been paid.
        await settled(site.databases)
    assert states(site) == dict.fromkeys(pairs, State.BLOCKED) | {(b, a): State.REMOVED for a, b in pairs}


async def unblocked(stub: GraphStub, request: pb.UnblockRequest) -> pb.WriteResult:
    """An Unblock as a client sends it, again while the shard is only just coming back."""
    while True:
        try:
            return (await stub.Unblock(request, timeout=5)).result
        except aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
        await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def trying(through: list[GraphStub], source: int, destination: int) -> AsyncIterator[None]:
    """The blocked side follows all the time, through every router."""

    async def work(stub: GraphStub) -> None:
        while True:
            with contextlib.suppress(aio.AioRpcError):
                await follow(stub, source, destination, 2)
            await asyncio.sleep(TRY_EVERY_S)

    tasks = [asyncio.ensure_future(work(stub)) for stub in through]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def blocked(through: list[GraphStub], request: pb.BlockRequest) -> None:
    """A Block as a client sends it: again, with its request id, until some router has answered."""
    for attempt in range(400):
        try:
            await through[attempt % len(through)].Block(request, timeout=2)
            return
        except aio.AioRpcError as error:
            if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise
        await asyncio.sleep(0.02)
    raise AssertionError("no router answers")


@pytest.mark.timeout(600)
async def test_nothing_gets_past_a_block(site: Site, is_long: bool) -> None:
    pairs = list(zip(site.accounts("s1", 20), site.accounts("s2", 20), strict=True))
    seconds = LONG_SECONDS if is_long else SECONDS
    expected: dict[tuple[int, int], State] = {}
    with site.routers(2) as routers, site.relay():
        async with stubs(routers) as through:
            for number in range(LONG_ROUNDS if is_long else ROUNDS):
                ada, bo = pairs[number] if number % 4 < 2 else pairs[number][::-1]
                await follow(through[1], bo, ada)
                async with trying(through, ada, bo):
                    await asyncio.sleep(seconds / 2)
                    blocking = asyncio.ensure_future(blocked(through, block(bo, ada, f"b{number}")))
                    if number % 2:
                        # Before, while or after it serves the Block: a little later in each round.
                        await asyncio.sleep(0.0005 * number)
                        await asyncio.to_thread(kill, routers[0])
                    await blocking
                    await asyncio.sleep(seconds / 2)
                if number % 2:
                    await asyncio.to_thread(revive, routers[0])
                expected |= {(ada, bo): State.BLOCKED, (bo, ada): State.REMOVED}
        await settled(site.databases)
    assert states(site) == expected
