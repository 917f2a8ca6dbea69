"""`graphd demo` from the outside: what it says, how it ends, and that nothing of it is left."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from graphd.cli.demo.graph import power_law
from graphd.devcluster import processes
from graphd.devcluster.cluster import DevCluster
from tests.waiting import wait_for

DEMO = [sys.executable, "-m", "graphd.cli", "demo"]
LIMIT_S = 120.0


@pytest.fixture
def temp(tmp_path: Path) -> Iterator[Path]:
    """Where the demo makes its folder; whatever runs in there at the end is stopped."""
    # tmp_path is closed to other users, and the servers may run as one of them.
    folder = Path("/tmp") / f"graphd-test-{os.getpid()}-{tmp_path.name}"
    folder.mkdir(mode=0o755)
    try:
        yield folder
    finally:
        for left in folder.glob("graphd-demo-*"):
            DevCluster(left).down(delete=True)
        subprocess.run(["rm", "-rf", str(folder)], check=True)


def environment(temp: Path) -> Mapping[str, str]:
    # A cluster that the caller's environment names is none of the demo's business.
    return {**os.environ, "TMPDIR": str(temp), "GRAPHD_CATALOG": "host=nowhere", "GRAPHD_SHARDS__S9": "host=nowhere"}


def demo(temp: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*DEMO, *arguments], env=environment(temp), capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def test_everything_holds_and_nothing_is_left(temp: Path) -> None:
    done = demo(temp)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAILED" not in done.stdout
    assert re.search(r"All \d+ checks passed", done.stdout)
    assert "reverse_pending" in done.stdout
    assert "\x1b" not in done.stdout, "no colours where there is no terminal"
    assert done.stderr == ""
    assert list(temp.iterdir()) == []


def test_a_small_file_whose_ids_are_those_of_the_people(temp: Path) -> None:
    file = temp / "edges.txt"
    file.write_text("# who follows whom\n" + "".join(f"{a} {b}\n" for a in range(9) for b in range(9)))
    done = demo(temp, "--file", str(file), "--keep")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "81 lines read: 72 added, 9 self-loops, 0 duplicates, 0 refused" in done.stdout
    found = re.search(r"(\S*graphd list followers \d+ --data (\S+))", done.stdout)
    assert found is not None
    # It can be typed as it stands.
    listed = subprocess.run(found[1].split(), env=environment(temp), capture_output=True, check=False)
    assert listed.returncode == 0
    assert DevCluster(Path(found[2])).status()["running"]


@pytest.mark.parametrize(
    ("when", "number"), [("A cluster", signal.SIGINT), ("A graph", signal.SIGTERM), ("A shard goes", signal.SIGINT)]
)
def test_a_signal_leaves_nothing_behind(temp: Path, when: str, number: signal.Signals) -> None:
    with subprocess.Popen(
        DEMO,
        env={**environment(temp), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        with contextlib.suppress(StopIteration):
            while when not in next(running.stdout):
                pass
        running.send_signal(number)
        output, errors = running.communicate(timeout=LIMIT_S)
    assert running.returncode == 128 + number, output + errors
    assert "stopped" in errors
    assert "Traceback" not in errors
    assert list(temp.iterdir()) == []
    wait_for(lambda: not _processes_under(temp), what="every process of the demo has ended")


@pytest.mark.parametrize("made", ["shards/s1", "shards/*/data", "shards/s3/data/postmaster.pid", "logs/router.log"])
def test_a_signal_while_the_servers_start_leaves_nothing_behind(temp: Path, made: str) -> None:
    with subprocess.Popen(
        DEMO, env=environment(temp), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        wait_for(lambda: any(temp.glob(f"graphd-demo-*/{made}")), 30, f"the demo makes {made}")
        running.send_signal(signal.SIGTERM)
        output, errors = running.communicate(timeout=LIMIT_S)
    assert (running.returncode, errors) == (
        128 + signal.SIGTERM,
        "graphd: stopped; the cluster is being deleted\n",
    ), output
    assert list(temp.iterdir()) == []
    wait_for(lambda: not _processes_under(temp), what="every process of the demo has ended")


PATCHED = """
import sys
from graphd.cli.demo import outage, storm, walk
from graphd.errors import GraphdError

async def calls(stage):
    {calls}

async def nothing(*arguments):
    return set()

walk.show, storm.show, outage.show = calls, nothing, nothing
from graphd.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("calls", "told"),
    [
        ("stage.screen.check('two and two are five', False)", "1 of 6 checks FAILED:\n   two and two are five"),
        ("raise GraphdError('the sky fell')", "graphd: the sky fell"),
    ],
)
def test_a_failure_is_the_exit_status_and_cleans_up(temp: Path, calls: str, told: str) -> None:
    # A process of its own: the initdb template of this one must not lie in the test's folder.
    done = subprocess.run(
        [sys.executable, "-c", PATCHED.format(calls=calls), "demo"],
        env=environment(temp),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 1
    assert told in done.stdout + done.stderr
    assert list(temp.iterdir()) == []


def test_a_file_that_is_not_there_is_misuse(temp: Path) -> None:
    done = demo(temp, "--file", str(temp / "nothing.txt"))
    assert done.returncode == 2
    assert done.stderr == f"graphd: cannot read {temp}/nothing.txt: No such file or directory\n"
    assert list(temp.iterdir()) == []


def test_the_made_up_graph_is_the_same_each_time_and_few_are_followed_by_many() -> None:
    edges = power_law()
    assert (edges == power_law()).all()
    assert (edges[:, 0] != edges[:, 1]).all()
    assert len({(source, destination) for source, destination in edges.tolist()}) == len(edges)
    followers: dict[int, int] = {}
    for _, destination in edges.tolist():
        followers[destination] = followers.get(destination, 0) + 1
    ranked = sorted(followers.values(), reverse=True)
    assert sum(ranked[:100]) > len(edges) / 4
    assert min(edges.ravel().tolist()) > 6, "the people have ids of their own"


def _processes_under(folder: Path) -> list[int]:
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return [pid for pid in pids if any(str(folder) in argument for argument in processes.command_line(pid))]
