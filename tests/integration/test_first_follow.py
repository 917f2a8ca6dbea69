"""The thin path: a Follow through the router, and back through every read."""

from __future__ import annotations

from graphd.v1 import graph_pb2 as pb
from tests.databases import Databases, edges, problems
from tests.routers import GraphStub
from tests.waiting import eventually

ADA, BO, CY = 1, 2, 3


async def test_whoever_followed_is_in_the_list(graph: GraphStub, databases: Databases) -> None:
    for source in (ADA, BO):
        answer = await graph.Follow(pb.FollowRequest(source_id=source, destination_id=CY))
        assert answer.result.outcome == pb.OUTCOME_APPLIED
        assert not answer.result.reverse_pending
        page = await graph.ListFollowers(pb.ListFollowersRequest(account_id=CY))
        assert page.edges[0] == answer.result.edge
    degrees = await graph.GetDegrees(pb.GetDegreesRequest(account_id=CY))
    assert (degrees.followers, degrees.following) == (2, 0)
    edge = await graph.GetEdge(pb.GetEdgeRequest(source_id=ADA, destination_id=CY))
    assert edge.edge.state == pb.STATE_ACTIVE
    await graph.Unfollow(pb.UnfollowRequest(source_id=ADA, destination_id=CY))
    page = await graph.ListFollowers(pb.ListFollowersRequest(account_id=CY, view=pb.VIEW_IDS))
    assert list(page.ids) == [BO]
    await eventually(lambda: not problems(databases), what="halves, degrees and outbox agree")
    assert len(edges(databases)) == 2
