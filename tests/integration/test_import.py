"""`graphd import` into real shards: exact counts, both halves, degrees; repeated, killed, twice at once, beside newer edges."""

from __future__ import annotations

import asyncio
import gzip
import io
import random
import subprocess
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import numpy as np
import psycopg
import pytest

from graphd.edge import Direction
from graphd.errors import StalePlacementError
from graphd.importer import load as load_module
from graphd.importer.job import Request, run
from graphd.importer.load import Loader
from graphd.importer.runs import SortedRuns
from graphd.limits import MAX_ID
from graphd.placement import slots_of
from graphd.storage.bulk import BulkShard, Chunk
from graphd.storage.catalog import Catalog
from graphd.v1 import graph_pb2 as pb
from tests.databases import Databases, audit, edges, problems
from tests.importing import COMMAND, finish, launch, run_import, run_measured, write_config
from tests.routers import GraphStub
from tests.waiting import eventually

EPINIONS = {"read": 355_754, "self_loops": 224, "duplicates": 27}
POSITION = 1_600_000_000_000_000
ACTIVE, PENDING, REMOVED, BLOCKED = 1, 2, 6, 7


@pytest.fixture(scope="module")
def config(databases: Databases, module_folder: Path) -> Path:
    return write_config(databases, module_folder)


@pytest.fixture(autouse=True)
def _empty(databases: Databases) -> Iterator[None]:
    """Each test finds no edges, and no files imported before."""
    yield
    databases.do("TRUNCATE forward, reverse, degrees")
    with psycopg.connect(databases.catalog, autocommit=True) as catalog:
        catalog.execute("TRUNCATE imports")
        catalog.execute("DELETE FROM kinds WHERE number > 1")


def declare(databases: Databases, kind: str, number: int, *, allow_self: bool = False, max_out_degree: int = 0) -> None:
    with psycopg.connect(databases.catalog, autocommit=True) as catalog:
        catalog.execute(
            "INSERT INTO kinds (number, name, allow_self, max_out_degree) VALUES (%s, %s, %s, %s)",
            (number, kind, allow_self, max_out_degree),
        )


def graph_of(path: Path) -> set[tuple[int, int]]:
    """The pairs of a plain edge list, read independently."""
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    found = set()
    for line in text.decode().splitlines():
        if line[:1].isdecimal():
            a, b = line.replace(",", " ").split()[:2]
            found.add((int(a), int(b)))
    return {(a, b) for a, b in found if a != b}


def pairs(databases: Databases) -> set[tuple[int, int]]:
    return {(source, destination) for source, destination, _ in edges(databases)}


def test_epinions_once_and_again(databases: Databases, config: Path, test_data: Path) -> None:
    file = test_data / "epinions-trust.txt.gz"
    first = run_import(config, file)
    assert (first.status, first.err) == (0, "")
    assert first.counts() == {**EPINIONS, "added": 355_503}
    audit(databases)
    stored = edges(databases)
    assert {(source, destination) for source, destination, _ in stored} == graph_of(file)
    position = int(first.summary["position"])
    assert set(stored.values()) == {(position, ACTIVE, position)}
    assert {operation for (operation,) in databases.all_rows("SELECT DISTINCT operation FROM forward")} == {65}
    assert {operation for (operation,) in databases.all_rows("SELECT DISTINCT operation FROM reverse")} == {0}

    again = run_import(config, file)
    assert again.status == 0
    assert again.counts() == {**EPINIONS, "unchanged": 355_503}
    assert again.summary["position"] == first.summary["position"]
    assert edges(databases) == stored

    later = run_import(config, file, "--position", str(position + 1))
    assert later.counts() == {**EPINIONS, "updated": 355_503}
    audit(databases)


def test_killed_at_any_moment_and_run_again(
    databases: Databases, config: Path, test_data: Path, module_folder: Path, request: pytest.FixtureRequest
) -> None:
    file = test_data / "epinions-trust.txt.gz"
    temporary = module_folder / "temporary"
    temporary.mkdir()
    seed = random.randrange(2**32)
    print(f"{seed=}")
    chance = random.Random(seed)
    expected = graph_of(file)
    stopped_halfway = 0
    for _ in range(20 if request.config.getoption("--long") else 3):
        for _ in range(chance.randint(1, 3)):
            process = launch(config, file, environment={"TMPDIR": str(temporary)})
            try:
                process.wait(timeout=chance.uniform(0.3, 2.0))
            except subprocess.TimeoutExpired:
                process.kill()
            finish(process)
        assert not list(temporary.iterdir()), "temporary files have no names to be left behind"
        before = sum(n for (n,) in databases.all_rows("SELECT count(*) FROM forward"))
        stopped_halfway += 0 < before < len(expected)
        last = run_import(config, file)
        assert last.status == 0
        # A killed import's last transaction may still have been under way when we counted.
        assert last.counts().get("unchanged", 0) >= before
        assert last.counts().get("unchanged", 0) + last.counts().get("added", 0) == len(expected)
        audit(databases)
        stored = edges(databases)
        assert {key[:2] for key in stored} == expected
        assert len(set(stored.values())) == 1
        databases.do("TRUNCATE forward, reverse, degrees")
    print(f"{stopped_halfway=}")


def test_two_imports_of_the_same_shuffled_file_at_once(
    databases: Databases, config: Path, test_data: Path, module_folder: Path
) -> None:
    expected = graph_of(test_data / "wiki-vote.txt.gz")
    lines = [f"{a} {b}\n" for a, b in expected]
    file = module_folder / "shuffled.txt"
    for round_ in range(2):
        random.Random(round_).shuffle(lines)
        file.write_text("".join(lines))
        both = [launch(config, file, "--json") for _ in range(2)]
        outcomes = [finish(process) for process in both]
        assert [outcome.status for outcome in outcomes] == [0, 0], [outcome.err for outcome in outcomes]
        added, other = (outcome.counts() for outcome in outcomes)
        touched = "added" if round_ == 0 else "updated"  # the second round is another file, at a later position
        assert added.get(touched, 0) + other.get(touched, 0) == len(expected)
        for counts in (added, other):
            assert counts["read"] == counts.get(touched, 0) + counts.get("unchanged", 0) == len(expected)
        audit(databases)
        assert pairs(databases) == expected


def test_what_is_newer_stays_and_what_is_older_is_replaced(
    databases: Databases, config: Path, module_folder: Path
) -> None:
    stored = {
        # (source, destination): (position, state, since) before, and after
        (1, 2): ((POSITION + 1, BLOCKED, POSITION + 1), None),
        (1, 3): ((POSITION + 1, REMOVED, POSITION + 1), None),
        (1, 4): ((POSITION - 1, REMOVED, POSITION - 1), (POSITION, ACTIVE, POSITION)),
        (1, 5): ((POSITION, REMOVED, POSITION), None),
        (1, 6): ((POSITION, ACTIVE, POSITION - 7), (POSITION, ACTIVE, POSITION)),
        (1, 7): ((POSITION, ACTIVE, POSITION), None),
        (1, 8): ((POSITION - 5, BLOCKED, POSITION - 5), (POSITION, ACTIVE, POSITION)),
        (1, 9): ((POSITION + 9, ACTIVE, 12), None),
    }
    for (source, destination), (version, _) in stored.items():
        put(databases, source, destination, version)
    # Absent: the mark of a refused operation, in the forward half alone.
    put(databases, 2, 1, (0, REMOVED, POSITION + 3), both=False)
    recount(databases)
    file = module_folder / "mixed.txt"
    file.write_text("".join(f"{a} {b}\n" for a, b in [*stored, (2, 1), (3, 1), (MAX_ID, 0), (0, MAX_ID)]))
    outcome = run_import(config, file, "--position", str(POSITION))
    assert outcome.counts() == {"read": 12, "added": 4, "updated": 3, "unchanged": 5}
    audit(databases)
    found = {key[:2]: version for key, version in edges(databases).items()}
    for pair, (before, after) in stored.items():
        assert found.pop(pair) == (after or before), pair
    assert found == dict.fromkeys([(2, 1), (3, 1), (MAX_ID, 0), (0, MAX_ID)], (POSITION, ACTIVE, POSITION))


def put(
    databases: Databases, source: int, destination: int, version: tuple[int, int, int], *, both: bool = True
) -> None:
    """Store an edge, in both halves."""
    halves = [("forward", source, destination), ("reverse", destination, source)]
    for table, owner, neighbor in halves if both else halves[:1]:
        slot = int(slots_of(np.array([owner]), databases.slots)[0])
        position, state, since = version
        with databases.connect(databases.view.topology.owners[slot]) as connection:
            connection.execute(
                f"INSERT INTO {table} (owner_id, neighbor_id, position, since, slot, kind, state, operation)"
                " VALUES (%s, %s, %s, %s, %s, 1, %s, 1)",
                (owner, neighbor, position, since, slot, state),
            )


def recount(databases: Databases) -> None:
    for direction, table in ((1, "forward"), (2, "reverse")):
        databases.do(
            "INSERT INTO degrees (owner_id, direction, kind, state, slot, degree)"
            f" SELECT owner_id, {direction}, kind, state, slot, count(*) FROM {table} WHERE position > 0"
            " GROUP BY owner_id, kind, state, slot"
        )


def test_bad_lines_are_reported_with_their_numbers_and_the_rest_is_imported(
    databases: Databases, config: Path, module_folder: Path
) -> None:
    times = {n: f"{n} {n + 1} 1500000000.{n}" for n in range(1, 10_001)}
    bad = {
        1001: "-5 6 1500000000",
        2002: "ada 6 1500000000",
        3003: "6 7",
        4004: "6 7 1500000000 8",
        5005: f"{2**63} 7 1500000000",
        6006: "6 7 4000000000",
        7007: "6 7 yesterday",
    }
    counted = {8008: "5 5 1500000000", 8009: "", 9009: times[1]}
    file = module_folder / "bad.txt"
    file.write_text("\n".join((times | bad | counted).values()))
    outcome = run_import(config, file, "--columns", "source,destination,time")
    assert outcome.status == 3
    assert [line["line"] for line in outcome.summary["refused_lines"]] == list(bad)
    assert outcome.counts() == {"read": 9999, "added": 9990, "self_loops": 1, "duplicates": 1, "refused": 7}
    assert [line.split(":")[0] for line in outcome.err.splitlines()] == [f"line {n}" for n in bad]
    audit(databases)
    assert len(edges(databases)) == 9990

    stopped = run_import(config, file, "--columns", "source,destination,time", "--on-error", "stop", "--kind", "follow")
    assert stopped.status == 3
    assert [line["line"] for line in stopped.summary["refused_lines"]] == [1001]
    assert stopped.summary["stopped"] is True

    everything = run_import(config, file)
    assert everything.status == 3, "without --columns the third column means nothing, and must be there all the same"
    assert [line["line"] for line in everything.summary["refused_lines"]] == [1001, 2002, 3003, 4004, 5005]


def test_only_the_first_refused_lines_are_shown(config: Path, module_folder: Path) -> None:
    file = module_folder / "worse.txt"
    file.write_text("1 2\n" + "x y\n" * 1234)
    outcome = run_import(config, file)
    assert outcome.status == 3
    assert len(outcome.summary["refused_lines"]) == 1234
    assert outcome.err.splitlines()[19:] == [
        "line 21: source: 'x' is not a whole number",
        "... and 1,214 more refused lines (all in --json)",
    ]


@pytest.mark.parametrize(
    ("name", "columns", "distinct"),
    [
        ("wiki-vote.txt.gz", None, 103_689),
        ("radoslaw-email.txt.gz", "source,destination,-,time", 5_783),
        ("bitcoin-otc.txt.gz", "source,destination,-,time", 35_592),
    ],
)
def test_real_graphs_with_comments_carriage_returns_and_times(
    databases: Databases, config: Path, test_data: Path, name: str, columns: str | None, distinct: int
) -> None:
    outcome = run_import(config, test_data / name, *(("--columns", columns) if columns else ()))
    assert outcome.status == 0
    assert outcome.counts()["added"] == distinct
    audit(databases)
    stored = edges(databases)
    assert {key[:2] for key in stored} == graph_of(test_data / name)
    if columns:
        newest: dict[tuple[int, int], int] = {}
        for line in gzip.decompress((test_data / name).read_bytes()).decode().splitlines():
            if line[:1].isdecimal():
                a, b, _, seconds = line.split()
                key = int(a), int(b)
                newest[key] = max(int(Decimal(seconds) * 1_000_000), newest.get(key, 0))
        for (source, destination, _), (position, state, since) in stored.items():
            assert (position, state, since) == (newest[source, destination], ACTIVE, newest[source, destination])


def test_overlapping_files_kinds_and_limits(databases: Databases, config: Path, module_folder: Path) -> None:
    declare(databases, "mute", 2, allow_self=True, max_out_degree=2)
    a, b = module_folder / "a.csv", module_folder / "b.csv"
    a.write_text("source,destination\n" + "".join(f"{n},{n + 1}\n" for n in range(40_000)))
    b.write_text("".join(f"{n} {n + 1}\n" for n in range(20_000, 60_000)) + "7 7\n7 9\n")
    assert run_import(config, a).counts() == {"read": 40_000, "added": 40_000}
    assert run_import(config, b).counts() == {"read": 40_002, "added": 20_001, "updated": 20_000, "self_loops": 1}
    assert run_import(config, a).counts() == {"read": 40_000, "unchanged": 40_000}
    muted = run_import(config, b, "--kind", "mute")
    assert muted.counts() == {"read": 40_002, "added": 40_002}
    c = module_folder / "c.txt"
    c.write_text("7 1\n7 2\n")
    assert run_import(config, c, "--kind", "mute").counts() == {"read": 2, "added": 2, "over_limit": 1}
    audit(databases)
    unknown = run_import(config, a, "--kind", "muted")
    assert (unknown.status, unknown.err) == (2, "graphd: kind: must be one of follow, mute\n")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--format", "csv"], "'csv' is not one of 'edges', 'graphd', 'mastodon'"),
        (["--format", "mastodon"], "--map: is needed with --format mastodon"),
        (["--format", "mastodon", "--map", "{file}"], "--owner: is needed with --format mastodon"),
        (["--map", "absent.csv"], "--map: cannot read absent.csv: No such file"),
        (["--map", "{file}"], "--map: is needed with --format mastodon, and belongs to it"),
        (["--owner", "ada@example.org"], "--owner: is needed with --format mastodon, and belongs to it"),
        (["--format", "graphd", "--kind", "follow"], "--kind: cannot stand beside --format graphd"),
        (["--format", "graphd", "--position", "5"], "--position: cannot stand beside --format graphd"),
        (["--format", "graphd", "--columns", "source,destination"], "--columns: belongs to --format edges"),
        (["{file}"], "FILE: names a file twice"),
        (["absent.txt"], "cannot read absent.txt: No such file"),
        (["--columns", "source"], "--columns: must name source and destination"),
        (["--position", "0"], "--position: must be microseconds"),
        (["--position", "9999999999999999"], "--position: must be microseconds"),
        (["--position", "5", "--columns", "source,destination,time"], "--position: cannot stand beside a time column"),
    ],
)
def test_misuse_is_one_clear_line(config: Path, module_folder: Path, options: list[str], words: str) -> None:
    file = module_folder / "few.txt"
    file.write_text("1 2\n")
    outcome = run_import(config, file, *(option.format(file=file) for option in options))
    assert outcome.status == 2
    assert words in outcome.err
    assert outcome.err.count("\n") == 1
    assert run_import(config, module_folder / "absent.txt").status == 2


def test_from_standard_input_with_words_at_the_end(databases: Databases, config: Path, module_folder: Path) -> None:
    process = subprocess.run(
        [*COMMAND, "-", "--config", str(config)],
        input="# three\n1 2\n2 3\n3 3\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert process.stderr == ""
    words = [line.split() for line in process.stdout.splitlines()]
    assert words == [
        ["read", "3"],
        ["added", "2"],
        ["updated", "0"],
        ["unchanged", "0"],
        ["self-loops", "1"],
        ["duplicates", "0"],
        ["refused", "0"],
    ]
    audit(databases)


def test_memory_stays_bounded_during_a_million_edges(databases: Databases, config: Path, module_folder: Path) -> None:
    rng = np.random.default_rng(5)
    file = module_folder / "million.txt"
    np.savetxt(file, rng.integers(0, 2**62, (1_000_000, 2)), fmt="%d")
    measured = run_measured(config, file)
    assert (measured.outcome.status, measured.outcome.err) == (0, "")
    assert measured.outcome.counts() == {"read": 1_000_000, "added": 1_000_000}
    assert measured.peak_mb < 200
    file.unlink()
    for table, direction in (("forward", 1), ("reverse", 2)):
        counted = databases.all_rows(
            f"SELECT (SELECT count(*) FROM {table}), (SELECT sum(degree) FROM degrees WHERE direction = {direction})"
        )
        assert [sum(column) for column in zip(*counted, strict=True)] == [1_000_000, 1_000_000]


async def test_live_writes_during_an_import_stand(
    databases: Databases, config: Path, module_folder: Path, graph: GraphStub
) -> None:
    pairs = [(n % 500, 1000 + n // 500) for n in range(60_000)]
    file = module_folder / "beside.txt"
    file.write_text("".join(f"{a} {b}\n" for a, b in pairs))
    chance = random.Random(9)
    latest: dict[tuple[int, int], int] = {}
    process = launch(config, file, "--json", "--position", str(POSITION))
    rounds = 0
    while process.poll() is None or rounds < 2:
        rounds += 1
        batch = chance.sample(pairs, 500)
        operations = [chance.choice((pb.OPERATION_FOLLOW, pb.OPERATION_UNFOLLOW)) for _ in batch]
        writes = [
            pb.Write(operation=operation, source_id=a, destination_id=b)
            for operation, (a, b) in zip(operations, batch, strict=True)
        ]
        answer = await graph.BatchWrite(pb.BatchWriteRequest(writes=writes), timeout=30)
        assert {result.outcome for result in answer.results} <= {pb.OUTCOME_APPLIED, pb.OUTCOME_UNCHANGED}
        for pair, operation in zip(batch, operations, strict=True):
            latest[pair] = ACTIVE if operation == pb.OPERATION_FOLLOW else REMOVED
    outcome = finish(process)
    assert (outcome.status, outcome.counts()["read"]) == (0, 60_000)
    await eventually(lambda: not problems(databases), what="halves, degrees and outbox agree")
    stored = {key[:2]: version for key, version in edges(databases).items()}
    assert set(stored) == set(pairs)
    for pair, (position, state, _) in stored.items():
        assert state == latest.get(pair, ACTIVE)
        assert (position > POSITION) == (pair in latest)


class Endless(io.BytesIO):
    """A file that never ends."""

    def read(self, size: int | None = -1) -> bytes:
        return b"1 2\n" * ((size or 0) // 4)


def test_cancelled_while_it_reads(databases: Databases) -> None:
    async def cancelled() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(run(databases.config, Endless(), Request()), 1.0)

    asyncio.run(cancelled())  # returns only when its threads have ended
    assert edges(databases) == {}


# -- under changes of ownership, and deadlocks ------------------------------------------------------------------------------


def sorted_runs(pairs: list[tuple[int, int]]) -> SortedRuns:
    runs = SortedRuns(2)
    table = np.array(pairs, dtype=np.int64)
    runs.add(table[:, 0], table[:, 1])
    return runs


async def test_rows_of_a_slot_that_was_handed_over_follow_it(
    databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = Catalog(databases.catalog)
    view = await catalog.load()
    kind = view.topology.kind("")
    moved = view.topology.slots_of("s1")[:5]
    forward = [(n, n + 1) for n in range(3000)]
    try:
        async with Loader(databases.config, catalog, view) as loader:
            # Nobody owns the slots for a while, and the loader's topology still names the old owner.
            with databases.connect("s1") as s1:
                s1.execute("UPDATE slots SET owned = false WHERE slot = ANY (%s)", (moved,))
            loading = asyncio.create_task(loader.load(Direction.FORWARD, kind, sorted_runs(forward), POSITION))
            done, _ = await asyncio.wait([loading], timeout=0.5)
            assert not done, "it waits for the new owner"
            with databases.connect("s2") as s2:
                s2.execute("UPDATE slots SET owned = true WHERE slot = ANY (%s)", (moved,))
            for slot in moved:
                await catalog.assign(slot, "s2")
            totals = await asyncio.wait_for(loading, 20)
            assert (totals.added, totals.updated, totals.unchanged) == (3000, 0, 0)
            reverse = await loader.load(Direction.REVERSE, kind, sorted_runs([(b, a) for a, b in forward]), POSITION)
            assert reverse.added == 3000
            audit(databases)
            # A slot that nobody ever owns ends the import with a clear word.
            with databases.connect("s2") as s2:
                s2.execute("UPDATE slots SET owned = false WHERE slot = ANY (%s)", (moved,))
            monkeypatch.setattr(load_module, "STALE_WAIT_S", 0.3)
            with pytest.raises(StalePlacementError, match="is being handed over"):
                await loader.load(Direction.FORWARD, kind, sorted_runs(forward), POSITION + 1)
    finally:
        databases.do("TRUNCATE forward, reverse, degrees")
        with databases.connect("s1") as s1, databases.connect("s2") as s2:
            s1.execute("UPDATE slots SET owned = true WHERE slot = ANY (%s)", (moved,))
            s2.execute("UPDATE slots SET owned = false WHERE slot = ANY (%s)", (moved,))
        for slot in moved:
            await catalog.assign(slot, "s1")


async def test_a_deadlock_is_tried_again(databases: Databases) -> None:
    view = databases.view
    owner = next(
        n for n in range(1000) if view.topology.owners[int(slots_of(np.array([n]), databases.slots)[0])] == "s1"
    )
    slot = slots_of(np.array([owner]), databases.slots)

    def chunk(neighbors: list[int], position: int) -> Chunk:
        n = len(neighbors)
        return Chunk.active(
            Direction.FORWARD, 1, np.full(n, owner), np.array(neighbors), np.full(n, position), np.repeat(slot, n)
        )

    shard = await BulkShard.open("s1", databases.conninfo["s1"], view.identities["s1"], databases.slots)
    try:
        assert (await shard.load(chunk([1, 2], POSITION))).added == 2
        assert (await shard.load(chunk([1, 2], POSITION))).unchanged == 2
        with databases.connect("s1") as other, other.transaction():
            touch = "UPDATE forward SET operation = operation WHERE owner_id = %s AND neighbor_id = %s"
            other.execute(touch, (owner, 2))
            loading = asyncio.create_task(shard.load(chunk([1, 2], POSITION + 1)))
            await eventually(lambda: waiting_for_locks(databases), what="the import waits for the row")
            # Now it holds row 1 and waits for row 2. It has waited longer, so it is the one that finds the deadlock.
            await asyncio.to_thread(other.execute, touch, (owner, 1))
        loaded = await asyncio.wait_for(loading, 20)
        assert (loaded.added, loaded.updated, loaded.unchanged) == (0, 2, 0)
    finally:
        await shard.close()
    assert databases.rows("s1", "SELECT degree FROM degrees WHERE direction = 1") == [(2,)]


def waiting_for_locks(databases: Databases) -> bool:
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'graphd import' AND wait_event_type = 'Lock'"
    )
    return bool(databases.rows("s1", query)[0][0])
