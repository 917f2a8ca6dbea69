"""Lanes: one pipelined connection to one shard, which carries many calls in one statement.

A flush costs about the same whatever it carries, so the size of the batch is everything. A lane takes all that waits for it; when
few calls are in flight it goes at once, when many are it waits some milliseconds for company. How many are in flight is asked of the
router, not guessed from the last batch: otherwise small batches stay small.

What a lane promises:

- At most one item of a key in a batch; the next one of that key waits for the next flush, so items of a key keep their order.
- A call that gives up takes its item out only while it waits. What was sent runs to its end, under the lane's own timeout.
- A batch the server refused is rolled back whole, and its items run again one by one, each in a transaction of its own, so that a
  bad item fails alone.
- A batch of unknown fate (the connection was lost after it was sent) is never run again when it writes: its items fail with
  "may have been kept". Items that only read are run once more.
- While the shard is away, items fail at once, and the lane goes on trying to connect.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Final, Generic, Protocol, TypeVar

import psycopg
import structlog

from graphd.errors import BadItemError, GraphdError, OverloadedError, SchemaError, ShardUnavailableError
from graphd.storage.connect import is_refusal
from graphd.storage.session import Backend, Session

log = structlog.get_logger()

RECONNECT_FIRST_S: Final = 0.05
RECONNECT_MAX_S: Final = 0.5
"""Pause between two tries to connect: short, so that a shard that is back serves within a second."""

FULL_PATIENCE_FROM: Final = 8
"""From this many calls in flight on a lane waits its whole time for company; a lone caller never waits, between them in proportion.

It must begin with the second call already: a router that flushes for each call is so busy with it that it never sees many calls at
once, whatever waits before its door (64 callers showed as 3 in flight, at half the throughput). And it must be steep: GetEdge at 64 in
flight ran at 0.70 of a bare echo with 32 here, at 0.93 with 8 (two idle cores, tests/bench)."""

END_TIMEOUT_S: Final = 0.5
"""How long a new session waits until the server process of the one before it is gone."""

NEW_SHARE: Final = 0.25
"""The part of a batch that work already begun leaves to new work."""

RETRY_AFTER_S: Final = 0.1

FORGOTTEN: Final = frozenset({"26000", "0A000"})
"""Prepared statement does not exist (DEALLOCATE ALL, a pooler), cached plan must not change result type (a migration)."""

MAX_ALONE_RUNS: Final = 5
"""How often an item that runs alone may meet a deadlock or a twin before it fails."""


class Item(Protocol):
    """What a lane carries. `keys`: what must be single in a batch."""

    @property
    def keys(self) -> tuple[Hashable, ...]: ...

    @property
    def abandoned(self) -> bool:
        """The caller has gone: leave it out while it is not sent."""
        ...

    @property
    def weight(self) -> int:
        """How much of a batch it fills: rows asked for or written."""
        ...

    def fail(self, error: GraphdError) -> None:
        """The item was not carried, or its fate is unknown."""
        ...


ItemT = TypeVar("ItemT", bound=Item)

Carry = Callable[[Session, Sequence[ItemT]], Awaitable[None]]
"""Sends a batch in one transaction and settles its items; raises psycopg.Error having settled none."""


class LaneStats:
    """Counters of one lane, for metrics. Numbers only ever rise, but for `waiting` and `up`."""

    __slots__ = ("alone", "batches", "connects", "failed_batches", "items", "seconds", "unknown")

    def __init__(self) -> None:
        self.batches = self.items = self.failed_batches = self.alone = self.unknown = self.connects = 0
        self.seconds = 0.0


class Lane(Generic[ItemT]):
    """One lane. `start` it on a running loop, `submit` items, `close` it."""

    def __init__(
        self,
        shard: str,
        connect: Callable[[Callable[[], None]], Awaitable[Session]],
        carry: Carry[ItemT],
        *,
        writes: bool,
        in_flight: Callable[[], float],
        wait_s: float,
        timeout_s: float,
        max_waiting: int,
        max_batch: int,
    ) -> None:
        self.shard = shard
        self.stats = LaneStats()
        self._connect, self._carry = connect, carry
        self._writes, self._in_flight = writes, in_flight
        self._wait_s, self._timeout_s = wait_s, timeout_s
        self._max_waiting, self._max_batch = max_waiting, max_batch
        self._waiting: deque[ItemT] = deque()
        self._begun: deque[ItemT] = deque()
        self._wake = asyncio.Event()
        self._session: Session | None = None
        self._down = False
        self._closing = self._renewed = self._refused = False
        self._began: float | None = None
        self._given_up: Backend | None = None
        self._task: asyncio.Task[None] | None = None
        self.changed: Callable[[bool], None] = lambda up: None

    @property
    def up(self) -> bool:
        """Whether the lane has a connection, and takes items."""
        return self._session is not None and not self._down

    @property
    def waiting(self) -> int:
        """Items not yet sent."""
        return len(self._waiting) + len(self._begun)

    @property
    def stuck_s(self) -> float:
        """For how long the batch under way has been under way; 0 without one."""
        return asyncio.get_running_loop().time() - self._began if self._began is not None else 0.0

    def start(self) -> None:
        """Connect and carry, in a task of its own."""
        self._task = asyncio.create_task(self._run(), name=f"lane-{self.shard}")

    async def close(self) -> None:
        """Send what waits, then disconnect."""
        self._closing = True
        self._wake.set()
        if self._task is not None:
            await self._task

    def submit(self, item: ItemT, *, forced: bool = False) -> None:
        """Queue an item. Raises ShardUnavailableError while the shard is away, OverloadedError when too many wait.

        `forced` items are part of work already begun: they are not shed, and they go before new work, so that a call is finished
        before the next one is begun. They must have no keys, whose order would be broken by that.
        """
        if self._down:
            raise ShardUnavailableError(self.shard)
        if len(self._waiting) >= self._max_waiting and not forced:
            raise OverloadedError(f"shard {self.shard}", RETRY_AFTER_S)
        assert not (forced and item.keys), "begun work has no keys"
        (self._begun if forced else self._waiting).append(item)
        self._wake.set()

    # -- the task ----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        pause_s = RECONNECT_FIRST_S
        try:
            while not self._closing or self.waiting:
                if self._session is None:
                    if await self._open():
                        pause_s = RECONNECT_FIRST_S
                    elif self._closing:
                        break
                    else:
                        await self._pause(pause_s)
                        pause_s = min(2 * pause_s, RECONNECT_MAX_S)
                    continue
                if self._session.broken:
                    await self._drop()
                    continue
                if not self.waiting:
                    self._wake.clear()
                    await self._wake.wait()
                    continue
                await self._company()
                if self._lost_meanwhile():
                    continue
                batch = self._take()
                if batch:
                    await self._send(batch)
        finally:
            self._fail_waiting("is being closed")
            await self._drop()

    async def _pause(self, pause_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                while not self._closing:
                    self._wake.clear()
                    await self._wake.wait()

    def _lost_meanwhile(self) -> bool:
        return self._session is None or self._session.broken

    def _session_lost(self) -> None:
        """The connection died while nothing was on it."""
        log.warning("lane.lost", shard=self.shard, items=0)
        self._wake.set()

    async def _open(self) -> bool:
        try:
            self._session = await self._connect(self._session_lost)
        except (psycopg.Error, OSError, TimeoutError, SchemaError) as error:
            if not self._down:
                log.warning("lane.down", shard=self.shard, error=type(error).__name__, detail=_detail(error))
                self.changed(False)
            self._down = True
            self._fail_waiting("is not reachable")
            return False
        if not await self._end_given_up():
            return False
        if self._down or self.stats.connects:
            log.info("lane.up", shard=self.shard)
        self.stats.connects += 1
        self._down = False
        self.changed(True)
        return True

    async def _end_given_up(self) -> bool:
        """Before anything is sent on a new session: the old one's server process may not have run its last batch yet, and must never run
        it after what is sent now. False when the new session is lost over it."""
        session, given_up = self._session, self._given_up
        if given_up is None:
            return True
        assert session is not None
        alarm = asyncio.get_running_loop().call_later(self._timeout_s, session.abort)
        try:
            if not await session.end(given_up, END_TIMEOUT_S):
                # Told to end, but stopped: it ends as soon as it goes on, before it reads another byte.
                log.warning("lane.backend_stays", shard=self.shard)
        except psycopg.errors.InsufficientPrivilege:
            log.warning("lane.backend_stays", shard=self.shard, hint="the role may not end its own old session")
        except psycopg.Error as error:
            log.warning("lane.lost", shard=self.shard, error=type(error).__name__, items=0)
            await self._drop()
            return False
        finally:
            alarm.cancel()
        self._given_up = None
        return True

    async def _drop(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _company(self) -> None:
        """Wait for others when many calls are in flight; not at all when few are."""
        in_flight = self._in_flight()
        patience = min(1.0, (in_flight - 1) / (FULL_PATIENCE_FROM - 1))
        if patience > 0 and self._wait_s > 0 and self.waiting < min(in_flight, self._max_batch):
            await asyncio.sleep(self._wait_s * patience)

    def _take(self) -> list[ItemT]:
        batch: list[ItemT] = []
        # Begun work goes first, but leaves room for new work: it must not starve the callers of this shard.
        share = self._max_batch * (1 - NEW_SHARE) if self._waiting else self._max_batch
        spare = self._fill(batch, self._begun, int(share))
        self._fill(batch, self._waiting, self._max_batch - int(share) + spare)
        return batch

    def _fill(self, batch: list[ItemT], waiting: deque[ItemT], room: int) -> int:
        """Move items to the batch while there is room; answers the room left."""
        keys: set[Hashable] = set()
        deferred: list[ItemT] = []
        while waiting and room > 0:
            item = waiting.popleft()
            if item.abandoned:
                continue
            own = item.keys
            if any(key in keys for key in own):
                # Its keys wait too: what comes behind it must not overtake it.
                deferred.append(item)
                keys.update(own)
                continue
            keys.update(own)
            batch.append(item)
            room -= item.weight
        waiting.extendleft(reversed(deferred))
        return room

    async def _send(self, batch: list[ItemT]) -> None:
        try:
            await self._once(batch)
        except psycopg.Error as error:
            assert self._session is not None
            self.stats.failed_batches += 1
            if error.sqlstate in FORGOTTEN and not self._session.broken and not self._renewed:
                await self._anew(batch)
            elif self._session.broken:
                await self._lost(batch, error)
            elif is_refusal(error):
                self._refuse(batch, error)
            else:
                await self._one_by_one(batch, error)
        except Exception as error:
            # A bug in what settles items: the lane must live on for the others, and nobody may wait for ever.
            log.error("lane.bug", shard=self.shard, error=type(error).__name__, exc_info=error)
            await self._drop()
            for item in batch:
                item.fail(BadItemError("a bug"))

    async def _anew(self, batch: Sequence[ItemT]) -> None:
        """The server has forgotten or outgrown a prepared statement, and rolled back: once more, on a new connection."""
        log.info("lane.anew", shard=self.shard, items=len(batch))
        self._renewed = True
        self._waiting.extendleft(reversed(batch))
        await self._drop()

    async def _once(self, batch: Sequence[ItemT]) -> None:
        assert self._session is not None
        loop = asyncio.get_running_loop()
        began = self._began = loop.time()
        # Given up rather than cancelled: a severed network never brings the answer to a cancellation either.
        alarm = loop.call_later(self._timeout_s, self._session.abort)
        try:
            await self._carry(self._session, batch)
        finally:
            alarm.cancel()
            self._began = None
        if self._refused:
            log.info("lane.accepted", shard=self.shard)
        self._renewed = self._refused = False
        self.stats.batches += 1
        self.stats.items += len(batch)
        self.stats.seconds += loop.time() - began

    async def _lost(self, batch: Sequence[ItemT], error: BaseException) -> None:
        """The connection broke with a batch on it: what it did is not known."""
        log.warning("lane.lost", shard=self.shard, error=type(error).__name__, items=len(batch))
        self.stats.unknown += 1
        if self._writes and self._session is not None:
            self._given_up = self._session.backend
        await self._drop()
        if self._writes:
            # Who hears that a write may have been kept may at once write something else, through another router too: first the old
            # server process has to be gone, if that can be had in a moment.
            opening = asyncio.ensure_future(self._open())
            await asyncio.wait((opening,), timeout=2 * END_TIMEOUT_S)
            for item in batch:
                item.fail(ShardUnavailableError(self.shard, kept=True, what="lost the connection"))
            await opening
            return
        if not await self._open():
            for item in batch:
                item.fail(ShardUnavailableError(self.shard))
            return
        try:
            await self._once([item for item in batch if not item.abandoned])
        except psycopg.Error:
            if self._session is None or self._session.broken:
                await self._drop()
            for item in batch:
                item.fail(ShardUnavailableError(self.shard, what="lost the connection"))

    def _refuse(self, batch: Sequence[ItemT], error: BaseException) -> None:
        if not self._refused:
            # Once, and not for every batch that follows.
            log.warning("lane.refused", shard=self.shard, sqlstate=_sqlstate(error), items=len(batch))
        self._refused = True
        for item in batch:
            item.fail(ShardUnavailableError(self.shard, what="does not take this now"))

    async def _one_by_one(self, batch: Sequence[ItemT], error: BaseException) -> None:
        """The server rolled the batch back: run each item alone, so that a bad one fails alone."""
        log.info("lane.one_by_one", shard=self.shard, error=type(error).__name__, items=len(batch))
        for at, item in enumerate(batch):
            self.stats.alone += 1
            try:
                await self._alone(item)
            except psycopg.Error as again:
                assert self._session is not None
                if self._session.broken:
                    await self._lost([item], again)
                    # Those behind it were not sent again: they go first on the next connection.
                    self._waiting.extendleft(reversed(batch[at + 1 :]))
                    return
                if is_refusal(again):
                    self._refuse([item], again)
                else:
                    log.error("lane.bad_item", shard=self.shard, sqlstate=_sqlstate(again))
                    item.fail(BadItemError(_sqlstate(again)))

    async def _alone(self, item: ItemT) -> None:
        for run in range(MAX_ALONE_RUNS):
            try:
                await self._once([item])
                return
            except (
                psycopg.errors.DeadlockDetected,
                psycopg.errors.SerializationFailure,
                psycopg.errors.UniqueViolation,
                psycopg.errors.LockNotAvailable,
            ):
                # Rolled back by the server, so nothing was applied; a twin has committed by now, or the deadlock has ended.
                if run == MAX_ALONE_RUNS - 1:
                    raise

    def _fail_waiting(self, what: str) -> None:
        waiting = [*self._begun, *self._waiting]
        self._begun.clear()
        self._waiting.clear()
        for item in waiting:
            # An error of its own for each: one that is raised for many gathers all their frames.
            item.fail(ShardUnavailableError(self.shard, what=what))


def _sqlstate(error: BaseException) -> str:
    return (getattr(error, "sqlstate", None) or type(error).__name__) if isinstance(error, psycopg.Error) else "timeout"


def _detail(error: BaseException) -> str:
    """What may be logged of an error at connecting: our own words, never the driver's, which name hosts and users."""
    return str(error) if isinstance(error, GraphdError) else _sqlstate(error)
