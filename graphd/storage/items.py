"""What lanes carry: writes, reverse versions and reads, each settled once by the lane that carries it.

Writes are settled through a callback, so that a batch of 500 needs one future and not 500; reads through a future.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Generic, NamedTuple, TypeVar
from uuid import UUID

import numpy as np
import numpy.typing as npt

from graphd.edge import Version
from graphd.errors import GraphdError
from graphd.operations import Operation, Outcome


class Namespace(IntEnum):
    """Whose receipts: callers' request ids, or our own, under the id of the outbox row that an operation comes from."""

    CALLERS = 1
    INTERNAL = 2


class Receipt(NamedTuple):
    """A request id, scoped to the acting account, and the fingerprint (signed 64-bit) of the input it came with."""

    actor_id: int
    id: str
    fingerprint: int
    namespace: Namespace = Namespace.CALLERS

    @property
    def key(self) -> tuple[int, str, int]:
        """What it is found by."""
        return (self.actor_id, self.id, self.namespace)


def debt_receipt(actor_id: int, outbox_id: UUID) -> Receipt:
    """Under which an operation that an outbox row owes is remembered, so that router and relay carry it out once between them."""
    return Receipt(actor_id, str(outbox_id), 0, Namespace.INTERNAL)


class Remembered(NamedTuple):
    """The answer a receipt holds."""

    fingerprint: int
    outcome: Outcome
    version: Version | None
    reason: str = ""


class Answer(NamedTuple):
    """What a shard says of one operation.

    `owned` False: the slot is not here, nothing was done. `remembered`: answered from a receipt, nothing was done. Else `version` is
    stored now, having replaced `before`; `outbox_id` is set when the reverse half is owed to another shard, `counter_id` when an
    operation is owed to the edge the other way. `version` None: the operation changed nothing (refused or stale), and must be read again to
    say why; or a given position was `ahead` of the shard's clock; or the edge would have been one too many for its kind (`crowded`).
    `suspended`: the source is, which may be why.
    """

    owned: bool
    version: Version | None = None
    before: Version | None = None
    outbox_id: UUID | None = None
    remembered: Remembered | None = None
    ahead: bool = False
    counter_id: UUID | None = None
    crowded: bool = False
    suspended: bool = False


@dataclass(slots=True, eq=False)
class WriteItem:
    """An operation for the forward half. `stamp`: the stamp of a live write, the position of a given one. `most`: how many ACTIVE edges
    of its kind the source may have; 0 is no limit. `watched`: changes of this kind are events."""

    source_id: int
    destination_id: int
    kind: int
    slot: int
    peer_slot: int
    operation: Operation
    given: bool
    stamp: int
    receipt: Receipt | None
    settle: Callable[[WriteItem, Answer | GraphdError], None]
    """Called once, by `answer` or `fail`."""
    most: int = 0
    watched: bool = True
    abandoned: bool = False
    sent: bool = False

    @property
    def keys(self) -> tuple[Hashable, ...]:
        """Single in a batch: the edge, and the request id, so that its second use finds the receipt of the first."""
        edge = (self.source_id, self.kind, self.destination_id)
        return (edge,) if self.receipt is None else (edge, self.receipt.key)

    @property
    def weight(self) -> int:
        """One row."""
        return 1

    def answer(self, result: Answer | GraphdError) -> None:
        """Settle. Whoever waits is let go of, or he and his item would be left to the garbage collector."""
        settle, self.settle = self.settle, _settled
        settle(self, result)

    def fail(self, error: GraphdError) -> None:
        """Settle with an error."""
        self.answer(error)


def _settled(item: WriteItem, answer: Answer | GraphdError) -> None:
    """Nobody waits any more; only a lane that met a bug while it settled a batch comes here."""


@dataclass(slots=True, eq=False)
class ReverseItem:
    """A version for the reverse half, from another shard. `settle` gets whether this shard owned the slot, or an error."""

    owner_id: int
    kind: int
    slot: int
    neighbor_id: int
    version: Version
    settle: Callable[[bool | GraphdError], None]
    abandoned: bool = False

    @property
    def keys(self) -> tuple[Hashable, ...]:
        """Any number in a batch: they are folded by merge."""
        return ()

    @property
    def weight(self) -> int:
        """One row."""
        return 1

    def fail(self, error: GraphdError) -> None:
        """Settle with an error."""
        self.settle(error)


@dataclass(slots=True, eq=False)
class Nudge:
    """Carries nothing: makes an idle lane strike what has been delivered."""

    keys: tuple[Hashable, ...] = ()
    weight: int = 0
    abandoned: bool = False

    def fail(self, error: GraphdError) -> None:
        """Nobody waits for it."""


R = TypeVar("R")


class Read(Generic[R]):
    """A read that waits for its answer in `future`."""

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: asyncio.Future[R] = asyncio.get_running_loop().create_future()

    @property
    def keys(self) -> tuple[Hashable, ...]:
        """Any number in a batch."""
        return ()

    @property
    def abandoned(self) -> bool:
        """The caller has gone."""
        return self.future.done()

    def settle(self, result: R) -> None:
        """Answer the caller, if he still waits."""
        if not self.future.done():
            self.future.set_result(result)

    def fail(self, error: GraphdError) -> None:
        """Answer the caller with an error, if he still waits."""
        if not self.future.done():
            self.future.set_exception(error)


@dataclass(frozen=True, slots=True)
class EdgeKeys:
    """Columns of edges to look up; equal lengths. Sequences of int or int64 arrays."""

    source_ids: Any
    kinds: Any
    slots: Any
    destination_ids: Any

    def __len__(self) -> int:
        return len(self.source_ids)


class EdgesRead(Read[list[tuple[bool, Version | None]]]):
    """Looks up forward halves. Answers (owned, version or None) for each key, in order."""

    __slots__ = ("wanted",)

    def __init__(self, keys: EdgeKeys) -> None:
        super().__init__()
        self.wanted = keys

    @property
    def weight(self) -> int:
        """Rows asked for."""
        return len(self.wanted)


class Counter(NamedTuple):
    """What an edge owes to the edge the other way: a row of the outbox."""

    peer_slot: int
    id: UUID
    operation: Operation


class CountersRead(Read[tuple[bool, list[Counter]]]):
    """Asks what an edge owes to the edge the other way. Answers whether the slot is owned, and the debts."""

    __slots__ = ("destination_id", "kind", "slot", "source_id")

    def __init__(self, source_id: int, kind: int, slot: int, destination_id: int) -> None:
        super().__init__()
        self.source_id, self.kind, self.slot, self.destination_id = source_id, kind, slot, destination_id

    @property
    def weight(self) -> int:
        """One look-up."""
        return 1


class SuspensionRead(Read[tuple[bool, bool]]):
    """Asks whether an account is suspended in a kind. Answers whether the slot is owned, and whether it is."""

    __slots__ = ("account_id", "kind", "slot")

    def __init__(self, account_id: int, kind: int, slot: int) -> None:
        super().__init__()
        self.account_id, self.kind, self.slot = account_id, kind, slot

    @property
    def weight(self) -> int:
        """One look-up."""
        return 1


@dataclass(frozen=True, slots=True)
class Owners:
    """Columns of owners, of one kind; equal lengths."""

    owner_ids: Any
    kind: int
    slots: Any

    def __len__(self) -> int:
        return len(self.owner_ids)


class DegreesRead(Read[list[tuple[bool, list[tuple[int, int, int]]]]]):
    """Reads degrees. Answers (owned, [(direction, state, degree), ...]) for each owner, in order."""

    __slots__ = ("owners",)

    def __init__(self, owners: Owners) -> None:
        super().__init__()
        self.owners = owners

    @property
    def weight(self) -> int:
        """Owners asked for."""
        return len(self.owners)


EMPTY: Final[npt.NDArray[np.int64]] = np.empty(0, dtype=np.int64)


class PageBlock:
    """Pages that came with one flush and are alike: same table, kind, state and number of rows. What is made of them is made of all at
    once, which costs little more than of one."""

    __slots__ = ("columns", "encoded", "owner_ids")

    def __init__(self, owner_ids: Sequence[int], columns: npt.NDArray[np.int64]) -> None:
        self.owner_ids = owner_ids
        self.columns = columns
        """Shape (pages, 3, n): neighbors, sinces and positions in the order asked for."""
        self.encoded: npt.NDArray[np.uint8] | None = None
        """What the reader made of the rows, kept for the other pages; shape (pages, n, bytes)."""


NO_ROWS: Final = PageBlock((), np.empty((1, 3, 0), dtype=np.int64))


class PageRows(NamedTuple):
    """Rows of a list: page `at` of a block; `owned` as in Answer."""

    owned: bool
    block: PageBlock
    at: int

    @property
    def columns(self) -> npt.NDArray[np.int64]:
        """Shape (3, n): neighbors, sinces and positions."""
        columns: npt.NDArray[np.int64] = self.block.columns[self.at]
        return columns


class PageRead(Read[PageRows]):
    """Reads `row_count` rows of one list, strictly after (since, neighbor_id) in the order."""

    __slots__ = ("ascending", "kind", "neighbor_id", "owner_id", "row_count", "since", "slot", "state", "table")

    def __init__(
        self,
        table: str,
        ascending: bool,
        owner_id: int,
        kind: int,
        slot: int,
        state: int,
        since: int,
        neighbor_id: int,
        row_count: int,
    ) -> None:
        super().__init__()
        self.table, self.ascending = table, ascending
        self.owner_id, self.kind, self.slot, self.state = owner_id, kind, slot, state
        self.since, self.neighbor_id, self.row_count = since, neighbor_id, row_count

    @property
    def weight(self) -> int:
        """A page costs about as much as a few look-ups, and more with its rows."""
        return 4 + self.row_count // 16
