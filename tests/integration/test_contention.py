"""Many callers at one edge and one account, through three routers: degrees are what the edges say, at every moment."""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest

from graphd.v1 import graph_pb2 as pb
from tests.calls import follow, write_all
from tests.databases import Databases, audit, edges, problems
from tests.routers import GraphStub
from tests.waiting import eventually

ROUNDS, LONG_ROUNDS = 60, 200
PARALLEL = 50
SEED = 20_251_130
ADA, CY = 1, 2


async def degree(graph: GraphStub, source: int, destination: int) -> tuple[int, int]:
    """(following of the source, followers of the destination)."""
    request = pb.BatchGetDegreesRequest(account_ids=[source, destination])
    first, second = (await graph.BatchGetDegrees(request)).results
    return first.following, second.followers


async def toggle(graph: GraphStub, on: bool) -> pb.WriteResult:
    """Follow or Unfollow of the one edge."""
    if on:
        return (await graph.Follow(pb.FollowRequest(source_id=ADA, destination_id=CY))).result
    return (await graph.Unfollow(pb.UnfollowRequest(source_id=ADA, destination_id=CY))).result


@pytest.mark.timeout(240)
async def test_follow_and_unfollow_of_one_edge_at_once(
    graphs: list[GraphStub], databases: Databases, is_long: bool
) -> None:
    chance = random.Random(SEED)
    seen: set[int] = set()
    ended = asyncio.Event()

    async def watch() -> None:
        while not ended.is_set():
            seen.update(await degree(chance.choice(graphs), ADA, CY))

    watching = asyncio.create_task(watch())
    for _ in range(LONG_ROUNDS if is_long else ROUNDS):
        # Every call succeeds: an error of any code ends the test here.
        answers = await asyncio.gather(
            *(toggle(graph, chance.random() < 0.5) for graph in chance.choices(graphs, k=PARALLEL))
        )
        assert not any(answer.reverse_pending for answer in answers)
        edge = (await graphs[0].GetEdge(pb.GetEdgeRequest(source_id=ADA, destination_id=CY))).edge
        last = max(answers, key=lambda answer: answer.edge.position).edge
        assert (edge.position, edge.state) == (last.position, last.state)
        # No two operations got one version, and those that changed the edge took turns.
        assert len({answer.edge.position for answer in answers}) == PARALLEL
        applied = sorted((a.edge.position, a.edge.state) for a in answers if a.outcome == pb.OUTCOME_APPLIED)
        assert all(a[1] != b[1] for a, b in itertools.pairwise(applied))
        active = int(edge.state == pb.STATE_ACTIVE)
        assert await degree(chance.choice(graphs), ADA, CY) == (active, active)
    ended.set()
    await watching
    assert seen <= {0, 1}
    await eventually(lambda: not problems(databases), what="halves, degrees and outbox agree")


async def test_a_second_unfollow_takes_nothing_off(graphs: list[GraphStub], databases: Databases) -> None:
    # F001, F002: the degree row itself, not what a read makes of it.
    source, destination = 101, 102
    await graphs[0].Follow(pb.FollowRequest(source_id=source, destination_id=destination))
    calls = [
        graphs[i % 3].Unfollow(pb.UnfollowRequest(source_id=source, destination_id=destination)) for i in range(50)
    ]
    outcomes = [answer.result.outcome for answer in await asyncio.gather(*calls)]
    assert outcomes.count(pb.OUTCOME_APPLIED) == 1
    assert outcomes.count(pb.OUTCOME_UNCHANGED) == 49
    rows = databases.all_rows(
        "SELECT direction, state, degree FROM degrees WHERE owner_id IN (101, 102) ORDER BY direction, state"
    )
    assert rows == [(1, 1, 0), (1, 6, 1), (2, 1, 0), (2, 6, 1)]
    await graphs[1].Follow(pb.FollowRequest(source_id=source, destination_id=destination))
    assert await degree(graphs[2], source, destination) == (1, 1)


async def test_a_storm_on_one_account_is_counted_exactly(graphs: list[GraphStub], databases: Databases) -> None:
    # F004, and the celebrity's first followers (F005): her rows are not there when they all arrive.
    for celebrity in range(3_000_000, 3_000_005):
        calls = [graphs[i % 3].Follow(pb.FollowRequest(source_id=i, destination_id=celebrity)) for i in range(300)]
        answers = await asyncio.gather(*calls)
        assert all(answer.result.outcome == pb.OUTCOME_APPLIED for answer in answers)
        assert await degree(graphs[0], 0, celebrity) == ((await degree(graphs[1], 0, celebrity))[0], 300)
    await eventually(lambda: not problems(databases), what="halves, degrees and outbox agree")


async def test_first_follows_of_new_accounts(graphs: list[GraphStub]) -> None:
    # F005: eight first followers of each of 300 new accounts at once.
    calls = [
        graphs[follower % 3].Follow(pb.FollowRequest(source_id=4_000_000 + follower, destination_id=account))
        for account in range(5_000_000, 5_000_300)
        for follower in range(8)
    ]
    await asyncio.gather(*calls)
    degrees = await graphs[0].BatchGetDegrees(pb.BatchGetDegreesRequest(account_ids=range(5_000_000, 5_000_300)))
    assert [found.followers for found in degrees.results] == [8] * 300


async def test_batches_of_one_set_of_edges_in_other_orders(graphs: list[GraphStub], databases: Databases) -> None:
    # F092: bulk upserts that cross each other sort their rows, so none of them deadlocks the others.
    chance = random.Random(SEED)
    pairs = [
        (source, destination) for source in range(6_000_000, 6_000_020) for destination in range(7_000_000, 7_000_050)
    ]
    shuffled = [chance.sample(pairs, len(pairs)) for _ in graphs]
    await asyncio.gather(
        *(
            write_all([graph], [follow(source, destination) for source, destination in order], size=250)
            for graph, order in zip(graphs, shuffled, strict=True)
        )
    )
    await eventually(lambda: not problems(databases), what="halves, degrees and outbox agree")
    stored = edges(databases)
    assert sum(1 for source, destination, _ in stored if (source, destination) in set(pairs)) == 1_000
    audit(databases)
