"""Kinds are graphs of their own; a kind may allow an account to be at both ends."""

from __future__ import annotations

import pytest_asyncio

from graphd.v1 import graph_pb2 as pb
from tests.calls import declare_kind, follow, refused, unfollow, write_all
from tests.databases import Databases, problems
from tests.routers import GraphStub
from tests.waiting import eventually

ADA, BO = 1, 2


@pytest_asyncio.fixture(scope="module", loop_scope="session", autouse=True)
async def _kinds(graph: GraphStub, databases: Databases) -> None:
    await declare_kind([graph], databases, "mute", 2)
    await declare_kind([graph], databases, "favourite", 32_767, allow_self=True)


async def test_kinds_are_apart(graph: GraphStub, databases: Databases) -> None:
    # F014: the same pair in three kinds is one in each, and never three.
    kinds = ("follow", "mute", "favourite")
    await write_all([graph], [follow(ADA, BO, kind=kind) for kind in kinds])
    await write_all([graph], [unfollow(ADA, BO, kind="mute")])
    for kind, count in (("", 1), ("follow", 1), ("mute", 0), ("favourite", 1)):
        degrees = await graph.GetDegrees(pb.GetDegreesRequest(account_id=BO, kind=kind))
        assert degrees.followers == count
        page = await graph.ListFollowers(pb.ListFollowersRequest(account_id=BO, kind=kind))
        assert [(edge.source_id, edge.kind) for edge in page.edges] == [(ADA, kind or "follow")] * count
        edge = await graph.GetEdge(pb.GetEdgeRequest(source_id=ADA, destination_id=BO, kind=kind))
        assert edge.edge.state == (pb.STATE_ACTIVE if count else pb.STATE_REMOVED)
    keys = [pb.EdgeKey(source_id=ADA, destination_id=BO, kind=kind) for kind in kinds]
    found = await graph.BatchGetEdges(pb.BatchGetEdgesRequest(edges=keys))
    assert [(result.edge.kind, result.edge.state) for result in found.results] == [
        ("follow", pb.STATE_ACTIVE), ("mute", pb.STATE_REMOVED), ("favourite", pb.STATE_ACTIVE)
    ]  # fmt: skip
    operands = [pb.Operand(followers_of=pb.ListOperand(account_id=BO, kind=kind)) for kind in ("follow", "favourite")]
    assert list((await graph.Intersect(pb.IntersectRequest(operands=operands))).ids) == [ADA]
    operands[1].followers_of.kind = "mute"
    assert list((await graph.Intersect(pb.IntersectRequest(operands=operands))).ids) == []
    await eventually(lambda: not problems(databases), what="halves, degrees and outbox agree")


async def test_self_edges_where_the_kind_allows_them(graph: GraphStub, databases: Databases) -> None:
    request = pb.FollowRequest(source_id=7, destination_id=7, kind="favourite")
    assert (await graph.Follow(request)).result.outcome == pb.OUTCOME_APPLIED
    assert (await graph.Follow(request)).result.outcome == pb.OUTCOME_UNCHANGED
    degrees = await graph.GetDegrees(pb.GetDegreesRequest(account_id=7, kind="favourite"))
    assert (degrees.followers, degrees.following) == (1, 1)
    page = await graph.ListFollowers(pb.ListFollowersRequest(account_id=7, kind="favourite"))
    assert [(edge.source_id, edge.destination_id) for edge in page.edges] == [(7, 7)]
    await graph.Unfollow(pb.UnfollowRequest(source_id=7, destination_id=7, kind="favourite"))
    await eventually(lambda: not problems(databases), what="halves, degrees and outbox agree")
    for kind in ("", "mute"):
        await refused(graph.Follow(pb.FollowRequest(source_id=7, destination_id=7, kind=kind)), field="destination_id")


async def test_a_kind_s_name_is_told_when_it_is_wrong(graph: GraphStub) -> None:
    error = await refused(graph.Follow(pb.FollowRequest(source_id=ADA, destination_id=BO, kind="mut")), field="kind")
    assert "favourite, follow, mute" in (error.details() or "")
