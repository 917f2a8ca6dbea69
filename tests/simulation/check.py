"""The check: is everything that was acknowledged stored, twice, and counted?"""

from __future__ import annotations

import asyncio

from tests.databases import Databases, edges, problems
from tests.simulation.workload import Ledger
from tests.waiting import eventually

SETTLE_S = 30.0
_OWED = "SELECT count(*) FILTER (WHERE NOT parked), count(*) FILTER (WHERE parked) FROM outbox"
_LEFT = """
SELECT count(*), min(attempts), max(attempts), extract(epoch FROM min(due) - now())::int, extract(epoch FROM max(due) - now())::int
FROM outbox
"""


def owed(databases: Databases) -> tuple[int, int]:
    """(rows owed, rows parked), over all shards."""
    rows = databases.all_rows(_OWED)
    return sum(row[0] for row in rows), sum(row[1] for row in rows)


async def settled(databases: Databases, timeout_s: float = SETTLE_S) -> None:
    """Wait until nothing is owed any more."""

    async def empty() -> bool:
        left, parked = await asyncio.to_thread(owed, databases)
        assert not parked, f"{parked} rows were parked"
        return not left

    try:
        await eventually(empty, timeout_s, "the outboxes are empty")
    except AssertionError as error:
        left = await asyncio.to_thread(databases.all_rows, _LEFT)
        raise AssertionError(f"{error}; (rows, least and most attempts, seconds until due) by shard: {left}") from None


def lost_writes(databases: Databases, ledger: Ledger) -> list[str]:
    """What was acknowledged and is not there, or stands in another state than the last acknowledgement said."""
    found: list[str] = []
    stored = {table: edges(databases, table) for table in ("forward", "reverse")}
    for (source, destination), version in ledger.acknowledged.items():
        for table, halves in stored.items():
            half = halves.get((source, destination, 1))
            if half is None or half < version:
                found.append(f"{table} half of {source} -> {destination} is {half}, acknowledged was {version}")
            elif half[1] != version[1]:
                found.append(f"{table} half of {source} -> {destination} is in state {half[1]}, not {version[1]}")
    return found


async def check(databases: Databases, ledger: Ledger) -> None:
    """Fail unless all is well once the relay is idle."""
    await settled(databases)
    found = await asyncio.to_thread(problems, databases)
    found += (await asyncio.to_thread(lost_writes, databases, ledger))[:10]
    assert not found, "\n".join(found)
