"""Kinds are graphs of their own; a kind may allow an account to be at both ends."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
import pytest_asyncio

from graphd.errors import InvalidArgumentError
from graphd.storage.catalog import Catalog
from graphd.topology import Kind
from graphd.v1 import graph_pb2 as pb
from tests.calls import declare_kind, follow, refused, unfollow, write_all
from tests.databases import Databases, problems
from tests.routers import GraphStub
from tests.waiting import eventually

ADA, BO = 1, 2


@pytest_asyncio.fixture(scope="module", loop_scope="session", autouse=True)
async def _kinds(graph: GraphStub, databases: Databases) -> None:
    await declare_kind([graph], databases, "mute", 2)
    await declare_kind([graph], databases, "favourite", 32_000, allow_self=True)


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


async def test_a_kind_is_usable_at_once(graphs: list[GraphStub], databases: Databases) -> None:
    """By every router that runs, in every call that names it, without waiting to hear of it."""
    catalog = Catalog(databases.catalog)
    for number, graph in enumerate(graphs):
        name = f"k{number}"
        await catalog.add_kind(Kind(0, name, max_out_degree=2))
        request = pb.FollowRequest(source_id=ADA, destination_id=BO, kind=name)
        assert (await graph.Follow(request)).result.outcome == pb.OUTCOME_APPLIED
    for number, graph in enumerate(graphs):
        name = f"b{number}"
        await catalog.add_kind(Kind(0, name))
        answer = await graph.BatchWrite(pb.BatchWriteRequest(writes=[follow(ADA, BO, kind=name), follow(ADA, BO)]))
        assert answer.results[0].outcome == pb.OUTCOME_APPLIED
    for number, graph in enumerate(graphs):
        name = f"s{number}"
        await catalog.add_kind(Kind(0, name))
        answers = [answer async for answer in graph.StreamFollowers(pb.StreamFollowersRequest(account_id=1, kind=name))]
        assert [list(answer.ids) for answer in answers] == [[]]


async def test_an_unknown_kind_is_told_the_known_ones(graph: GraphStub) -> None:
    for _ in range(5):
        error = await refused(graph.Follow(pb.FollowRequest(source_id=1, destination_id=2, kind="none")))
        assert (error.details() or "").startswith("kind: must be one of ")
        assert {"follow", "mute", "favourite"} <= set((error.details() or "").replace(",", "").split())


async def test_kinds_declared_at_once(databases: Databases) -> None:
    catalog = Catalog(databases.catalog)
    epoch = (await catalog.load()).topology.epoch
    names = [f"many{n}" for n in range(8)]
    added = await asyncio.gather(*(catalog.add_kind(Kind(0, name)) for name in names * 2))
    assert len({kind.number for kind in added}) == len(names)
    topology = (await catalog.load()).topology
    assert {kind.name: kind for kind in added} == {name: topology.kinds[name] for name in names}
    assert topology.epoch == epoch + len(names)


async def test_changing_a_kind(databases: Databases) -> None:
    catalog = Catalog(databases.catalog)
    made = await catalog.add_kind(Kind(0, "changing", max_out_degree=5))
    with pytest.raises(InvalidArgumentError, match="other settings: graphd kind set changing"):
        await catalog.add_kind(Kind(0, "changing"))
    assert await catalog.set_kind("changing", lambda kind: replace(kind, max_out_degree=9, events=False)) == replace(
        made, max_out_degree=9, events=False
    )
    with pytest.raises(InvalidArgumentError, match="graphd kind add missing"):
        await catalog.set_kind("missing", lambda kind: kind)
    for name in ("", "Upper", "9", "a b", "k" * 33):
        with pytest.raises(InvalidArgumentError, match="NAME"):
            await catalog.add_kind(Kind(0, name))
