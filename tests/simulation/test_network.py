"""Connections cut, held back and swallowed: who needs the shard is told so, nobody else notices, and all goes on without a restart."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from grpc import aio

from graphd.v1 import graph_pb2 as pb
from tests.databases import audit
from tests.routers import GraphStub
from tests.simulation.calls import follow, health_s, is_edge, serves, steady
from tests.simulation.check import settled
from tests.simulation.cluster import Site
from tests.simulation.proxy import Mode
from tests.waiting import eventually

RESUME_S = 2.0
HEALTH_S = 0.1
LANE_TIMEOUT_S = 2.0
CUT_SHARDS = ("s2", "s3")


@pytest.mark.parametrize("mode", [Mode.CUT, Mode.HOLD, Mode.BLACKHOLE])
async def test_two_shards_come_back_without_a_restart(site: Site, mode: Mode) -> None:
    mine = site.accounts("s1", 8)
    pairs = list(zip(mine[:4], mine[4:], strict=True))
    theirs = {shard: site.accounts(shard, 2) for shard in CUT_SHARDS}
    async with site.one_router({"lane_timeout_s": LANE_TIMEOUT_S}) as (router, stub):
        with site.relay():
            for source, destination in theirs.values():
                assert await serves(stub, source, destination)
            async with steady(stub, pairs) as others:
                for shard in CUT_SHARDS:
                    site.proxies[shard].set(mode)
                calls = [
                    asyncio.ensure_future(failing(stub, *theirs[shard])) for shard in CUT_SHARDS for _ in range(20)
                ]
                latencies = await health_s(router)
                codes = set(await asyncio.gather(*calls))
                assert codes <= {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}, codes
                assert latencies[len(latencies) // 2] < HEALTH_S
                if mode is not Mode.HOLD:
                    await eventually(
                        lambda: asyncio.to_thread(lambda: not router.serves("s2")), 10, "health tells of s2"
                    )
                for shard in CUT_SHARDS:
                    site.proxies[shard].set(Mode.PASS)
                for source, destination in theirs.values():
                    await eventually(lambda s=source, d=destination: serves(stub, s, d), RESUME_S, "service resumes")  # type: ignore[misc]
            assert not others.failures, f"{len(others.failures)} of {others.calls}: {others.failures[:3]}"
            assert others.calls > 50
            await settled(site.databases)
    audit(site.databases)


async def failing(stub: GraphStub, source: int, destination: int) -> grpc.StatusCode:
    """A write that cannot succeed now; answers how it failed."""
    try:
        await follow(stub, source, destination, 3)
    except aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def test_each_write_of_a_chain_waits_for_its_reverse_half_no_longer_than_it_should(site: Site) -> None:
    """Two writes of one edge in one batch: the second begins when the first has been answered without its reverse half."""
    near, far = site.accounts("s1", 1)[0], site.accounts("s2", 1)[0]
    write = {"source_id": near, "destination_id": far}
    batch = pb.BatchWriteRequest(
        writes=[pb.Write(operation=op, **write) for op in (pb.OPERATION_FOLLOW, pb.OPERATION_UNFOLLOW)]  # type: ignore[arg-type]
    )
    clock = asyncio.get_running_loop().time
    async with site.one_router({"lane_timeout_s": 20, "reverse_wait_s": 0.5}) as (_, stub):
        assert not await is_edge(stub, near, far)
        with site.proxies["s2"].being(Mode.BLACKHOLE):
            began = clock()
            answer = await stub.BatchWrite(batch, timeout=10)
            took_s = clock() - began
        assert [result.outcome for result in answer.results] == [pb.OUTCOME_APPLIED] * 2
        assert all(result.reverse_pending for result in answer.results)
        assert took_s < 4
    with site.relay():
        await settled(site.databases)
    audit(site.databases)


@pytest.mark.parametrize("mode", [Mode.CUT, Mode.HOLD, Mode.BLACKHOLE])
async def test_an_intersection_of_a_silent_shard_ends_with_its_deadline_and_leaves_nothing_behind(
    site: Site, mode: Mode
) -> None:
    """Set operations have sessions of their own: they too must give up, and must not fill the router for ever."""
    near, far = site.accounts("s1", 1)[0], site.accounts("s2", 2)
    operands = [pb.Operand(followers_of=pb.ListOperand(account_id=account)) for account in far]
    request = pb.IntersectRequest(operands=operands)
    async with site.one_router({"lane_timeout_s": LANE_TIMEOUT_S, "max_calls_per_shard": 8}) as (router, stub):
        for account in far:
            await follow(stub, near, account)
        assert list((await stub.Intersect(request, timeout=5)).ids) == [near]
        with site.proxies["s2"].being(mode):
            for _ in range(3):
                calls = [stub.Intersect(request, timeout=1) for _ in range(8)]
                errors = await asyncio.gather(*calls, return_exceptions=True)
                assert all(isinstance(error, aio.AioRpcError) for error in errors)
                codes = {error.code() for error in errors if isinstance(error, aio.AioRpcError)}
                assert codes <= {
                    grpc.StatusCode.UNAVAILABLE,
                    grpc.StatusCode.DEADLINE_EXCEEDED,
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                }
            await eventually(
                lambda: asyncio.to_thread(lambda: router.metric('graphd_shard_calls{shard="s2"}') == 0),
                10,
                "no call waits for s2",
            )

        async def answers() -> bool:
            try:
                return list((await stub.Intersect(request, timeout=2)).ids) == [near]
            except aio.AioRpcError:
                return False

        await eventually(answers, RESUME_S, "intersections are answered again")


async def test_a_lane_that_is_cut_off_while_it_connects_comes_back(site: Site) -> None:
    """The connection is there, but the answer to the first question on it never comes."""
    source, destination = site.accounts("s2", 2)
    async with site.one_router({"lane_timeout_s": LANE_TIMEOUT_S}) as (_, stub):
        assert await serves(stub, source, destination)
        proxy = site.proxies["s2"]
        proxy.trip = b"incarnation"
        proxy.cut()
        await eventually(lambda: proxy.mode is Mode.HOLD, 5, "a lane asks which shard it has reached")
        # Those bytes are lost for good: the connection stays silent, but a new one would be served.
        proxy.forget()
        await eventually(
            lambda: serves(stub, source, destination), LANE_TIMEOUT_S + 5, "the lane gives up and connects anew"
        )


async def test_follows_of_a_silent_shard_do_not_use_up_the_room_of_the_sources_shard(site: Site) -> None:
    """Each waits a second for its reverse half; meanwhile it needs nothing of its source's shard."""
    limit = 16
    near, far = site.accounts("s1", 40), site.accounts("s2", 1)[0]
    async with site.one_router({"max_calls_per_shard": limit}) as (_, stub):
        assert await serves(stub, near[0], near[1])
        with site.proxies["s2"].being(Mode.BLACKHOLE):
            owing = [asyncio.ensure_future(follow(stub, source, far)) for source in near[:limit]]
            await asyncio.sleep(0.2)
            assert not any(task.done() for task in owing)
            own = await asyncio.gather(
                *(follow(stub, near[30], other) for other in near[31:36]), return_exceptions=True
            )
            results = await asyncio.gather(*owing)
        assert [result for result in own if isinstance(result, BaseException)] == []
        assert all(result.reverse_pending for result in results)
    with site.relay():
        await settled(site.databases)
    audit(site.databases)


async def test_a_relay_whose_session_falls_silent_goes_on(site: Site) -> None:
    """The server leases the rows, the answer never comes; new connections are served."""
    ada, bo = site.accounts("s1", 1)[0], site.accounts("s2", 1)[0]
    async with site.one_router() as (_, stub):
        with site.proxies["s2"].being(Mode.CUT):
            assert (await follow(stub, ada, bo)).reverse_pending
    site.databases.do("UPDATE outbox SET due = now() + interval '1 hour'")
    with site.relay() as relay:
        await eventually(
            lambda: asyncio.to_thread(relay.reaches, site.databases.names), 10, "the relay reaches every shard"
        )
        proxy = site.proxies["s1"]
        proxy.trip = b"attempts = o.attempts + 1"
        proxy.cut()
        await eventually(lambda: proxy.mode is Mode.HOLD, 10, "the relay leases")
        site.databases.do("UPDATE outbox SET due = now()")
        proxy.forget()
        await settled(site.databases, 25)
    audit(site.databases)


async def test_a_relay_whose_idle_sessions_fall_silent_goes_on(site: Site) -> None:
    """Sessions that wait in a pool are asked whether they are well before they are used: that question too may stay unanswered."""
    ada, bo = site.accounts("s1", 1)[0], site.accounts("s2", 1)[0]
    async with site.one_router() as (_, stub):
        with site.proxies["s2"].being(Mode.CUT):
            assert (await follow(stub, ada, bo)).reverse_pending
    site.databases.do("UPDATE outbox SET due = now() + interval '1 hour'")
    with site.relay() as relay:
        await eventually(
            lambda: asyncio.to_thread(relay.reaches, site.databases.names), 10, "the relay reaches every shard"
        )
        proxy = site.proxies["s1"]
        proxy.set(Mode.HOLD)
        await asyncio.sleep(3)
        proxy.forget()
        site.databases.do("UPDATE outbox SET due = now()")
        await settled(site.databases, 30)
    audit(site.databases)
