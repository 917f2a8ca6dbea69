"""All that one shard can do, over its lanes and a small pool.

Writes and reverse versions go through the write lane, point reads and pages through the read lane; set operations and operators'
questions, which may take long, through a pool of their own, so that they never stand before a look-up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import numpy as np
import numpy.typing as npt
import psycopg
import structlog
from psycopg import AsyncConnection
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool, PoolTimeout, TooManyRequests

from graphd.edge import Version
from graphd.errors import BadItemError, OverloadedError, ShardUnavailableError
from graphd.operations import Outcome
from graphd.storage.arrays import Int2s, Int8s
from graphd.storage.carry import ReadItem, WriteLaneItem, carry_reads, carry_writes
from graphd.storage.connect import (
    LANE_SETTINGS,
    READ_SETTINGS,
    SET_SETTINGS,
    Identity,
    answers_within,
    check_shard,
    connect,
    conninfo_of,
    is_refusal,
    set_up,
)
from graphd.storage.items import (
    EMPTY,
    Counter,
    CountersRead,
    DegreesRead,
    EdgeKeys,
    EdgesRead,
    Nudge,
    Owners,
    PageRead,
    PageRows,
    Receipt,
    ReverseItem,
    SuspensionRead,
    WriteItem,
)
from graphd.storage.lanes import Lane
from graphd.storage.queries import statement
from graphd.storage.schema import check_schema
from graphd.storage.session import IDENTIFY, Backend, Session
from graphd.tasks import ends_here

log = structlog.get_logger()

Connection = AsyncConnection[TupleRow]

MAX_WRITE_BATCH: Final = 1_500
"""Rows in one write transaction: some 45 ms of work, so that nobody waits long behind it, and batches of 500 from several callers and their
reverse versions share a commit: 4 % more edges a second than with 1,000."""

MAX_READ_BATCH: Final = 2_000
MAX_WAITING: Final = 20_000
"""Items that may wait for a lane, some 400 bytes each; calls are bounded before by max_calls_per_shard."""

MAX_STRIKES: Final = 2_000
STRIKE_IDLE_S: Final = 0.2
"""An idle lane strikes what has been delivered after this time."""

STRIKE_MAX_S: Final = 10.0
"""The longest pause between two tries to strike, while the shard takes no writes."""

STATEMENT_MARGIN_S: Final = 0.5
POOL_TIMEOUT_S: Final = 2.0
CHECK_TIMEOUT_S: Final = 1.0
POOL_WAITING: Final = 1_024
"""Questions that may wait for a connection; calls are bounded before by max_calls_per_shard."""

POOL_RETRY_AFTER_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """How a process speaks to its shards; times in seconds."""

    application: str = "graphd"
    write_wait_s: float = 0.005
    read_wait_s: float = 0.005
    lane_timeout_s: float = 5.0
    set_connections: int = 4
    prepare: bool = True
    processes: int = 1

    @property
    def connections(self) -> int:
        """How many connections all processes with these settings open to a shard at the most."""
        return self.processes * (2 + self.set_connections)


class Shard:
    """One shard, as one process sees it. `start` on a running loop; `close` sends what waits."""

    def __init__(
        self, identity: Identity, conninfo: str, settings: ShardSettings, in_flight: Callable[[], float]
    ) -> None:
        self.name = identity.name
        self.identity = identity
        self._conninfo, self._settings = conninfo, settings
        self._strikes: deque[tuple[int, UUID]] = deque()
        self._strike_timer: asyncio.TimerHandle | None = None
        self._strike_pause_s = STRIKE_IDLE_S
        self._pool: AsyncConnectionPool[Connection] | None = None
        self._pool_up = True
        self._cleaning: set[asyncio.Task[None]] = set()
        self.writes: Lane[WriteLaneItem] = Lane(
            self.name,
            lambda lost: self._connect(LANE_SETTINGS, "write", lost),
            self._carry_writes,
            writes=True,
            in_flight=in_flight,
            wait_s=settings.write_wait_s,
            timeout_s=settings.lane_timeout_s,
            max_waiting=MAX_WAITING,
            max_batch=MAX_WRITE_BATCH,
        )
        self.reads: Lane[ReadItem] = Lane(
            self.name,
            lambda lost: self._connect(READ_SETTINGS, "read", lost),
            carry_reads,
            writes=False,
            in_flight=in_flight,
            wait_s=settings.read_wait_s,
            timeout_s=settings.lane_timeout_s,
            max_waiting=MAX_WAITING,
            max_batch=MAX_READ_BATCH,
        )
        self.changed: Callable[[], None] = lambda: None
        self.writes.changed = self.reads.changed = self._lane_changed

    @property
    def up(self) -> bool:
        """Whether both lanes are connected."""
        return self.writes.up and self.reads.up

    def start(self) -> None:
        """Connect, in the background."""
        self._pool = self._new_pool()
        self.writes.start()
        self.reads.start()

    async def close(self) -> None:
        """Send what waits, then disconnect."""
        if self._strike_timer is not None:
            self._strike_timer.cancel()
        if self._strikes and self.writes.up:
            self._nudge()
        await self.reads.close()
        await self.writes.close()
        if self._pool is not None:
            await self._pool.close()
        for task in list(self._cleaning):
            await task

    # -- connections -------------------------------------------------------------------------------------------------

    def _timeouts(self) -> dict[str, str]:
        """The server gives up a little before the lane does, so that it says what became of the batch."""
        lane_s = self._settings.lane_timeout_s
        return {"statement_timeout": f"{int((lane_s - min(STATEMENT_MARGIN_S, lane_s / 4)) * 1000)}ms"}

    async def _connect(self, settings: dict[str, str], purpose: str, lost: Callable[[], None]) -> Session:
        connection = await connect(
            self._conninfo,
            f"{self._settings.application} {purpose}",
            {**settings, **self._timeouts()},
            timeout_s=self._settings.lane_timeout_s,
        )
        try:
            with answers_within(connection, self._settings.lane_timeout_s):
                await check_schema(connection, "shard")
                await check_shard(connection, self.identity)
                cursor = await connection.execute(IDENTIFY)
                pid, started = await cursor.fetchone() or (0, "")
            return Session(connection, Backend(pid, started), prepare=self._settings.prepare, lost=lost)
        except BaseException:
            await connection.close()
            raise

    def _new_pool(self) -> AsyncConnectionPool[Connection]:
        async def configure(connection: Connection) -> None:
            with answers_within(connection, self._settings.lane_timeout_s):
                await set_up(connection, {**SET_SETTINGS, **self._timeouts()})
                await check_shard(connection, self.identity)

        async def check(connection: Connection) -> None:
            # The pool's own check would wait for ever on a session that has fallen silent.
            with answers_within(connection, CHECK_TIMEOUT_S):
                await AsyncConnectionPool.check_connection(connection)

        return AsyncConnectionPool(
            conninfo_of(self._conninfo, f"{self._settings.application} set"),
            # Nothing is prepared here: plans are made anew each time anyway, and what is not prepared cannot be forgotten.
            kwargs={"autocommit": True, "prepare_threshold": None},
            configure=configure,
            check=check,
            min_size=0,
            max_size=self._settings.set_connections,
            max_waiting=POOL_WAITING,
            timeout=POOL_TIMEOUT_S,
            open=False,
        )

    def _lane_changed(self, up: bool) -> None:
        # When the shard goes, the pool's connections are dead; when it comes back, the pool may be deep in its own pauses between tries,
        # which grow to a minute. Either way: begin anew.
        if up is not self._pool_up:
            self._pool_up = up
            if self._pool is not None:
                task = asyncio.ensure_future(self._pool.close())
                self._cleaning.add(task)
                task.add_done_callback(self._cleaning.discard)
                self._pool = self._new_pool()
        self.changed()

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Connection]:
        """A connection for one long question. Whatever goes wrong in it becomes a GraphdError: ShardUnavailableError, OverloadedError when
        no connection gets free in time, BadItemError for what only a bug can cause."""
        pool = self._pool
        assert pool is not None, "started"
        try:
            await pool.open()
            async with pool.connection() as connection:
                # The pool takes a cancellation for nothing when it has a connection at that very moment.
                ends_here()
                with answers_within(connection, self._settings.lane_timeout_s):
                    yield connection
        except (TooManyRequests, PoolTimeout) as error:
            ends_here()
            if not self.up:
                raise ShardUnavailableError(self.name) from error
            raise OverloadedError(f"shard {self.name}", POOL_RETRY_AFTER_S) from error
        except psycopg.Error as error:
            # A cancelled session stops its statement and waits for its end; an error it ends with must not take the place of the
            # cancellation, or whoever asked for it waits for ever.
            ends_here()
            log.debug("session.failed", shard=self.name, error=type(error).__name__)
            if is_refusal(error):
                raise ShardUnavailableError(self.name, what="does not take this now") from error
            if isinstance(error, psycopg.OperationalError):
                raise ShardUnavailableError(self.name) from error
            log.error("session.bad_question", shard=self.name, sqlstate=error.sqlstate)
            raise BadItemError(error.sqlstate or "unknown") from error

    # -- writes ------------------------------------------------------------------------------------------------------

    async def _carry_writes(self, session: Session, batch: Sequence[WriteLaneItem]) -> None:
        strikes = [self._strikes.popleft() for _ in range(min(len(self._strikes), MAX_STRIKES))]
        try:
            await carry_writes(session, batch, strikes)
        except BaseException:
            # Rolled back, or of unknown fate: striking twice does no harm. A shard that takes no writes is asked less and less often.
            self._strikes.extendleft(strikes)
            self._strike_pause_s = min(STRIKE_MAX_S, 2 * self._strike_pause_s)
            raise
        self._strike_pause_s = STRIKE_IDLE_S

    def write(self, item: WriteItem) -> None:
        """Queue an operation; raises as Lane.submit."""
        self.writes.submit(item)

    def deliver(self, item: ReverseItem) -> None:
        """Queue a reverse version; it belongs to a write already begun, so it is never shed."""
        self.writes.submit(item, forced=True)

    def strike(self, peer_slot: int, outbox_id: UUID) -> None:
        """Delete an outbox row with the next flush: its version has been delivered to a shard that owned it."""
        if len(self._strikes) < 10 * MAX_STRIKES:
            # Beyond that the shard has been away for long: the relay will find these delivered.
            self._strikes.append((peer_slot, outbox_id))
        if self._strike_timer is None:
            self._strike_timer = asyncio.get_running_loop().call_later(self._strike_pause_s, self._strike_idle)

    def _strike_idle(self) -> None:
        self._strike_timer = None
        if not self._strikes:
            return
        if self.writes.up and not self.writes.waiting:
            self._nudge()
        # Also while the shard is away: its lane may come back and carry nothing else for long.
        self._strike_timer = asyncio.get_running_loop().call_later(self._strike_pause_s, self._strike_idle)

    def _nudge(self) -> None:
        self.writes.submit(Nudge(), forced=True)

    async def remember(
        self, slot: int, receipt: Receipt, outcome: Outcome, version: Version | None, reason: str = ""
    ) -> bool:
        """Keep the receipt of a write that wrote nothing; False when a twin was there first, or the slot is not here any more."""
        position, state, since = version if version is not None else (None, None, None)
        async with self.session() as connection, connection.transaction():
            await connection.execute(statement("write", "lock_slots"), {"slots": Int2s([slot])})
            cursor = await connection.execute(
                statement("read", "remember"),
                {
                    "actor_id": receipt.actor_id,
                    "namespace": receipt.namespace,
                    "id": receipt.id,
                    "slot": slot,
                    "fingerprint": receipt.fingerprint,
                    "outcome": int(outcome),
                    "position": position,
                    "state": state,
                    "since": since,
                    "reason": reason or None,
                },
            )
            return await cursor.fetchone() is not None

    # -- point reads and pages -----------------------------------------------------------------------------------------

    def edges(self, keys: EdgeKeys) -> asyncio.Future[list[tuple[bool, Version | None]]]:
        """Look up forward halves: (owned, version or None) for each key, in order."""
        read = EdgesRead(keys)
        self.reads.submit(read)
        return read.future

    def degrees(self, owners: Owners) -> asyncio.Future[list[tuple[bool, list[tuple[int, int, int]]]]]:
        """Degrees of owners: (owned, [(direction, state, degree), ...]) for each, in order."""
        read = DegreesRead(owners)
        self.reads.submit(read)
        return read.future

    def counters(self, read: CountersRead) -> asyncio.Future[tuple[bool, list[Counter]]]:
        """What an edge owes to the edge the other way."""
        self.reads.submit(read)
        return read.future

    def suspended(self, read: SuspensionRead) -> asyncio.Future[tuple[bool, bool]]:
        """Whether an account is suspended in a kind: (owned, suspended)."""
        self.reads.submit(read)
        return read.future

    def page(self, read: PageRead) -> asyncio.Future[PageRows]:
        """One page of a list."""
        self.reads.submit(read)
        return read.future

    # -- whole lists -----------------------------------------------------------------------------------------------------

    async def stretch(
        self, table: str, owner_id: int, kind: int, slot: int, since: int, neighbor_id: int, row_count: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None:
        """Neighbors and sinces of an ACTIVE list, newest first, strictly after (since, neighbor_id), `row_count` at most; None when not
        owned."""
        parameters = {
            "owner_id": owner_id,
            "kind": kind,
            "slot": slot,
            "since": since,
            "neighbor_id": neighbor_id,
            "row_count": row_count,
        }
        async with self.session() as connection:
            cursor = await connection.execute(statement("read", "stretch", table), parameters, binary=True)
            row = await cursor.fetchone()
            assert row is not None, "an aggregate answers one row"
            ids, sinces, owned = row
            if not owned:
                return None
            return (EMPTY, EMPTY) if ids is None else (ids, sinces)

    # -- set operations --------------------------------------------------------------------------------------------------

    async def window(
        self, table: str, owner_id: int, kind: int, slot: int, state: int, top: int, bottom: int, row_count: int
    ) -> npt.NDArray[np.int64] | None:
        """Ids of a list, `top` at most and `bottom` at least, descending, `row_count` of them at most; None when not owned."""
        return await self._ids(
            statement("read", "window", table),
            {
                "owner_id": owner_id,
                "kind": kind,
                "slot": slot,
                "state": state,
                "top": top,
                "bottom": bottom,
                "row_count": row_count,
            },
        )

    async def probe(
        self, table: str, owner_id: int, kind: int, slot: int, state: int, ids: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64] | None:
        """Which of `ids` are in a list, in any order; None when not owned."""
        return await self._ids(
            statement("read", "probe", table),
            {"owner_id": owner_id, "kind": kind, "slot": slot, "state": state, "ids": Int8s(ids)},
        )

    async def _ids(self, query: bytes, parameters: dict[str, Any]) -> npt.NDArray[np.int64] | None:
        async with self.session() as connection:
            cursor = await connection.execute(query, parameters, binary=True)
            row = await cursor.fetchone()
            assert row is not None, "an aggregate answers one row"
            ids, owned = row
            if not owned:
                return None
            return EMPTY if ids is None else ids

    # -- operators' questions ----------------------------------------------------------------------------------------------

    async def summary(self) -> tuple[int, int, int, float]:
        """(halves, about; bytes; outbox rows; age of the oldest in seconds)."""
        async with self.session() as connection:
            cursor = await connection.execute(statement("read", "summary"))
            row = await cursor.fetchone()
            assert row is not None, "one row"
            return row[0], row[1], row[2], row[3]

    async def sizes(self, slots: Sequence[int]) -> list[tuple[int, bool, int, int]]:
        """(slot, owned, forward halves, reverse halves) of slots this shard knows, ascending."""
        async with self.session() as connection:
            cursor = await connection.execute(statement("read", "sizes"), {"slots": Int2s(slots)})
            return [(slot, owned, forward, reverse) for slot, owned, forward, reverse in await cursor.fetchall()]
