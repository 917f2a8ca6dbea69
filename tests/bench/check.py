"""After the run: was what was measured really done? Counted by SQL, on the shards themselves."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import reduce
from operator import xor
from typing import Any

from tests.bench.data import WrongAnswerError
from tests.bench.setting import Setting

DRAIN_S = 15.0
"""How long the router may take to strike from the outbox what it has delivered."""

_HALVES = """
SELECT count(*), count(*) FILTER (WHERE state = 1),
       coalesce(bit_xor(hash_record_extended(ROW({edge}, kind, position, state, since), 0)), 0)
FROM {table}
"""
_DEGREES = "SELECT coalesce(sum(degree), 0)::bigint FROM degrees WHERE state = 1 AND direction = {direction}"


def check_halves(setting: Setting) -> str:
    """A sentence with the counts. Raises WrongAnswerError when forward and reverse halves differ anywhere, a degree
    was lost, or something is still owed."""
    owed = _drain(setting)
    forward = _sum(setting.rows(_HALVES.format(table="forward", edge="owner_id, neighbor_id")))
    reverse = _sum(setting.rows(_HALVES.format(table="reverse", edge="neighbor_id, owner_id")))
    following, followers = (
        sum(total for (total,) in setting.rows(_DEGREES.format(direction=direction))) for direction in (1, 2)
    )
    counts = f"{forward[0]:,} forward and {reverse[0]:,} reverse halves, {following:,} and {followers:,} in degrees"
    if forward != reverse or owed or {following, followers} != {forward[1]}:
        raise WrongAnswerError(f"the halves do not agree: {counts}, {owed} owed")
    return f"both halves of every edge are there and equal: {counts}, nothing owed"


def _drain(setting: Setting) -> int:
    deadline = time.monotonic() + DRAIN_S
    while (owed := sum(n for (n,) in setting.rows("SELECT count(*) FROM outbox"))) and time.monotonic() < deadline:
        time.sleep(0.2)
    return int(owed)


def _sum(rows: Sequence[tuple[Any, ...]]) -> tuple[int, int, int]:
    return sum(row[0] for row in rows), sum(row[1] for row in rows), reduce(xor, (row[2] for row in rows), 0)
