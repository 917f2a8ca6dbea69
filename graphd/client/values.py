"""What the client takes and answers: frozen values, without protobuf. Positions and sinces are microseconds since the Unix epoch.

A kind is a name here, "" the default one, where graphd.edge holds the number that the catalog gave to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, NamedTuple, TypeAlias, TypedDict, TypeVar

from graphd.edge import Direction, State
from graphd.operations import Operation, Outcome

T = TypeVar("T")


class ListOrder(IntEnum):
    """Order of a list of edges, by since; the numbers are the wire values."""

    NEWEST_FIRST = 1
    OLDEST_FIRST = 2


class SetOrder(IntEnum):
    """Order of the answer of a set operation: ids descending, or as in the list of the first operand."""

    BY_ID = 1
    RECENCY = 2


class Edge(NamedTuple):
    """One edge and its version."""

    source_id: int
    destination_id: int
    kind: str
    state: State
    position: int
    since: int


class Change(NamedTuple):
    """An edge as it became. `previous_state` None: it was absent. `resume_token`: go on after this change."""

    edge: Edge
    previous_state: State | None
    resume_token: str


class Chunk(NamedTuple):
    """A part of a whole list, newest first. `page_token`: go on after it; empty in the last one."""

    ids: tuple[int, ...]
    page_token: str


class Progress(NamedTuple):
    """How many edges an account's archiving, restoring or removing has changed, and how many there were to change."""

    done: int
    total: int


class EdgeKey(NamedTuple):
    """Names an edge."""

    source_id: int
    destination_id: int
    kind: str = ""


class Neighbor(NamedTuple):
    """One entry of a list: who, and since when."""

    account_id: int
    since: int


@dataclass(frozen=True, slots=True)
class Write:
    """One item of a batch. `position` makes it a given write; `request_id` is filled in where it is None."""

    operation: Operation
    source_id: int
    destination_id: int
    kind: str = ""
    position: int | None = None
    request_id: str | None = None
    backfill: bool = False


@dataclass(frozen=True, slots=True)
class WriteResult:
    """What a write did, and the edge as stored now (None where none is, or none is known).

    `reason` says why an item is REFUSED or FAILED. `duplicate`: answered as at first, from the receipt of an earlier call.
    `reverse_pending`: durable with the source, and still to be delivered to the destination's list.
    """

    edge: Edge | None
    outcome: Outcome
    reason: str = ""
    duplicate: bool = False
    reverse_pending: bool = False


@dataclass(frozen=True, slots=True)
class Degrees:
    """Exact counts of one account. `followers` and `following` are ACTIVE edges; `by_state` omits zeros."""

    account_id: int
    followers: int
    following: int
    by_state: Mapping[tuple[Direction, State], int]


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Part of a list. An empty `next_page_token` means that nothing follows; a `partial` page is short for lack of time."""

    items: tuple[T, ...]
    next_page_token: str = ""
    previous_page_token: str = ""
    partial: bool = False


@dataclass(frozen=True, slots=True)
class FollowersOf:
    """Operand of a set operation: who follows the account."""

    account_id: int
    kind: str = ""
    state: State = State.ACTIVE


@dataclass(frozen=True, slots=True)
class FollowingOf:
    """Operand of a set operation: whom the account follows."""

    account_id: int
    kind: str = ""
    state: State = State.ACTIVE


Operand: TypeAlias = FollowersOf | FollowingOf | Sequence[int]
"""A list of an account, or up to 100,000 ids in any order."""


class AllOf:
    """An expression of a Select: what all parts hold. 2..16 parts, as in AnyOf and Without."""

    def __init__(self, *parts: Expression) -> None:
        self.parts = parts


class AnyOf:
    """What any part holds."""

    def __init__(self, *parts: Expression) -> None:
        self.parts = parts


class Without:
    """What the first part holds and no other does."""

    def __init__(self, *parts: Expression) -> None:
        self.parts = parts


Expression: TypeAlias = Operand | AllOf | AnyOf | Without


class Suggestions(NamedTuple):
    """(account, how many of those followed follow it), best first. `sampled`: of long lists only the newest part was looked at."""

    accounts: tuple[tuple[int, int], ...]
    sampled: bool


@dataclass(frozen=True, slots=True)
class KindInfo:
    """A family of edges; `max_out_degree` 0 is no limit."""

    name: str
    allow_self: bool
    max_out_degree: int
    events: bool = True


@dataclass(frozen=True, slots=True)
class TopologyInfo:
    """Where everything is, as a router knows it: `owners[slot]` names the shard that holds the slot."""

    epoch: int
    shards: tuple[str, ...]
    owners: tuple[str, ...]
    kinds: tuple[KindInfo, ...]

    @property
    def slots(self) -> int:
        """How many there are, a power of two."""
        return len(self.owners)


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """One shard: whether the router reaches it, what it holds (about how many halves, bytes on disk), and what it owes to others.
    The last four are 0 while it does not serve, since nobody knows them."""

    name: str
    serving: bool
    slots: int
    outbox_length: int
    outbox_age_s: float
    halves: int
    bytes: int


@dataclass(frozen=True, slots=True)
class SlotInfo:
    """One slot, its exact counts, and when repair last saw all of it agree (`agreed_at` 0: never)."""

    slot: int
    shard: str
    owned: bool
    forward: int
    reverse: int
    agreed_at: int


class WriteOptions(TypedDict, total=False):
    """Of a single write. `position` makes it a given write, `backfill` lifts the purge horizon for it; a `request_id` that is not
    named is made up for the call and its repetitions."""

    kind: str
    position: int | None
    request_id: str | None
    backfill: bool
    deadline_s: float | None


class ListOptions(TypedDict, total=False):
    """Of a list: ACTIVE edges of the default kind, newest first, in pages of 1,000, unless other things are named.

    `max_staleness_s` lets a replica answer. `deadline_s` is that of each page.
    """

    kind: str
    state: State
    order: ListOrder
    page_size: int
    max_staleness_s: float | None
    deadline_s: float | None
