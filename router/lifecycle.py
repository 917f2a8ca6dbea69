"""Archiving, restoring and removing an account: its suspension is set or cleared first, then its lists are walked.

A walk takes from the lists what is still to be changed, a page at a time, and changes it through the write path, so that both halves,
degrees and events follow as they do for a single write. What has been done is out of those lists: a walk begun again goes on where the
first stopped, and no place need be kept. While the walk goes on, every other write already meets the suspension as it is (see
storage/suspensions.py), so what comes meanwhile needs no walk.

A walk is done when a round finds nothing more to change, or after MAX_ROUNDS: given writes that land ACTIVE go on being archived, one by
one, for as long as they come. It yields to callers by resting as long as it has worked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, TypeVar

import structlog

from graphd.cursor import Cursor
from graphd.edge import Direction, State
from graphd.errors import (
    DeadlineError,
    DrainingError,
    GraphdError,
    OverloadedError,
    ShardUnavailableError,
    SupersededError,
)
from graphd.limits import MAX_DEADLINE_S
from graphd.operations import Operation, Outcome
from graphd.placement import slot_of
from graphd.storage.cluster import Cluster
from graphd.storage.shard import Shard
from graphd.storage.suspensions import Standing, Suspensions
from graphd.topology import Kind
from router.reads import NOT_OWNED, ListOf, Reader, _NotOwned
from router.values import Result, Write
from router.writes import Writer

log = structlog.get_logger()

PAGE_ROWS: Final = 500
BATCH: Final = 100
"""Edges changed at once. A larger batch is cheaper for each, and holds up for longer whoever comes behind it."""

REST: Final = 1.0
"""How long a walk rests after a batch, in times of what the batch took."""

MAX_ROUNDS: Final = 3
"""One is enough for an archive or a restore. An edge that its other end archives or restores meanwhile may change lists behind the walk
that removes it, and so needs another."""

RETRY_S: Final = 0.25
PATIENCE_S: Final = 10.0
"""How long a walk waits for a shard that is away or has too much to do."""

_ARCHIVED: Final = (State.ARCHIVED_BY_SOURCE, State.ARCHIVED_BY_DESTINATION, State.ARCHIVED_BY_BOTH)


_PASSING: Final = (OverloadedError, ShardUnavailableError)
T = TypeVar("T")


class Progress(NamedTuple):
    """Edges changed so far, and how many there were to change at the beginning; follows that end meanwhile are in neither."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Change:
    """What is done to an account: how it stands afterwards, the operation on the edges of its own list and on those of its followers', and
    the states in which edges are still to be changed, for each list."""

    name: str
    standing: Standing
    forward: Operation
    forward_states: tuple[State, ...]
    reverse: Operation
    reverse_states: tuple[State, ...]

    def operation(self, direction: Direction) -> Operation:
        """For the edges of the list in this direction."""
        return self.forward if direction is Direction.FORWARD else self.reverse

    def lists(self) -> list[tuple[Direction, State]]:
        """The lists to walk."""
        return [(Direction.FORWARD, state) for state in self.forward_states] + [
            (Direction.REVERSE, state) for state in self.reverse_states
        ]


ARCHIVE: Final = Change(
    "ArchiveAccount",
    Standing.ARCHIVED,
    Operation.ARCHIVE_BY_SOURCE,
    (State.ACTIVE, State.ARCHIVED_BY_DESTINATION),
    Operation.ARCHIVE_BY_DESTINATION,
    (State.ACTIVE, State.ARCHIVED_BY_SOURCE),
)
RESTORE: Final = Change(
    "RestoreAccount",
    Standing.RESTORED,
    Operation.RESTORE_BY_SOURCE,
    (State.ARCHIVED_BY_SOURCE, State.ARCHIVED_BY_BOTH),
    Operation.RESTORE_BY_DESTINATION,
    (State.ARCHIVED_BY_DESTINATION, State.ARCHIVED_BY_BOTH),
)
REMOVE: Final = Change(
    "RemoveAccount",
    Standing.REMOVED,
    Operation.UNFOLLOW,
    (State.ACTIVE, State.PENDING, *_ARCHIVED),
    Operation.UNFOLLOW,
    (State.ACTIVE, State.PENDING, *_ARCHIVED),
)


class Lifecycle:
    """Carries out changes of accounts."""

    def __init__(self, cluster: Cluster, writer: Writer, reader: Reader) -> None:
        self._cluster, self._writer, self._reader = cluster, writer, reader
        self._closing = False

    def close(self) -> None:
        """The walks under way end at their next step; the same calls go on from there at another router."""
        self._closing = True

    def check_open(self) -> None:
        """Raise DrainingError once this router is about to go."""
        if self._closing:
            raise DrainingError()

    async def change(
        self, change: Change, account_id: int, kinds: Sequence[Kind], deadline: float
    ) -> AsyncGenerator[Progress, None]:
        """Set or clear the suspension, then walk; tells the progress at the beginning, after every page and at the end.

        `deadline`: on the event loop's clock, for the whole. Raises SupersededError when another change of the account began,
        DeadlineError, ShardUnavailableError, OverloadedError: what was done until then is, and the same call goes on from there."""
        slot = slot_of(account_id, self._cluster.topology.slots)
        generations = await self._set(change, account_id, kinds, slot, deadline)
        log.info("account.changing", change=change.name, kinds=[kind.name for kind in kinds])
        done, total = 0, await self._left(change, account_id, kinds, deadline)
        yield Progress(done, total)
        for kind in kinds:
            walk = _Walk(self, change, account_id, kind, generations[kind.number], slot, deadline)
            async for changed in walk.run():
                done += changed
                # Follows that were on their way when it began.
                total = max(total, done)
                yield Progress(done, total)
            if change.standing is Standing.RESTORED:
                await self._forget(account_id, kind, generations[kind.number], slot, deadline)
        yield Progress(done, total)

    async def _set(
        self, change: Change, account_id: int, kinds: Sequence[Kind], slot: int, deadline: float
    ) -> dict[int, int]:
        numbers = [kind.number for kind in kinds]

        async def ask(shard: Shard) -> dict[int, int] | _NotOwned:
            found = await Suspensions(shard).set(account_id, numbers, slot, change.standing)
            return NOT_OWNED if found is None else found

        generations = await self._reader.at_slot(slot, ask, self._soon(deadline))
        for number in numbers:
            self._writer.suspensions.learn(account_id, number, suspended=change.standing is not Standing.RESTORED)
        return generations

    async def _left(self, change: Change, account_id: int, kinds: Sequence[Kind], deadline: float) -> int:
        """How many edges are to be changed, by the degrees."""
        lists = set(change.lists())
        found = [await self._reader.degrees([account_id], kind, self._soon(deadline)) for kind in kinds]
        return sum(
            degree
            for [degrees] in found
            for direction, state, degree in degrees.by_state
            if (Direction(direction), State(state)) in lists
        )

    async def _forget(self, account_id: int, kind: Kind, generation: int, slot: int, deadline: float) -> None:
        async def ask(shard: Shard) -> None:
            await Suspensions(shard).forget(account_id, kind.number, slot, generation)

        await self._reader.at_slot(slot, ask, self._soon(deadline))

    async def stands(self, account_id: int, kind: Kind, generation: int, slot: int, deadline: float) -> bool:
        """Whether nothing has changed the account since."""

        async def ask(shard: Shard) -> bool:
            found = await Suspensions(shard).generations(account_id, [kind.number], slot)
            return found.get(kind.number) == generation

        return await self._reader.at_slot(slot, ask, self._soon(deadline))

    async def page(self, wanted: ListOf, cursor: Cursor | None, deadline: float) -> list[tuple[int, int]]:
        """(since, neighbor) of the next rows of a list."""
        rows = await self._reader.rows(wanted, cursor, PAGE_ROWS, self._soon(deadline))
        neighbors, sinces, _ = rows.columns
        return list(zip(sinces.tolist(), neighbors.tolist(), strict=True))

    async def write(self, writes: Sequence[Write], deadline: float) -> list[Result]:
        """Through the write path."""
        return await self._writer.write(writes, self._soon(deadline))

    @staticmethod
    def _soon(deadline: float) -> float:
        """The deadline of one step: no shard that falls silent must hold a walk without a deadline for ever."""
        return min(deadline, asyncio.get_running_loop().time() + MAX_DEADLINE_S)


class _Walk:
    """The walk of one account in one kind."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        change: Change,
        account_id: int,
        kind: Kind,
        generation: int,
        slot: int,
        deadline: float,
    ) -> None:
        self._lifecycle, self._change, self._account_id, self._kind = lifecycle, change, account_id, kind
        self._generation, self._slot, self._deadline = generation, slot, deadline

    async def run(self) -> AsyncGenerator[int, None]:
        """How many edges were changed, a number for each page."""
        for _ in range(MAX_ROUNDS):
            found = False
            for direction, state in self._change.lists():
                wanted = ListOf(direction, self._account_id, self._kind, state, False)
                cursor: Cursor | None = None
                while True:
                    await self._check()
                    rows = await self._patiently(partial(self._lifecycle.page, wanted, cursor, self._deadline))
                    changed = 0
                    for at in range(0, len(rows), BATCH):
                        changed += await self._write(direction, [neighbor for _, neighbor in rows[at : at + BATCH]])
                    if changed:
                        found = True
                        yield changed
                    if len(rows) < PAGE_ROWS:
                        break
                    cursor = Cursor(*rows[-1])
            if not found:
                return

    async def _check(self) -> None:
        standing = await self._patiently(
            partial(self._lifecycle.stands, self._account_id, self._kind, self._generation, self._slot, self._deadline)
        )
        if not standing:
            raise SupersededError(self._change.name)

    async def _write(self, direction: Direction, neighbors: Sequence[int]) -> int:
        """Change the edges to these neighbors, however often it takes; answers how many changed."""
        operation, kind, account_id = self._change.operation(direction), self._kind, self._account_id
        left = [
            Write(operation, account_id, neighbor, kind)
            if direction is Direction.FORWARD
            else Write(operation, neighbor, account_id, kind)
            for neighbor in neighbors
        ]
        changed = 0
        loop = asyncio.get_running_loop()

        async def write() -> None:
            nonlocal left, changed
            began = loop.time()
            results = await self._lifecycle.write(left, self._deadline)
            failed = [result for result in results if isinstance(result, GraphdError)]
            changed += sum(
                not isinstance(result, GraphdError) and result.outcome is Outcome.APPLIED for result in results
            )
            left = [write for write, result in zip(left, results, strict=True) if isinstance(result, GraphdError)]
            if failed:
                raise next((error for error in failed if not isinstance(error, _PASSING)), failed[0])
            await asyncio.sleep(REST * (loop.time() - began))

        await self._patiently(write)
        return changed

    async def _patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        """Try again while a shard is away or has too much to do, for PATIENCE_S."""
        loop = asyncio.get_running_loop()
        until = min(self._deadline, loop.time() + PATIENCE_S)
        while True:
            self._lifecycle.check_open()
            if loop.time() > self._deadline:
                raise DeadlineError()
            try:
                return await work()
            except _PASSING:
                if loop.time() > until:
                    raise
            await asyncio.sleep(RETRY_S)
