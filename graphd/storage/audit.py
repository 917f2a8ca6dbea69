"""Whether a cluster that stands still holds what it should: every edge in two equal halves, every degree equal to a recount.

It reads each shard once, on its own, so its answer means something only while nobody writes and nothing is owed: for demos, drills and
tests. Comparing halves under load, and mending them, is the work of repair.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import TupleRow

from graphd.config import Config
from graphd.edge import Direction
from graphd.errors import ShardUnavailableError
from graphd.storage.connect import connect
from graphd.storage.queries import statement


@dataclass(frozen=True, slots=True)
class Digest:
    """A set of edges, each with its version: how many, and two sums over their hashes. Equal sets have equal digests."""

    edges: int = 0
    xor: int = 0
    plus: int = 0

    def __add__(self, other: Digest) -> Digest:
        """The digest of both sets together, if they have no edge in common."""
        return Digest(self.edges + other.edges, self.xor ^ other.xor, self.plus + other.plus)


@dataclass(frozen=True, slots=True)
class ShardAudit:
    """What one shard holds. `degrees`: counters, `wrong_degrees` of them unlike a recount. `owed`: outbox rows."""

    shard: str
    forward: Digest
    reverse: Digest
    degrees: int
    wrong_degrees: int
    owed: int


@dataclass(frozen=True, slots=True)
class Audit:
    """What the whole cluster holds."""

    shards: tuple[ShardAudit, ...]

    @property
    def forward(self) -> Digest:
        """All forward halves."""
        return sum((shard.forward for shard in self.shards), Digest())

    @property
    def reverse(self) -> Digest:
        """All reverse halves."""
        return sum((shard.reverse for shard in self.shards), Digest())

    @property
    def halves_agree(self) -> bool:
        """Whether both directions hold the same edges in the same versions."""
        return self.forward == self.reverse

    @property
    def wrong_degrees(self) -> int:
        """Counters unlike a recount."""
        return sum(shard.wrong_degrees for shard in self.shards)

    @property
    def owed(self) -> int:
        """Outbox rows."""
        return sum(shard.owed for shard in self.shards)


async def audit(config: Config) -> Audit:
    """Read every half of every shard. Raises ShardUnavailableError."""
    return Audit(tuple(await asyncio.gather(*(_audit(config, shard) for shard in config.shards))))


async def largest(config: Config, kind: int, count: int) -> list[tuple[int, int]]:
    """The accounts with most followers, most first: (account, followers). Raises ShardUnavailableError."""
    rows = await _everywhere(config, "largest", kind, count)
    return sorted(((account, degree) for account, degree in rows), key=lambda row: (-row[1], row[0]))[:count]


async def sources(config: Config, kind: int, count: int) -> list[int]:
    """Up to `count` accounts that follow others, ascending. Raises ShardUnavailableError."""
    return sorted(account for (account,) in await _everywhere(config, "sources", kind, count))[:count]


async def _everywhere(config: Config, name: str, kind: int, count: int) -> list[TupleRow]:
    asked = (_rows(config, shard, {name: {"kind": kind, "row_count": count}}) for shard in config.shards)
    return [row for [rows] in await asyncio.gather(*asked) for row in rows]


async def _audit(config: Config, shard: str) -> ShardAudit:
    forward, reverse = [
        await _rows(config, shard, {"digest": {"forward": direction is Direction.FORWARD}}, direction.table)
        for direction in Direction
    ]
    [[(degrees, wrong)], [(owed,)]] = await _rows(config, shard, {"recount": {}, "owed": {}})
    return ShardAudit(shard, _digest(forward), _digest(reverse), degrees, wrong, owed)


def _digest(answer: list[list[TupleRow]]) -> Digest:
    [[(edges, xor, plus)]] = answer
    return Digest(edges, xor, int(plus))


async def _rows(
    config: Config, shard: str, questions: Mapping[str, Mapping[str, Any]], table: str | None = None
) -> list[list[TupleRow]]:
    try:
        connection = await connect(config.shard_conninfo(shard), "graphd audit")
        try:
            answers = []
            for name, values in questions.items():
                cursor = await connection.execute(statement("audit", name, table), values)
                answers.append(await cursor.fetchall())
            return answers
        finally:
            await connection.close()
    except (psycopg.OperationalError, OSError, TimeoutError) as error:
        raise ShardUnavailableError(shard) from error
