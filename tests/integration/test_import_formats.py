"""`graphd import` of exports and of Mastodon's following lists: what was exported is there again, in a cluster laid out otherwise."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from grpc import aio

from graphd.clock import now_us
from graphd.devcluster.postgres import PostgresServer
from graphd.edge import State
from graphd.storage.catalog import Catalog
from graphd.topology import Kind
from graphd.v1 import graph_pb2 as pb
from tests.calls import follow, unfollow, write_all
from tests.databases import Databases, audit, edges, new_databases, problems
from tests.importing import COMMAND, finish, launch, run_import, run_measured, write_config
from tests.routers import GraphStub, graph_stub, running_routers
from tests.waiting import eventually

KINDS = ("follow", "mute", "favourite")
ACCOUNTS = range(36)
FAY = len(ACCOUNTS)
"""Has none of the random edges: what was archived by nobody would come back when it is archived again."""

OLD = 1_200_000_000_000_000
"""Far under the horizon."""

HEAD = "# graphd edges 1\nsource\tdestination\tkind\tstate\tposition\tsince\n"
NamedEdges = dict[tuple[int, int, str], tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class Cluster:
    """Databases with all kinds, and a configuration file that names them."""

    databases: Databases
    config: Path
    kinds: dict[int, str]

    def edges(self) -> NamedEdges:
        """What is stored, after an audit: (source, destination, kind) -> (position, state, since)."""
        audit(self.databases)
        return {(a, b, self.kinds[kind]): version for (a, b, kind), version in edges(self.databases).items()}


def declared(databases: Databases, folder: Path, kinds: Sequence[str]) -> Cluster:
    catalog = Catalog(databases.catalog)
    for kind in kinds:
        asyncio.run(catalog.add_kind(Kind(0, kind, allow_self=kind == "mute")))
    numbers = asyncio.run(catalog.load()).topology.kinds
    return Cluster(databases, write_config(databases, folder), {kind.number: name for name, kind in numbers.items()})


@contextmanager
def empty_cluster(servers: Sequence[PostgresServer], folder: Path, *, shards: int, slots: int) -> Iterator[Cluster]:
    """The kinds have other numbers in it."""
    folder.mkdir()
    with new_databases(servers, shards=shards, slots=slots) as databases:
        yield declared(databases, folder, ("favourite", "unused", "mute"))


@pytest.fixture(scope="module")
def source(databases: Databases, module_folder: Path) -> Cluster:
    """Two shards, 64 slots."""
    return declared(databases, module_folder, ("mute", "favourite"))


@pytest.fixture(autouse=True)
def _empty(source: Cluster) -> Iterator[None]:
    yield
    source.databases.clear()


def random_edges(n: int, seed: int, accounts: int = len(ACCOUNTS)) -> NamedEdges:
    """In all states and kinds, with ties of since, old and new."""
    chance = random.Random(seed)
    now = now_us()
    found: NamedEdges = {}
    for _ in range(n):
        a, b, kind = chance.randrange(accounts), chance.randrange(accounts), chance.choice(KINDS)
        if a != b or kind == "mute":
            since = chance.choice((OLD, now - 10**12)) + chance.randrange(20)
            found[a, b, kind] = (since + chance.choice((0, 0, 5)), chance.choice(list(State)), since)
    return found


def written(path: Path, edges_: NamedEdges) -> Path:
    lines = [f"{a}\t{b}\t{k}\t{State(s).name}\t{p}\t{t}\n" for (a, b, k), (p, s, t) in edges_.items()]
    text = (HEAD + "".join(lines)).encode()
    path.write_bytes(gzip.compress(text, 1) if path.suffix == ".gz" else text)
    return path


def exported(cluster: Cluster, folder: Path) -> list[Path]:
    subprocess.run(
        [sys.executable, "-m", "graphd.cli", "export", str(folder), "--config", str(cluster.config)],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return sorted(folder.iterdir())


def import_all(cluster: Cluster, files: Sequence[Path], *options: str, status: int = 0) -> dict[str, int]:
    """The counts that are not 0."""
    outcome = run_import(cluster.config, files[0], *map(str, files[1:]), "--format", "graphd", *options)
    assert outcome.status == status, outcome.err
    return outcome.counts()


Lists = dict[tuple[int, str, str, int], list[tuple[int, int, int]]]


async def lists_of(graph: GraphStub) -> tuple[Lists, dict[tuple[int, str], list[tuple[int, ...]]]]:
    """Every list in every state, newest first, as a caller reads it; and the degrees by state."""
    lists: Lists = {}
    degrees: dict[tuple[int, str], list[tuple[int, ...]]] = {}

    async def read(account: int, kind: str) -> None:
        for state in State:
            for way in ("followers", "following"):
                lists[account, kind, way, state] = await pages(account, kind, way, pb.State.ValueType(state))
        answer = await graph.GetDegrees(pb.GetDegreesRequest(account_id=account, kind=kind), timeout=30)
        by_state = sorted((one.direction, one.state, one.degree) for one in answer.by_state if one.degree)
        degrees[account, kind] = [(answer.followers, answer.following), *by_state]

    async def pages(account: int, kind: str, way: str, state: pb.State.ValueType) -> list[tuple[int, int, int]]:
        found: list[tuple[int, int, int]] = []
        token = ""
        while True:
            if way == "followers":
                followers = await graph.ListFollowers(
                    pb.ListFollowersRequest(account_id=account, kind=kind, state=state, page_size=20, page_token=token),
                    timeout=30,
                )
                found += [(edge.source_id, edge.position, edge.since) for edge in followers.edges]
                token = followers.next_page_token
            else:
                following = await graph.ListFollowing(
                    pb.ListFollowingRequest(account_id=account, kind=kind, state=state, page_size=20, page_token=token),
                    timeout=30,
                )
                found += [(edge.destination_id, edge.position, edge.since) for edge in following.edges]
                token = following.next_page_token
            if not token:
                return found

    await asyncio.gather(*(read(account, kind) for account in (*ACCOUNTS, FAY) for kind in KINDS))
    return lists, degrees


async def live_changes(graph: GraphStub) -> None:
    """Writes of every kind, and a suspension."""
    chance = random.Random(7)
    pairs = [tuple(chance.sample(ACCOUNTS, 2)) for _ in range(400)]
    writes = [follow(a, b) for a, b in pairs[:200]] + [unfollow(a, b) for a, b in pairs[200:300]]
    for operation, some in ((pb.OPERATION_BLOCK, pairs[300:350]), (pb.OPERATION_REQUEST, pairs[350:])):
        writes += [pb.Write(operation=operation, source_id=a, destination_id=b) for a, b in some]
    answer = await graph.BatchWrite(pb.BatchWriteRequest(writes=writes), timeout=30)
    # The state refuses some of them.
    assert {result.outcome for result in answer.results} <= {*pb.Outcome.values()} - {pb.OUTCOME_FAILED}
    assert sum(result.outcome == pb.OUTCOME_APPLIED for result in answer.results) > 100
    await write_all([graph], [follow(FAY, a) for a in range(9)] + [follow(a, FAY) for a in range(5, 12)])
    async for _ in graph.ArchiveAccount(pb.ArchiveAccountRequest(account_id=FAY), timeout=60):
        pass


async def test_export_and_import_into_another_layout_gives_equal_lists(
    source: Cluster, postgres: list[PostgresServer], module_folder: Path
) -> None:
    begun = random_edges(3_000, 1)
    file = written(module_folder / "begin.txt", begun)
    read = len(begun)
    assert await asyncio.to_thread(import_all, source, [file]) == {"read": read, "added": read}
    assert source.edges() == begun
    with running_routers(source.databases, module_folder) as [router]:
        async with aio.insecure_channel(router.target) as channel:
            graph: GraphStub = graph_stub(channel)
            await live_changes(graph)
            await eventually(lambda: not problems(source.databases), what="halves, degrees and outbox agree")
            expected = await lists_of(graph)
    stored = source.edges()
    assert {state for _, state, _ in stored.values()} == set(State)
    assert any(position > since for position, _, since in stored.values())
    files = await asyncio.to_thread(exported, source, module_folder / "export")
    assert len(files) == 2

    with empty_cluster_in_thread(postgres, module_folder / "target", shards=3, slots=16) as target:
        counts = await asyncio.to_thread(import_all, target, files)
        assert counts == {"read": len(stored), "added": len(stored)}
        assert target.edges() == stored
        with running_routers(target.databases, module_folder / "target") as [router]:
            async with aio.insecure_channel(router.target) as channel:
                found = await lists_of(graph_stub(channel))
        assert found == expected
        again = await asyncio.to_thread(import_all, target, files)
        assert again == {"read": len(stored), "unchanged": len(stored)}
        assert target.edges() == stored
        back = await asyncio.to_thread(exported, target, module_folder / "back")
        assert lines_of(back) == lines_of(files)


@contextmanager
def empty_cluster_in_thread(
    servers: Sequence[PostgresServer], folder: Path, shards: int, slots: int
) -> Iterator[Cluster]:
    """`empty_cluster` from within a running loop: it runs loops of its own."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        made = empty_cluster(servers, folder, shards=shards, slots=slots)
        cluster = pool.submit(made.__enter__).result()
        try:
            yield cluster
        finally:
            pool.submit(made.__exit__, None, None, None).result()


def lines_of(files: Sequence[Path]) -> list[str]:
    return sorted(line for file in files for line in gzip.decompress(file.read_bytes()).decode().splitlines()[2:])


def test_what_is_newer_stays_and_what_is_older_is_replaced(source: Cluster, module_folder: Path) -> None:
    files = [random_edges(1_500, seed) for seed in (11, 12, 13)]
    newest: NamedEdges = {}
    for found in files:
        for key, version in found.items():
            newest[key] = max(version, newest.get(key, (0, 0, 0)))
    paths = [written(module_folder / f"part{i}.edges.gz", found) for i, found in enumerate(files)]
    # In any order, one by one and several at once, in one stream too: the greatest version of each edge stands.
    random.Random(3).shuffle(paths)
    import_all(source, paths[:1])
    import_all(source, paths[1:])
    assert source.edges() == newest
    read = sum(map(len, files))
    unchanged = import_all(source, paths)
    assert unchanged == {"read": read, "unchanged": read}
    joined = module_folder / "joined"  # without the name of a compressed file
    joined.write_bytes(b"".join(path.read_bytes() for path in paths))
    doubles = read - len(newest)
    assert import_all(source, [joined]) == {"read": read, "unchanged": len(newest), "duplicates": doubles}
    assert source.edges() == newest
    source.databases.clear()
    assert import_all(source, [joined]) == {"read": read, "added": len(newest), "duplicates": doubles}
    assert source.edges() == newest


def test_an_import_is_a_backfill_to_those_who_purge(source: Cluster, module_folder: Path) -> None:
    tombstones: NamedEdges = {(n, n + 1, "follow"): (OLD + n, State.REMOVED, OLD) for n in range(200)}
    source.databases.do("UPDATE backfilled SET at = 0")
    begun = now_us()
    import_all(source, [written(module_folder / "old.txt", tombstones)])
    assert all(at >= begun for (at,) in source.databases.all_rows("SELECT at FROM backfilled"))
    # Older than the tombstones, it brings nothing back.
    before: NamedEdges = dict.fromkeys(tombstones, (OLD - 1, State.ACTIVE, OLD - 1))
    assert import_all(source, [written(module_folder / "older.txt", before)]) == {"read": 200, "unchanged": 200}
    assert source.edges() == tombstones


def test_killed_at_any_moment_and_run_again(source: Cluster, module_folder: Path, is_long: bool) -> None:
    expected = random_edges(20_000, 5, accounts=5_000)
    file = written(module_folder / "many.edges.gz", expected)
    seed = random.randrange(2**32)
    print(f"{seed=}")
    chance = random.Random(seed)
    for _ in range(20 if is_long else 1):
        for _ in range(3):
            process = launch(source.config, file, "--format", "graphd")
            try:
                process.wait(timeout=chance.uniform(0.5, 1.5))
            except subprocess.TimeoutExpired:
                process.kill()
            finish(process)
        counts = import_all(source, [file])
        assert counts.get("added", 0) + counts.get("unchanged", 0) == counts["read"] == len(expected)
        assert source.edges() == expected
        source.databases.clear()


def test_bad_lines_and_kinds_that_are_not_declared(source: Cluster, module_folder: Path) -> None:
    good = "1\t2\tfollow\tACTIVE\t5\t5\n"
    bad = {
        4: "1\t3\tfollow\tGONE\t5\t5\n",
        5: f"{2**63}\t3\tfollow\tACTIVE\t5\t5\n",
        6: "1\t3\tfollow\tACTIVE\t0\t0\n",
        7: f"1\t3\tfollow\tACTIVE\t{now_us() + 3_600_000_000}\t5\n",
        8: "1\t3\tfollow\tACTIVE\t5\n",
    }
    file = module_folder / "bad.txt"
    file.write_text(HEAD + good + "".join(bad.values()) + "1\t4\tmute\tACTIVE\t6\t5\n")
    outcome = run_import(source.config, file, "--format", "graphd")
    assert outcome.status == 3
    assert outcome.counts() == {"read": 7, "added": 2, "refused": 5}
    assert [line["line"] for line in outcome.summary["refused_lines"]] == list(bad)
    assert [line.split(":")[0] for line in outcome.err.splitlines()] == [f"line {n}" for n in bad]
    assert outcome.summary["kind"] == "follow,mute"
    stored = source.edges()
    assert stored == {(1, 2, "follow"): (5, 1, 5), (1, 4, "mute"): (6, 1, 5)}

    fine = written(module_folder / "fine.txt", {(8, 9, "follow"): (5, State.PENDING, 5)})
    stopped = run_import(source.config, fine, str(file), "--format", "graphd", "--on-error", "stop")
    assert stopped.status == 3
    assert (stopped.counts()["added"], stopped.counts()["refused"]) == (1, 1)
    assert stopped.summary["stopped"] is True
    assert [one["file"] for one in stopped.summary["files"]] == [str(fine), str(file)]
    assert stopped.err.startswith(f"{file}: line 4: state: 'GONE'")
    stored[8, 9, "follow"] = (5, State.PENDING, 5)
    assert source.edges() == stored

    file.write_text(HEAD + "7\t8\tfollow\tACTIVE\t5\t5\n7\t8\tlater\tACTIVE\t5\t5\n")
    undeclared = run_import(source.config, file, "--format", "graphd")
    words = "FILE: line 4: kind later is not declared in this cluster; declare it: graphd kind add later"
    assert (undeclared.status, undeclared.err) == (2, f"graphd: {words}\n")
    beside = run_import(source.config, fine, str(file), "--format", "graphd")
    assert (beside.status, beside.err) == (2, f"graphd: {file}: {words}\n")
    cut = module_folder / "cut.edges.gz"
    cut.write_bytes(gzip.compress((HEAD + good * 100).encode())[:-9])
    assert run_import(source.config, fine, str(cut), "--format", "graphd").err.startswith(f"graphd: {cut}: the file is")
    assert source.edges() == stored


def test_several_edge_lists_and_standard_input(source: Cluster, module_folder: Path) -> None:
    files = [module_folder / f"list{n}.txt" for n in range(3)]
    for n, file in enumerate(files):
        file.write_text("".join(f"{n} {10 + m}\n" for m in range(5)) + "x y\n" * (n == 1))
    outcome = run_import(source.config, files[0], *map(str, files[1:]), "--position", "77")
    assert outcome.status == 3
    assert outcome.err == f"{files[1]}: line 6: source: 'x' is not a whole number\n"
    assert outcome.counts() == {"read": 16, "added": 15, "refused": 1}
    assert outcome.summary["position"] == "77"
    assert [(one["file"], one["read"]) for one in outcome.summary["files"]] == [
        (str(file), read) for file, read in zip(files, (5, 6, 5), strict=True)
    ]
    absent = run_import(source.config, files[0], "absent.txt", "--position", "78")
    assert (absent.status, absent.err) == (2, "graphd: cannot read absent.txt: No such file or directory\n")
    assert set(source.edges().values()) == {(77, 1, 77)}
    piped = subprocess.run(
        [*COMMAND, "-", "--format", "graphd", "--json", "--config", str(source.config)],
        input=HEAD + "1\t2\tmute\tBLOCKED\t9\t8\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(piped.stdout)["added"] == 1


def test_following_list_of_mastodon(source: Cluster, module_folder: Path) -> None:
    handles = {f"account{n}@example.org": 1_000 + n * 37 % 101 for n in range(100)}
    map_ = module_folder / "handles.csv"
    file = module_folder / "following_accounts.csv"
    listed = random.Random(2).sample(sorted(handles), 60)
    lines = [f'@{handle.upper()},true,false,"de, en"\r\n' for handle in listed]
    file.write_text("Account address,Show boosts,Notify on new posts,Languages\r\n" + "".join(lines))
    known = {handle for handle in listed if handles[handle] % 10}
    map_.write_text("ada@example.org,1\n" + "".join(f"{handle},{handles[handle]}\n" for handle in sorted(known)))
    options = ("--format", "mastodon", "--map", str(map_), "--owner", "ada@example.org")

    first = run_import(source.config, file, *options)
    unknown = [n for n, handle in enumerate(listed, 2) if handle not in known]
    assert unknown
    assert first.status == 3
    assert first.counts() == {"read": 60, "added": len(known), "refused": len(unknown)}
    assert [line["line"] for line in first.summary["refused_lines"]] == unknown
    assert following_of(source, 1) == [handles[handle] for handle in listed if handle in known]
    again = run_import(source.config, file, *options)
    assert again.counts() == {"read": 60, "unchanged": len(known), "refused": len(unknown)}

    # When the map knows the others too, each row has a place of its own in the same order.
    map_.write_text("ada@example.org,1\nbo@example.org,2\n" + "".join(f"{h},{i}\n" for h, i in handles.items()))
    rest = run_import(source.config, file, *options, "--kind", "mute")
    assert (rest.status, rest.counts()) == (0, {"read": 60, "added": 60})
    assert following_of(source, 1, "mute") == [handles[handle] for handle in listed]
    options = (*options[:-1], "bo@example.org")
    assert run_import(source.config, file, *options, "--position", str(OLD)).counts() == {"read": 60, "added": 60}
    assert following_of(source, 2) == [handles[handle] for handle in listed]
    assert max(version for (a, _, _), version in source.edges().items() if a == 2) == (OLD, 1, OLD)


def following_of(cluster: Cluster, account: int, kind: str = "follow") -> list[int]:
    """Newest first."""
    found = {
        b: since for (a, b, k), (_, state, since) in cluster.edges().items() if (a, k, state) == (account, kind, 1)
    }
    return sorted(found, key=lambda neighbor: (found[neighbor], neighbor), reverse=True)


def test_memory_stays_bounded(source: Cluster, module_folder: Path, is_long: bool) -> None:
    rows = 1_000_000 if is_long else 300_000
    chance = np.random.default_rng(5)
    ends = chance.integers(0, 2**62, (rows, 2)).tolist()
    states = [State.ACTIVE.name, State.REMOVED.name, State.BLOCKED.name]
    file = module_folder / "large.txt"
    with file.open("w") as out:
        out.write(HEAD)
        out.writelines(
            f"{a}\t{b}\t{KINDS[i % 3]}\t{states[i % 7 % 3]}\t{OLD + i}\t{OLD}\n" for i, (a, b) in enumerate(ends)
        )
    measured = run_measured(source.config, file, "--format", "graphd")
    assert (measured.outcome.status, measured.outcome.err) == (0, "")
    assert measured.outcome.counts() == {"read": rows, "added": rows}
    print(f"{rows:,} edges in {measured.seconds:.1f} s, {measured.peak_mb:.0f} MB")
    assert measured.peak_mb < 200
    for table, direction in (("forward", 1), ("reverse", 2)):
        counted = source.databases.all_rows(
            f"SELECT (SELECT count(*) FROM {table}), (SELECT sum(degree) FROM degrees WHERE direction = {direction})"
        )
        assert [sum(column) for column in zip(*counted, strict=True)] == [rows, rows]
