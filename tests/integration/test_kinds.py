"""Kinds are graphs of their own; a kind may allow an account to be at both ends; routers that run take a new one at once."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import grpc
import pytest_asyncio
from google.protobuf.message import Message
from grpc import aio

from graphd.cli import main
from graphd.client import AdminClient, KindInfo
from graphd.storage.catalog import Catalog
from graphd.topology import Kind
from graphd.v1 import graph_pb2 as pb
from tests.calls import declare_in_silence, declare_kind, follow, offered, refused, unfollow, write_all
from tests.databases import Databases, problems
from tests.routers import GraphStub, RouterProcess, fields
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


def calls_that_name(kind: str) -> list[tuple[str, str, Message]]:
    """Every call of the contract that names a kind, once for every place where it may: (RPC, field, request)."""
    pair: dict[str, Any] = {"source_id": ADA, "destination_id": BO, "kind": kind}
    block: dict[str, Any] = {"blocker_id": BO, "blocked_id": ADA, "kind": kind}
    account: dict[str, Any] = {"account_id": ADA, "kind": kind}
    known = pb.Operand(followers_of=pb.ListOperand(account_id=BO))
    unknown = [pb.Operand(followers_of=pb.ListOperand(**account)), pb.Operand(following_of=pb.ListOperand(**account))]
    deep = pb.Expression(operand=unknown[1])
    for _ in range(3):
        deep = pb.Expression(union=pb.ExpressionList(expressions=[pb.Expression(operand=known), deep]))
    place = "operands[1].following_of.kind"
    within = "expression" + 3 * ".union.expressions[1]" + ".operand.following_of.kind"
    return [
        ("Follow", "kind", pb.FollowRequest(**pair)),
        ("Unfollow", "kind", pb.UnfollowRequest(**pair)),
        ("RequestFollow", "kind", pb.RequestFollowRequest(**pair)),
        ("AcceptFollow", "kind", pb.AcceptFollowRequest(**pair)),
        ("RejectFollow", "kind", pb.RejectFollowRequest(**pair)),
        ("Block", "kind", pb.BlockRequest(**block)),
        ("Unblock", "kind", pb.UnblockRequest(**block)),
        ("GetEdge", "kind", pb.GetEdgeRequest(**pair)),
        ("BatchGetEdges", "edges[1].kind", pb.BatchGetEdgesRequest(edges=[pb.EdgeKey(source_id=1, destination_id=2), pb.EdgeKey(**pair)])),
        ("ListFollowers", "kind", pb.ListFollowersRequest(**account)),
        ("ListFollowing", "kind", pb.ListFollowingRequest(**account)),
        ("StreamFollowers", "kind", pb.StreamFollowersRequest(**account)),
        ("StreamFollowing", "kind", pb.StreamFollowingRequest(**account)),
        ("GetDegrees", "kind", pb.GetDegreesRequest(**account)),
        ("BatchGetDegrees", "kind", pb.BatchGetDegreesRequest(account_ids=[ADA, BO], kind=kind)),
        ("Intersect", "operands[0].followers_of.kind", pb.IntersectRequest(operands=[unknown[0], known])),
        ("Intersect", place, pb.IntersectRequest(operands=[known, unknown[1]])),
        ("Union", place, pb.UnionRequest(operands=[known, unknown[1]])),
        ("Difference", place, pb.DifferenceRequest(operands=[known, unknown[1]])),
        ("GetCommonDegree", place, pb.GetCommonDegreeRequest(operands=[known, unknown[1]])),
        ("Select", within, pb.SelectRequest(expression=deep)),
        ("Suggest", "kind", pb.SuggestRequest(**account)),
        ("Distance", "kind", pb.DistanceRequest(account_id=ADA, other_id=BO, kind=kind)),
        ("ArchiveAccount", "kind", pb.ArchiveAccountRequest(**account)),
        ("RemoveAccount", "kind", pb.RemoveAccountRequest(**account)),
        ("RestoreAccount", "kind", pb.RestoreAccountRequest(**account)),
        ("WatchEdges", "kinds[1]", pb.WatchEdgesRequest(kinds=["follow", kind])),
    ]  # fmt: skip


async def asked(graph: GraphStub, name: str, request: Message) -> aio.AioRpcError | None:
    """The error of a call, or of the beginning of a stream; None when there is none."""
    call = getattr(graph, name)(request, timeout=20)
    try:
        if name == "WatchEdges":
            await call.initial_metadata()
            # It has begun, or has ended at once; only then is there a code.
            return await call.read() if call.done() else None
        if name.startswith("Stream") or name.endswith("Account"):
            async for _ in call:
                pass
        else:
            await call
    except aio.AioRpcError as error:
        return error
    finally:
        call.cancel()
    return None


def test_every_call_that_names_a_kind_is_tried() -> None:
    # BatchWrite settles each of its items for itself, and has a test of its own.
    methods = pb.DESCRIPTOR.services_by_name["GraphService"].methods_by_name
    silent = {name for name in offered() if not _names_a_kind(methods[name].input_type)}
    assert {name for name, _, _ in calls_that_name("k")} | {"BatchWrite"} == offered() - silent


def _names_a_kind(message: Any, seen: frozenset[str] = frozenset()) -> bool:
    return message.full_name not in seen and any(
        field.name in ("kind", "kinds")
        or (field.message_type is not None and _names_a_kind(field.message_type, seen | {message.full_name}))
        for field in message.fields
    )


async def test_a_kind_is_usable_at_once(graphs: list[GraphStub], databases: Databases) -> None:
    """By every router that runs, in every call and place that names it, without waiting to hear of it: here it never would."""
    unknown = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE)

    for index in range(len(calls_that_name(""))):
        declare_in_silence(databases, f"new{index}")
        name, field, request = calls_that_name(f"new{index}")[index]
        error = await asked(graphs[index % len(graphs)], name, request)
        assert error is None or error.code() not in unknown, f"{name}, {field}: {error}"


async def test_a_batch_of_kinds_declared_a_moment_ago(graphs: list[GraphStub], databases: Databases) -> None:
    for number, graph in enumerate(graphs[:2]):
        names = [f"batch{number}-{n}" for n in range(3)]
        for name in names:
            declare_in_silence(databases, name)
        writes = [*(follow(ADA, BO, kind=name) for name in names), follow(ADA, BO, kind="none"), follow(ADA, BO)]
        results = (await graph.BatchWrite(pb.BatchWriteRequest(writes=writes))).results
        assert [result.outcome for result in results[:3]] == [pb.OUTCOME_APPLIED] * 3
        assert (results[3].outcome, results[3].reason) == (pb.OUTCOME_REFUSED, "INVALID")
        assert results[4].outcome in (pb.OUTCOME_APPLIED, pb.OUTCOME_UNCHANGED)


async def test_two_routers_take_a_kind_from_the_command_line(
    graphs: list[GraphStub], three_routers: list[RouterProcess]
) -> None:
    arguments = ["kind", "add", "from-afar", "--max-out-degree", "1", "--config", str(three_routers[0].config_file)]
    assert await asyncio.to_thread(main, arguments) == 0
    requests = [pb.FollowRequest(source_id=ADA, destination_id=to, kind="from-afar") for to in (BO, 3)]
    answers = [asked(graph, "Follow", request) for graph, request in zip(graphs[:2], requests, strict=True)]
    errors = await asyncio.gather(*answers)
    # Its limit is known with it, to both.
    [refusal] = [error for error in errors if error is not None]
    assert refusal.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_an_unknown_kind_is_told_the_known_ones(graph: GraphStub) -> None:
    calls = calls_that_name("none")
    errors = await asyncio.gather(*(asked(graph, name, request) for name, _, request in calls))
    for (name, field, _), error in zip(calls, errors, strict=True):
        assert error is not None, name
        assert (error.code(), fields(error)) == (grpc.StatusCode.INVALID_ARGUMENT, [field]), name
        told = error.details() or ""
        assert told.startswith(f"{field}: must be one of "), name
        assert {"follow", "mute", "favourite"} <= set(told.replace(",", "").split())


async def test_the_topology_tells_the_kinds(router: RouterProcess, databases: Databases) -> None:
    catalog = Catalog(databases.catalog)
    await catalog.add_kind(Kind(0, "told", allow_self=True, max_out_degree=7, events=False))
    async with AdminClient(router.admin) as admin:

        async def kinds() -> list[KindInfo]:
            return [kind for kind in (await admin.get_topology()).kinds if kind.name == "told"]

        async def is_there() -> bool:
            return await kinds() == [KindInfo("told", True, 7, False)]

        await eventually(is_there, what="the router tells the new kind")
        await catalog.set_kind("told", lambda kind: replace(kind, max_out_degree=8, events=True))

        async def is_changed() -> bool:
            return await kinds() == [KindInfo("told", True, 8, True)]

        await eventually(is_changed, what="the router tells the changed kind")


async def test_calls_that_wait_for_the_catalog_are_no_company(graph: GraphStub, router: RouterProcess) -> None:
    """Lanes wait for company; those who ask for a kind that is not there bring none, and must not hold up the others."""
    wrong = pb.GetEdgeRequest(source_id=ADA, destination_id=BO, kind="none")
    stop = asyncio.Event()
    answered = 0

    async def ask_for_nothing() -> None:
        nonlocal answered
        while not stop.is_set():
            await refused(graph.GetEdge(wrong), field="kind")
            answered += 1

    callers = [asyncio.create_task(ask_for_nothing()) for _ in range(40)]
    await eventually(lambda: answered >= len(callers), what="all have been answered")
    seen = [await asyncio.to_thread(router.metric, "graphd_calls_in_flight") for _ in range(25)]
    stop.set()
    await asyncio.gather(*callers)
    assert sorted(seen)[len(seen) // 2] < len(callers) / 4, seen
    assert await asyncio.to_thread(router.metric, "graphd_calls_in_flight") == 0
