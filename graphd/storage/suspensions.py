"""The suspensions of one shard: accounts archived or removed, in one kind each.

A suspension is set and cleared under the exclusive lock of its account's slot. Every write holds that lock shared and looks at the
suspension in the statement after it, so each write is wholly before a suspension, and seen by its walk, or wholly after it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

import psycopg

from graphd.storage.arrays import Int2s
from graphd.storage.queries import statement
from graphd.storage.shard import Shard

LOCK_TIMEOUT: Final = "50ms"
"""Waiting for the exclusive lock holds up every write of the slot, so it is given up soon and tried again."""

LOCK_PAUSE_S: Final = 0.05


class Standing(IntEnum):
    """How an account stands in a kind; the numbers are stored."""

    RESTORED = 0
    ARCHIVED = 1
    REMOVED = 2


class News(NamedTuple):
    """A suspension that was set, or cleared."""

    account_id: int
    kind: int
    suspended: bool
    generation: int


class Suspensions:
    """Every method raises ShardUnavailableError, OverloadedError."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    async def set(self, account_id: int, kinds: Sequence[int], slot: int, standing: Standing) -> dict[int, int] | None:
        """Set or clear it; answers the new generation of each kind, None where the slot is not owned. Until it succeeds or is cancelled."""
        while True:
            try:
                async with self._shard.session() as connection, connection.transaction():
                    try:
                        await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'".encode())
                        await connection.execute(statement("suspension", "lock_slot"), {"slot": slot})
                    except psycopg.errors.LockNotAvailable as error:
                        raise _BusyError from error
                    cursor = await connection.execute(
                        statement("suspension", "set"),
                        {"account_id": account_id, "kinds": Int2s(kinds), "slot": slot, "standing": int(standing)},
                    )
                    rows = await cursor.fetchall()
                    return dict(rows) if rows else None
            except _BusyError:
                await asyncio.sleep(random.uniform(0.5, 1.5) * LOCK_PAUSE_S)  # noqa: S311 - not a secret

    async def generations(self, account_id: int, kinds: Sequence[int], slot: int) -> dict[int, int]:
        """What stands now, by kind; nothing where it never was set, or the account is restored."""
        async with self._shard.session() as connection:
            cursor = await connection.execute(
                statement("suspension", "generations"), {"account_id": account_id, "kinds": Int2s(kinds), "slot": slot}
            )
            return dict(await cursor.fetchall())

    async def forget(self, account_id: int, kind: int, slot: int, generation: int) -> None:
        """A restored account whose edges are all restored is one like others, unless it was suspended again meanwhile."""
        async with self._shard.session() as connection:
            await connection.execute(
                statement("suspension", "forget"),
                {"account_id": account_id, "kind": kind, "slot": slot, "generation": generation},
            )

    async def news(self, after: int, row_count: int) -> tuple[int, list[News]]:
        """The server's clock in microseconds, and what was set or cleared after a generation, `row_count` rows at most."""
        async with self._shard.session() as connection:
            cursor = await connection.execute(statement("suspension", "news"), {"after": after, "row_count": row_count})
            [first, *rows] = await cursor.fetchall()
            return first[3], [News(*row) for row in rows]


class _BusyError(Exception):
    """The slot's lock was not to be had in time."""
