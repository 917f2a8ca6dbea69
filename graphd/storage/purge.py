"""Purging tombstones: finding those that are old enough, and deleting both halves of an edge.

The two halves lie on two shards, so no transaction holds both. What makes it safe:

- Under the locks of the forward half's shard the forward half is looked at first; then, while these are still held, the reverse half
  is deleted and committed on its shard; then the forward half. Stopped in between, it leaves a tombstone in the forward half alone, where
  live and given writes are decided, so that nothing older gets past it; the next walk takes it ("the other half has no row").
- Each half goes only while it is that very version. A live write that comes meanwhile is above it, so its row stays, and its reverse
  half is written anew if need be.
- What is older than the horizon comes by backfill alone, which marks the shard in its transaction. An import writes the two halves on
  their own, so before its first row it also waits for purges under way.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

from psycopg import AsyncConnection
from psycopg.rows import TupleRow

from graphd.clock import now_us
from graphd.edge import Direction, Key
from graphd.limits import PURGE_AFTER_US, PURGE_DEBT_S
from graphd.placement import all_slots
from graphd.storage.arrays import Int2s, Int8s
from graphd.storage.connect import answers_within
from graphd.storage.queries import statement
from graphd.storage.shard import Shard

PURGE_TIMEOUT_S: Final = 2.0
"""A purge takes milliseconds. One that hangs is given up soon, because an import waits for it before it begins."""

Connection = AsyncConnection[TupleRow]


class Place(NamedTuple):
    """A row of a table in the order of the lists' index: a walk goes on behind it."""

    direction: Direction
    owner_id: int
    kind: int = 0
    state: int = 0
    slot: int = 0
    since: int = 0
    neighbor_id: int = 0


START: Final = Place(Direction.FORWARD, -1)


class Tombstone(NamedTuple):
    """An edge in state REMOVED: its slots and the rest of its version. At position 0 it never was, and has no reverse half."""

    key: Key
    slot: int
    peer_slot: int
    position: int
    since: int


class Walked(NamedTuple):
    """A stretch of a walk: what was found, how many rows were looked at, and the last of them."""

    found: list[Tombstone]
    rows: int
    last: Place


class Purged(NamedTuple):
    """How many halves were deleted, and how many edges were left because they are not confirmed, or not any more."""

    forward: int
    reverse: int
    left: int


class Tombstones:
    """The old tombstones of one shard. Every method raises ShardUnavailableError, OverloadedError."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    async def may_go(self) -> bool:
        """Whether the last backfill is long enough ago."""
        async with self._shard.session() as connection:
            cursor = await connection.execute(statement("purge", "backfilled"), _ages())
            row = await cursor.fetchone()
            assert row is not None, "one row"
            return bool(row[0])

    async def place(self) -> Place:
        """Where to go on."""
        async with self._shard.session() as connection:
            cursor = await connection.execute(statement("purge", "place"))
            row = await cursor.fetchone()
            assert row is not None, "one row"
            return Place(Direction(row[0]), row[1])

    async def keep_place(self, place: Place) -> None:
        """Remember it: `place` then answers the beginning of that owner."""
        async with self._shard.session() as connection:
            await connection.execute(
                statement("purge", "keep_place"), {"direction": int(place.direction), "owner_id": place.owner_id}
            )

    async def walk(self, after: Place, row_count: int, slots: int) -> Walked:
        """Look at the next `row_count` rows at the most. `slots`: of the cluster."""
        async with self._shard.session() as connection:
            parameters = {**after._asdict(), "row_count": row_count, **_ages()}
            del parameters["direction"]
            cursor = await connection.execute(statement("purge", "walk", after.direction.table), parameters)
            rows = await cursor.fetchall()
        if not rows:
            return Walked([], 0, after)
        last = max(rows, key=lambda row: int(row[0]))
        found = [row for row in rows if row[7] is not None]
        peers = all_slots([row[6] for row in found], slots)
        stones = [_tombstone(after.direction, row, peer) for row, peer in zip(found, peers, strict=True)]
        return Walked(stones, last[0], Place(after.direction, *last[1:7]))


def _tombstone(direction: Direction, row: TupleRow, neighbor_slot: int) -> Tombstone:
    """From a row of `walk`."""
    _, owner_id, kind, _, slot, since, neighbor_id, position = row
    if direction is Direction.REVERSE:
        slot, neighbor_slot = neighbor_slot, slot
    return Tombstone(_key(direction, owner_id, kind, neighbor_id), slot, neighbor_slot, position, since)


async def purge(home: Shard, peer: Shard, tombstones: Sequence[Tombstone]) -> Purged:
    """Delete those that both halves hold, or one alone. `home`: where their forward halves live, `peer`: their reverse halves.

    Raises ShardUnavailableError or OverloadedError of either; what was deleted until then is, and can be purged again."""
    async with home.session() as connection, connection.transaction():
        with answers_within(connection, 2 * PURGE_TIMEOUT_S):
            await _lock(connection, [stone.slot for stone in tombstones])
            await connection.execute(statement("purge", "begin_purge"))
            standing = await _standing(connection, tombstones)
            if not standing:
                return Purged(0, 0, len(tombstones))
            free, reverse = await _purge_reverse(peer, standing)
            forward = await _delete(connection, Direction.FORWARD, free)
    return Purged(sum(deleted for _, deleted in forward), reverse, len(tombstones) - len(forward))


async def _purge_reverse(peer: Shard, tombstones: Sequence[Tombstone]) -> tuple[list[Tombstone], int]:
    """Those whose reverse half is gone now, and how many were deleted."""
    async with peer.session() as connection, connection.transaction():
        with answers_within(connection, PURGE_TIMEOUT_S):
            await _lock(connection, [stone.peer_slot for stone in tombstones])
            answers = await _delete(connection, Direction.REVERSE, tombstones)
    return [stone for stone, _ in answers], sum(deleted for _, deleted in answers)


async def _lock(connection: Connection, slots: Collection[int]) -> None:
    await connection.execute(statement("write", "lock_slots"), {"slots": Int2s(sorted(set(slots)))})


async def _standing(connection: Connection, tombstones: Sequence[Tombstone]) -> list[Tombstone]:
    cursor = await connection.execute(
        statement("purge", "standing"),
        {
            **_columns(Direction.FORWARD, tombstones),
            "peer_slot": Int2s([stone.peer_slot for stone in tombstones]),
            "debt_s": PURGE_DEBT_S,
            **_ages(),
        },
    )
    agreed = {Key(kind, owner_id, neighbor_id) for owner_id, kind, neighbor_id in await cursor.fetchall()}
    return [stone for stone in tombstones if stone.key in agreed]


async def _delete(
    connection: Connection, direction: Direction, tombstones: Sequence[Tombstone]
) -> list[tuple[Tombstone, bool]]:
    """Those that have no half in this direction any more, each with whether it had one; their degrees follow."""
    cursor = await connection.execute(
        statement("purge", "delete", direction.table), {**_columns(direction, tombstones), **_ages()}
    )
    by_key = {stone.key: stone for stone in tombstones}
    answers = [
        (by_key[_key(direction, owner_id, kind, neighbor_id)], deleted)
        for owner_id, kind, neighbor_id, deleted in await cursor.fetchall()
    ]
    # A row at position 0 was in no degree.
    counted = [stone for stone, deleted in answers if deleted and stone.position]
    if counted:
        columns = _columns(direction, counted)
        await connection.execute(
            statement("purge", "discount"),
            {"direction": int(direction), **{name: columns[name] for name in ("owner_id", "kind", "slot")}},
        )
    return answers


def _key(direction: Direction, owner_id: int, kind: int, neighbor_id: int) -> Key:
    return Key(kind, owner_id, neighbor_id) if direction is Direction.FORWARD else Key(kind, neighbor_id, owner_id)


def _columns(direction: Direction, tombstones: Sequence[Tombstone]) -> dict[str, Any]:
    forward = direction is Direction.FORWARD
    sources = Int8s([stone.key.source_id for stone in tombstones])
    destinations = Int8s([stone.key.destination_id for stone in tombstones])
    return {
        "owner_id": sources if forward else destinations,
        "kind": Int2s([stone.key.kind for stone in tombstones]),
        "slot": Int2s([stone.slot if forward else stone.peer_slot for stone in tombstones]),
        "neighbor_id": destinations if forward else sources,
        "position": Int8s([stone.position for stone in tombstones]),
        "since": Int8s([stone.since for stone in tombstones]),
    }


def _ages() -> dict[str, int]:
    """What is older than `keep_us` may go, by this clock and the server's: a clock that is ahead purges nothing too early."""
    return {"now_us": now_us(), "keep_us": PURGE_AFTER_US}
