"""What a page, a look-up, a lease of the relay and a batch of the purge cost: ranges of an index, however long the list, however deep
the page, and whatever the planner believes of the tables. A table that was full, then emptied and analyzed, then full again, counts as
empty for a while."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from graphd.storage.connect import READ_SETTINGS, SET_SETTINGS
from graphd.storage.session import prepared
from tests.databases import Databases

HUB, SLOT, KIND, ACTIVE = 5, 7, 1, 1
ROWS = 100_000
OWED = 20_000
TIED_AT = 1_000_000

Plan = dict[str, Any]


TABLES = ("forward", "reverse", "degrees", "outbox", "receipts")


def believe_empty(connection: psycopg.Connection[Any]) -> None:
    """Leave statistics as VACUUM and ANALYZE do that come when the tables are empty for a moment."""
    connection.execute(
        "UPDATE pg_class SET reltuples = 0 WHERE oid = ANY (%(tables)s::regclass[])"
        " OR oid IN (SELECT indexrelid FROM pg_index WHERE indrelid = ANY (%(tables)s::regclass[]))",
        {"tables": list(TABLES)},
    )


@pytest.fixture(scope="module", params=["analyzed", "believed empty"])
def session(request: pytest.FixtureRequest, databases: Databases) -> Iterator[psycopg.Connection[Any]]:
    """One long list, half of it since one moment, among many short ones; and a full outbox."""
    with databases.connect("s1") as connection:
        connection.prepare_threshold = None
        for table in TABLES:
            connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = false)".encode())
            connection.execute(f"TRUNCATE {table}".encode())
        connection.execute(
            "INSERT INTO reverse (owner_id, neighbor_id, position, since, slot, kind, state, operation)"
            " SELECT %s, n, %s + n, CASE WHEN n %% 2 = 0 THEN %s ELSE %s + n END, %s, 1, 1 + n %% 50 / 49 * 5, 0"
            " FROM generate_series(1, %s) AS n",
            (HUB, TIED_AT, TIED_AT, TIED_AT, SLOT, ROWS),
        )
        for table in ("forward", "reverse"):
            connection.execute(
                f"INSERT INTO {table} (owner_id, neighbor_id, position, since, slot, kind, state, operation)"
                " SELECT 1000 + n / 10, n, 1, 1, %s, 1, 1, 0 FROM generate_series(1, %s) AS n",
                (SLOT, ROWS),
            )
        connection.execute(
            "INSERT INTO degrees (owner_id, degree, direction, kind, state, slot)"
            " SELECT 1000 + n, 10, d, 1, 1, %s FROM generate_series(1, %s) AS n, generate_series(1, 2) AS d",
            (SLOT, ROWS // 10),
        )
        connection.execute(
            "INSERT INTO outbox (slot, id, kind, source_id, destination_id, peer_slot, due)"
            " SELECT %s, uuidv7(), 1, n, n, n %% 64, now() - interval '1 hour' FROM generate_series(1, %s) AS n",
            (SLOT, OWED),
        )
        connection.execute("UPDATE slots SET owned = true WHERE slot = %s", (SLOT,))
        connection.execute("VACUUM ANALYZE forward, reverse, degrees, outbox, slots")
        if request.param == "believed empty":
            believe_empty(connection)
        yield connection


def explain(
    session: psycopg.Connection[Any],
    settings: dict[str, str],
    name: str,
    table: str | None,
    file: str = "read",
    **values: Any,
) -> Plan:
    """The plan of a named statement as a session with these settings runs it, with what it read."""
    for setting, value in settings.items():
        session.execute("SELECT set_config(%s, %s, false)", (setting, value))
    call = prepared(file, name, table)
    arguments = ", ".join(f"'{{{values[n]}}}'" if isinstance(values[n], str) else str(values[n]) for n in call.names)
    session.execute(b"PREPARE asked AS " + call.text)
    row = session.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE asked ({arguments})".encode()).fetchone()
    session.execute("DEALLOCATE asked")
    assert row is not None
    plan: Plan = row[0][0]["Plan"]
    return plan


def nodes(plan: Plan) -> Iterator[Plan]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def scan_of(plan: Plan, table: str) -> Plan:
    """The one scan of a table."""
    [found] = [node for node in nodes(plan) if node.get("Relation Name") == table]
    return found


def no_sort_and_no_seq_scan(plan: Plan) -> None:
    kinds = {node["Node Type"] for node in nodes(plan)}
    assert not kinds & {"Sort", "Incremental Sort", "Seq Scan", "Bitmap Heap Scan"}, kinds


PAGES = [
    # Newest first: from the top, deep among the ties, and near the end.
    ("newest_first", 2**63 - 1, 2**63 - 1),
    ("newest_first", TIED_AT, 50_000),
    ("newest_first", TIED_AT, 300),
    ("oldest_first", -1, -1),
    ("oldest_first", TIED_AT, 50_000),
    ("oldest_first", TIED_AT + ROWS - 1_000, 0),
]


@pytest.mark.parametrize("limit", [2, 101, 1_001])
@pytest.mark.parametrize(("name", "since", "neighbor_id"), PAGES)
def test_a_page_is_a_range_of_the_index(
    session: psycopg.Connection[Any], name: str, since: int, neighbor_id: int, limit: int
) -> None:
    # F034, F038: no sort, and no more rows read than the page holds, at any depth.
    plan = explain(
        session,
        READ_SETTINGS,
        name,
        "reverse",
        item="0",
        owner_id=str(HUB),
        kind="1",
        slot=str(SLOT),
        state="1",
        since=str(since),
        neighbor_id=str(neighbor_id),
        row_count=str(limit),
    )
    no_sort_and_no_seq_scan(plan)
    scan = scan_of(plan, "reverse")
    assert scan["Index Name"] == "reverse_list"
    assert "ROW(since, neighbor_id)" in scan["Index Cond"]
    assert scan["Scan Direction"] == ("Backward" if name == "newest_first" else "Forward")
    assert scan["Actual Rows"] <= limit
    assert scan.get("Rows Removed by Filter", 0) <= 1


def test_many_pages_in_one_statement(session: psycopg.Connection[Any]) -> None:
    plan = explain(
        session,
        READ_SETTINGS,
        "newest_first",
        "reverse",
        item="0,1,2",
        owner_id=f"{HUB},1001,1002",
        kind="1,1,1",
        slot=f"{SLOT},{SLOT},{SLOT}",
        state="1,1,1",
        since=",".join(["9223372036854775807"] * 3),
        neighbor_id=",".join(["9223372036854775807"] * 3),
        row_count="101,101,5",
    )
    no_sort_and_no_seq_scan(plan)
    scan = scan_of(plan, "reverse")
    assert (scan["Index Name"], scan["Actual Loops"]) == ("reverse_list", 3)


@pytest.mark.parametrize("count", [1, 200])
def test_look_ups_go_by_the_primary_key(session: psycopg.Connection[Any], count: int) -> None:
    plan = explain(
        session,
        READ_SETTINGS,
        "edges",
        "forward",
        item=",".join(map(str, range(count))),
        owner_id=",".join(str(1000 + n * 10 // 10) for n in range(count)),
        kind=",".join(["1"] * count),
        slot=",".join([str(SLOT)] * count),
        neighbor_id=",".join(str(n * 10) for n in range(count)),
    )
    no_sort_and_no_seq_scan(plan)
    scan = scan_of(plan, "forward")
    assert (scan["Index Name"], scan["Actual Loops"]) == ("forward_pkey", count)


@pytest.mark.parametrize("since", [2**63 - 1, TIED_AT])
def test_a_stretch_of_a_list_is_answered_by_its_index_alone(session: psycopg.Connection[Any], since: int) -> None:
    plan = explain(
        session,
        SET_SETTINGS,
        "stretch",
        "reverse",
        owner_id=HUB,
        kind=KIND,
        slot=SLOT,
        since=since,
        neighbor_id=60_000,
        row_count=8_193,
    )
    no_sort_and_no_seq_scan(plan)
    scan = scan_of(plan, "reverse")
    assert (scan["Node Type"], scan["Index Name"]) == ("Index Only Scan", "reverse_list")
    assert scan["Actual Rows"] == 8_193


def test_a_window_of_ids_is_a_range_of_the_primary_key(session: psycopg.Connection[Any]) -> None:
    plan = explain(
        session,
        SET_SETTINGS,
        "window",
        "reverse",
        owner_id=HUB,
        kind=KIND,
        slot=SLOT,
        state=ACTIVE,
        top=60_000,
        bottom=0,
        row_count=4_096,
    )
    no_sort_and_no_seq_scan(plan)
    scan = scan_of(plan, "reverse")
    assert scan["Index Name"] == "reverse_pkey"
    assert scan["Actual Rows"] == 4_096


def test_probes_go_by_the_primary_key(session: psycopg.Connection[Any]) -> None:
    # F044: about as many rows are touched as ids are asked for, however long the list.
    plan = explain(
        session,
        SET_SETTINGS,
        "probe",
        "reverse",
        owner_id=HUB,
        kind=KIND,
        slot=SLOT,
        state=ACTIVE,
        ids=",".join(str(n * 900) for n in range(1, 101)),
    )
    no_sort_and_no_seq_scan(plan)
    scan = scan_of(plan, "reverse")
    assert scan["Index Name"] in ("reverse_pkey", "reverse_list")
    assert scan["Actual Loops"] * scan["Actual Rows"] <= 101


def test_degrees_go_by_the_primary_key(session: psycopg.Connection[Any]) -> None:
    owners = range(1_001, 1_101)
    plan = explain(
        session,
        READ_SETTINGS,
        "degrees",
        None,
        item=",".join(map(str, range(len(owners)))),
        owner_id=",".join(map(str, owners)),
        kind=",".join(["1"] * len(owners)),
        slot=",".join([str(SLOT)] * len(owners)),
    )
    no_sort_and_no_seq_scan(plan)
    scan = scan_of(plan, "degrees")
    assert (scan["Index Name"], scan["Actual Loops"], scan["Actual Rows"]) == ("degrees_pkey", len(owners), 2)


def touched(plan: Plan, table: str) -> int:
    """Rows of a table that a plan looked at, each as often as it did."""
    count = 0.0
    for node in nodes(plan):
        if node.get("Relation Name") == table and node["Node Type"] != "ModifyTable":
            removed = sum(n for key, n in node.items() if key.startswith("Rows Removed by"))
            count += node["Actual Loops"] * (node["Actual Rows"] + removed)
    return round(count)


def test_a_lease_looks_at_what_it_takes(session: psycopg.Connection[Any]) -> None:
    # With a join in the place of the array, this took every row of the outbox 20,000 times over, and the relay never got any.
    with session.transaction(force_rollback=True):
        plan = explain(
            session, SET_SETTINGS, "lease", None, "relay", lease_s=10, row_count=1_000, reachable="3,4,5,6,7,8"
        )
        [(taken,)] = session.execute("SELECT count(*) FROM outbox WHERE attempts = 1").fetchall()
    assert taken == 1_000
    # Once to find it, once to change it, but for the array's last row.
    assert touched(plan, "outbox") <= 2_001


def test_what_is_owed_to_a_shard_that_is_away_costs_the_lease_nothing(session: psycopg.Connection[Any]) -> None:
    with session.transaction(force_rollback=True):
        session.execute("UPDATE outbox SET peer_slot = 1")
        plan = explain(session, SET_SETTINGS, "lease", None, "relay", lease_s=10, row_count=1_000, reachable="3,4,5")
    assert touched(plan, "outbox") == 0


@pytest.mark.parametrize(
    ("name", "values"), [("put_off", {"first_s": 0.1, "most_s": 2}), ("park", {"problem": ",".join(["poison"] * 100)})]
)
def test_rows_of_the_outbox_are_found_by_the_primary_key(
    session: psycopg.Connection[Any], name: str, values: dict[str, Any]
) -> None:
    rows = session.execute("SELECT peer_slot, id FROM outbox ORDER BY id LIMIT 100").fetchall()
    with session.transaction(force_rollback=True):
        plan = explain(
            session,
            SET_SETTINGS,
            name,
            None,
            "relay",
            peer_slot=",".join(str(slot) for slot, _ in rows),
            id=",".join(str(row) for _, row in rows),
            **values,
        )
        [(changed,)] = session.execute(
            "SELECT count(*) FROM outbox WHERE parked AND problem = 'poison' OR due > now()"
        ).fetchall()
    assert changed == len(rows)
    assert touched(plan, "outbox") <= 2 * len(rows)


PURGED = 500
AGES = {"now_us": 2**62, "keep_us": 0}


@pytest.fixture
def tombstones(session: psycopg.Connection[Any]) -> Iterator[dict[str, str]]:
    """The columns of some tombstones of the long list, which may go; in a transaction that is rolled back."""
    with session.transaction(force_rollback=True):
        session.execute("UPDATE backfilled SET at = 0")
        rows = session.execute(
            "SELECT neighbor_id, position, since FROM reverse WHERE owner_id = %s AND state = 6 LIMIT %s", (HUB, PURGED)
        ).fetchall()
        columns = {
            "owner_id": [HUB] * PURGED, "kind": [KIND] * PURGED, "slot": [SLOT] * PURGED,
            "neighbor_id": [row[0] for row in rows], "position": [row[1] for row in rows], "since": [row[2] for row in rows],
        }  # fmt: skip
        yield {name: ",".join(map(str, values)) for name, values in columns.items()}


@pytest.mark.parametrize(("state", "found"), [(1, 0), (6, 1_000)])
def test_a_walk_of_the_purge_reads_the_index_and_then_what_it_found(
    session: psycopg.Connection[Any], tombstones: dict[str, str], state: int, found: int
) -> None:
    place = {"owner_id": HUB, "kind": KIND, "state": state, "slot": 0, "since": 0, "neighbor_id": 0}
    plan = explain(session, SET_SETTINGS, "walk", "reverse", "purge", **place, row_count=1_000, **AGES)
    scans = [node for node in nodes(plan) if node.get("Relation Name") == "reverse"]
    [walked] = [scan for scan in scans if scan["Index Name"] == "reverse_list" and scan["Actual Loops"] == 1]
    assert walked["Node Type"] == "Index Only Scan"
    assert walked["Actual Rows"] == 1_000
    assert touched(plan, "reverse") == 1_000 + found


@pytest.mark.parametrize(("debt_s", "found", "debts"), [(1_800, PURGED, 0), (-60, 0, PURGED)])
def test_the_purge_looks_at_what_it_is_asked_for(
    session: psycopg.Connection[Any], tombstones: dict[str, str], debt_s: int, found: int, debts: int
) -> None:
    peers = ",".join(str(n % 64) for n in range(PURGED))
    plan = explain(
        session, SET_SETTINGS, "standing", None, "purge", **tombstones, peer_slot=peers, debt_s=debt_s, **AGES
    )
    assert plan["Actual Rows"] == found
    assert touched(plan, "forward") <= PURGED
    assert scan_of(plan, "outbox")["Index Name"] == "outbox_pkey"
    assert touched(plan, "outbox") == debts


def test_the_purge_deletes_by_the_primary_key(session: psycopg.Connection[Any], tombstones: dict[str, str]) -> None:
    plan = explain(session, SET_SETTINGS, "delete", "reverse", "purge", **tombstones, **AGES)
    assert plan["Actual Rows"] == PURGED
    # To look, to lock, to delete.
    assert touched(plan, "reverse") == 3 * PURGED
