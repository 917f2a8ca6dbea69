"""Between the client's values and protobuf."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import TypeAlias, TypeVar

from google.protobuf import duration_pb2

from graphd.client.values import (
    AllOf,
    AnyOf,
    Change,
    Degrees,
    Edge,
    EdgeKey,
    Expression,
    FollowersOf,
    FollowingOf,
    KindInfo,
    ListOptions,
    ListOrder,
    Neighbor,
    Operand,
    Page,
    ShardInfo,
    SlotInfo,
    TopologyInfo,
    Without,
    Write,
    WriteOptions,
    WriteResult,
)
from graphd.edge import Direction, State
from graphd.errors import InvalidArgumentError
from graphd.limits import MAX_ID
from graphd.operations import Outcome
from graphd.v1 import admin_pb2, graph_pb2

ListRequest = TypeVar("ListRequest", graph_pb2.ListFollowersRequest, graph_pb2.ListFollowingRequest)
SingleRequest = TypeVar(
    "SingleRequest",
    graph_pb2.FollowRequest,
    graph_pb2.UnfollowRequest,
    graph_pb2.RequestFollowRequest,
    graph_pb2.AcceptFollowRequest,
    graph_pb2.RejectFollowRequest,
)
BlockRequest = TypeVar("BlockRequest", graph_pb2.BlockRequest, graph_pb2.UnblockRequest)
SingleResponse: TypeAlias = (
    graph_pb2.FollowResponse
    | graph_pb2.UnfollowResponse
    | graph_pb2.RequestFollowResponse
    | graph_pb2.AcceptFollowResponse
    | graph_pb2.RejectFollowResponse
    | graph_pb2.BlockResponse
    | graph_pb2.UnblockResponse
)
View: TypeAlias = graph_pb2.View.ValueType
ListResponse: TypeAlias = graph_pb2.ListFollowersResponse | graph_pb2.ListFollowingResponse


def account(field: str, value: int) -> int:
    """An id that the wire can carry; whether it is allowed the router decides. Raises InvalidArgumentError."""
    try:
        number = operator.index(value)  # numpy's integers too
    except TypeError:
        raise InvalidArgumentError(field, "must be an integer") from None
    if not -MAX_ID - 1 <= number <= MAX_ID:
        raise InvalidArgumentError(field, "must be 0 to 2^63-1")
    return number


def accounts(field: str, values: Iterable[int]) -> list[int]:
    """As `account`, for many."""
    return [account(f"{field}[{i}]", value) for i, value in enumerate(values)]


def request_id(field: str, value: str) -> str:
    """A caller's own; the router has the other rules. Raises InvalidArgumentError."""
    if not value:
        raise InvalidArgumentError(
            field, "must have 1 to 64 characters; leave it out to get one that is made for the call"
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError(field, "must be text that UTF-8 can hold") from None
    return value


def single_request(
    message: type[SingleRequest], source_id: int, destination_id: int, request_id: str, options: WriteOptions
) -> SingleRequest:
    """The request of a single write."""
    position = options.get("position")
    return message(
        source_id=account("source_id", source_id),
        destination_id=account("destination_id", destination_id),
        kind=options.get("kind", ""),
        position=None if position is None else account("position", position),
        request_id=request_id,
        backfill=options.get("backfill", False),
    )


def block_request(
    message: type[BlockRequest], blocker_id: int, blocked_id: int, request_id: str, options: WriteOptions
) -> BlockRequest:
    """The request of a Block or an Unblock."""
    position = options.get("position")
    return message(
        blocker_id=account("blocker_id", blocker_id),
        blocked_id=account("blocked_id", blocked_id),
        kind=options.get("kind", ""),
        position=None if position is None else account("position", position),
        request_id=request_id,
        backfill=options.get("backfill", False),
    )


def write(index: int, value: Write, request_id: str) -> graph_pb2.Write:
    """One item of a batch."""
    field = f"writes[{index}]"
    return graph_pb2.Write(
        operation=graph_pb2.Operation.ValueType(value.operation),
        source_id=account(f"{field}.source_id", value.source_id),
        destination_id=account(f"{field}.destination_id", value.destination_id),
        kind=value.kind,
        position=None if value.position is None else account(f"{field}.position", value.position),
        request_id=request_id,
        backfill=value.backfill,
    )


def edge_key(index: int, key: EdgeKey) -> graph_pb2.EdgeKey:
    """One key of a batch."""
    return graph_pb2.EdgeKey(
        source_id=account(f"edges[{index}].source_id", key.source_id),
        destination_id=account(f"edges[{index}].destination_id", key.destination_id),
        kind=key.kind,
    )


def list_request(
    message: type[ListRequest], account_id: int, options: ListOptions, page_token: str, page_size: int, view: View
) -> ListRequest:
    """The request of one page of a list."""
    max_staleness_s = options.get("max_staleness_s")
    staleness = None
    if max_staleness_s is not None:
        staleness = duration_pb2.Duration()
        staleness.FromMicroseconds(round(max_staleness_s * 1e6))
    return message(
        account_id=account("account_id", account_id),
        kind=options.get("kind", ""),
        state=graph_pb2.State.ValueType(options.get("state", State.ACTIVE)),
        order=graph_pb2.ListOrder.ValueType(options.get("order", ListOrder.NEWEST_FIRST)),
        page_size=page_size,
        page_token=page_token,
        view=view,
        max_staleness=staleness,
    )


def operand(field: str, value: Operand) -> graph_pb2.Operand:
    """One operand of a set operation."""
    if isinstance(value, FollowersOf | FollowingOf):
        listed = graph_pb2.ListOperand(
            account_id=account(f"{field}.account_id", value.account_id),
            kind=value.kind,
            state=graph_pb2.State.ValueType(value.state),
        )
        if isinstance(value, FollowersOf):
            return graph_pb2.Operand(followers_of=listed)
        return graph_pb2.Operand(following_of=listed)
    return graph_pb2.Operand(ids=graph_pb2.IdList(ids=accounts(f"{field}.ids", value)))


def expression(field: str, value: Expression) -> graph_pb2.Expression:
    """A nested set expression."""
    if not isinstance(value, AllOf | AnyOf | Without):
        return graph_pb2.Expression(operand=operand(f"{field}.operand", value))
    which = {AllOf: "intersect", AnyOf: "union", Without: "difference"}[type(value)]
    parts = [expression(f"{field}.{which}.expressions[{i}]", part) for i, part in enumerate(value.parts)]
    return graph_pb2.Expression(**{which: graph_pb2.ExpressionList(expressions=parts)})  # type: ignore[arg-type]


def edge(wire: graph_pb2.Edge) -> Edge:
    """An edge as answered."""
    return Edge(wire.source_id, wire.destination_id, wire.kind, State(wire.state), wire.position, wire.since)


def change(wire: graph_pb2.WatchEdgesResponse) -> Change:
    """A change as streamed."""
    return Change(edge(wire.edge), State(wire.previous_state) if wire.previous_state else None, wire.resume_token)


def write_result(wire: graph_pb2.WriteResult) -> WriteResult:
    """The result of a write as answered."""
    # Without a state the edge only names what was asked: no row is there.
    stored = edge(wire.edge) if wire.HasField("edge") and wire.edge.state else None
    return WriteResult(stored, Outcome(wire.outcome), wire.reason, wire.duplicate, wire.reverse_pending)


def edge_page(wire: ListResponse) -> Page[Edge]:
    """A page in view FULL."""
    return Page(tuple(map(edge, wire.edges)), wire.next_page_token, wire.previous_page_token)


def neighbor_page(wire: ListResponse) -> Page[Neighbor]:
    """A page in view IDS."""
    neighbors = tuple(map(Neighbor, wire.ids, wire.since))
    return Page(neighbors, wire.next_page_token, wire.previous_page_token)


def degrees(account_id: int, wire: graph_pb2.Degrees | graph_pb2.GetDegreesResponse) -> Degrees:
    """Degrees of an account; the account is named by who asked."""
    by_state = {(Direction(row.direction), State(row.state)): row.degree for row in wire.by_state}
    return Degrees(account_id, wire.followers, wire.following, by_state)


def topology(wire: admin_pb2.GetTopologyResponse) -> TopologyInfo:
    """The topology, its ranges spread out."""
    owners = [""] * wire.slots
    for run in wire.assignment:
        for slot in range(run.first, run.last + 1):
            owners[slot] = run.shard
    kinds = tuple(KindInfo(kind.name, kind.allow_self, kind.max_out_degree, kind.events) for kind in wire.kinds)
    return TopologyInfo(wire.epoch, tuple(wire.shards), tuple(owners), kinds)


def shards(wire: Sequence[admin_pb2.Shard]) -> list[ShardInfo]:
    """Shards as answered."""
    return [ShardInfo(s.name, s.serving, s.slots, s.outbox_length, s.outbox_age_s, s.halves, s.bytes) for s in wire]


def slot_page(wire: admin_pb2.ListSlotsResponse) -> Page[SlotInfo]:
    """A page of slots."""
    slots = tuple(SlotInfo(s.slot, s.shard, s.owned, s.forward, s.reverse, s.agreed_at) for s in wire.slots)
    return Page(slots, wire.next_page_token)
