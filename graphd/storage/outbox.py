"""What one shard owes to others, as the relay sees it, and the receipts it has kept long enough."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from graphd.limits import RELAY_BACKOFF_FIRST_S, RELAY_BACKOFF_MAX_S, RELAY_BATCH, RELAY_LEASE_S
from graphd.storage.arrays import Int2s
from graphd.storage.items import Namespace
from graphd.storage.queries import statement
from graphd.storage.shard import Shard


class Owed(NamedTuple):
    """An outbox row: the edge whose reverse half may be behind; or, where `operation` is not 0, the edge that owes this operation to the
    edge the other way. `attempts` counts this one."""

    slot: int
    peer_slot: int
    id: UUID
    kind: int
    source_id: int
    destination_id: int
    operation: int
    attempts: int


class Backlog(NamedTuple):
    """Rows owed, the age of the oldest in seconds, and rows parked."""

    length: int
    age_s: float
    parked: int


class Outbox:
    """The outbox of one shard. Every method raises ShardUnavailableError."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    async def lease(self, reachable: Sequence[int]) -> list[Owed]:
        """Due rows owed to one of the `reachable` slots, for RELAY_LEASE_S; RELAY_BATCH at most, those of the first slots first."""
        async with self._shard.session() as connection:
            cursor = await connection.execute(
                statement("relay", "lease"),
                {"lease_s": RELAY_LEASE_S, "row_count": RELAY_BATCH, "reachable": Int2s(reachable)},
            )
            return [Owed(*row) for row in await cursor.fetchall()]

    async def put_off(self, rows: Sequence[Owed]) -> None:
        """Make rows due again after a pause that doubles with each attempt, from RELAY_BACKOFF_FIRST_S to RELAY_BACKOFF_MAX_S."""
        async with self._shard.session() as connection:
            await connection.execute(
                statement("relay", "put_off"),
                {
                    "peer_slot": Int2s([row.peer_slot for row in rows]),
                    "id": [row.id for row in rows],
                    "first_s": RELAY_BACKOFF_FIRST_S,
                    "most_s": RELAY_BACKOFF_MAX_S,
                },
            )

    async def park(self, rows: Sequence[Owed], problems: Sequence[str]) -> None:
        """Put rows aside that can never apply, with the reason."""
        async with self._shard.session() as connection:
            await connection.execute(
                statement("relay", "park"),
                {
                    "peer_slot": Int2s([row.peer_slot for row in rows]),
                    "id": [row.id for row in rows],
                    "problem": list(problems),
                },
            )

    async def backlog(self) -> Backlog:
        """How much is owed."""
        async with self._shard.session() as connection:
            cursor = await connection.execute(statement("relay", "backlog"))
            row = await cursor.fetchone()
            assert row is not None, "an aggregate answers one row"
            return Backlog(*row)

    async def sweep_receipts(self, row_count: int, namespace: Namespace, keep_s: float) -> int:
        """Forget receipts older than `keep_s`, `row_count` at most; answers how many."""
        async with self._shard.session() as connection:
            cursor = await connection.execute(
                statement("relay", "sweep_receipts"),
                {"keep_s": keep_s, "row_count": row_count, "namespace": namespace},
            )
            return cursor.rowcount
