"""The events of one shard: what happened to edges whose source lives there, for those who watch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from psycopg import sql

from graphd.limits import EVENTS_BUCKET_S, EVENTS_BUCKETS
from graphd.storage.arrays import Int2s
from graphd.storage.queries import statement
from graphd.storage.shard import Shard

TRUNCATE_WAIT: Final = "50ms"
"""How long emptying a partition waits for readers, who meanwhile wait behind it. It is tried again with the next round."""


class Event(NamedTuple):
    """A change of an edge. `previous_state` 0: it was absent."""

    id: int
    source_id: int
    destination_id: int
    kind: int
    state: int
    position: int
    since: int
    previous_state: int


class Events:
    """Every method raises ShardUnavailableError or OverloadedError."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    async def last(self) -> int:
        """The highest id drawn so far; what it stands for may not be committed."""
        return await self._number("last")

    async def mark(self) -> int:
        """The id of a transaction of its own: when `oldest_running` has reached it, all that was drawn before is committed or gone."""
        return await self._number("mark")

    async def oldest_running(self) -> int:
        """The oldest transaction that may still be under way."""
        return await self._number("oldest_running")

    async def floor(self) -> int:
        """The last id that is not kept any more."""
        return await self._number("floor")

    async def read(self, after: int, upto: int, kinds: Sequence[int], slots: Sequence[int]) -> tuple[list[Event], int]:
        """Events of ids in (after, upto], and the floor as it was after they were read; no kinds or slots: all."""
        async with self._shard.session() as connection:
            parameters = {"after": after, "upto": upto, "kinds": Int2s(kinds), "slots": Int2s(slots)}
            cursor = await connection.execute(statement("events", "read"), parameters)
            found = [Event(*row) for row in await cursor.fetchall()]
            cursor = await connection.execute(statement("events", "floor"))
            row = await cursor.fetchone()
            assert row is not None, "the floor is one row"
            return found, row[0]

    async def forget(self, keep_s: float, now_s: float | None = None) -> int:
        """Empty the partitions whose time ended more than `keep_s` ago; answers how many. Raises LockNotAvailable as ShardUnavailableError
        when readers are in the way."""
        now = int((time.time() if now_s is None else now_s) // EVENTS_BUCKET_S)
        kept = {(now - back) % EVENTS_BUCKETS for back in range(int(keep_s // EVENTS_BUCKET_S) + 2)}
        emptied = 0
        for bucket in sorted(set(range(EVENTS_BUCKETS)) - kept):
            async with self._shard.session() as connection:
                cursor = await connection.execute(statement("events", "highest"), {"bucket": bucket})
                row = await cursor.fetchone()
                assert row is not None, "an aggregate answers one row"
                if row[0] is None:
                    continue
                async with connection.transaction():
                    await connection.execute(f"SET LOCAL lock_timeout = '{TRUNCATE_WAIT}'".encode())
                    await connection.execute(statement("events", "raise_floor"), {"id": row[0]})
                    await connection.execute(sql.SQL("TRUNCATE {}").format(sql.Identifier(f"events_{bucket}")))
            emptied += 1
        return emptied

    async def _number(self, name: str) -> int:
        async with self._shard.session() as connection:
            cursor = await connection.execute(statement("events", name))
            row = await cursor.fetchone()
            assert row is not None, f"{name} answers one row"
            return int(row[0])
