"""`graphd dev` as its users meet it: the command, real servers, real kills."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from graphd.devcluster import processes
from graphd.devcluster.postgres import free_port


@dataclass(frozen=True, slots=True)
class Cluster:
    """A dev cluster of two shards, seen through the command alone."""

    data: Path
    port: int

    def run(self, *arguments: str, code: int = 0, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        # capture_output waits for the pipes' end: it would hang if any process of the cluster held them.
        outcome = subprocess.run(
            [sys.executable, "-m", "graphd.cli", "dev", *arguments, "--data", str(self.data)],
            stdin=subprocess.PIPE,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert outcome.returncode == code, outcome.stderr
        return outcome

    def up(self, *arguments: str, code: int = 0) -> str:
        return self.run("up", *arguments, code=code).stderr

    def status(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.run("status", "--json").stdout)
        return value


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    folder = Path(tempfile.mkdtemp(prefix="graphd-devcluster-"))
    folder.chmod(0o755)
    cluster = Cluster(folder / "dev", free_port())
    try:
        cluster.up("--shards", "2", "--slots", "16", "--port", str(cluster.port))
        yield cluster
    finally:
        try:
            cluster.run("down", "--delete")
            assert not cluster.data.exists(), "down --delete leaves nothing behind"
        finally:
            shutil.rmtree(folder)


def connect(part: dict[str, Any]) -> "psycopg.Connection[tuple[Any, ...]]":
    return psycopg.connect(part["conninfo"], autocommit=True)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    assert processes.wait_for(lambda: not processes.is_running(pid), 10)


def takes_connections(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=1):
            return True
    except OSError:
        return False


def addresses(status: dict[str, Any]) -> dict[str, Any]:
    """All that must stay the same over restarts."""
    kept = ("router", "admin", "metrics", "catalog", "data", "config", "slots")
    shards = [{key: shard[key] for key in ("name", "conninfo", "data")} for shard in status["shards"]]
    return {**{key: status[key] for key in kept}, "shards": shards}


def pids(status: dict[str, Any]) -> list[int | None]:
    routers = [router["pid"] for router in status["routers"]]
    return [*routers, status["repair"]["pid"], *(shard["pid"] for shard in status["shards"])]


def test_status_tells_where_everything_is(cluster: Cluster) -> None:
    status = cluster.status()
    assert status["router"] == f"127.0.0.1:{cluster.port}"
    assert status["running"] is True
    assert len(status["routers"]) == 1
    assert [shard["name"] for shard in status["shards"]] == ["s1", "s2"]
    assert all(pid is not None and processes.is_running(pid) for pid in pids(status))
    assert all(takes_connections(status[name]) for name in ("router", "admin", "metrics"))
    owned: set[int] = set()
    for shard in status["shards"]:
        with connect(shard) as connection:
            for table in ("forward", "reverse", "degrees", "outbox"):
                connection.execute(f"SELECT count(*) FROM {table}".encode())
            mine = {slot for (slot,) in connection.execute("SELECT slot FROM slots WHERE owned")}
            assert connection.execute("SELECT usesuper FROM pg_user WHERE usename = current_user").fetchone() == (True,)
        assert mine
        assert not owned & mine
        owned |= mine
        assert int((Path(shard["data"]) / "postmaster.pid").read_text().split()[0]) == shard["pid"]
    assert owned == set(range(16))
    with connect(status["catalog"]) as connection:
        assert connection.execute("SELECT slots FROM cluster").fetchone() == (16,)


def test_every_process_leads_a_session_of_its_own(cluster: Cluster) -> None:
    status = cluster.status()
    for pid in pids(status):
        assert pid is not None
        assert os.getsid(pid) not in (os.getsid(0), 0)


def test_up_on_a_running_cluster_starts_nothing(cluster: Cluster) -> None:
    before = cluster.status()
    assert "everything ran already" in cluster.up()
    assert "everything ran already" in cluster.up("--shards", "2", "--slots", "16", "--port", str(cluster.port))
    assert cluster.status() == before


@pytest.mark.parametrize("arguments", [("--shards", "3"), ("--slots", "32"), ("--workers", "2"), ("--no-repair",)])
def test_options_that_contradict_the_cluster_exit_2(cluster: Cluster, arguments: tuple[str, ...]) -> None:
    before = cluster.status()
    said = cluster.up(*arguments, code=2)
    assert len(said.splitlines()) == 1
    assert cluster.status() == before


def test_up_mends_a_half_dead_cluster_on_the_same_ports(cluster: Cluster) -> None:
    before = cluster.status()
    kill(before["shards"][1]["pid"])
    kill(before["routers"][0]["pid"])
    broken = cluster.status()
    assert (broken["running"], broken["routers"], broken["shards"][1]["pid"]) == (False, [], None)
    said = cluster.up()
    assert "s2" in said
    assert "router" in said
    after = cluster.status()
    assert after["running"] is True
    assert addresses(after) == addresses(before)
    assert after["shards"][0]["pid"] == before["shards"][0]["pid"], "what ran was left alone"
    assert after["repair"]["pid"] == before["repair"]["pid"]


def test_up_mends_a_killed_repair_daemon(cluster: Cluster) -> None:
    before = cluster.status()
    kill(before["repair"]["pid"])
    cluster.up()
    after = cluster.status()
    assert after["repair"]["pid"] not in (None, before["repair"]["pid"])
    assert after["routers"] == before["routers"]


def test_up_starts_a_stuck_router_anew(cluster: Cluster) -> None:
    before = cluster.status()
    stuck = before["routers"][0]["pid"]
    os.kill(stuck, signal.SIGSTOP)
    cluster.up()
    after = cluster.status()
    assert not processes.is_running(stuck)
    assert after["routers"][0]["pid"] != stuck
    assert addresses(after) == addresses(before)


def test_data_and_ports_survive_down_and_up(cluster: Cluster) -> None:
    before = cluster.status()
    with connect(before["shards"][0]) as connection:
        connection.execute("CREATE TABLE note (text text)")
        connection.execute("INSERT INTO note VALUES ('ada was here')")
    cluster.run("down")
    down = cluster.status()
    assert (down["running"], down["routers"], pids(down)) == (False, [], [None, None, None])
    assert addresses(down) == addresses(before)
    assert not any(pid is not None and processes.is_running(pid) for pid in pids(before))
    cluster.run("down")  # a second time: nothing to do
    cluster.up()
    after = cluster.status()
    assert addresses(after) == addresses(before)
    with connect(after["shards"][0]) as connection:
        assert connection.execute("SELECT text FROM note").fetchone() == ("ada was here",)
        connection.execute("DROP TABLE note")


def test_workers_change_while_the_cluster_is_down(cluster: Cluster) -> None:
    before = cluster.status()
    cluster.run("down")
    cluster.up("--workers", "3", "--no-repair")
    try:
        status = cluster.status()
        assert len({router["pid"] for router in status["routers"]}) == 3
        assert status["repair"]["pid"] is None
        assert status["running"] is True
        assert status["router"] == before["router"]
        for router in status["routers"]:
            kill(router["pid"])
        cluster.up()
        workers = [router["pid"] for router in cluster.status()["routers"]]
        assert len(workers) == 3
        supervisor = os.getsid(workers[0])
        assert supervisor not in workers
        kill(supervisor)
        assert cluster.status()["routers"] == [], "nobody watches over the workers that are left"
        cluster.up()
        after = cluster.status()
        assert len(after["routers"]) == 3
        assert not any(processes.is_running(pid) for pid in workers)
        assert after["router"] == before["router"]
    finally:
        cluster.run("down")
        cluster.up("--workers", "1", "--repair")


def test_a_taken_port_gives_a_clear_sentence(cluster: Cluster) -> None:
    other = Cluster(cluster.data.with_name("other"), cluster.port)
    try:
        said = other.up("--port", str(cluster.port), code=1)
        assert f"port {cluster.port} is taken by another program" in said
        assert "--port" in said
        assert len(said.splitlines()) == 1
    finally:
        other.run("down", "--delete")


def test_logs_are_shown_by_name(cluster: Cluster) -> None:
    assert "database system is ready" in cluster.run("logs", "s1", "--lines", "100").stdout
    assert "router | " in cluster.run("logs").stdout
    assert "there are router, repair, s1, s2" in cluster.run("logs", "s9", code=2).stderr


def test_a_folder_of_other_files_is_refused_and_left_alone(cluster: Cluster) -> None:
    other = Cluster(cluster.data.with_name("thesis"), 0)
    other.data.mkdir()
    (other.data / "thesis.txt").write_text("years of work")
    assert "thesis.txt" in other.up(code=2)
    other.run("down", "--delete")
    assert (other.data / "thesis.txt").read_text() == "years of work"


def test_foreground_stays_until_it_is_told_to_stop(cluster: Cluster) -> None:
    other = Cluster(cluster.data.with_name("foreground"), 0)
    command = [sys.executable, "-m", "graphd.cli", "dev", "up", "--foreground", "--port", "0", "--shards", "1"]
    with subprocess.Popen([*command, "--data", str(other.data)], stderr=subprocess.PIPE, text=True) as child:
        try:
            assert child.stderr is not None
            assert any("until Ctrl-C" in line for line in child.stderr)
            assert other.status()["running"] is True
            child.send_signal(signal.SIGTERM)
            child.stderr.read()
            assert child.wait(timeout=60) == 0
            assert other.status()["running"] is False
        finally:
            child.kill()
            other.run("down", "--delete")
