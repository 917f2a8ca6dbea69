"""More work than a shard can take: the excess is refused at once, the rest is served, and afterwards all is as before."""

from __future__ import annotations

import asyncio
from collections import Counter

import grpc
from google.rpc import error_details_pb2
from grpc import aio

from graphd.v1 import graph_pb2 as pb
from tests.databases import audit
from tests.routers import GraphStub, RouterProcess, detail
from tests.simulation.calls import follow, health_s, is_edge, serves, steady
from tests.simulation.check import settled
from tests.simulation.cluster import Site
from tests.simulation.proxy import Mode
from tests.waiting import eventually

LIMIT = 32
HEALTH_S = 0.1
AT_ONCE_S = 0.5
GROWTH_BYTES = 24 * 1024 * 1024


def rss(router: RouterProcess) -> int:
    """Resident memory, as the router itself tells it."""
    return int(router.metric("process_resident_memory_bytes"))


async def attempt(stub: GraphStub, source: int, destination: int, timeout_s: float) -> tuple[str, float]:
    """One Follow: how it ended, and after how many seconds. A refusal must say when to come back."""
    clock = asyncio.get_running_loop().time
    began = clock()
    try:
        await follow(stub, source, destination, timeout_s)
    except aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
            hint = detail(error, error_details_pb2.RetryInfo)
            assert hint is not None
            assert 0 < hint.retry_delay.ToTimedelta().total_seconds() <= 5
        return error.code().name, clock() - began
    return "OK", clock() - began


async def test_a_slow_shard_sheds_and_recovers(site: Site) -> None:
    sources, bo = site.accounts("s2", 300), site.accounts("s2", 1, first=50_000)[0]
    mine = site.accounts("s1", 4)
    async with site.one_router({"max_calls_per_shard": LIMIT}) as (router, stub):
        assert await serves(stub, sources[0], bo)
        async with steady(stub, [(mine[0], mine[1]), (mine[2], mine[3])], 2) as others:
            site.proxies["s2"].delay_s = 0.5
            answers = await asyncio.gather(*(attempt(stub, source, bo, 8) for source in sources))
            site.proxies["s2"].delay_s = 0.0
        counts = Counter(code for code, _ in answers)
        assert set(counts) == {"OK", "RESOURCE_EXHAUSTED"}, counts
        assert counts["OK"] >= LIMIT
        refused = sorted(took for code, took in answers if code == "RESOURCE_EXHAUSTED")
        assert refused[len(refused) // 2] < AT_ONCE_S
        assert not others.failures, f"{len(others.failures)} of {others.calls}: {others.failures[:3]}"
        assert await serves(stub, sources[1], bo)
        assert router.metric("graphd_calls_shed_total") == counts["RESOURCE_EXHAUSTED"]
    with site.relay():
        await settled(site.databases)
    audit(site.databases)


async def test_a_silent_shard_sheds_recovers_and_holds_no_memory(site: Site) -> None:
    sources, bo = site.accounts("s2", 400), site.accounts("s2", 1, first=50_000)[0]
    mine = site.accounts("s1", 4)
    async with site.one_router({"max_calls_per_shard": LIMIT, "lane_timeout_s": 20}) as (router, stub):
        assert await serves(stub, sources[0], bo)
        before = 0
        with site.proxies["s2"].being(Mode.BLACKHOLE):
            async with steady(stub, [(mine[0], mine[1]), (mine[2], mine[3])], 2) as others:
                first = await asyncio.gather(*(attempt(stub, source, bo, 1) for source in sources))
                assert Counter(code for code, _ in first) == {
                    "DEADLINE_EXCEEDED": LIMIT,
                    "RESOURCE_EXHAUSTED": len(sources) - LIMIT,
                }
                latencies = await health_s(router)
                assert latencies[len(latencies) // 2] < HEALTH_S
                before = await asyncio.to_thread(rss, router)
                for _ in range(20):
                    await asyncio.gather(*(attempt(stub, source, bo, 0.1) for source in sources))
                grown = await asyncio.to_thread(rss, router) - before
            assert not others.failures, f"{len(others.failures)} of {others.calls}: {others.failures[:3]}"
        await eventually(lambda: serves(stub, sources[1], bo), 2, "service resumes")
        answers = [await attempt(stub, source, bo, 5) for source in sources[:50]]
        assert {code for code, _ in answers} == {"OK"}
        assert grown < GROWTH_BYTES, f"grew by {grown / 2**20:.0f} MiB"
    with site.relay():
        await settled(site.databases)
    audit(site.databases)


async def test_calls_to_a_shard_that_is_down_leave_nothing_behind(site: Site, is_long: bool) -> None:
    """Each is refused at once; none may leave a trace in memory."""
    ada, bo = site.accounts("s2", 2)
    calls = 200_000 if is_long else 6_000
    async with site.one_router() as (router, stub):
        assert await serves(stub, ada, bo)
        with site.proxies["s2"].being(Mode.CUT):
            await eventually(lambda: asyncio.to_thread(lambda: not router.serves("s2")), 10, "health tells of s2")

            async def refused(count: int) -> Counter[str]:
                found: Counter[str] = Counter()
                for _ in range(count):
                    code, _ = await attempt(stub, ada, bo, 5)
                    found[code] += 1
                return found

            await asyncio.gather(*(refused(100) for _ in range(16)))
            before = await asyncio.to_thread(rss, router)
            counts = sum(await asyncio.gather(*(refused(calls // 16) for _ in range(16))), Counter[str]())
            grown = await asyncio.to_thread(rss, router) - before
        assert set(counts) == {"UNAVAILABLE"}
        assert grown < 4 * 1024 * 1024, f"{sum(counts.values())} calls grew the router by {grown / 2**20:.1f} MiB"
        await eventually(lambda: serves(stub, ada, bo), 2, "service resumes")


async def test_short_deadlines_and_cancelled_calls_leave_nothing_behind(site: Site, is_long: bool) -> None:
    """F083, F097: 10 ms each against a shard that takes half a second, then normal traffic at normal speed."""
    ada, bo = site.accounts("s2", 2)
    rounds = 25 if is_long else 5
    request = pb.ListFollowersRequest(account_id=bo)
    clock = asyncio.get_running_loop().time
    async with site.one_router() as (router, stub):
        assert await serves(stub, ada, bo)

        async def hasty(number: int) -> str:
            call = stub.ListFollowers(request, timeout=0.01 if number % 2 else 5)
            if number % 2 == 0:
                await asyncio.sleep(0.01)
                call.cancel()
            try:
                await call
            except aio.AioRpcError as error:
                return error.code().name
            except asyncio.CancelledError:
                return "CANCELLED"
            return "OK"

        site.proxies["s2"].delay_s = 0.25
        for _ in range(rounds):
            codes = set(await asyncio.gather(*(hasty(number) for number in range(200))))
            assert codes <= {"CANCELLED", "DEADLINE_EXCEEDED"}
        site.proxies["s2"].delay_s = 0.0
        await eventually(lambda: _idle(router), 10, "no call is left")
        assert await is_edge(stub, ada, bo)
        began = clock()
        for _ in range(20):
            assert await is_edge(stub, ada, bo)
        assert (clock() - began) / 20 < 0.1
        assert router.metric('graphd_shard_calls{shard="s2"}') == 0


async def _idle(router: RouterProcess) -> bool:
    return await asyncio.to_thread(router.metric, "graphd_calls_in_flight") == 0
