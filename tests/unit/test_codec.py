"""What a request must be, field by field; and that pages written as bytes are what protobuf would have written."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto
from hypothesis import given
from hypothesis import strategies as st

from graphd.edge import Direction, State, Version
from graphd.errors import GraphdError, InvalidArgumentError, OutOfRangeError, OverloadedError
from graphd.limits import MAX_AHEAD_US, MAX_ID, PURGE_HORIZON_US
from graphd.operations import Operation, Outcome
from graphd.storage.items import PageBlock, PageRows
from graphd.topology import Kind, Topology
from graphd.v1 import graph_pb2 as pb
from router import codec, wire
from router.codec import Checker
from router.expressions import ListIds, Node, SetOperation
from router.reads import ListOf, Page
from router.values import Write, WriteOutcome

FOLLOW, MUTE = Kind(1, "follow"), Kind(2, "mute", allow_self=True)
TOPOLOGY = Topology(1, ("s1",), ("s1",) * 4, {"follow": FOLLOW, "mute": MUTE})
NOW = 1_764_532_800_000_000
CHECKER = Checker(given_positions=True)


def refusal(request: Any, checker: Checker = CHECKER) -> InvalidArgumentError:
    with pytest.raises(InvalidArgumentError) as caught:
        checker.write(request, Operation.FOLLOW, TOPOLOGY, NOW)
    return caught.value


def follow(**fields: Any) -> pb.FollowRequest:
    return pb.FollowRequest(**{"source_id": 1, "destination_id": 2, **fields})


def test_a_live_and_a_given_write() -> None:
    write = CHECKER.write(follow(source_id=0, destination_id=MAX_ID), Operation.FOLLOW, TOPOLOGY, NOW)
    assert (write.source_id, write.destination_id, write.kind, write.position) == (0, MAX_ID, FOLLOW, None)
    assert (write.request_id, write.receipt()) == (None, None)
    write = CHECKER.write(follow(kind="mute", position=NOW, request_id="x"), Operation.UNFOLLOW, TOPOLOGY, NOW)
    assert (write.kind, write.position, write.request_id, write.operation) == (MUTE, NOW, "x", Operation.UNFOLLOW)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.FollowRequest(destination_id=2), "source_id"),
        (pb.FollowRequest(source_id=1), "destination_id"),
        (follow(source_id=-1), "source_id"),
        (follow(destination_id=-(2**63)), "destination_id"),
        (follow(destination_id=1), "destination_id"),
        (follow(kind="nothing"), "kind"),
        (follow(request_id=""), "request_id"),
        (follow(request_id="x" * 65), "request_id"),
        (follow(request_id="a\0b"), "request_id"),
    ],
)
def test_a_broken_rule_names_its_field(request_: pb.FollowRequest, field: str) -> None:
    error = refusal(request_)
    assert error.field == field
    assert not isinstance(error, OutOfRangeError)


def test_self_edges_where_the_kind_allows_them() -> None:
    CHECKER.write(follow(destination_id=1, kind="mute"), Operation.FOLLOW, TOPOLOGY, NOW)


@pytest.mark.parametrize("length", [1, 64])
def test_request_ids_of_each_length(length: int) -> None:
    CHECKER.write(follow(request_id="ü" * length), Operation.FOLLOW, TOPOLOGY, NOW)


@pytest.mark.parametrize(
    ("position", "backfill"),
    [(1, True), (NOW + MAX_AHEAD_US, False), (NOW - PURGE_HORIZON_US, False), (NOW - PURGE_HORIZON_US - 1, True)],
)
def test_positions_within_range(position: int, backfill: bool) -> None:
    request = follow(position=position, backfill=backfill)
    assert CHECKER.write(request, Operation.FOLLOW, TOPOLOGY, NOW).position == position


@pytest.mark.parametrize(
    ("position", "backfill"),
    [
        (0, True),
        (-1, True),
        (-(2**63), True),
        (NOW + MAX_AHEAD_US + 1, True),
        (MAX_ID, True),
        (NOW - PURGE_HORIZON_US - 1, False),
        (1, False),
    ],
)
def test_positions_out_of_range(position: int, backfill: bool) -> None:
    error = refusal(follow(position=position, backfill=backfill))
    assert isinstance(error, OutOfRangeError)
    assert error.field == "position"


def test_given_positions_may_be_turned_off() -> None:
    error = refusal(follow(position=NOW), Checker(given_positions=False))
    assert error.field == "position"
    assert not isinstance(error, OutOfRangeError)


def test_a_receipt_tells_every_input_apart() -> None:
    requests = [
        follow(),
        follow(source_id=3),
        follow(destination_id=3),
        follow(kind="mute"),
        follow(position=NOW),
        follow(position=NOW + 1),
        follow(position=NOW, backfill=True),
    ]
    found = set()
    for request in requests:
        request.request_id = "r"
        for operation in (Operation.FOLLOW, Operation.UNFOLLOW):
            receipt = CHECKER.write(request, operation, TOPOLOGY, NOW).receipt()
            assert receipt is not None
            assert receipt == CHECKER.write(request, operation, TOPOLOGY, NOW + 1).receipt()
            found.add(receipt.fingerprint)
    assert len(found) == 2 * len(requests)


def test_batch_items_fail_alone_and_name_their_place() -> None:
    good = pb.Write(operation=pb.OPERATION_FOLLOW, source_id=1, destination_id=2)
    bad = [
        (pb.Write(operation=pb.OPERATION_FOLLOW, destination_id=2), "writes[1].source_id"),
        (pb.Write(source_id=1, destination_id=2), "writes[2].operation"),
        (pb.Write(operation=99, source_id=1, destination_id=2), "writes[3].operation"),  # type: ignore[arg-type]
        (pb.Write(operation=pb.OPERATION_FOLLOW, source_id=1, destination_id=1), "writes[4].destination_id"),
        (pb.Write(operation=pb.OPERATION_FOLLOW, source_id=1, destination_id=2, position=0), "writes[5].position"),
        (pb.Write(operation=pb.OPERATION_FOLLOW, source_id=1, destination_id=2, kind="x"), "writes[6].kind"),
    ]
    checked = CHECKER.batch([good, *(item for item, _ in bad), good], TOPOLOGY, NOW)
    assert not isinstance(checked[0], GraphdError)
    assert not isinstance(checked[-1], GraphdError)
    for error, (_, field) in zip(checked[1:-1], bad, strict=True):
        assert isinstance(error, InvalidArgumentError)
        assert error.field == field


@pytest.mark.parametrize("size", [0, 1001])
def test_batches_have_1_to_1000_items(size: int) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        CHECKER.batch([pb.Write()] * size, TOPOLOGY, NOW)
    assert caught.value.field == "writes"


def test_page_sizes() -> None:
    assert [codec.page_size(value) for value in (0, 1, 1000, 1001, 2**31 - 1)] == [100, 1, 1000, 1000, 1000]
    with pytest.raises(InvalidArgumentError, match="page_size"):
        codec.page_size(-1)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "account_id"),
        ({"account_id": -1}, "account_id"),
        ({"account_id": 1, "kind": "x"}, "kind"),
        ({"account_id": 1, "state": 8}, "state"),
        ({"account_id": 1, "state": -1}, "state"),
        ({"account_id": 1, "order": 3}, "order"),
        ({"account_id": 1, "view": 3}, "view"),
        ({"account_id": 1, "max_staleness": {"seconds": -1}}, "max_staleness"),
    ],
)
def test_lists_name_the_broken_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        codec.list_of(pb.ListFollowersRequest(**fields), Direction.REVERSE, TOPOLOGY)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("operand", "field"),
    [
        (pb.Operand(), "operands[1]"),
        (pb.Operand(followers_of=pb.ListOperand()), "operands[1].followers_of.account_id"),
        (pb.Operand(following_of=pb.ListOperand(account_id=-1)), "operands[1].following_of.account_id"),
        (pb.Operand(ids=pb.IdList(ids=[1, -1])), "operands[1].ids"),
        (pb.Operand(ids=pb.IdList(ids=range(100_001))), "operands[1].ids"),
        (pb.Operand(followers_of=pb.ListOperand(account_id=1, state=9)), "operands[1].followers_of.state"),  # type: ignore[arg-type]
        (pb.Operand(followers_of=pb.ListOperand(account_id=1, kind="x")), "operands[1].followers_of.kind"),
    ],
)
def test_operands_name_the_broken_field(operand: pb.Operand, field: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        codec.operands([pb.Operand(ids=pb.IdList()), operand], TOPOLOGY)
    assert caught.value.field == field


def test_operands_are_2_to_16() -> None:
    one = pb.Operand(followers_of=pb.ListOperand(account_id=0))
    for count in (0, 1, 17):
        with pytest.raises(InvalidArgumentError, match="operands"):
            codec.operands([one] * count, TOPOLOGY)
    assert codec.operands([one] * 16, TOPOLOGY) == [ListIds(Direction.REVERSE, 0, FOLLOW, State.ACTIVE)] * 16


def leaf(account: int = 1) -> pb.Expression:
    return pb.Expression(operand=pb.Operand(followers_of=pb.ListOperand(account_id=account)))


def several(*parts: pb.Expression) -> pb.ExpressionList:
    return pb.ExpressionList(expressions=parts)


def chain(depth: int) -> pb.Expression:
    """An expression of that depth."""
    found = leaf()
    for _ in range(depth - 1):
        found = pb.Expression(intersect=several(found, leaf()))
    return found


def test_expressions_are_nested_to_depth_8() -> None:
    assert isinstance(codec.expression(pb.SelectRequest(expression=chain(8)), TOPOLOGY), Node)
    with pytest.raises(InvalidArgumentError, match="nested deeper than 8") as caught:
        codec.expression(pb.SelectRequest(expression=chain(9)), TOPOLOGY)
    assert caught.value.field == "expression" + ".intersect.expressions[0]" * 8


def test_expressions_have_a_limit_in_all() -> None:
    found = leaf()
    for _ in range(3):
        found = pb.Expression(union=several(*[found] * 16))
    codec.expression(pb.SelectRequest(expression=found), TOPOLOGY)
    more = pb.Expression(union=several(found, leaf()))
    with pytest.raises(InvalidArgumentError, match="4096 in all") as caught:
        codec.expression(pb.SelectRequest(expression=more), TOPOLOGY)
    assert caught.value.field == "expression.union.expressions[1].operand"


BROKEN = [
    (pb.SelectRequest(), "expression"),
    (pb.SelectRequest(expression=pb.Expression()), "expression"),
    (pb.SelectRequest(expression=pb.Expression(union=several(leaf()))), "expression.union.expressions"),
    (
        pb.SelectRequest(expression=pb.Expression(difference=several(*[leaf()] * 17))),
        "expression.difference.expressions",
    ),
    (
        pb.SelectRequest(expression=pb.Expression(union=several(leaf(), leaf(-1)))),
        "expression.union.expressions[1].operand.followers_of.account_id",
    ),
]


@pytest.mark.parametrize(("request_", "field"), BROKEN)
def test_expressions_name_the_broken_field(request_: pb.SelectRequest, field: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        codec.expression(request_, TOPOLOGY)
    assert caught.value.field == field


def test_recency_wants_a_list_that_holds_the_whole_answer() -> None:
    one = ListIds(Direction.REVERSE, 1, FOLLOW, State.ACTIVE)
    explicit = np.array([3, 2], dtype=np.int64)
    union = Node(SetOperation.UNION, (one, explicit))
    nested = Node(SetOperation.DIFFERENCE, (Node(SetOperation.INTERSECT, (one, union)), explicit))
    assert codec.recency(pb.SET_ORDER_RECENCY, nested, "expression") is one
    assert codec.recency(pb.SET_ORDER_BY_ID, union, "operands") is None
    assert codec.recency(0, union, "operands") is None
    for wanted in (union, explicit, Node(SetOperation.INTERSECT, (union, one))):
        with pytest.raises(InvalidArgumentError, match="order"):
            codec.recency(pb.SET_ORDER_RECENCY, wanted, "operands")
    with pytest.raises(InvalidArgumentError, match="order"):
        codec.recency(9, one, "operands")


ids = (
    st.integers(0, MAX_ID)
    | st.integers(0, 300)
    | st.sampled_from([2 ** (7 * n) + d for n in range(1, 9) for d in (-1, 0)])
)
lists = st.builds(
    ListOf,
    st.sampled_from(Direction),
    ids,
    st.sampled_from([FOLLOW, Kind(3, "k" * 32)]),
    st.sampled_from(State),
    st.booleans(),
)
rows = st.lists(st.tuples(ids, ids, ids), max_size=40)


tokens_ = st.sampled_from(["", "t" * 44])


def page_of(wanted: ListOf, columns: npt.NDArray[np.int64], next_: str = "", last: str = "") -> Page:
    """A page that came alone."""
    block = PageBlock([wanted.account_id], columns[None])
    return Page(PageRows(True, block, 0), columns.shape[1], False, next_, last)


@given(lists, rows, tokens_, tokens_)
def test_pages_are_what_protobuf_writes(
    wanted: ListOf, found: list[tuple[int, int, int]], next_: str, last: str
) -> None:
    page = page_of(wanted, np.array(found, dtype=np.int64).reshape(-1, 3).T, next_, last)
    forward = wanted.direction is Direction.FORWARD
    edges = [
        pb.Edge(
            source_id=wanted.account_id if forward else neighbor,
            destination_id=neighbor if forward else wanted.account_id,
            kind=wanted.kind.name,
            state=int(wanted.state),  # type: ignore[arg-type]
            position=position,
            since=since,
        )
        for neighbor, since, position in found
    ]
    for kind in (pb.ListFollowersResponse, pb.ListFollowingResponse):
        tokens: dict[str, Any] = {"next_page_token": next_, "previous_page_token": last}
        full, columns = (
            kind(edges=edges, **tokens),
            kind(ids=[r[0] for r in found], since=[r[1] for r in found], **tokens),
        )
        # The columns come in another order within an edge than protobuf's own, and varints are padded: messages are compared, not bytes.
        assert kind.FromString(codec.page_bytes(wanted, pb.VIEW_FULL, page)) == full
        assert kind.FromString(codec.page_bytes(wanted, pb.VIEW_UNSPECIFIED, page)) == full
        assert kind.FromString(codec.page_bytes(wanted, pb.VIEW_IDS, page)) == columns


def test_the_extremes_of_a_page() -> None:
    columns = np.array([0, 1, 127, 128, MAX_ID], dtype=np.int64)
    for direction in Direction:
        wanted = ListOf(direction, MAX_ID, Kind(3, "k" * 32), State.BLOCKED, False)
        data = wire.list_edges(wanted, page_of(wanted, np.stack([columns] * 3)))
        answer = pb.ListFollowersResponse.FromString(data)
        assert [edge.since for edge in answer.edges] == columns.tolist()
        # An id of 0 is there, not missing.
        assert answer.edges[0].HasField("source_id")
        assert answer.edges[0].HasField("destination_id")


def test_one_writer_serves_both_list_responses() -> None:
    def shape(message: Any) -> list[str]:
        described = DescriptorProto()
        message.DESCRIPTOR.CopyToProto(described)
        return [str(field) for field in described.field]

    assert shape(pb.ListFollowersResponse) == shape(pb.ListFollowingResponse)
    assert shape(pb.ListFollowersRequest) == shape(pb.ListFollowingRequest)


kinds = st.sampled_from([FOLLOW, Kind(3, "k" * 32)])
writes = st.builds(Write, st.just(Operation.FOLLOW), ids, ids, kinds)
outcomes = st.builds(
    WriteOutcome,
    st.none() | st.builds(Version, ids, st.sampled_from(State).map(int), ids),
    st.sampled_from(Outcome),
    st.sampled_from(["", "", "", "BLOCKED"]),
    st.booleans(),
    st.booleans(),
)
invalid = st.just(InvalidArgumentError("kind", "must be one"))
settled = st.tuples(writes, outcomes | st.just(OverloadedError("shard s1", 0.1))) | st.tuples(invalid, invalid)


@given(st.lists(settled, min_size=1, max_size=20))
def test_results_of_a_batch_are_what_protobuf_writes(
    found: list[tuple[Write | GraphdError, WriteOutcome | GraphdError]],
) -> None:
    requests = [pb.Write(source_id=3, kind="no") for _ in found]
    data = codec.batch_bytes(requests, [write for write, _ in found], [result for _, result in found])
    expected = [
        codec.item_result(request, write if isinstance(write, Write) else None, result)
        for request, (write, result) in zip(requests, found, strict=True)
    ]
    assert pb.BatchWriteResponse.FromString(data) == pb.BatchWriteResponse(results=expected)
