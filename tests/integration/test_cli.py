"""The commands with a real cluster."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo
from typer.testing import CliRunner, Result

from graphd.cli.app import app
from graphd.devcluster.postgres import free_port
from graphd.edge import State
from graphd.placement import slot_of
from tests.databases import Databases
from tests.routers import RouterProcess
from tests.waiting import wait_for

ADA, BO, CY = 0, 9_007_199_254_740_993, 2**63 - 1


class Graphd:
    """The command, aimed at one cluster."""

    def __init__(self, config: str) -> None:
        self.config = config

    def run(self, *arguments: object, status: int = 0, **environment: str) -> Result:
        result = CliRunner().invoke(
            app, [*map(str, arguments), "--config", self.config], env=environment, catch_exceptions=False
        )
        assert result.exit_code == status, result.output
        return result

    def read(self, *arguments: object) -> Any:
        return json.loads(self.run(*arguments, "--json").stdout)


@pytest.fixture(scope="module")
def graphd(router: RouterProcess) -> Graphd:
    return Graphd(str(router.config_file))


def test_edges(graphd: Graphd) -> None:
    missing = graphd.run("edge", "get", ADA, BO, status=1)
    assert missing.stderr.count("\n") == 1
    assert not missing.stdout
    written = graphd.read("edge", "follow", ADA, BO)
    assert (written["outcome"], written["duplicate"], written["reverse_pending"]) == ("APPLIED", False, False)
    edge = graphd.read("edge", "get", ADA, BO)
    assert edge == written["edge"]
    assert (edge["source_id"], edge["destination_id"], edge["kind"], edge["state"]) == (
        "0",
        str(BO),
        "follow",
        "ACTIVE",
    )
    assert graphd.run("edge", "get", ADA, BO).stdout.startswith(f"0 -> {BO}  follow  ACTIVE  since 20")
    assert "(unchanged)" in graphd.run("edge", "follow", ADA, BO).stdout
    assert graphd.read("edge", "unfollow", ADA, BO)["edge"]["state"] == "REMOVED"
    again = [graphd.read("edge", "follow", CY, BO, "--request-id", "once")["duplicate"] for _ in range(2)]
    assert again == [False, True]
    given = graphd.read("edge", "follow", 5, 6, "--position", 1_500_000_000_000_000, "--backfill")
    assert given["edge"]["since"] == "1500000000000000"


def test_calls_that_are_refused(graphd: Graphd) -> None:
    for arguments in (
        ("edge", "follow", 5, 5),
        ("edge", "follow", 5, 6, "--kind", "nope"),
        ("edge", "follow", 5, 6, "--position", 7),
        ("list", "followers", 5, "--page-token", "nonsense"),
    ):
        result = graphd.run(*arguments, status=2)
        assert result.stderr.startswith("graphd: ")
        assert result.stderr.count("\n") == 1


def test_lists_and_degrees(graphd: Graphd) -> None:
    for source_id in (11, 12, 13):
        graphd.run("edge", "follow", source_id, 10)
    graphd.run("edge", "unfollow", 13, 10)
    listed = graphd.read("list", "followers", 10)
    assert [edge["source_id"] for edge in listed["edges"]] == ["12", "11"]
    assert listed["next_page_token"] == ""
    assert [edge["source_id"] for edge in graphd.read("list", "followers", 10, "--oldest-first")["edges"]] == [
        "11",
        "12",
    ]
    first = graphd.read("list", "followers", 10, "--limit", 1)
    rest = graphd.read("list", "followers", 10, "--limit", 0, "--page-token", first["next_page_token"])
    assert [edge["source_id"] for edge in first["edges"] + rest["edges"]] == ["12", "11"]
    removed = graphd.read("list", "followers", 10, "--state", "removed")
    assert [edge["source_id"] for edge in removed["edges"]] == ["13"]
    lines = graphd.run("list", "following", 11).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["following", "10"]
    assert "--page-token" in graphd.run("list", "followers", 10, "-n", 1).stderr

    degrees = graphd.read("degrees", 10)
    assert (degrees["account_id"], degrees["followers"], degrees["following"]) == ("10", 2, 0)
    assert {"direction": "REVERSE", "state": "REMOVED", "degree": 1} in degrees["by_state"]
    assert graphd.run("degrees", 10).stdout.splitlines()[:2] == ["followers  2", "following  0"]
    assert graphd.read("degrees", 999)["by_state"] == []


def test_where_things_are(graphd: Graphd, databases: Databases) -> None:
    owners = databases.view.topology.owners
    slots = {account: slot_of(account, len(owners)) for account in (ADA, CY)}
    told = graphd.read("where", ADA, CY)
    assert (told["account_id"], told["slot"], told["shard"]) == ("0", slots[ADA], owners[slots[ADA]])
    assert told["forward"] == {"slot": slots[ADA], "shard": owners[slots[ADA]]}
    assert told["reverse"] == {"slot": slots[CY], "shard": owners[slots[CY]]}
    assert told["other"]["account_id"] == str(CY)
    assert "forward" not in graphd.read("where", ADA)
    assert f"reverse half of {ADA} -> {CY}" in graphd.run("where", ADA, CY).stdout

    topology = graphd.read("topology")
    assert topology["slots"] == len(owners)
    assert [(shard["name"], shard["serving"]) for shard in topology["shards"]] == [("s1", True), ("s2", True)]
    assert topology["assignment"] == [
        {"first": 0, "last": 31, "shard": "s1"},
        {"first": 32, "last": 63, "shard": "s2"},
    ]
    assert "0-31" in graphd.run("topology").stdout


def test_the_halves_of_an_import_are_seen_soon(graphd: Graphd, tmp_path: Path) -> None:
    def halves() -> int:
        return sum(shard["halves"] for shard in graphd.read("topology")["shards"])

    before = halves()
    file = tmp_path / "edges.txt"
    file.write_text("".join(f"{source} {source + 1}\n" for source in range(100_000, 103_000)))
    graphd.run("import", file)
    # An estimate, which other tests' writes may raise and an analyze in between may correct a little.
    wait_for(lambda: halves() >= before + 5_000, what="the halves are counted")


def test_setting_up_again_changes_nothing(graphd: Graphd) -> None:
    assert "up to date" in graphd.run("migrate").stdout
    assert graphd.run("init").stdout.endswith("ready: 2 shards, 64 slots\n")


def test_what_contradicts_the_cluster_is_refused_before_anything_is_made(graphd: Graphd, databases: Databases) -> None:
    s3 = make_conninfo(databases.conninfo["s1"], dbname="test_stranger")
    for command in ("init", "migrate"):
        result = graphd.run(command, status=2, GRAPHD_SHARDS__S3=s3)
        assert result.stderr == (
            "graphd: [shards] s3: not of this cluster; adding shards is not offered by this release\n"
        )
        assert "s3" not in result.stdout
    assert databases.rows("s1", "SELECT datname FROM pg_database WHERE datname = 'test_stranger'") == []
    never = "slots: the cluster was created with 64, which never changes"
    for slots in ("32", "2048"):
        assert graphd.run("init", status=2, GRAPHD_SLOTS=slots).stderr == f"graphd: {never}\n"
        assert f"catalog: {never}" in graphd.run("config", "check", status=1, GRAPHD_SLOTS=slots).stdout
    assert "up to date" in graphd.run("migrate", GRAPHD_SLOTS="2048").stdout, "slots are read by init alone"


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("dbname", "the server has no such database: check the conninfo, or run graphd init"),
        ("user", "the server has no such user: check the conninfo, or create the user"),
    ],
)
def test_what_a_server_lacks_is_named(graphd: Graphd, databases: Databases, key: str, said: str) -> None:
    wrong = make_conninfo(databases.catalog, **{key: "nobody_knows_me"})
    assert graphd.run("migrate", status=1, GRAPHD_CATALOG=wrong).stderr == f"graphd: catalog: {said}\n"
    started = subprocess.run(
        [sys.executable, "-m", "router", "--config", graphd.config],
        env={**os.environ, "GRAPHD_CATALOG": wrong, "GRAPHD_ROUTER__METRICS_LISTEN": f"127.0.0.1:{free_port()}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert started.returncode == 1
    assert f"graphd-router: the catalog is not reachable: {said}\n" in started.stderr
    if key == "user":
        assert graphd.run("init", status=1, GRAPHD_CATALOG=wrong).stderr == f"graphd: catalog: {said}\n"


def test_the_configuration_is_checked(graphd: Graphd, databases: Databases) -> None:
    assert graphd.read("config", "check")["databases"] == {"catalog": "ok", "s1": "ok", "s2": "ok"}
    swapped = {"GRAPHD_SHARDS__S1": databases.conninfo["s2"], "GRAPHD_SHARDS__S2": databases.catalog}
    result = graphd.run("config", "check", status=1, **swapped)
    assert "s1: the database given for shard s1 is shard s2" in result.stdout
    assert "s2: " in result.stdout
    nowhere = databases.conninfo["s1"].replace("dbname=", "dbname=no_")
    result = graphd.run("config", "check", status=1, GRAPHD_SHARDS__S1=nowhere)
    assert "s1: the server has no such database: check the conninfo, or run graphd init" in result.stdout
    result = graphd.run("config", "check", status=1, GRAPHD_SHARDS__S3=databases.conninfo["s1"])
    assert "s3: [shards] has this shard, but the catalog does not" in result.stdout
    assert "dbname" not in result.output


def test_kinds(graphd: Graphd) -> None:
    favourite = {"name": "favourite", "allow_self": False, "max_out_degree": 2, "events": True}
    added = graphd.read("kind", "add", "favourite", "--max-out-degree", 2, "--allow-self=no")
    kind = {**favourite, "number": added["number"]}
    assert added == {**kind, "outcome": "APPLIED"}
    assert graphd.read("kind", "add", "favourite", "--max-out-degree", 2) == {**kind, "outcome": "UNCHANGED"}
    assert graphd.run("kind", "add", "favourite", "--max-out-degree", 2).stdout.endswith("  (unchanged)\n")
    told = graphd.run("kind", "add", "favourite", status=2)
    assert (told.stdout, told.stderr.count("\n")) == ("", 1)
    assert "graphd kind set favourite" in told.stderr
    assert graphd.run("kind", "add", "No", status=2).stderr.count("\n") == 1
    assert graphd.run("kind", "set", "none", "--events=no", status=2).stderr.count("\n") == 1
    for destination, status in ((2, 0), (3, 0), (4, 1)):
        told = graphd.run("edge", "follow", 1, destination, "--kind", "favourite", status=status)
    assert "as many edges" in told.stderr
    changed = graphd.read("kind", "set", "favourite", "--max-out-degree", 3, "--events", "no")
    assert changed == {**kind, "max_out_degree": 3, "events": False, "outcome": "APPLIED"}
    assert changed.pop("outcome") == "APPLIED"
    assert changed in graphd.read("kind", "list")
    del changed["number"]
    assert changed in graphd.read("topology")["kinds"]
    listed = graphd.run("kind", "list").stdout.splitlines()
    assert any(line.split() == ["favourite", str(added["number"]), "refused", "3", "not", "told"] for line in listed)


def test_blocks(graphd: Graphd) -> None:
    graphd.run("edge", "follow", 21, 22)
    blocked = graphd.read("edge", "block", 22, 21)
    assert (blocked["edge"]["source_id"], blocked["edge"]["state"], blocked["outcome"]) == ("21", "BLOCKED", "APPLIED")
    assert "has blocked" in graphd.run("edge", "follow", 21, 22, status=1).stderr
    assert graphd.read("edge", "unblock", 22, 21)["edge"]["state"] == "REMOVED"


def test_accounts(graphd: Graphd) -> None:
    star, fans = "7000", [str(fan) for fan in range(7001, 7004)]
    for fan in fans:
        graphd.run("edge", "follow", fan, star)
    assert graphd.read("account", "archive", star) == {"done": 3, "total": 3}
    assert graphd.read("account", "archive", star) == {"done": 0, "total": 0}
    refused = graphd.run("edge", "follow", "7004", star, status=1)
    assert "suspended" in refused.stderr
    assert graphd.read("degrees", star)["followers"] in (0, "0")
    assert graphd.run("account", "restore", star, "--kind", "follow").stdout == "3 of 3 edges changed\n"
    assert graphd.read("account", "remove", star) == {"done": 3, "total": 3}
    assert "must be one of" in graphd.run("account", "archive", star, "--kind", "none", status=2).stderr
    graphd.read("account", "restore", star)


def test_watch(graphd: Graphd, databases: Databases) -> None:
    """It prints what happens from now on: here from a token on, which an earlier line held."""
    command = [sys.executable, "-m", "graphd.cli", "watch", "--config", graphd.config, "-n", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        source = 31

        def is_told() -> bool:
            nonlocal source
            source += 1
            graphd.run("edge", "follow", source, 30)
            return process.poll() is not None

        wait_for(is_told, 30, "watch has printed a change")
        first = json.loads(process.stdout.read())
    assert (first["destination_id"], first["state"], first["previous_state"]) == ("30", "ACTIVE", None)
    graphd.run("edge", "unfollow", first["source_id"], 30)
    # Those that came before it are told as well: it goes on after that one line.
    told = graphd.run(
        "watch", "--resume-token", first["resume_token"], "-n", source - int(first["source_id"]) + 1
    ).stdout
    last = [line for line in map(json.loads, told.splitlines()) if line["source_id"] == first["source_id"]][-1]
    assert (last["state"], last["previous_state"]) == ("REMOVED", "ACTIVE")


def edges_of(folder: Path) -> set[tuple[str, ...]]:
    """All edges of an export."""
    found: set[tuple[str, ...]] = set()
    for file in sorted(folder.iterdir()):
        comment, names, *lines = gzip.decompress(file.read_bytes()).decode().splitlines()
        assert (comment, names) == ("# graphd edges 1", "source\tdestination\tkind\tstate\tposition\tsince")
        rows = [tuple(line.split("\t")) for line in lines]
        assert len(set(rows)) == len(rows)
        assert not found & set(rows)
        found |= set(rows)
    return found


def test_export(graphd: Graphd, databases: Databases, tmp_path: Path) -> None:
    graphd.run("edge", "follow", ADA, CY)
    graphd.run("edge", "block", BO, CY)
    graphd.run("edge", "unblock", 41, 42, status=1)  # leaves a row that is no edge
    told = graphd.run("export", tmp_path / "all").stderr
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == ["s1.edges.gz", "s2.edges.gz"]
    kinds = {kind["number"]: kind["name"] for kind in graphd.read("kind", "list")}
    stored = {
        (str(a), str(b), kinds[kind], State(state).name, str(position), str(since))
        for a, b, kind, state, position, since in databases.all_rows(
            "SELECT owner_id, neighbor_id, kind, state, position, since FROM forward WHERE position > 0"
        )
    }
    assert edges_of(tmp_path / "all") == stored
    assert {row[3] for row in stored} >= {"ACTIVE", "BLOCKED", "REMOVED"}
    assert all(f"{name}: " in told for name in ("s1", "s2"))
    graphd.run("export", tmp_path / "blocked", "--state", "blocked", "--kind", "follow")
    assert edges_of(tmp_path / "blocked") == {row for row in stored if row[2:4] == ("follow", "BLOCKED")}
    printed = graphd.run("export", "-", "--state", "removed").stdout.splitlines()
    assert {tuple(line.split("\t")) for line in printed[2:]} == {row for row in stored if row[3] == "REMOVED"}
    graphd.run("export", tmp_path / "none", "--kind", "none", status=2)
    (tmp_path / "file").touch()
    assert graphd.run("export", tmp_path / "file", status=2).stderr.count("\n") == 1
