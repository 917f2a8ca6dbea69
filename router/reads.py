"""Reads: look-ups, degrees and pages, from the primary of the shard that owns the slot.

A shard that does not own a slot says so instead of answering nothing; the topology is then refreshed and the read goes where it
belongs, until the deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from graphd import cursor as tokens
from graphd.cursor import Cursor
from graphd.edge import Direction, Key, State, Version
from graphd.errors import DeadlineError
from graphd.limits import MAX_ID
from graphd.placement import all_slots, slot_of
from graphd.storage.cluster import Cluster
from graphd.storage.items import EdgeKeys, Owners, PageRead, PageRows
from graphd.storage.shard import Shard
from graphd.topology import Kind
from router.admission import Admission

PAUSE_S: Final = 0.01
MAX_PAUSE_S: Final = 0.2
T = TypeVar("T")


class Degrees(NamedTuple):
    """Degrees of one account in one kind; `by_state` holds (direction, state, degree) where the degree is not zero."""

    by_state: list[tuple[int, int, int]]

    def active(self, direction: Direction) -> int:
        """Followers are REVERSE, following is FORWARD."""
        return next((n for d, state, n in self.by_state if d == direction and state == State.ACTIVE), 0)


class Page(NamedTuple):
    """A page of a list in the order asked for: the first `size` of the rows found, the other way round where `backward`. A token is empty
    where nothing more is on its side."""

    rows: PageRows
    size: int
    backward: bool
    next_token: str
    previous_token: str

    @property
    def columns(self) -> npt.NDArray[np.int64]:
        """Shape (3, size): neighbors, sinces and positions."""
        columns = self.rows.columns[:, : self.size]
        return columns[:, ::-1] if self.backward else columns


class ListOf(NamedTuple):
    """A list to page through."""

    direction: Direction
    account_id: int
    kind: Kind
    state: State
    ascending: bool

    @property
    def scope(self) -> bytes:
        """What its page tokens are bound to."""
        return tokens.list_scope(self.account_id, self.direction, self.kind.number, self.state, self.ascending)


class Reader:
    """Carries out reads. `negative`: called with (account, kind) whose stored degree is below zero, which is drift."""

    def __init__(self, cluster: Cluster, admission: Admission, negative: Callable[[int, int], None]) -> None:
        self.cluster, self._admission, self._negative = cluster, admission, negative

    # -- look-ups ------------------------------------------------------------------------------------------------------

    async def edge(self, key: Key, deadline: float) -> Version | None:
        """One edge's version at its forward half; None if no row was ever written."""
        slots = self.cluster.topology.slots
        slot = slot_of(key.source_id, slots)
        keys = EdgeKeys((key.source_id,), (key.kind,), (slot,), (key.destination_id,))

        [(_, version)] = await self._from_lane(
            slot, lambda shard: shard.edges(keys), lambda answer: answer[0][0], deadline
        )
        return version

    async def edges(self, keys: Sequence[Key], deadline: float) -> list[Version | None]:
        """Versions of many edges, in order."""
        slots = all_slots([key.source_id for key in keys], self.cluster.topology.slots)

        def ask(shard: Shard, at: Sequence[int]) -> Awaitable[Sequence[tuple[bool, Version | None]]]:
            wanted = [keys[i] for i in at]
            return shard.edges(
                EdgeKeys(
                    [key.source_id for key in wanted],
                    [key.kind for key in wanted],
                    [slots[i] for i in at],
                    [key.destination_id for key in wanted],
                )
            )

        return await self._scatter(slots, ask, deadline)

    async def degrees(self, account_ids: Sequence[int], kind: Kind, deadline: float) -> list[Degrees]:
        """Degrees of many accounts, in order; an unknown account has none."""
        slots = all_slots(account_ids, self.cluster.topology.slots)

        def ask(shard: Shard, at: Sequence[int]) -> Awaitable[Sequence[tuple[bool, list[tuple[int, int, int]]]]]:
            return shard.degrees(Owners([account_ids[i] for i in at], kind.number, [slots[i] for i in at]))

        found = await self._scatter(slots, ask, deadline)
        return [self._told(account_id, kind, rows) for account_id, rows in zip(account_ids, found, strict=True)]

    def _told(self, account_id: int, kind: Kind, rows: list[tuple[int, int, int]]) -> Degrees:
        """A negative degree is answered as 0, and told to repair: it is drift, not a number."""
        if any(degree < 0 for _, _, degree in rows):
            self._negative(account_id, kind.number)
        return Degrees(sorted(row for row in rows if row[2] > 0))

    # -- pages ---------------------------------------------------------------------------------------------------------

    async def page(self, wanted: ListOf, page_size: int, token: str, deadline: float) -> Page:
        """One page. Raises InvalidArgumentError for a token of another list or order."""
        scope, key = wanted.scope, self.cluster.token_key
        cursor = tokens.decode(token, scope, key) if token else None
        rows = await self.rows(wanted, cursor, page_size + 1, deadline)
        neighbors, sinces, _ = rows.columns
        found = len(neighbors)
        size = min(found, page_size)
        backward = cursor is not None and cursor.backward
        before, after = (found > size, True) if backward else (cursor is not None, found > size)
        if size:
            first, last = (size - 1, 0) if backward else (0, size - 1)
            back, on = (
                Cursor(sinces.item(first), neighbors.item(first), True) if before else None,
                Cursor(sinces.item(last), neighbors.item(last)) if after else None,
            )
        elif cursor is not None:
            # Nothing is left on this side; the way back begins at the cursor's own row, which may still be there.
            turned_back, turned_on = _turned(cursor, wanted.ascending)
            back, on = turned_back if before else None, turned_on if after else None
        else:
            back = on = None
        return Page(
            rows,
            size,
            backward,
            tokens.encode(on, scope, key) if on is not None else "",
            tokens.encode(back, scope, key) if back is not None else "",
        )

    async def rows(self, wanted: ListOf, cursor: Cursor | None, row_count: int, deadline: float) -> PageRows:
        """Rows of a list after a cursor, or before it."""
        ascending = wanted.ascending != (cursor is not None and cursor.backward)
        if cursor is not None:
            since, neighbor_id = cursor.since, cursor.id
        elif ascending:
            since, neighbor_id = -1, -1
        else:
            since, neighbor_id = MAX_ID, MAX_ID
        slot = slot_of(wanted.account_id, self.cluster.topology.slots)

        def ask(shard: Shard) -> asyncio.Future[PageRows]:
            return shard.page(
                PageRead(
                    wanted.direction.table,
                    ascending,
                    wanted.account_id,
                    wanted.kind.number,
                    slot,
                    wanted.state,
                    since,
                    neighbor_id,
                    row_count,
                )
            )

        return await self._from_lane(slot, ask, lambda rows: rows.owned, deadline)

    # -- where it belongs ----------------------------------------------------------------------------------------------

    async def _from_lane(
        self, slot: int, ask: Callable[[Shard], asyncio.Future[T]], owned: Callable[[T], bool], deadline: float
    ) -> T:
        """`at_slot` for what a lane answers: the deadline is put on the future itself, at a third of a timeout's cost."""
        loop = asyncio.get_running_loop()
        pause_s = PAUSE_S
        while True:
            shard = self.cluster.shard_of(slot)
            self._admission.enter(shard.name)
            try:
                future = ask(shard)
                alarm = loop.call_at(deadline, _expire, future)
                try:
                    answer = await future
                finally:
                    alarm.cancel()
            finally:
                self._admission.leave(shard.name)
            if owned(answer):
                return answer
            async with deadline_at(deadline):
                await self.cluster.refresh()
                await asyncio.sleep(pause_s)
            pause_s = min(MAX_PAUSE_S, 2 * pause_s)

    async def at_slot(self, slot: int, ask: Callable[[Shard], Awaitable[T | _NotOwned]], deadline: float) -> T:
        """Ask the shard that owns a slot, whichever that turns out to be. Raises DeadlineError."""
        pause_s = PAUSE_S
        async with deadline_at(deadline):
            while True:
                shard = self.cluster.shard_of(slot)
                self._admission.enter(shard.name)
                try:
                    answer = await ask(shard)
                finally:
                    self._admission.leave(shard.name)
                if not isinstance(answer, _NotOwned):
                    return answer
                await self.cluster.refresh()
                await asyncio.sleep(pause_s)
                pause_s = min(MAX_PAUSE_S, 2 * pause_s)

    async def _scatter(
        self,
        slots: Sequence[int],
        ask: Callable[[Shard, Sequence[int]], Awaitable[Sequence[tuple[bool, T]]]],
        deadline: float,
    ) -> list[T]:
        """Ask each shard for its part, at once; what is not owned where it was thought goes round again.

        Fails as a whole when one shard fails: a smaller answer would be a wrong one.
        """
        found: dict[int, T] = {}
        left: Iterable[int] = range(len(slots))
        pause_s = PAUSE_S
        async with deadline_at(deadline):
            while True:
                parts: dict[str, list[int]] = {}
                for i in left:
                    parts.setdefault(self.cluster.shard_of(slots[i]).name, []).append(i)
                entered = self._admission.enter_all(parts)
                try:
                    asked = [ask(self.cluster.shards[name], at) for name, at in parts.items()]
                    answers: list[Any] = [await asked[0]] if len(asked) == 1 else await all_of(asked)
                finally:
                    self._admission.leave_all(entered)
                missing: list[int] = []
                for at, rows in zip(parts.values(), answers, strict=True):
                    for i, (owned, value) in zip(at, rows, strict=True):
                        if owned:
                            found[i] = value
                        else:
                            missing.append(i)
                if not missing:
                    return [found[i] for i in range(len(slots))]
                left = missing
                await self.cluster.refresh()
                await asyncio.sleep(pause_s)
                pause_s = min(MAX_PAUSE_S, 2 * pause_s)


def _expire(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(DeadlineError())


class _NotOwned:
    """The shard does not own the slot."""


NOT_OWNED: Final = _NotOwned()


class deadline_at:  # noqa: N801 - read as a statement, like asyncio.timeout_at
    """Raise DeadlineError when the event loop's clock passes `deadline` inside."""

    __slots__ = ("_timeout",)

    def __init__(self, deadline: float) -> None:
        self._timeout = asyncio.timeout_at(deadline)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError as expired:
            raise DeadlineError() from expired


async def all_of(asked: Sequence[Awaitable[T]]) -> list[T]:
    """Wait for all; when one fails, the others are waited for too, and the first error is raised."""
    answers = await asyncio.gather(*asked, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return [answer for answer in answers if not isinstance(answer, BaseException)]


def _turned(cursor: Cursor, ascending: bool) -> tuple[Cursor, Cursor]:
    """Cursors (back, on) from an empty page: both take in the row at the cursor itself."""
    # One id further, so that "strictly after" is "from here on". Against the list's order the step has the other sign.
    lower, higher = Cursor(cursor.since, cursor.id - 1), Cursor(cursor.since, cursor.id + 1)
    if cursor.id == MAX_ID:
        higher = Cursor(cursor.since + 1, -1)
    back, on = (higher, lower) if ascending else (lower, higher)
    return back._replace(backward=True), on
