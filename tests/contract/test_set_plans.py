"""What set operations read of lists that the planner has not heard of yet: filled, and not analyzed since."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from graphd.storage.connect import SET_SETTINGS
from tests.contract.test_plans import explain, scan_of
from tests.databases import Databases

SLOT = 7
ROWS = 20_000


@pytest.fixture(scope="module")
def session(databases: Databases) -> Iterator[psycopg.Connection[Any]]:
    """Lists of several lengths, so that the heights and sizes of the indexes differ while they grow."""
    with databases.connect("s1") as connection:
        connection.prepare_threshold = None
        connection.execute("ALTER TABLE reverse SET (autovacuum_enabled = false)")
        connection.execute("UPDATE slots SET owned = true WHERE slot = %s", (SLOT,))
        yield connection


def test_probes_cost_what_is_asked_for_while_lists_grow(session: psycopg.Connection[Any]) -> None:
    for owner, rows in enumerate((100, 1_000, ROWS, 3 * ROWS), 1):
        session.execute(
            "INSERT INTO reverse (owner_id, neighbor_id, position, since, slot, kind, state, operation)"
            " SELECT %s, n * 3, 1, n, %s, 1, 1, 0 FROM generate_series(1, %s) AS n",
            (owner, SLOT, rows),
        )
        ids = ",".join(str(n) for n in range(1, 201))
        plan = explain(session, SET_SETTINGS, "probe", "reverse", owner_id=owner, kind=1, slot=SLOT, state=1, ids=ids)
        scan = scan_of(plan, "reverse")
        assert (scan["Index Name"], scan["Actual Loops"]) == ("reverse_pkey", 200)
        # Through the index of the lists it would be some buffers more for each thousand rows of the list.
        assert scan["Shared Hit Blocks"] + scan["Shared Read Blocks"] <= 200 * 6


def test_windows_cost_their_rows_while_lists_grow(session: psycopg.Connection[Any]) -> None:
    place: dict[str, Any] = {"kind": 1, "slot": SLOT, "state": 1, "bottom": 0, "row_count": 100}
    plan = explain(session, SET_SETTINGS, "window", "reverse", owner_id=4, top=2**63 - 1, **place)
    scan = scan_of(plan, "reverse")
    assert (scan["Index Name"], scan["Actual Rows"]) == ("reverse_pkey", 100)
