"""Bad items, deadlocks, killed backends, callers who go and deadlines that pass, all inside full batches: nobody else's call fails, and
nothing is applied twice."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence

import grpc
import psycopg
import pytest
from grpc import aio

from graphd.v1 import graph_pb2 as pb
from tests.databases import audit
from tests.routers import GraphStub, RouterProcess
from tests.simulation.calls import is_edge
from tests.simulation.check import check, settled
from tests.simulation.cluster import Site
from tests.simulation.workload import Caller, Ledger, connections, writing

CALLERS = 48
FIRE_S, LONG_FIRE_S = 3.0, 20.0
KILL_EVERY_S = 0.1

BAD = """
CREATE FUNCTION explode() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'a row that cannot be stored'; END $$;
CREATE TRIGGER explode BEFORE INSERT OR UPDATE ON {table} FOR EACH ROW WHEN (NEW.owner_id = {account}) EXECUTE FUNCTION explode();
"""
GOOD = "DROP TRIGGER explode ON {table}; DROP FUNCTION explode()"


def crowd(
    site: Site, chance: random.Random, stubs: Sequence[Sequence[GraphStub]], ledger: Ledger, popular: Sequence[int]
) -> list[Caller]:
    """Callers of s1 who follow a few accounts of s1 and s2."""
    sources = site.accounts("s1", 4 * CALLERS, first=10_000)
    return [
        Caller(stubs[n % len(stubs)], 0, sources[4 * n : 4 * n + 4], popular, ledger, chance.getrandbits(32))
        for n in range(CALLERS)
    ]


def popular_of(site: Site) -> list[int]:
    return site.accounts("s1", 6, first=900_000) + site.accounts("s2", 2, first=900_000)


async def fire(is_long: bool) -> None:
    await asyncio.sleep(LONG_FIRE_S if is_long else FIRE_S)


def alone(router: RouterProcess, shard: str) -> float:
    return router.metric(f'graphd_lane_alone_total{{lane="write",shard="{shard}"}}') or router.metric(
        f'graphd_lane_alone_total{{shard="{shard}",lane="write"}}'
    )


@pytest.mark.parametrize("table", ["forward", "degrees", "receipts"])
async def test_a_bad_item_fails_alone(site: Site, chance: random.Random, is_long: bool, table: str) -> None:
    bad = site.accounts("s1", 1, first=5_000)[0]
    popular = popular_of(site)
    ledger = Ledger()
    codes: list[grpc.StatusCode] = []
    column = "actor_id" if table == "receipts" else "owner_id"
    with site.relay():
        router = site.new_router()
        with contextlib.ExitStack() as stack:
            router.launch()
            stack.callback(router.stop)
            router.wait_ready(site.databases.names)
            async with connections([router], 4) as stubs:
                with trigger_on(site, table, column, bad):
                    async with writing(crowd(site, chance, stubs, ledger, popular)):
                        spoiler = asyncio.create_task(spoil(stubs[0][0], bad, popular[0], codes))
                        await fire(is_long)
                        spoiler.cancel()
                        with contextlib.suppress(asyncio.CancelledError):
                            await spoiler
                assert not ledger.failures, f"{len(ledger.failures)}: {ledger.failures[:3]}"
                assert len(codes) >= 3
                assert set(codes) == {grpc.StatusCode.INTERNAL}
                assert alone(router, "s1") > 0
                result = await Caller(stubs[0], 0, [bad], popular, ledger, 1).write((bad, popular[0]), True)
                assert result.outcome == pb.OUTCOME_APPLIED
        await check(site.databases, ledger)
    text = router.log()
    assert "a row that cannot be stored" not in text
    assert "conninfo" not in text


@contextlib.contextmanager
def trigger_on(site: Site, table: str, column: str, account: int) -> Iterator[None]:
    with site.databases.connect(site.shard_of(account)) as connection:
        connection.execute(BAD.replace("owner_id", column).format(table=table, account=account).encode())
        try:
            yield
        finally:
            connection.execute(GOOD.format(table=table).encode())


async def spoil(stub: GraphStub, source: int, destination: int, codes: list[grpc.StatusCode]) -> None:
    """A write that cannot be stored, again and again."""
    number = 0
    while True:
        number += 1
        try:
            request = pb.FollowRequest(source_id=source, destination_id=destination, request_id=f"spoil-{number}")
            await stub.Follow(request, timeout=5)
            codes.append(grpc.StatusCode.OK)
        except aio.AioRpcError as error:
            codes.append(error.code())


async def test_deadlocks_are_nobodys_failure(site: Site, chance: random.Random, is_long: bool) -> None:
    popular = popular_of(site)
    ledger = Ledger()
    hot = sorted(account for account in popular if site.shard_of(account) == "s1")
    stop = threading.Event()
    turns: list[str] = []
    with site.routers(1) as [router], site.relay():
        async with connections([router], 4) as stubs:
            for account in hot:
                await Caller(stubs[0], 0, [1], hot, ledger, account).write((1, account), True)
            rounds = asyncio.create_task(asyncio.to_thread(lock_backwards, site, hot, stop, turns))
            async with writing(crowd(site, chance, stubs, ledger, popular), 15):
                await fire(is_long)
                await asyncio.sleep(1)
                stop.set()
                await rounds
        assert not ledger.failures, f"{len(ledger.failures)}: {ledger.failures[:3]}"
        assert turns
        assert site_deadlocks(site) > 0, "there was no deadlock to survive"
        await check(site.databases, ledger)


def lock_backwards(site: Site, hot: Sequence[int], stop: threading.Event, turns: list[str]) -> None:
    """A session that locks degrees in the opposite order, and is patient, so that the lane is the one to be thrown out."""
    with site.databases.connect("s1") as connection:
        connection.execute("SET deadlock_timeout = '20s'")
        while not stop.is_set():
            with connection.transaction():
                for account in (hot[-1], hot[0]):
                    connection.execute(
                        "UPDATE degrees SET degree = degree WHERE owner_id = %s AND direction = 2", (account,)
                    )
                    time.sleep(0.2)
            turns.append("locked")
            time.sleep(0.2)


def site_deadlocks(site: Site) -> int:
    [(count,)] = site.databases.rows("s1", "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
    return int(count)


async def test_a_killed_backend_fails_only_what_it_carried(site: Site, chance: random.Random, is_long: bool) -> None:
    popular = popular_of(site)
    ledger = Ledger()
    others = Ledger()
    elsewhere = site.accounts("s3", 6)
    stop = threading.Event()
    killed: list[int] = []
    wrong: list[str] = []
    with site.routers(1) as [router], site.relay():
        async with connections([router], 4) as stubs:
            await Caller(stubs[0], 0, [elsewhere[0]], elsewhere, others, 1).write((elsewhere[0], elsewhere[3]), True)
            standing = (site.accounts("s1", 1)[0], popular[0])
            await Caller(stubs[0], 0, [standing[0]], popular, ledger, 1).write(standing, True)
            killer = asyncio.create_task(asyncio.to_thread(terminate, site, stop, killed))
            reader = asyncio.create_task(read_on(stubs[1][0], standing, wrong))
            bystanders = [Caller(stubs[2], 0, [source], elsewhere[3:], others, source) for source in elsewhere[:3]]
            async with writing([*crowd(site, chance, stubs, ledger, popular), *bystanders]):
                await fire(is_long)
                stop.set()
                await killer
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reader
        print(f"{len(killed)} backends killed; {ledger.outcomes}, failed attempts {ledger.codes()}")
        assert killed
        assert set(ledger.codes()) <= {"UNAVAILABLE"}
        assert len(ledger.failures) <= len(killed) * 2 * CALLERS
        assert not others.failures
        assert not wrong, f"{len(wrong)}: {wrong[:3]}"
        others.acknowledged |= ledger.acknowledged
        await check(site.databases, others)


def terminate(site: Site, stop: threading.Event, killed: list[int]) -> None:
    """End the router's sessions on s1, the write lane's and the read lane's in turns."""
    with site.databases.connect("s1") as connection:
        for lane in _turns():
            if stop.is_set():
                return
            found = connection.execute(
                "SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name = %s"
                # Not while it is being set up: a shard that lets nobody in counts as away.
                " AND (query LIKE 'WITH clock%%' OR query LIKE 'SELECT count(pg_advisory%%' OR query LIKE 'SELECT k.item%%')",
                (f"graphd-router {lane}",),
            ).fetchall()
            killed.extend(pid for pid, _ in found)
            time.sleep(KILL_EVERY_S)


def _turns() -> Iterator[str]:
    while True:
        yield "write"
        yield "read"


async def read_on(stub: GraphStub, edge: tuple[int, int], wrong: list[str]) -> None:
    while True:
        try:
            if not await is_edge(stub, *edge):
                wrong.append("not found")
        except aio.AioRpcError as error:
            wrong.append(f"{error.code().name}: {error.details()}")
        await asyncio.sleep(0.002)


async def test_callers_who_go_and_deadlines_that_pass_harm_nobody(
    site: Site, chance: random.Random, is_long: bool
) -> None:
    popular = popular_of(site)
    ledger = Ledger()
    fleeting = site.accounts("s1", 200, first=400_000)
    ended: list[str] = []
    stop = asyncio.Event()
    with site.routers(1, {"write_wait_ms": 10}) as [router], site.relay():
        async with connections([router], 4) as stubs, writing(crowd(site, chance, stubs, ledger, popular)):
            flights = [
                asyncio.create_task(flee(stubs[n % 4][0], fleeting[20 * n : 20 * n + 20], popular, chance, stop, ended))
                for n in range(10)
            ]
            await fire(is_long)
            stop.set()
            await asyncio.gather(*flights)
        print(f"{ledger.outcomes}; fleeting calls {Counter(ended)}")
        assert not ledger.failures, f"{len(ledger.failures)}: {ledger.failures[:3]}"
        assert {"CANCELLED", "DEADLINE_EXCEEDED"} <= set(ended) <= {"CANCELLED", "DEADLINE_EXCEEDED", "OK"}
        await check(site.databases, ledger)
    await settled(site.databases)
    audit(site.databases)


async def flee(
    stub: GraphStub,
    sources: Sequence[int],
    destinations: Sequence[int],
    chance: random.Random,
    stop: asyncio.Event,
    ended: list[str],
) -> None:
    """Calls that end before their answer, now in the queue, now on the way, now on the way back."""
    while not stop.is_set():
        request = pb.FollowRequest(source_id=chance.choice(sources), destination_id=chance.choice(destinations))
        is_cancelled = chance.random() < 0.5
        call = stub.Follow(request, timeout=5 if is_cancelled else chance.uniform(0.001, 0.03))
        if is_cancelled:
            await asyncio.sleep(chance.uniform(0, 0.03))
            call.cancel()
        try:
            await call
            ended.append("OK")
        except aio.AioRpcError as error:
            ended.append(error.code().name)
        except asyncio.CancelledError:
            ended.append("CANCELLED")


async def test_a_request_id_used_at_once_by_many_is_applied_once(site: Site) -> None:
    """Twins in one batch, in two lanes of two routers, and of other input."""
    ada, bo = site.accounts("s1", 2)
    with site.routers(2) as routers, site.relay():
        async with connections(routers, 4) as stubs:
            for turn in range(15):
                request = pb.FollowRequest(source_id=ada, destination_id=bo, request_id=f"twin-{turn}")
                other = pb.UnfollowRequest(source_id=ada, destination_id=bo, request_id=f"twin-{turn}")
                same = [row[at % 2].Follow(request, timeout=10) for at, row in enumerate(stubs * 4)]
                different = [row[at % 2].Unfollow(other, timeout=10) for at, row in enumerate(stubs)]
                answers = await asyncio.gather(*same, *different, return_exceptions=True)
                codes = [answer.code() for answer in answers if isinstance(answer, aio.AioRpcError)]
                assert set(codes) == {grpc.StatusCode.ABORTED}
                results = [
                    answer.result for answer in answers if isinstance(answer, pb.FollowResponse | pb.UnfollowResponse)
                ]
                assert sum(not result.duplicate for result in results) == 1
                assert len({result.edge.position for result in results}) == 1
        await settled(site.databases)
    audit(site.databases)


async def test_text_that_postgres_cannot_hold_fails_alone(site: Site) -> None:
    ada, bo = site.accounts("s1", 2)
    async with site.one_router() as (_, stub):
        calls = [
            stub.Follow(
                pb.FollowRequest(source_id=ada + n, destination_id=bo + 1000, request_id="\0" if n == 5 else f"r{n}"),
                timeout=5,
            )
            for n in range(20)
        ]
        answers = await asyncio.gather(*calls, return_exceptions=True)
    wrong = {n: answer for n, answer in enumerate(answers) if isinstance(answer, BaseException)}
    assert set(wrong) == {5}
    error = wrong[5]
    assert isinstance(error, aio.AioRpcError)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_row_locked_by_somebody_delays_its_own_callers_only_as_long_as_a_lane_waits(site: Site) -> None:
    """A session that forgot to commit: the batch that meets it is given up, and later writes of other rows go on."""
    ada, bo, cy, dee = site.accounts("s1", 4)
    async with site.one_router({"lane_timeout_s": 1.0}) as (_, stub):
        ledger = Ledger()
        await Caller([stub], 0, [ada], [bo], ledger, 1).write((ada, bo), True)
        with psycopg.connect(site.databases.conninfo["s1"]) as connection:
            connection.execute("SELECT 1 FROM forward WHERE owner_id = %s FOR UPDATE", (ada,))
            with pytest.raises(aio.AioRpcError) as caught:
                await stub.Unfollow(pb.UnfollowRequest(source_id=ada, destination_id=bo), timeout=5)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            await Caller([stub], 0, [cy], [dee], ledger, 2).write((cy, dee), True)
        await Caller([stub], 0, [ada], [bo], ledger, 3).write((ada, bo), False)
    with site.relay():
        await check(site.databases, ledger)
