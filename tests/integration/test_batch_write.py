"""BatchWrite: each item for itself, writes of one edge in the order given."""

from __future__ import annotations

import random
from typing import Any

from graphd.clock import now_us
from graphd.v1 import graph_pb2 as pb
from tests.calls import follow, unfollow
from tests.databases import Databases, problems
from tests.routers import GraphStub
from tests.waiting import eventually

SEED = 20_251_130
A, U, S = pb.OUTCOME_APPLIED, pb.OUTCOME_UNCHANGED, pb.OUTCOME_STALE


async def batch(graph: GraphStub, *writes: pb.Write) -> list[pb.WriteResult]:
    return list((await graph.BatchWrite(pb.BatchWriteRequest(writes=writes))).results)


async def test_one_bad_item_does_not_fail_the_others(graph: GraphStub, databases: Databases) -> None:
    far = now_us() + 3_600_000_000
    bad: list[tuple[pb.Write, Any, str]] = [
        (pb.Write(operation=pb.OPERATION_FOLLOW, destination_id=2), pb.OUTCOME_REFUSED, "INVALID"),
        (follow(-1, 2), pb.OUTCOME_REFUSED, "INVALID"),
        (follow(1, -(2**63)), pb.OUTCOME_REFUSED, "INVALID"),
        (follow(3, 3), pb.OUTCOME_REFUSED, "INVALID"),
        (follow(1, 2, kind="nothing"), pb.OUTCOME_REFUSED, "INVALID"),
        (follow(1, 2, request_id="x" * 65), pb.OUTCOME_REFUSED, "INVALID"),
        (pb.Write(source_id=1, destination_id=2), pb.OUTCOME_REFUSED, "INVALID"),
        (pb.Write(operation=99, source_id=1, destination_id=2), pb.OUTCOME_REFUSED, "INVALID"),  # type: ignore[arg-type]
        (follow(1, 2, far), pb.OUTCOME_REFUSED, "OUT_OF_RANGE"),
        (follow(1, 2, 1), pb.OUTCOME_REFUSED, "OUT_OF_RANGE"),
        (follow(1, 2, 0, backfill=True), pb.OUTCOME_REFUSED, "OUT_OF_RANGE"),
    ]
    mixed = [write for at, (item, _, _) in enumerate(bad) for write in (follow(10 + at, 5), item)]
    results = await batch(graph, *mixed)
    assert [result.outcome for result in results[::2]] == [A] * len(bad)
    for result, (asked, outcome, reason) in zip(results[1::2], bad, strict=True):
        assert (result.outcome, result.reason) == (outcome, reason), asked
        # The result names the edge it speaks of, as far as it was named.
        assert result.edge.HasField("source_id") == asked.HasField("source_id")
        assert result.edge.destination_id == asked.destination_id
    degrees = await graph.GetDegrees(pb.GetDegreesRequest(account_id=5))
    assert degrees.followers == len(bad)
    await eventually(lambda: not problems(databases), what="halves, degrees and outbox agree")


async def test_only_bad_items(graph: GraphStub) -> None:
    results = await batch(graph, follow(-1, 2), follow(3, 3))
    assert [result.outcome for result in results] == [pb.OUTCOME_REFUSED] * 2


async def test_writes_of_one_edge_apply_in_order(graph: GraphStub) -> None:
    # F091: a key may come any number of times.
    results = await batch(graph, follow(100, 1), unfollow(100, 1), follow(100, 1), follow(100, 1), unfollow(100, 1))
    assert [result.outcome for result in results] == [A, A, A, U, A]
    positions = [result.edge.position for result in results]
    assert positions == sorted(set(positions))
    assert [result.edge.state for result in results] == [1, 6, 1, 1, 6]
    edge = (await graph.GetEdge(pb.GetEdgeRequest(source_id=100, destination_id=1))).edge
    assert edge == results[-1].edge


async def test_given_writes_of_one_edge(graph: GraphStub) -> None:
    now = now_us()
    asked = [
        (follow(200, 1, now), A),
        (unfollow(200, 1, now - 5), S),
        (follow(200, 1, now), U),
        (unfollow(200, 1, now), A),
        (follow(200, 1, now), S),
        (follow(200, 1, now + 1), A),
    ]
    results = await batch(graph, *(write for write, _ in asked))
    assert [result.outcome for result in results] == [outcome for _, outcome in asked]
    # F046: in a tie the one that shows less stands, and the loser is told what does.
    assert (results[4].edge.state, results[4].edge.position) == (pb.STATE_REMOVED, now)
    assert results[-1].edge.since == now + 1


async def test_a_thousand_writes_of_one_edge(graph: GraphStub, databases: Databases) -> None:
    writes = [(follow if at % 2 == 0 else unfollow)(300, 1) for at in range(1_000)]
    response = await graph.BatchWrite(pb.BatchWriteRequest(writes=writes), timeout=60)
    assert [result.outcome for result in response.results] == [A] * 1_000
    await eventually(lambda: not problems(databases), what="halves, degrees and outbox agree")


async def test_live_writes_against_a_model(graph: GraphStub, databases: Databases) -> None:
    # F010, and F049: whatever mixture of live and given writes, the last one acknowledged stands.
    chance = random.Random(SEED)
    state: dict[tuple[int, int], bool] = {}
    for _ in range(30):
        writes, expected = [], []
        for _ in range(100):
            pair = chance.randrange(1_000, 1_010), chance.randrange(1_000, 1_010)
            if pair[0] == pair[1]:
                continue
            on = chance.random() < 0.5
            writes.append((follow if on else unfollow)(*pair))
            expected.append(U if state.get(pair, False) is on else A)
            state[pair] = on
        results = await batch(graph, *writes)
        assert [result.outcome for result in results] == expected
    for account in range(1_000, 1_010):
        degrees = await graph.GetDegrees(pb.GetDegreesRequest(account_id=account))
        assert degrees.following == sum(on for (source, _), on in state.items() if source == account)
        assert degrees.followers == sum(on for (_, destination), on in state.items() if destination == account)
        page = await graph.ListFollowing(pb.ListFollowingRequest(account_id=account, view=pb.VIEW_IDS))
        assert set(page.ids) == {destination for (source, destination), on in state.items() if on and source == account}
    await eventually(lambda: not problems(databases), what="halves, degrees and outbox agree")


async def test_a_skewed_past_never_hides_the_last_write(graph: GraphStub) -> None:
    # F050: stored positions lie ahead of the clock; live writes go over them all the same.
    ahead = now_us() + 4_000_000
    await batch(graph, follow(400, 1, ahead))
    for at in range(20):
        on = at % 2 == 1
        request = {"source_id": 400, "destination_id": 1}
        answer = (
            (await graph.Follow(pb.FollowRequest(**request))).result  # type: ignore[arg-type]
            if on
            else (await graph.Unfollow(pb.UnfollowRequest(**request))).result  # type: ignore[arg-type]
        )
        assert answer.outcome == A
        assert answer.edge.position > ahead
        edge = (await graph.GetEdge(pb.GetEdgeRequest(source_id=400, destination_id=1))).edge
        assert edge == answer.edge
