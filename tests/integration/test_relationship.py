"""Requests, blocks and limits, as callers meet them: both halves, degrees by state, and the edge the other way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import pytest
import pytest_asyncio
from grpc import aio

from graphd.edge import State
from graphd.placement import slot_of
from graphd.v1 import graph_pb2 as pb
from tests.calls import declare_kind, follow, write_all
from tests.databases import Databases, audit, edges, problems
from tests.routers import GraphStub
from tests.waiting import eventually

MOST = 10


@pytest_asyncio.fixture(scope="module", loop_scope="session", autouse=True)
async def _kinds(graph: GraphStub, databases: Databases) -> None:
    await declare_kind([graph], databases, "pin", 7, max_out_degree=MOST)


@pytest.fixture(params=["one shard", "two shards"])
def pair(request: pytest.FixtureRequest, databases: Databases) -> tuple[int, int]:
    """Two accounts that nobody has named yet."""
    databases.clear()
    owners = databases.view.topology.owners
    shard = {account: owners[slot_of(account, databases.slots)] for account in range(1, 200)}
    ada = 1
    same = request.param == "one shard"
    return ada, next(account for account in range(2, 200) if (shard[account] == shard[ada]) is same)


def states(databases: Databases) -> dict[tuple[int, int], State]:
    """Every edge of kind follow, once both halves agree and nothing is owed."""
    audit(databases)
    return {key[:2]: State(version[1]) for key, version in edges(databases).items()}


def block(blocker: int, blocked: int, **more: object) -> pb.BlockRequest:
    return pb.BlockRequest(blocker_id=blocker, blocked_id=blocked, **more)  # type: ignore[arg-type]


async def refusal(call: aio.UnaryUnaryCall[Any, Any]) -> str:
    with pytest.raises(aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    return caught.value.details() or ""


async def test_a_request_is_accepted_or_rejected(graph: GraphStub, databases: Databases, pair: tuple[int, int]) -> None:
    ada, bo = pair
    names: dict[str, Any] = {"source_id": ada, "destination_id": bo}
    asked = (await graph.RequestFollow(pb.RequestFollowRequest(**names))).result
    assert (asked.outcome, asked.edge.state) == (pb.OUTCOME_APPLIED, pb.STATE_PENDING)
    waiting = await graph.ListFollowers(pb.ListFollowersRequest(account_id=bo, state=pb.STATE_PENDING))
    assert [edge.source_id for edge in waiting.edges] == [ada]
    assert (await graph.GetDegrees(pb.GetDegreesRequest(account_id=bo))).followers == 0
    declined = (await graph.RejectFollow(pb.RejectFollowRequest(**names))).result
    assert (declined.outcome, declined.edge.state) == (pb.OUTCOME_APPLIED, pb.STATE_REMOVED)
    assert "no pending request" in await refusal(graph.AcceptFollow(pb.AcceptFollowRequest(**names)))
    await graph.RequestFollow(pb.RequestFollowRequest(**names))
    accepted = (await graph.AcceptFollow(pb.AcceptFollowRequest(**names))).result
    assert (accepted.outcome, accepted.edge.state) == (pb.OUTCOME_APPLIED, pb.STATE_ACTIVE)
    assert (await graph.GetDegrees(pb.GetDegreesRequest(account_id=bo))).followers == 1
    await eventually(lambda: not problems(databases), what="nothing is owed")
    assert states(databases) == {(ada, bo): State.ACTIVE}


async def test_a_block_ends_both_follows(graph: GraphStub, databases: Databases, pair: tuple[int, int]) -> None:
    ada, bo = pair
    await write_all([graph], [follow(ada, bo), follow(bo, ada)])
    told = (await graph.Block(block(bo, ada))).result
    assert (told.outcome, told.edge.state, told.edge.source_id) == (pb.OUTCOME_APPLIED, pb.STATE_BLOCKED, ada)
    assert not told.reverse_pending
    # Both are seen at once by who asked, not after some time.
    for account, count in ((ada, 0), (bo, 0)):
        degrees = await graph.GetDegrees(pb.GetDegreesRequest(account_id=account))
        assert (degrees.followers, degrees.following) == (count, count)
    blocked = await graph.ListFollowers(pb.ListFollowersRequest(account_id=bo, state=pb.STATE_BLOCKED))
    assert [edge.source_id for edge in blocked.edges] == [ada]
    await eventually(lambda: not problems(databases), what="nothing is owed")
    assert states(databases) == {(ada, bo): State.BLOCKED, (bo, ada): State.REMOVED}
    again = (await graph.Block(block(bo, ada))).result
    assert again.outcome == pb.OUTCOME_UNCHANGED
    assert "blocked the source" in await refusal(graph.Follow(pb.FollowRequest(source_id=ada, destination_id=bo)))
    # The blocker may follow the blocked again, and no Block comes after that one.
    assert (await graph.Follow(pb.FollowRequest(source_id=bo, destination_id=ada))).result.outcome == pb.OUTCOME_APPLIED
    unblock = pb.UnblockRequest(blocker_id=bo, blocked_id=ada)
    assert (await graph.Unblock(unblock)).result.edge.state == pb.STATE_REMOVED
    assert "not blocked" in await refusal(graph.Unblock(unblock))
    assert (await graph.Follow(pb.FollowRequest(source_id=ada, destination_id=bo))).result.outcome == pb.OUTCOME_APPLIED
    await eventually(lambda: not problems(databases), what="nothing is owed")
    assert states(databases) == {(ada, bo): State.ACTIVE, (bo, ada): State.ACTIVE}


async def test_both_block_each_other(graph: GraphStub, databases: Databases, pair: tuple[int, int]) -> None:
    ada, bo = pair
    await write_all([graph], [follow(ada, bo), follow(bo, ada)])
    for _ in range(20):
        first, second = await asyncio.gather(graph.Block(block(bo, ada)), graph.Block(block(ada, bo)))
        assert {first.result.edge.state, second.result.edge.state} == {pb.STATE_BLOCKED}
        await eventually(lambda: not problems(databases), what="nothing is owed")
        assert states(databases) == {(ada, bo): State.BLOCKED, (bo, ada): State.BLOCKED}
        for blocker, blocked in ((bo, ada), (ada, bo)):
            await graph.Unblock(pb.UnblockRequest(blocker_id=blocker, blocked_id=blocked))


async def test_every_operation_in_a_batch(graph: GraphStub, databases: Databases, pair: tuple[int, int]) -> None:
    ada, bo = pair
    order = ("REQUEST", "ACCEPT", "UNFOLLOW", "FOLLOW", "BLOCK", "REJECT", "UNBLOCK", "REQUEST", "REJECT")
    writes = [pb.Write(operation=f"OPERATION_{name}", source_id=ada, destination_id=bo) for name in order]  # type: ignore[arg-type]
    answer = await graph.BatchWrite(pb.BatchWriteRequest(writes=writes))
    assert [(result.outcome, result.reason) for result in answer.results] == [
        (pb.OUTCOME_REFUSED, "NOT_PENDING") if name == "REJECT" and at == 5 else (pb.OUTCOME_APPLIED, "")
        for at, name in enumerate(order)
    ]
    await eventually(lambda: not problems(databases), what="nothing is owed")
    assert states(databases) == {(ada, bo): State.REMOVED, (bo, ada): State.REMOVED}


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.BlockRequest(blocked_id=1), "blocker_id"),
        (pb.BlockRequest(blocker_id=1), "blocked_id"),
        (pb.BlockRequest(blocker_id=1, blocked_id=-1), "blocked_id"),
        (pb.BlockRequest(blocker_id=1, blocked_id=1), "blocked_id"),
        (pb.BlockRequest(blocker_id=1, blocked_id=2, kind="none"), "kind"),
        (pb.BlockRequest(blocker_id=1, blocked_id=2, request_id=""), "request_id"),
    ],
)
async def test_bad_blocks_name_the_field(graph: GraphStub, request_: pb.BlockRequest, field: str) -> None:
    with pytest.raises(aio.AioRpcError) as caught:
        await graph.Block(request_)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (caught.value.details() or "").startswith(f"{field}: ")


async def limited(call: Callable[[], aio.UnaryUnaryCall[Any, Any]]) -> bool:
    """Whether a call is refused because the limit is reached; any other refusal fails."""
    try:
        answer = await call()
    except aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.FAILED_PRECONDITION and "as many edges" in (error.details() or ""):
            return True
        raise
    assert answer.result.outcome == pb.OUTCOME_APPLIED
    return False


async def test_a_limit_holds_for_64_writers_at_once(graphs: list[GraphStub], databases: Databases) -> None:
    databases.clear()
    await declare_kind(graphs, databases, "pin", 7, max_out_degree=MOST)

    def pin(source: int, destination: int) -> Callable[[], aio.UnaryUnaryCall[Any, Any]]:
        request = pb.FollowRequest(source_id=source, destination_id=destination, kind="pin")
        return lambda: graphs[destination % len(graphs)].Follow(request)

    for source in (3, 4):
        refused = await asyncio.gather(*(limited(pin(source, destination)) for destination in range(100, 164)))
        assert refused.count(False) == MOST
    # One goes, so one may come: of 64 that try it one succeeds.
    [kept, *_] = (await graphs[0].ListFollowing(pb.ListFollowingRequest(account_id=3, kind="pin"))).edges
    gone = pb.UnfollowRequest(source_id=3, destination_id=kept.destination_id, kind="pin")
    await graphs[1].Unfollow(gone)
    refused = await asyncio.gather(*(limited(pin(3, destination)) for destination in range(200, 264)))
    assert refused.count(False) == 1
    # Within one batch too; what asks for the same edge twice is one.
    writes = [follow(5, destination, kind="pin") for destination in (*range(300, 320), 300)]
    answer = await graphs[2].BatchWrite(pb.BatchWriteRequest(writes=writes))
    outcomes = [result.outcome for result in answer.results]
    assert outcomes.count(pb.OUTCOME_APPLIED) == MOST
    assert {result.reason for result in answer.results if result.outcome == pb.OUTCOME_REFUSED} == {"LIMIT_REACHED"}
    for source in (3, 4, 5):
        degrees = await graphs[0].GetDegrees(pb.GetDegreesRequest(account_id=source, kind="pin"))
        assert degrees.following == MOST
    await eventually(lambda: not problems(databases), what="nothing is owed")


async def test_a_refusal_at_the_limit_is_remembered(graph: GraphStub, databases: Databases) -> None:
    databases.clear()
    await write_all([graph], [follow(6, destination, kind="pin") for destination in range(400, 400 + MOST)])
    request = pb.FollowRequest(source_id=6, destination_id=500, kind="pin", request_id="late")
    first = await refusal(graph.Follow(request))
    await graph.Unfollow(pb.UnfollowRequest(source_id=6, destination_id=400, kind="pin"))
    assert await refusal(graph.Follow(request)) == first
    again = pb.FollowRequest(source_id=6, destination_id=500, kind="pin")
    assert (await graph.Follow(again)).result.outcome == pb.OUTCOME_APPLIED
