"""Every id and every field of every RPC: what is taken, and what is refused by name."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf.message import Message
from grpc import aio

from graphd.clock import now_us
from graphd.limits import MAX_AHEAD_US, PURGE_HORIZON_US
from graphd.v1 import admin_pb2
from graphd.v1 import graph_pb2 as pb
from tests.calls import follow, offered, refused, walk
from tests.databases import Databases, problems
from tests.routers import GraphStub, RouterProcess, admin_stub
from tests.waiting import eventually

ZERO, ONE, LARGEST = 0, 1, 2**63 - 1
IDS = [ZERO, ONE, LARGEST]
# F088: the same session meets numbers of every width, so no type may be taken from the first of them.
WIDTHS = [1, 40_000, 3_000_000_000, 2**53 + 1, LARGEST, 0]


@pytest_asyncio.fixture(scope="module", loop_scope="session", autouse=True)
async def edges_between_extremes(graph: GraphStub) -> None:
    for source, destination in itertools.permutations(IDS, 2):
        answer = await graph.Follow(pb.FollowRequest(source_id=source, destination_id=destination))
        assert (answer.result.edge.source_id, answer.result.edge.destination_id) == (source, destination)
        assert answer.result.edge.HasField("source_id")
        assert answer.result.edge.HasField("destination_id")


@pytest.mark.parametrize("account", IDS)
async def test_an_extreme_id_in_every_read(graph: GraphStub, account: int) -> None:
    others = sorted(set(IDS) - {account})
    found = await graph.GetEdge(pb.GetEdgeRequest(source_id=account, destination_id=others[0]))
    assert (found.edge.source_id, found.edge.destination_id) == (account, others[0])
    keys = [pb.EdgeKey(source_id=account, destination_id=other) for other in others]
    many = await graph.BatchGetEdges(pb.BatchGetEdgesRequest(edges=keys))
    assert [(r.found, r.edge.source_id, r.edge.destination_id) for r in many.results] == [
        (True, account, other) for other in others
    ]
    for following in (False, True):
        for order in (pb.LIST_ORDER_NEWEST_FIRST, pb.LIST_ORDER_OLDEST_FIRST):
            pages = await walk([graph], account, 1, order, following=following)
            assert sorted(id_ for page in pages for id_ in page.ids) == others
    full = await graph.ListFollowing(pb.ListFollowingRequest(account_id=account))
    assert sorted((edge.source_id, edge.destination_id) for edge in full.edges) == [(account, o) for o in others]
    degrees = await graph.GetDegrees(pb.GetDegreesRequest(account_id=account))
    assert (degrees.followers, degrees.following) == (2, 2)
    batch = await graph.BatchGetDegrees(pb.BatchGetDegreesRequest(account_ids=[account, account]))
    assert [(d.account_id, d.followers, d.following) for d in batch.results] == [(account, 2, 2)] * 2
    lists = pb.ListOperand(account_id=account)
    for operand in (pb.Operand(followers_of=lists), pb.Operand(following_of=lists)):
        common = await graph.Intersect(pb.IntersectRequest(operands=[operand, pb.Operand(ids=pb.IdList(ids=IDS))]))
        assert list(common.ids) == others[::-1]


async def test_extreme_ids_in_every_write(graph: GraphStub, databases: Databases) -> None:
    for source, destination in itertools.permutations(IDS, 2):
        await graph.Unfollow(pb.UnfollowRequest(source_id=source, destination_id=destination))
    await eventually(lambda: not problems(databases), what="halves, degrees and outbox agree")
    writes = [follow(source, destination, request_id="x") for source, destination in itertools.permutations(IDS, 2)]
    # One receipt an account: its second edge needs another id.
    for at, write in enumerate(writes):
        write.request_id = f"x{at}"
    results = (await graph.BatchWrite(pb.BatchWriteRequest(writes=writes))).results
    assert [result.outcome for result in results] == [pb.OUTCOME_APPLIED] * 6
    await eventually(lambda: not problems(databases), what="halves, degrees and outbox agree")


async def test_numbers_of_every_width_through_one_session(graph: GraphStub) -> None:
    cy = 77
    for round_ in range(3):
        for account in WIDTHS[round_:] + WIDTHS[:round_]:
            await graph.Follow(pb.FollowRequest(source_id=account, destination_id=cy))
            found = await graph.GetEdge(pb.GetEdgeRequest(source_id=account, destination_id=cy))
            assert found.edge.source_id == account
    page = await graph.ListFollowers(pb.ListFollowersRequest(account_id=cy, view=pb.VIEW_IDS))
    assert sorted(page.ids) == sorted(WIDTHS)


# -- every field by name ------------------------------------------------------------------------------------------------------

EDGE: dict[str, Any] = {"source_id": 1, "destination_id": 2}
KEY, WRITE, LIST = pb.EdgeKey(**EDGE), follow(1, 2), pb.ListOperand(account_id=1)


def wrong(**changes: Any) -> dict[str, Any]:
    """The fields of an edge, one of them changed or (None) left out."""
    return {name: value for name, value in {**EDGE, **changes}.items() if value is not None}


def broken_edges() -> list[tuple[str, Message, str]]:
    found: list[tuple[str, Message, str]] = []
    for name, request in (
        ("Follow", pb.FollowRequest),
        ("Unfollow", pb.UnfollowRequest),
        ("GetEdge", pb.GetEdgeRequest),
    ):
        for field in EDGE:
            found += [(name, request(**wrong(**{field: value})), field) for value in (None, -1, -(2**63))]
        found.append((name, request(kind="nothing", **EDGE), "kind"))
    for field in EDGE:
        for value in (None, -1):
            keys = [KEY, KEY, pb.EdgeKey(**wrong(**{field: value}))]
            found.append(("BatchGetEdges", pb.BatchGetEdgesRequest(edges=keys), f"edges[2].{field}"))
    return found


BROKEN: list[tuple[str, Message, str]] = [
    *broken_edges(),
    ("Follow", pb.FollowRequest(source_id=1, destination_id=1), "destination_id"),
    ("Follow", pb.FollowRequest(request_id="", **EDGE), "request_id"),
    ("Unfollow", pb.UnfollowRequest(request_id="x" * 65, **EDGE), "request_id"),
    ("Unfollow", pb.UnfollowRequest(request_id="a\0b", **EDGE), "request_id"),
    *(
        (name, request(**fields), field)
        for name, request in (("ListFollowers", pb.ListFollowersRequest), ("ListFollowing", pb.ListFollowingRequest))
        for fields, field in (
            ({}, "account_id"),
            ({"account_id": -1}, "account_id"),
            ({"account_id": 1, "page_size": -1}, "page_size"),
            ({"account_id": 1, "kind": "nothing"}, "kind"),
            ({"account_id": 1, "state": 99}, "state"),
            ({"account_id": 1, "order": 99}, "order"),
            ({"account_id": 1, "view": 99}, "view"),
            ({"account_id": 1, "page_token": "x"}, "page_token"),
        )
    ),
    ("GetDegrees", pb.GetDegreesRequest(), "account_id"),
    ("GetDegrees", pb.GetDegreesRequest(account_id=-1), "account_id"),
    ("GetDegrees", pb.GetDegreesRequest(account_id=1, kind="nothing"), "kind"),
    ("BatchGetDegrees", pb.BatchGetDegreesRequest(account_ids=[1, -1]), "account_ids[1]"),
    ("BatchGetDegrees", pb.BatchGetDegreesRequest(account_ids=[1], kind="nothing"), "kind"),
    # Empty and oversized (F098): a clear answer, and never the transport's.
    ("BatchGetDegrees", pb.BatchGetDegreesRequest(), "account_ids"),
    ("BatchGetDegrees", pb.BatchGetDegreesRequest(account_ids=range(1_001)), "account_ids"),
    ("BatchGetDegrees", pb.BatchGetDegreesRequest(account_ids=range(1_000_000)), "account_ids"),
    ("BatchGetEdges", pb.BatchGetEdgesRequest(), "edges"),
    ("BatchGetEdges", pb.BatchGetEdgesRequest(edges=[KEY] * 1_001), "edges"),
    ("BatchWrite", pb.BatchWriteRequest(), "writes"),
    ("BatchWrite", pb.BatchWriteRequest(writes=[WRITE] * 1_001), "writes"),
    ("Intersect", pb.IntersectRequest(), "operands"),
    ("Intersect", pb.IntersectRequest(operands=[pb.Operand(ids=pb.IdList(ids=[1]))]), "operands"),
    ("Intersect", pb.IntersectRequest(operands=[pb.Operand(followers_of=LIST)] * 17), "operands"),
    ("Intersect", pb.IntersectRequest(operands=[pb.Operand(), pb.Operand()]), "operands[0]"),
    (
        "Intersect",
        pb.IntersectRequest(operands=[pb.Operand(followers_of=LIST), pb.Operand(following_of=pb.ListOperand())]),
        "operands[1].following_of.account_id",
    ),
    (
        "Intersect",
        pb.IntersectRequest(operands=[pb.Operand(ids=pb.IdList(ids=[5, -5])), pb.Operand(followers_of=LIST)]),
        "operands[0].ids",
    ),
    (
        "Intersect",
        pb.IntersectRequest(operands=[pb.Operand(followers_of=LIST), pb.Operand(ids=pb.IdList(ids=range(100_001)))]),
        "operands[1].ids",
    ),
    ("Intersect", pb.IntersectRequest(operands=[pb.Operand(followers_of=LIST)] * 2, page_size=-1), "page_size"),
    ("Intersect", pb.IntersectRequest(operands=[pb.Operand(followers_of=LIST)] * 2, page_token="x"), "page_token"),
]


@pytest.mark.parametrize(
    ("method", "request_", "field"), BROKEN, ids=[f"{m}-{f}-{i}" for i, (m, _, f) in enumerate(BROKEN)]
)
async def test_a_broken_field_is_named(graph: GraphStub, method: str, request_: Message, field: str) -> None:
    await refused(getattr(graph, method)(request_), field=field)


@pytest.mark.parametrize(("method", "ada"), [("Follow", 800), ("Unfollow", 900)])
async def test_positions_out_of_range(graph: GraphStub, method: str, ada: int) -> None:
    request = getattr(pb, f"{method}Request")
    now = now_us()
    for position, backfill in (
        (now + MAX_AHEAD_US + 10_000_000, False),
        (LARGEST, True),
        (now - PURGE_HORIZON_US - 10_000_000, False),
        (0, True),
        (-1, True),
        (1, False),
    ):
        call = getattr(graph, method)(request(position=position, backfill=backfill, source_id=ada, destination_id=9))
        await refused(call, grpc.StatusCode.OUT_OF_RANGE, "position")
    await refused(graph.GetEdge(pb.GetEdgeRequest(source_id=ada, destination_id=9)), grpc.StatusCode.NOT_FOUND)
    taken = [(1, True), (now - PURGE_HORIZON_US + 60_000_000, False), (now + MAX_AHEAD_US // 2, False)]
    for destination, (position, backfill) in enumerate(taken):
        answer = await getattr(graph, method)(
            request(position=position, backfill=backfill, source_id=ada, destination_id=destination)
        )
        assert answer.result.edge.position == answer.result.edge.since == position


async def test_nothing_that_reads_writes(graph: GraphStub, databases: Databases) -> None:
    unknown = 123_456_789
    degrees = await graph.GetDegrees(pb.GetDegreesRequest(account_id=unknown))
    assert (degrees.followers, degrees.following, list(degrees.by_state)) == (0, 0, [])
    page = await graph.ListFollowers(pb.ListFollowersRequest(account_id=unknown))
    assert (list(page.edges), page.next_page_token, page.previous_page_token) == ([], "", "")
    await refused(graph.GetEdge(pb.GetEdgeRequest(source_id=unknown, destination_id=1)), grpc.StatusCode.NOT_FOUND)
    assert databases.all_rows("SELECT FROM degrees WHERE owner_id = %(id)s", {"id": unknown}) == []


async def test_page_sizes_are_capped(graph: GraphStub) -> None:
    page = await graph.ListFollowers(pb.ListFollowersRequest(account_id=LARGEST, page_size=2**31 - 1))
    assert len(page.edges) == 2
    operands = [pb.Operand(ids=pb.IdList(ids=range(5_000)))] * 2
    for size, expected in ((0, 100), (1_000, 1_000), (2**31 - 1, 1_000)):
        found = await graph.Intersect(pb.IntersectRequest(operands=operands, page_size=size))
        assert len(found.ids) == expected


# -- what is not offered, and what is no message ------------------------------------------------------------------------------

METHODS = pb.DESCRIPTOR.services_by_name["GraphService"].methods
NOT_OFFERED = [method.name for method in METHODS if method.name not in offered()]


async def answers(call: Any) -> AsyncIterator[Any]:
    """The answers of a call of either arity."""
    if hasattr(call, "__aiter__"):
        async for answer in call:
            yield answer
    else:
        yield await call


@pytest.mark.parametrize("name", NOT_OFFERED)
async def test_the_rest_of_the_contract_is_unimplemented(graph: GraphStub, name: str) -> None:
    method = next(method for method in METHODS if method.name == name)
    request = getattr(pb, f"{name}Request")()
    call = getattr(graph, name)(iter([request]) if method.client_streaming else request)
    with pytest.raises(aio.AioRpcError) as caught:
        _ = [answer async for answer in answers(call)]
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert name in (caught.value.details() or "")


@pytest.mark.parametrize("data", [b"\xff", b"\x08", b"\x1a\x02\xff\xfe", b"\x1a\x7fx"])
async def test_bytes_that_are_no_message(router: RouterProcess, data: bytes) -> None:
    # A caller's fault, so never INTERNAL or UNKNOWN.
    async with aio.insecure_channel(router.target) as channel:
        call: Any = channel.unary_unary("/graphd.v1.GraphService/Follow")
        await refused(call(data))


async def test_slots_page_too(router: RouterProcess, databases: Databases) -> None:
    async with aio.insecure_channel(router.admin) as channel:
        admin = admin_stub(channel)
        found: list[int] = []
        token = ""
        while not found or token:
            page = await admin.ListSlots(admin_pb2.ListSlotsRequest(page_size=7, page_token=token))
            found += [slot.slot for slot in page.slots]
            token = page.next_page_token
        assert found == list(range(databases.slots))
        await refused(admin.ListSlots(admin_pb2.ListSlotsRequest(page_size=-1)), field="page_size")
        await refused(admin.ListSlots(admin_pb2.ListSlotsRequest(shard="s9")), field="shard")
        first = await admin.ListSlots(admin_pb2.ListSlotsRequest(page_size=7))
        other = admin_pb2.ListSlotsRequest(shard="s1", page_token=first.next_page_token)
        await refused(admin.ListSlots(other), field="page_token")
