"""Bulk loading of one shard: chunks of halves of one direction, in key order, each chunk a transaction that keeps the degrees.

Two ways lead into the tables, with the same result. COPY straight into the table is the faster, and exact as long as no row of the
chunk is there: the primary key proves it, or the chunk is rolled back. Then, and where the last chunk met stored rows, the merge
statement joins the chunk to what is stored. Measured on two cores, 1 M edges into two shards: tests/bench/import_speed.py.

Imports are backfill: each transaction says so to the shard, for purge; and before its first row it waits for purges under way.

Ownership holds as for every writer: the shared locks of the chunk's slots, then, in the next statement, what is owned. Rows of other
slots are not written but named in the answer.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import psycopg
import structlog

from graphd.edge import Direction, State
from graphd.errors import ShardUnavailableError
from graphd.limits import BACKFILL_MARK_US
from graphd.operations import GIVEN, Operation
from graphd.storage.arrays import Int2s, Int8s
from graphd.storage.connect import Identity, check_server, check_shard, connect
from graphd.storage.queries import statement
from graphd.storage.schema import check_schema

log = structlog.get_logger()

Ids = npt.NDArray[np.int64]
Slots = npt.NDArray[np.int16]
T = TypeVar("T")

BULK_SETTINGS: Final = {
    # The arrays' lengths are known to a plan made for them; a look-up by key must never become a scan of the table.
    "plan_cache_mode": "force_custom_plan",
    "enable_seqscan": "off",
    "jit": "off",
    "work_mem": "32MB",
    # A chunk takes a fraction of a second. One that hangs, or whose importer was stopped, must not keep its locks.
    "statement_timeout": "60s",
    "idle_in_transaction_session_timeout": "30s",
}

MAX_TRIES: Final = 20
RETRY_S: Final = 0.02
_TRY_AGAIN: Final = (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)

_COPY_HEADER: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_COPY_TRAILER: Final = b"\xff\xff"
_INT8_FIELDS: Final = ("owner_id", "neighbor_id", "position", "since")
_INT2_FIELDS: Final = ("slot", "kind", "state", "operation")
_COPY_ROW: Final = np.dtype(
    [("fields", ">i2")]
    + [(name + suffix, kind) for name in _INT8_FIELDS for suffix, kind in (("_length", ">i4"), ("", ">i8"))]
    + [(name + suffix, kind) for name in _INT2_FIELDS for suffix, kind in (("_length", ">i4"), ("", ">i2"))]
)
"""One row of COPY in binary: a count of fields, then each field's length and value; all of fixed width here."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Halves of one direction and kind and their versions: columns of shape (n,), no key twice, ascending by (owner_id, neighbor_id), each
    row with the slot of its owner."""

    direction: Direction
    kind: int
    owner_id: Ids
    neighbor_id: Ids
    position: Ids
    state: Slots
    since: Ids
    slot: Slots

    @classmethod
    def active(
        cls, direction: Direction, kind: int, owner_id: Ids, neighbor_id: Ids, position: Ids, slot: Slots
    ) -> Chunk:
        """Each row the version (position, ACTIVE, position)."""
        state = np.full(len(owner_id), State.ACTIVE, dtype=np.int16)
        return cls(direction, kind, owner_id, neighbor_id, position, state, position, slot)

    def __len__(self) -> int:
        return len(self.owner_id)

    @property
    def columns(self) -> tuple[npt.NDArray[Any], ...]:
        """In the order of the fields."""
        return self.owner_id, self.neighbor_id, self.position, self.state, self.since, self.slot

    def where(self, rows: npt.NDArray[np.bool_] | slice) -> Chunk:
        """The rows of a mask or a range, in their order."""
        return Chunk(self.direction, self.kind, *(column[rows] for column in self.columns))

    def then(self, later: Chunk) -> Chunk:
        """These rows and, behind them, those of another chunk of the same direction and kind."""
        joined = [np.concatenate(both) for both in zip(self.columns, later.columns, strict=True)]
        return Chunk(self.direction, self.kind, *joined)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What became of a chunk's rows. `left` are those whose slot is not owned by the shard, not written, and not counted."""

    added: int
    updated: int
    unchanged: int
    left: Chunk


class BulkShard:
    """One session that loads a shard. One chunk at a time: callers wait for each other."""

    def __init__(self, name: str, connection: psycopg.AsyncConnection[Any]) -> None:
        self.name = name
        self._connection = connection
        self._lock = asyncio.Lock()
        # Directions and kinds whose last chunk met stored rows, so that COPY is not worth a try.
        self._met: set[tuple[Direction, int]] = set()

    @classmethod
    async def open(cls, name: str, conninfo: str, identity: Identity, slots: int) -> BulkShard:
        """Connect, check, and mark the shard: every shard of an import must be open before its first row is loaded. `slots`: of the
        cluster.

        Raises ShardUnavailableError, SchemaError, ServerSettingsError."""
        try:
            connection = await connect(conninfo, "graphd import", BULK_SETTINGS)
            try:
                await check_server(connection, name, slots)
                await check_schema(connection, "shard")
                await check_shard(connection, identity)
                async with connection.transaction():
                    await connection.execute(statement("purge", "wait_for_purges"))
                    await connection.execute(statement("purge", "mark"), {"refresh_us": 0})
            except BaseException:
                await connection.close()
                raise
        except (psycopg.Error, OSError, TimeoutError) as error:
            raise _unavailable(name, error) from error
        return cls(name, connection)

    async def close(self) -> None:
        """End the session."""
        await self._connection.close()

    async def load(self, chunk: Chunk) -> Loaded:
        """Merge the chunk's rows whose slot is owned here. Durable when it returns; repeating it changes nothing.

        Raises ShardUnavailableError."""
        async with self._lock:
            try:
                return await self._load(chunk)
            except (psycopg.Error, OSError, TimeoutError) as error:
                raise _unavailable(self.name, error) from error

    async def over_limit(self, kind: int, max_out_degree: int) -> int:
        """How many accounts here have more ACTIVE edges of a kind than `max_out_degree`. Raises ShardUnavailableError."""
        async with self._lock:
            try:
                cursor = await self._connection.execute(
                    statement("import", "over_limit"), {"kind": kind, "max_out_degree": max_out_degree}
                )
                return int((await cursor.fetchone() or (0,))[0])
            except (psycopg.Error, OSError) as error:
                raise _unavailable(self.name, error) from error

    async def _load(self, chunk: Chunk) -> Loaded:
        for attempt in range(1, MAX_TRIES + 1):
            direct = (chunk.direction, chunk.kind) not in self._met
            try:
                async with self._connection.transaction():
                    loaded = await self._in_transaction(chunk, direct)
            except psycopg.errors.UniqueViolation:
                # A row of the chunk is there, or was written while we copied. The merge statement cannot fail so.
                if not direct:
                    raise
                self._met.add((chunk.direction, chunk.kind))
            except _TRY_AGAIN as error:
                if attempt == MAX_TRIES:
                    raise
                log.info("import.retry", shard=self.name, sqlstate=error.sqlstate, attempt=attempt)
                await asyncio.sleep(RETRY_S * attempt * random.random())  # noqa: S311
            else:
                if loaded.updated or loaded.unchanged:
                    self._met.add((chunk.direction, chunk.kind))
                else:
                    self._met.discard((chunk.direction, chunk.kind))
                return loaded
        raise AssertionError("the last try returns or raises")

    async def _in_transaction(self, chunk: Chunk, direct: bool) -> Loaded:
        touched = np.unique(chunk.slot)
        await self._connection.execute(statement("write", "lock_slots"), {"slots": Int2s(touched)})
        await self._connection.execute(statement("purge", "mark"), {"refresh_us": BACKFILL_MARK_US})
        cursor = await self._connection.execute(statement("import", "owned_slots"), {"slots": Int2s(touched)})
        owned_slots = np.array([slot for (slot,) in await cursor.fetchall()], dtype=np.int16)
        owned = np.isin(chunk.slot, owned_slots)
        left, rows = chunk.where(~owned), chunk.where(owned) if not owned.all() else chunk
        if not len(rows):
            return Loaded(0, 0, 0, left)
        if direct:
            await self._copy(rows)
            return Loaded(len(rows), 0, 0, left)
        added, updated = await self._merge(rows)
        return Loaded(added, updated, len(rows) - added - updated, left)

    async def _copy(self, chunk: Chunk) -> None:
        table = chunk.direction.table
        async with self._connection.cursor().copy(statement("import", "copy_halves", table)) as copy:
            await copy.write(binary_rows(chunk))
        await self._connection.execute(
            statement("import", "count_new"),
            {"direction": int(chunk.direction), "kind": chunk.kind, **_counted(chunk)},
        )

    async def _merge(self, chunk: Chunk) -> tuple[int, int]:
        cursor = await self._connection.execute(
            statement("import", "merge_halves", chunk.direction.table),
            {
                "direction": int(chunk.direction),
                "kind": chunk.kind,
                "operation": Int2s(operation_column(chunk)),
                "owner_id": Int8s(chunk.owner_id),
                "slot": Int2s(chunk.slot),
                "neighbor_id": Int8s(chunk.neighbor_id),
                "position": Int8s(chunk.position),
                "state": Int2s(chunk.state),
                "since": Int8s(chunk.since),
            },
        )
        added, updated = await cursor.fetchone() or (0, 0)
        return int(added), int(updated)


def _counted(chunk: Chunk) -> dict[str, Any]:
    """How many rows each owner has in each state, in key order."""
    order = np.lexsort((chunk.state, chunk.owner_id)) if np.ptp(chunk.state) else np.arange(len(chunk))
    owner_id, state = chunk.owner_id[order], chunk.state[order]
    starts = np.flatnonzero(np.r_[True, (owner_id[1:] != owner_id[:-1]) | (state[1:] != state[:-1])])
    return {
        "owner_id": Int8s(owner_id[starts]),
        "state": Int2s(state[starts]),
        "slot": Int2s(chunk.slot[order][starts]),
        "change": Int8s(np.diff(np.r_[starts, len(chunk)])),
    }


_OPERATION_OF: Final[dict[int, int]] = {
    State.ACTIVE: GIVEN + Operation.FOLLOW,
    State.PENDING: GIVEN + Operation.REQUEST,
    State.ARCHIVED_BY_SOURCE: Operation.ARCHIVE_BY_SOURCE,
    State.ARCHIVED_BY_DESTINATION: Operation.ARCHIVE_BY_DESTINATION,
    State.ARCHIVED_BY_BOTH: Operation.ARCHIVE_BY_DESTINATION,
    State.REMOVED: GIVEN + Operation.UNFOLLOW,
    State.BLOCKED: GIVEN + Operation.BLOCK,
}
"""The last operation of an imported edge, by its state: the given one that leads there, or, to an archived state, an archive."""

_OPERATIONS: Final = np.array([_OPERATION_OF.get(state, 0) for state in range(1 + max(State))], dtype=np.int16)


def operation_column(chunk: Chunk) -> Slots:
    """What the column `operation` holds: the operation where it was decided, 0 in the reverse half."""
    return _OPERATIONS[chunk.state] if chunk.direction is Direction.FORWARD else np.zeros(len(chunk), dtype=np.int16)


def binary_rows(chunk: Chunk) -> bytes:
    """The chunk as COPY reads it in binary, built column by column: some 20 ns a row, where formatting text takes a microsecond."""
    rows = np.empty(len(chunk), dtype=_COPY_ROW)
    rows["fields"] = len(_INT8_FIELDS) + len(_INT2_FIELDS)
    for name in _INT8_FIELDS:
        rows[name + "_length"] = 8
    for name in _INT2_FIELDS:
        rows[name + "_length"] = 2
    rows["owner_id"], rows["neighbor_id"], rows["slot"] = chunk.owner_id, chunk.neighbor_id, chunk.slot
    rows["position"], rows["since"], rows["state"] = chunk.position, chunk.since, chunk.state
    rows["kind"], rows["operation"] = chunk.kind, operation_column(chunk)
    return b"".join((_COPY_HEADER, rows.data, _COPY_TRAILER))


def _unavailable(shard: str, error: Exception) -> ShardUnavailableError:
    """The driver's words name hosts and values; what is told is the SQLSTATE."""
    sqlstate = error.sqlstate if isinstance(error, psycopg.Error) else None
    if sqlstate is None:
        return ShardUnavailableError(shard)
    return ShardUnavailableError(shard, what=f"refused the work (sqlstate {sqlstate})")
