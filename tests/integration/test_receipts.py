"""request_id: the first answer again, whoever asks, and never applied twice."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2

from graphd.clock import now_us
from graphd.v1 import graph_pb2 as pb
from tests.calls import follow, refused, unfollow
from tests.databases import Databases, problems
from tests.routers import GraphStub, detail
from tests.waiting import eventually

fresh = itertools.count(1_000, 10)
"""Accounts nobody has used yet."""


def request(source: int, destination: int, request_id: str = "r", **more: Any) -> pb.FollowRequest:
    return pb.FollowRequest(source_id=source, destination_id=destination, request_id=request_id, **more)


def same_but_duplicate(answer: pb.WriteResult, first: pb.WriteResult) -> None:
    """The answer is the first one, flagged."""
    assert not first.duplicate
    assert answer.duplicate
    assert (answer.edge, answer.outcome, answer.reason) == (first.edge, first.outcome, first.reason)


async def test_the_first_answer_again_through_any_router(graphs: list[GraphStub]) -> None:
    ada = next(fresh)
    first = (await graphs[0].Follow(request(ada, ada + 1))).result
    assert first.outcome == pb.OUTCOME_APPLIED
    # What happened since does not matter: answered as at first.
    await graphs[1].Unfollow(pb.UnfollowRequest(source_id=ada, destination_id=ada + 1))
    for graph in graphs:
        same_but_duplicate((await graph.Follow(request(ada, ada + 1))).result, first)
    edge = await graphs[0].GetEdge(pb.GetEdgeRequest(source_id=ada, destination_id=ada + 1))
    assert edge.edge.state == pb.STATE_REMOVED


async def test_other_input_is_aborted(graphs: list[GraphStub]) -> None:
    ada = next(fresh)
    now = now_us()
    first = await graphs[0].Follow(request(ada, ada + 1))
    others = [
        graphs[1].Follow(request(ada, ada + 2)),
        graphs[1].Follow(request(ada, ada + 1, position=now)),
        graphs[2].Unfollow(pb.UnfollowRequest(source_id=ada, destination_id=ada + 1, request_id="r")),
    ]
    for call in others:
        error = await refused(call, grpc.StatusCode.ABORTED)
        info = detail(error, error_details_pb2.ErrorInfo)
        assert info is not None
        assert info.reason == "REQUEST_ID_REUSED"
    same_but_duplicate((await graphs[2].Follow(request(ada, ada + 1))).result, first.result)
    degrees = await graphs[0].GetDegrees(pb.GetDegreesRequest(account_id=ada))
    assert degrees.following == 1


async def test_ids_are_the_acting_account_s_own(graphs: list[GraphStub]) -> None:
    ada, bo = next(fresh), next(fresh)
    answers = [await graphs[0].Follow(request(source, ada + 5)) for source in (ada, bo)]
    assert [answer.result.duplicate for answer in answers] == [False, False]


@pytest.mark.parametrize("which", range(4))
async def test_concurrent_twins_apply_once(graphs: list[GraphStub], databases: Databases, which: int) -> None:
    # F016: 32 concurrent Follows with one request id are one write and 31 duplicates.
    ada = next(fresh)
    answers = await asyncio.gather(*(graphs[i % 3].Follow(request(ada, ada + 1 + which)) for i in range(32)))
    results = [answer.result for answer in answers]
    [first] = [result for result in results if not result.duplicate]
    assert first.outcome == pb.OUTCOME_APPLIED
    for result in results:
        if result is not first:
            same_but_duplicate(result, first)
    assert len(databases.all_rows("SELECT FROM receipts WHERE actor_id = %(id)s", {"id": ada})) == 1
    await eventually(lambda: not problems(databases), what="halves, degrees and outbox agree")


async def test_concurrent_follows_without_an_id_apply_once(graphs: list[GraphStub]) -> None:
    ada = next(fresh)
    unnamed = pb.FollowRequest(source_id=ada, destination_id=ada + 1)
    answers = await asyncio.gather(*(graphs[i % 3].Follow(unnamed) for i in range(32)))
    outcomes = [answer.result.outcome for answer in answers]
    assert outcomes.count(pb.OUTCOME_APPLIED) == 1
    assert outcomes.count(pb.OUTCOME_UNCHANGED) == 31


async def test_unchanged_and_stale_are_remembered_too(graphs: list[GraphStub]) -> None:
    ada = next(fresh)
    now = now_us()
    cases = [
        (request(ada, ada + 1, "stale", position=now - 5), pb.OUTCOME_STALE),
        (request(ada, ada + 2, "equal", position=now), pb.OUTCOME_UNCHANGED),
        (request(ada, ada + 3, "again"), pb.OUTCOME_UNCHANGED),
    ]
    for asked, outcome in cases:
        destination = asked.destination_id
        await graphs[0].Follow(request(ada, destination, f"first {destination}", position=now))
        first = (await graphs[0].Follow(asked)).result
        assert (first.outcome, first.edge.state) == (outcome, pb.STATE_ACTIVE)
        await graphs[1].Unfollow(pb.UnfollowRequest(source_id=ada, destination_id=destination))
        same_but_duplicate((await graphs[2].Follow(asked)).result, first)


async def test_concurrent_twins_of_a_stale_write(graphs: list[GraphStub]) -> None:
    ada = next(fresh)
    now = now_us()
    await graphs[0].Follow(request(ada, ada + 1, "first", position=now))
    asked = request(ada, ada + 1, "stale", position=now - 5)
    answers = await asyncio.gather(*(graphs[i % 3].Follow(asked) for i in range(32)))
    assert [answer.result.outcome for answer in answers] == [pb.OUTCOME_STALE] * 32
    assert sum(not answer.result.duplicate for answer in answers) == 1


async def test_within_one_batch(graphs: list[GraphStub]) -> None:
    ada = next(fresh)
    writes = [
        follow(ada, ada + 1, request_id="a"),
        follow(ada, ada + 1, request_id="a"),
        follow(ada, ada + 2, request_id="a"),
        unfollow(ada, ada + 3, request_id="b"),
        unfollow(ada, ada + 3, request_id="b"),
        follow(ada, ada + 4, request_id="c"),
    ]
    for round_ in range(2):
        results = (await graphs[round_].BatchWrite(pb.BatchWriteRequest(writes=writes))).results
        assert [(result.outcome, result.duplicate) for result in results] == [
            (pb.OUTCOME_APPLIED, round_ > 0),
            (pb.OUTCOME_APPLIED, True),
            (pb.OUTCOME_FAILED, False),
            (pb.OUTCOME_UNCHANGED, round_ > 0),
            (pb.OUTCOME_UNCHANGED, True),
            (pb.OUTCOME_APPLIED, round_ > 0),
        ]
        assert results[2].reason == "ABORTED"


@pytest.mark.parametrize(
    "request_id", ["x", "x" * 64, "ü" * 64, "\U0001f426", '{"a\\",}', "NULL", "'; --", " ", "\x7f\n"]
)
async def test_ids_of_every_spelling(graphs: list[GraphStub], request_id: str) -> None:
    ada = next(fresh)
    first = (await graphs[0].Follow(request(ada, ada + 1, request_id))).result
    same_but_duplicate((await graphs[1].Follow(request(ada, ada + 1, request_id))).result, first)
    other = (await graphs[1].Follow(request(ada, ada + 1, request_id[1:] + "y"))).result
    assert not other.duplicate
