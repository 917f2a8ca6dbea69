"""Placement in Python is Postgres's own hash."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import psycopg
import pytest

from graphd.devcluster.postgres import PostgresServer
from graphd.placement import GOLDEN, hashint8extended, slots_of

EXTREMES = [0, 1, 2, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**53 + 1, 2**62, 2**63 - 2, 2**63 - 1]
SEED = 20_251_130


@pytest.fixture(scope="module")
def session(postgres: list[PostgresServer]) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    with psycopg.connect(postgres[0].conninfo(), autocommit=True) as connection:
        yield connection


def test_hundred_thousand_random_ids_and_the_extremes(session: psycopg.Connection[tuple[object, ...]]) -> None:
    chance = random.Random(SEED)
    # As many small ids as large ones: real ids are not spread evenly over 63 bits.
    ids = EXTREMES + [chance.getrandbits(chance.randrange(1, 64)) for _ in range(100_000)]
    rows = session.execute(
        "SELECT hashint8extended(id, 0)::text, (hashint8extended(id, 0) & 1023)::int, hashint8extended(id, 1)::text"
        " FROM unnest(%s::bigint[]) WITH ORDINALITY AS t (id, at) ORDER BY at",
        (ids,),
    ).fetchall()
    assert [int(str(plain)) for plain, _, _ in rows] == [hashint8extended(id_, 0) for id_ in ids]
    assert slots_of(np.array(ids, dtype=np.int64), 1024).tolist() == [slot for _, slot, _ in rows]
    assert [int(str(bucket)) for _, _, bucket in rows] == [hashint8extended(id_, 1) for id_ in ids]


def test_random_seeds(session: psycopg.Connection[tuple[object, ...]]) -> None:
    chance = random.Random(SEED)
    pairs = [(chance.getrandbits(63), chance.getrandbits(chance.randrange(1, 64))) for _ in range(5_000)]
    rows = session.execute(
        "SELECT hashint8extended(id, seed)::text FROM unnest(%s::bigint[], %s::bigint[]) WITH ORDINALITY AS t (id, seed, at)"
        " ORDER BY at",
        ([id_ for id_, _ in pairs], [seed for _, seed in pairs]),
    ).fetchall()
    assert [int(str(found)) for (found,) in rows] == [hashint8extended(id_, seed) for id_, seed in pairs]


def test_golden(session: psycopg.Connection[tuple[object, ...]]) -> None:
    for value, seed, expected in GOLDEN:
        found = session.execute("SELECT hashint8extended(%s::bigint, %s::bigint)", (value, seed)).fetchone()
        assert found == (expected,)
