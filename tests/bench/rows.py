"""The rows of the speed table that go through the router: what each calls, and what its floor is."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from graphd.v1 import graph_pb2 as pb
from tests.bench.data import Edge, Graph, WrongAnswerError, check_batch, check_result, follow_batch
from tests.bench.figures import Bound, Row, Target, compare, percentile
from tests.bench.load import Call, Load, alternate
from tests.bench.setting import TIMEOUT_S, Setting

if TYPE_CHECKING:
    from graphd.v1.graph_pb2_grpc import GraphServiceAsyncStub  # generated for type checkers only

LOOKUPS = 200
WRITES = 500
PAGE = 100
BATCHES_IN_FLIGHT = 8
"""Callers of batches at once: enough to keep both cores busy, as 64 are for single calls."""

LOOKED_UP = 50_000
"""Different edges that single calls look up, turn and turn about."""

CALLS_IN_FLIGHT = 64
DEEP_CALLS = 100
"""Calls of each kind in one round of the deep page, one after the other."""


@dataclass(frozen=True, slots=True)
class Bench:
    """All that a row needs."""

    setting: Setting
    graph: Graph
    ours: GraphServiceAsyncStub
    floor: GraphServiceAsyncStub
    windows: int
    seconds: float
    patience_s: float

    async def compare(self, target: Target, floor: Load, ours: Load, note: str = "") -> Row:
        pairs = await alternate(
            floor,
            ours,
            windows=self.windows,
            seconds=self.seconds,
            meter=self.setting.meter,
            patience_s=self.patience_s,
        )
        return compare(target, pairs, note)


Measure = Callable[[Bench, Target], Awaitable[Row]]


async def get_edge(bench: Bench, target: Target) -> Row:
    edges = bench.graph.random.sample(bench.graph.edges, min(LOOKED_UP, len(bench.graph.edges)))
    requests = itertools.cycle(
        [pb.GetEdgeRequest(source_id=source, destination_id=destination) for source, destination in edges]
    )
    return await bench.compare(target, Load(edge_call(bench.floor, requests)), Load(edge_call(bench.ours, requests)))


def edge_call(stub: GraphServiceAsyncStub, requests: Iterator[pb.GetEdgeRequest]) -> Call:
    async def call() -> None:
        answer = await stub.GetEdge(next(requests), timeout=TIMEOUT_S)
        if answer.edge.state != pb.STATE_ACTIVE:
            raise WrongAnswerError("an edge that was written is not ACTIVE")

    return call


async def list_followers(bench: Bench, target: Target) -> Row:
    requests = itertools.cycle(
        [pb.ListFollowersRequest(account_id=account, page_size=PAGE) for account in bench.graph.list_accounts]
    )

    def calls(stub: GraphServiceAsyncStub) -> Call:
        async def call() -> None:
            answer = await stub.ListFollowers(next(requests), timeout=TIMEOUT_S)
            if len(answer.edges) != PAGE:
                raise WrongAnswerError(f"a page of {len(answer.edges)} edges")

        return call

    return await bench.compare(target, Load(calls(bench.floor)), Load(calls(bench.ours)))


async def follow(bench: Bench, target: Target) -> Row:
    edges = bench.graph.new_edges()
    return await bench.compare(target, Load(follow_call(bench.floor, edges)), Load(follow_call(bench.ours, edges)))


def follow_call(stub: GraphServiceAsyncStub, edges: Iterator[Edge]) -> Call:
    async def call() -> None:
        source, destination = next(edges)
        answer = await stub.Follow(pb.FollowRequest(source_id=source, destination_id=destination), timeout=TIMEOUT_S)
        check_result(answer.result)

    return call


async def batch_get_edges(bench: Bench, target: Target) -> Row:
    edges = bench.graph.random.choices(bench.graph.edges, k=LOOKUPS * 100)
    requests = itertools.cycle(
        [
            pb.BatchGetEdgesRequest(
                edges=[
                    pb.EdgeKey(source_id=source, destination_id=destination)
                    for source, destination in edges[at : at + LOOKUPS]
                ]
            )
            for at in range(0, len(edges), LOOKUPS)
        ]
    )
    single = itertools.cycle(
        [pb.GetEdgeRequest(source_id=source, destination_id=destination) for source, destination in edges]
    )

    async def call() -> None:
        answer = await bench.ours.BatchGetEdges(next(requests), timeout=TIMEOUT_S)
        if sum(result.found for result in answer.results) != LOOKUPS:
            raise WrongAnswerError("an edge that was written is not found")

    return await bench.compare(target, Load(edge_call(bench.floor, single)), Load(call, BATCHES_IN_FLIGHT, LOOKUPS))


async def batch_write(bench: Bench, target: Target) -> Row:
    edges = bench.graph.new_edges()

    async def call() -> None:
        answer = await bench.ours.BatchWrite(follow_batch(itertools.islice(edges, WRITES)), timeout=TIMEOUT_S)
        check_batch(answer, WRITES)

    return await bench.compare(target, Load(follow_call(bench.floor, edges)), Load(call, BATCHES_IN_FLIGHT, WRITES))


async def celebrity(bench: Bench, target: Target) -> Row:
    """All follows to one account, against spread follows; both through the router. Her degree must be exact."""
    star = bench.graph.random.getrandbits(63)
    followed = 0
    edges = bench.graph.new_followers(star)
    to_star = follow_call(bench.ours, edges)

    async def call() -> None:
        nonlocal followed
        await to_star()
        followed += 1

    spread = Load(follow_call(bench.ours, bench.graph.new_edges()))
    row = await bench.compare(target, spread, Load(call))
    degrees = await bench.ours.GetDegrees(pb.GetDegreesRequest(account_id=star), timeout=TIMEOUT_S)
    [counted] = [
        n for (n,) in bench.setting.rows(f"SELECT count(*) FROM reverse WHERE owner_id = {star} AND state = 1") if n
    ]
    if not followed == degrees.followers == counted:
        raise WrongAnswerError(f"{followed} follows, a degree of {degrees.followers}, {counted} rows")
    return Row(row.target, row.value, row.values, row.ours, row.floor, f"degree exact: {followed:,}")


async def deep_page(bench: Bench, target: Target) -> Row:
    """The time of a page far down a long list, against the first page: one call at a time, turn about."""
    first = pb.ListFollowersRequest(account_id=bench.graph.cy, page_size=PAGE)
    deep = pb.ListFollowersRequest(account_id=bench.graph.cy, page_size=PAGE)
    deep.page_token = await _token(bench.ours, bench.graph.cy, PAGE * (bench.graph.sizes.deep_page - 1))

    async def timed(request: pb.ListFollowersRequest) -> float:
        began = time.perf_counter()
        answer = await bench.ours.ListFollowers(request, timeout=TIMEOUT_S)
        took_s = time.perf_counter() - began
        if len(answer.edges) != PAGE:
            raise WrongAnswerError(f"a page of {len(answer.edges)} edges")
        return took_s

    ratios: list[float] = []
    firsts: list[float] = []
    deeps: list[float] = []
    for _ in range(bench.windows + 1):
        pairs = [(await timed(first), await timed(deep)) for _ in range(DEEP_CALLS)]
        firsts += [of_first for of_first, _ in pairs]
        deeps += [of_deep for _, of_deep in pairs]
        ratios.append(median(of_deep for _, of_deep in pairs) / median(of_first for of_first, _ in pairs))
    note = (
        f"page 1: p50 {1000 * median(firsts):.2f} ms, p99 {1000 * percentile(firsts, 0.99):.2f} ms; page "
        f"{bench.graph.sizes.deep_page:,}: p50 {1000 * median(deeps):.2f} ms, p99 {1000 * percentile(deeps, 0.99):.2f} ms"
    )
    return Row(target, median(ratios[1:]), ratios[1:], note=note)  # the first round was the warm-up


async def _token(stub: GraphServiceAsyncStub, account_id: int, skip: int) -> str:
    """The token of the page that begins after so many followers."""
    request = pb.ListFollowersRequest(account_id=account_id, view=pb.VIEW_IDS)
    while skip:
        request.page_size = min(skip, 1_000)
        answer = await stub.ListFollowers(request, timeout=TIMEOUT_S)
        skip -= len(answer.ids)
        request.page_token = answer.next_page_token
        if not answer.next_page_token:
            raise WrongAnswerError("the list is shorter than it should be")
    return request.page_token


async def memory(bench: Bench, target: Target) -> Row:
    """The router's resident memory with 64 calls of each kind in flight, the most that was seen."""
    graph, seen = bench.graph, [bench.setting.meter.rss_mb("router")]
    requests = itertools.cycle([pb.ListFollowersRequest(account_id=a, page_size=1000) for a in graph.list_accounts])

    async def page() -> None:
        await bench.ours.ListFollowers(next(requests), timeout=TIMEOUT_S)

    edges = graph.new_edges()
    for call in (page, follow_call(bench.ours, edges)):
        stop = time.perf_counter() + bench.seconds

        async def worker(call: Call = call, stop: float = stop) -> None:
            while time.perf_counter() < stop:
                await call()

        async with asyncio.TaskGroup() as group:
            for _ in range(CALLS_IN_FLIGHT):
                group.create_task(worker())
            while time.perf_counter() < stop:
                seen.append(bench.setting.meter.rss_mb("router"))
                await asyncio.sleep(0.1)
    return Row(target, max(seen), note="the router after all the rows before it")


ROWS: dict[Target, Measure] = {
    Target("get-edge", "GetEdge, 64 in flight, against echo", Bound.AT_LEAST, 0.9): get_edge,
    Target(
        "list-followers", "ListFollowers, page of 100, against echo of 100 edges", Bound.AT_LEAST, 0.8
    ): list_followers,
    Target("follow", "Follow, both halves durable, against echo", Bound.AT_LEAST, 0.5): follow,
    Target(
        "batch-get-edges", "BatchGetEdges of 200, per lookup, against echo per call", Bound.AT_LEAST, 15
    ): batch_get_edges,
    Target("batch-write", "BatchWrite of 500, per edge, against echo per call", Bound.AT_LEAST, 5): batch_write,
    Target("celebrity", "all follows to one account, against spread follows", Bound.AT_LEAST, 0.9): celebrity,
    Target("deep-page", "time of page 1,000 of a list, against page 1", Bound.AT_MOST, 1.1): deep_page,
    Target("router-memory", "memory of the router at 64 in flight", Bound.AT_MOST, 200, "MB"): memory,
}
