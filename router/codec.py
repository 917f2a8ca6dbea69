"""Between protobuf and our values: what a request must be, and what an answer looks like.

Every field is checked here, once, and a broken rule names the field.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, Final, Protocol

import numpy as np
from google.protobuf.message import Message

from graphd import cursor as tokens
from graphd.edge import Direction, Key, State, Version
from graphd.errors import GraphdError, InvalidArgumentError, OutOfRangeError
from graphd.limits import (
    AHEAD_RULE,
    DEFAULT_PAGE_SIZE,
    DEFAULT_SUGGESTIONS,
    MAX_AHEAD_US,
    MAX_BATCH,
    MAX_EXPRESSION_DEPTH,
    MAX_EXPRESSION_OPERANDS,
    MAX_ID,
    MAX_OPERAND_IDS,
    MAX_OPERANDS,
    MAX_PAGE_SIZE,
    MAX_REQUEST_ID_CHARS,
    MAX_SUGGESTIONS,
    MIN_OPERANDS,
    PURGE_HORIZON_US,
)
from graphd.operations import TABLE, Operation
from graphd.setops import descending
from graphd.topology import DEFAULT_KIND, Kind, Topology
from graphd.v1 import graph_pb2 as pb
from router import wire
from router.expressions import Expression, ListIds, Node, Operand, SetOperation
from router.reads import Degrees, ListOf, Page
from router.setreads import CommonDegree
from router.status import code_of
from router.values import Result, Write, WriteOutcome

ID_RULE: Final = f"must be given, 0 to {MAX_ID}"


class HasEdge(Protocol):
    """A request that names an edge by source and destination."""

    source_id: int
    destination_id: int
    kind: str

    def HasField(self, field: Any) -> bool: ...  # noqa: N802 - protobuf's name


class HasOptions(Protocol):
    """A request that writes, whatever it calls the accounts."""

    position: int
    request_id: str
    backfill: bool

    def HasField(self, field: Any) -> bool: ...  # noqa: N802 - protobuf's name


class HasWrite(HasEdge, HasOptions, Protocol):
    """A request that writes an edge."""


class Checker:
    """Checks requests against the topology, the clock and the settings of this router."""

    def __init__(self, given_positions: bool) -> None:
        self._given_positions = given_positions

    # -- writes --------------------------------------------------------------------------------------------------------

    def write(self, request: HasWrite, operation: Operation, topology: Topology, now_us: int) -> Write:
        """A write."""
        source_id, destination_id = edge_ids(request)
        kind = topology.kind(request.kind)
        if source_id == destination_id and not kind.allow_self:
            raise InvalidArgumentError("destination_id", f"must not be the source: {kind.name} has no self-edges")
        return self._write(request, operation, source_id, destination_id, kind, now_us)

    def block(
        self, request: pb.BlockRequest | pb.UnblockRequest, operation: Operation, topology: Topology, now_us: int
    ) -> Write:
        """A write of the edge blocked -> blocker, which requests name by the parts that the two play."""
        blocker_id, blocked_id = request.blocker_id, request.blocked_id
        _check_id(request, blocker_id, "blocker_id")
        _check_id(request, blocked_id, "blocked_id")
        kind = topology.kind(request.kind)
        if blocker_id == blocked_id and not kind.allow_self:
            raise InvalidArgumentError("blocked_id", f"must not be the blocker: {kind.name} has no self-edges")
        return self._write(request, operation, blocked_id, blocker_id, kind, now_us)

    def _write(
        self,
        request: HasOptions,
        operation: Operation,
        source_id: int,
        destination_id: int,
        kind: Kind,
        now_us: int,
    ) -> Write:
        position = request.position if request.HasField("position") else None
        if position is not None:
            self._position(position, request.backfill, now_us)
        request_id = request.request_id if request.HasField("request_id") else None
        if request_id is not None and not (1 <= len(request_id) <= MAX_REQUEST_ID_CHARS and "\0" not in request_id):
            raise InvalidArgumentError(
                "request_id", f"must have 1 to {MAX_REQUEST_ID_CHARS} characters, none of them NUL"
            )
        return Write(operation, source_id, destination_id, kind, position, request_id, request.backfill)

    def _position(self, position: int, backfill: bool, now_us: int) -> None:
        field = "position"
        if not self._given_positions:
            raise InvalidArgumentError(field, "must not be given: this router takes live writes only")
        if position < 1:
            raise OutOfRangeError(field, "must be 1 or more")
        if position > now_us + MAX_AHEAD_US:
            raise OutOfRangeError(field, AHEAD_RULE)
        if position < now_us - PURGE_HORIZON_US and not backfill:
            days = PURGE_HORIZON_US // 86_400_000_000
            raise OutOfRangeError(field, f"must not be older than {days} days unless backfill is set (microseconds)")

    def batch(self, requests: Sequence[pb.Write], topology: Topology, now_us: int) -> list[Write | GraphdError]:
        """The writes of a batch; an error stands in the place of an invalid item."""
        batch_size("writes", len(requests))
        checked: list[Write | GraphdError] = []
        for i, request in enumerate(requests):
            try:
                checked.append(self.write(request, _operation(request.operation), topology, now_us))
            except InvalidArgumentError as error:
                # Named only now: most items are right, and 500 names of fields cost as much as checking them.
                checked.append(type(error)(f"writes[{i}].{error.field}", error.rule))
            except GraphdError as error:
                checked.append(error)
        return checked


_OPERATIONS: Final = {int(operation): operation for operation in Operation if TABLE[operation].given is not None}
"""What callers may ask for: all but the internal ones."""


def _operation(number: int) -> Operation:
    """The operation of a batch's item."""
    operation = _OPERATIONS.get(number)
    if operation is None:
        raise InvalidArgumentError("operation", "must be one of the operations")
    return operation


def edge_ids(request: HasEdge, at: str = "") -> tuple[int, int]:
    """Source and destination of a request."""
    source_id, destination_id = request.source_id, request.destination_id
    # An id that is not set reads as 0, so only a 0 needs the dearer question.
    if source_id <= 0:
        _check_id(request, source_id, "source_id", at)
    if destination_id <= 0:
        _check_id(request, destination_id, "destination_id", at)
    return source_id, destination_id


def _check_id(request: Any, value: int, field: str, at: str = "") -> None:
    if value < 0 or not (value or request.HasField(field)):
        raise InvalidArgumentError(f"{at}{field}", ID_RULE)


def account_id(request: Any, at: str = "") -> int:
    """The account of a request."""
    value: int = request.account_id
    _check_id(request, value, "account_id", at)
    return value


def account_ids(values: Sequence[int]) -> list[int]:
    """The accounts of a batch."""
    batch_size("account_ids", len(values))
    found = list(values)
    if min(found) < 0:
        bad = next(i for i, value in enumerate(found) if value < 0)
        raise InvalidArgumentError(f"account_ids[{bad}]", ID_RULE)
    return found


def batch_size(field: str, size: int) -> None:
    """A batch has 1 to MAX_BATCH items."""
    if not 1 <= size <= MAX_BATCH:
        raise InvalidArgumentError(field, f"must have 1 to {MAX_BATCH} items, not {size}")


def edge_key(request: HasEdge, topology: Topology, at: str = "") -> Key:
    """The edge of a look-up."""
    source_id, destination_id = edge_ids(request, at)
    return Key(topology.kind(request.kind, f"{at}kind").number, source_id, destination_id)


def page_size(value: int) -> int:
    """0 is the default; above the limit is the limit."""
    if value < 0:
        raise InvalidArgumentError("page_size", "must not be negative")
    return min(value or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)


def chunk_size(value: int) -> int:
    """0 is the most, and so is what is above it."""
    if value < 0:
        raise InvalidArgumentError("chunk_size", "must not be negative")
    return min(value or MAX_PAGE_SIZE, MAX_PAGE_SIZE)


def state(value: int, field: str) -> State:
    """Unspecified is ACTIVE."""
    if value == 0:
        return State.ACTIVE
    try:
        return State(value)
    except ValueError:
        raise InvalidArgumentError(field, "must be one of the states") from None


def list_of(request: Any, direction: Direction, topology: Topology) -> ListOf:
    """The list a request pages through."""
    if request.order not in (0, pb.LIST_ORDER_NEWEST_FIRST, pb.LIST_ORDER_OLDEST_FIRST):
        raise InvalidArgumentError("order", "must be NEWEST_FIRST or OLDEST_FIRST")
    if request.view not in (0, pb.VIEW_FULL, pb.VIEW_IDS):
        raise InvalidArgumentError("view", "must be FULL or IDS")
    if request.HasField("max_staleness") and request.max_staleness.ToNanoseconds() < 0:
        raise InvalidArgumentError("max_staleness", "must not be negative")
    return ListOf(
        direction,
        account_id(request),
        topology.kind(request.kind),
        state(request.state, "state"),
        request.order == pb.LIST_ORDER_OLDEST_FIRST,
    )


def operands(requests: Sequence[pb.Operand], topology: Topology) -> list[Operand]:
    """The operands of a set operation."""
    if not MIN_OPERANDS <= len(requests) <= MAX_OPERANDS:
        raise InvalidArgumentError("operands", f"must be {MIN_OPERANDS} to {MAX_OPERANDS}, not {len(requests)}")
    return [_operand(request, topology, f"operands[{i}]") for i, request in enumerate(requests)]


def _operand(request: pb.Operand, topology: Topology, at: str) -> Operand:
    which = request.WhichOneof("operand")
    if which is None:
        raise InvalidArgumentError(at, "must be followers_of, following_of or ids")
    if which == "ids":
        ids = request.ids.ids
        if len(ids) > MAX_OPERAND_IDS:
            raise InvalidArgumentError(f"{at}.ids", f"must be {MAX_OPERAND_IDS} at most, not {len(ids)}")
        found = descending(np.fromiter(ids, dtype=np.int64, count=len(ids)))
        if len(found) and found[-1] < 0:
            raise InvalidArgumentError(f"{at}.ids", f"must be 0 to {MAX_ID} each")
        return found
    wanted = request.followers_of if which == "followers_of" else request.following_of
    direction = Direction.REVERSE if which == "followers_of" else Direction.FORWARD
    return ListIds(
        direction,
        account_id(wanted, f"{at}.{which}."),
        topology.kind(wanted.kind, f"{at}.{which}.kind"),
        state(wanted.state, f"{at}.{which}.state"),
    )


def slots(values: Sequence[int], topology: Topology) -> list[int]:
    """Slots to watch, ascending; none is all."""
    for i, value in enumerate(values):
        if not 0 <= value < topology.slots:
            raise InvalidArgumentError(f"slots[{i}]", f"must be 0 to {topology.slots - 1}")
    return sorted(set(values))


def combined(operation: SetOperation, requests: Sequence[pb.Operand], topology: Topology) -> Node:
    """The operands of a set operation, combined."""
    return Node(operation, tuple(operands(requests, topology)))


def expression(request: pb.SelectRequest, topology: Topology) -> Expression:
    """The expression of a Select."""
    if not request.HasField("expression"):
        raise InvalidArgumentError("expression", "must be given")
    return _expression(request.expression, topology, "expression", 1, count(1))


def _expression(request: pb.Expression, topology: Topology, at: str, depth: int, counted: Iterator[int]) -> Expression:
    if depth > MAX_EXPRESSION_DEPTH:
        raise InvalidArgumentError(at, f"must not be nested deeper than {MAX_EXPRESSION_DEPTH}")
    which = request.WhichOneof("expression")
    if which is None:
        raise InvalidArgumentError(at, "must be an operand, intersect, union or difference")
    if which == "operand":
        if next(counted) > MAX_EXPRESSION_OPERANDS:
            raise InvalidArgumentError(f"{at}.operand", f"must be one of {MAX_EXPRESSION_OPERANDS} in all at most")
        return _operand(request.operand, topology, f"{at}.operand")
    parts = getattr(request, which).expressions
    if not MIN_OPERANDS <= len(parts) <= MAX_OPERANDS:
        raise InvalidArgumentError(
            f"{at}.{which}.expressions", f"must be {MIN_OPERANDS} to {MAX_OPERANDS}, not {len(parts)}"
        )
    return Node(
        SetOperation(which),
        tuple(
            _expression(part, topology, f"{at}.{which}.expressions[{i}]", depth + 1, counted)
            for i, part in enumerate(parts)
        ),
    )


def recency(order: int, wanted: Expression, field: str) -> ListIds | None:
    """The list in whose order the answer is wanted; None: by id. Only where every answer is in that list: it is the first operand of all,
    and no union stands above it."""
    if order in (0, pb.SET_ORDER_BY_ID):
        return None
    if order != pb.SET_ORDER_RECENCY:
        raise InvalidArgumentError("order", "must be BY_ID or RECENCY")
    first = wanted
    while isinstance(first, Node) and first.operation is not SetOperation.UNION:
        first = first.parts[0]
    if not isinstance(first, ListIds):
        raise InvalidArgumentError(
            "order", f"must be BY_ID: the first operand of {field} is not a list whose order the answer could have"
        )
    return first


class HasSetPage(Protocol):
    """A request for a page of a set operation."""

    order: pb.SetOrder.ValueType
    page_size: int
    page_token: str


class HasOperands(HasSetPage, Protocol):
    """A request for a page of one set operation."""

    @property
    def operands(self) -> Sequence[pb.Operand]: ...


def set_scope(request: HasSetPage, operation: bytes, parts: Sequence[Message]) -> bytes:
    """What the tokens of a set operation are bound to: the operation, the order, and its parts one by one."""
    packed = [part.SerializeToString(deterministic=True) for part in parts]
    named = operation + b":recency" if request.order == pb.SET_ORDER_RECENCY else operation
    return tokens.set_scope(named, b"".join(len(part).to_bytes(4, "big") + part for part in packed))


def common_limit(value: int) -> int:
    """0 is no limit."""
    if value < 0:
        raise InvalidArgumentError("limit", "must not be negative")
    return value


def suggestions_wanted(value: int) -> int:
    """0 is the default."""
    if not 0 <= value <= MAX_SUGGESTIONS:
        raise InvalidArgumentError("k", f"must be 0 to {MAX_SUGGESTIONS}")
    return value or DEFAULT_SUGGESTIONS


def other_id(request: pb.DistanceRequest) -> int:
    """The account a distance leads to."""
    _check_id(request, request.other_id, "other_id")
    return request.other_id


# -- answers -----------------------------------------------------------------------------------------------------------


def edge(source_id: int, destination_id: int, kind: str, version: Version) -> pb.Edge:
    """An edge as stored."""
    return pb.Edge(
        source_id=source_id,
        destination_id=destination_id,
        kind=kind,
        state=version.state,  # type: ignore[arg-type]
        position=version.position,
        since=version.since,
    )


def write_result(write: Write, outcome: WriteOutcome) -> pb.WriteResult:
    """What a write did. An edge that is absent still has its names and no state."""
    if outcome.version is not None:
        stored = edge(write.source_id, write.destination_id, write.kind.name, outcome.version)
    else:
        stored = pb.Edge(source_id=write.source_id, destination_id=write.destination_id, kind=write.kind.name)
    return pb.WriteResult(
        edge=stored,
        outcome=int(outcome.outcome),  # type: ignore[arg-type]
        reason=outcome.reason,
        duplicate=outcome.duplicate,
        reverse_pending=outcome.reverse_pending,
    )


def item_result(request: pb.Write, write: Write | None, result: Result) -> pb.WriteResult:
    """The result of a batch's item: an invalid one is REFUSED, one that could not be carried out FAILED."""
    if isinstance(result, WriteOutcome):
        assert write is not None, "only a checked write is carried out"
        return write_result(write, result)
    failed = pb.WriteResult(
        edge=pb.Edge(
            source_id=request.source_id if request.HasField("source_id") else None,
            destination_id=request.destination_id if request.HasField("destination_id") else None,
            kind=(request.kind or DEFAULT_KIND) if write is None else write.kind.name,
        ),
        outcome=pb.OUTCOME_FAILED,
        reason=code_of(result).name,
    )
    if isinstance(result, InvalidArgumentError):
        failed.outcome = pb.OUTCOME_REFUSED
        failed.reason = "OUT_OF_RANGE" if isinstance(result, OutOfRangeError) else "INVALID"
    return failed


def batch_bytes(
    requests: Sequence[pb.Write], writes: Sequence[Write | GraphdError], results: Sequence[Result]
) -> bytes:
    """The results of a batch as the wire bytes of BatchWriteResponse. Nearly all are of one kind and say only what is stored now: these are
    written together."""
    kind = next((write.kind for write in writes if isinstance(write, Write)), None)
    plain = [_plain(write, result, kind) for write, result in zip(writes, results, strict=True)]
    together = [pair for pair in plain if pair is not None]
    if kind is None or not together:
        rows: Iterator[bytes] = iter(())
    else:
        cells = wire.write_results(together, kind.name)
        if len(together) == len(plain):
            return cells.tobytes()
        rows = (row.tobytes() for row in cells)
    return b"".join(
        next(rows) if pair is not None else _one_result(request, write, result)
        for pair, request, write, result in zip(plain, requests, writes, results, strict=True)
    )


def _plain(write: Write | GraphdError, result: Result, kind: Kind | None) -> tuple[Write, WriteOutcome] | None:
    if (
        isinstance(write, Write)
        and write.kind is kind
        and isinstance(result, WriteOutcome)
        and result.version is not None
    ):
        return None if result.reason else (write, result)
    return None


def _one_result(request: pb.Write, write: Write | GraphdError, result: Result) -> bytes:
    checked = None if isinstance(write, GraphdError) else write
    return pb.BatchWriteResponse(results=(item_result(request, checked, result),)).SerializeToString()


def by_state(degrees: Degrees) -> list[pb.StateDegree]:
    """Degrees by direction and state."""
    return [
        pb.StateDegree(direction=direction, state=state_, degree=degree)  # type: ignore[arg-type]
        for direction, state_, degree in degrees.by_state
    ]


def degrees_message(account: int, degrees: Degrees) -> pb.Degrees:
    """Degrees of one account of a batch."""
    return pb.Degrees(
        account_id=account,
        followers=degrees.active(Direction.REVERSE),
        following=degrees.active(Direction.FORWARD),
        by_state=by_state(degrees),
    )


def common_degree(found: CommonDegree) -> pb.GetCommonDegreeResponse:
    """How many ids there are."""
    return pb.GetCommonDegreeResponse(degree=found.degree, exact=found.exact)


def page_bytes(wanted: ListOf, view: int, page: Page) -> bytes:
    """A page as the wire bytes of ListFollowersResponse or ListFollowingResponse."""
    if view != pb.VIEW_IDS:
        return wire.list_edges(wanted, page)
    neighbors, sinces, _ = page.columns
    return pb.ListFollowersResponse(
        ids=neighbors.tolist(),
        since=sinces.tolist(),
        next_page_token=page.next_token,
        previous_page_token=page.previous_token,
    ).SerializeToString()
