"""Running `graphd import` as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.databases import Databases


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    status: int
    out: str
    err: str

    @property
    def summary(self) -> dict[str, Any]:
        assert self.out, f"status {self.status}: {self.err}"
        found: dict[str, Any] = json.loads(self.out)
        return found

    def counts(self) -> dict[str, int]:
        """The counts that are not 0."""
        return {name: n for name, n in self.summary.items() if type(n) is int and n}


COMMAND = (sys.executable, "-m", "graphd.cli", "import")

# Its own process, for a child's peak starts from what its parent had in memory when it was forked.
_MEASURE = """
import json, resource, subprocess, sys, time
begun = time.perf_counter()
status = subprocess.run(sys.argv[2:], stdin=subprocess.DEVNULL).returncode
seconds = time.perf_counter() - begun
peak_kb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
open(sys.argv[1], "w").write(json.dumps({"status": status, "seconds": seconds, "peak_kb": peak_kb}))
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """A run with its time, start of the interpreter included, and its largest resident memory."""

    outcome: Outcome
    seconds: float
    peak_mb: float


def write_config(databases: Databases, folder: Path) -> Path:
    """A configuration file that names the databases."""
    lines = [f"catalog = {json.dumps(databases.catalog)}", f"slots = {databases.slots}", "[shards]"]
    lines += [f"{shard} = {json.dumps(conninfo)}" for shard, conninfo in databases.conninfo.items()]
    path = folder / "graphd.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def launch(
    config: Path, file: Path, *options: str, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start an import and do not wait for it. To be ended with `finish`."""
    command = [*COMMAND, str(file), "--config", str(config), *options]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    )


def finish(process: subprocess.Popen[str], timeout_s: float = 120.0) -> Outcome:
    """Wait for a run; one that takes too long is killed."""
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return Outcome(process.returncode, out, err)


def run_import(config: Path, file: Path, *options: str) -> Outcome:
    """One run to its end, with --json."""
    return finish(launch(config, file, "--json", *options))


def run_measured(config: Path, file: Path, *options: str, timeout_s: float = 600.0) -> Measured:
    """One run to its end, with --json."""
    with tempfile.NamedTemporaryFile("r", suffix=".json") as figures:
        command = [*COMMAND, str(file), "--config", str(config), "--json", *options]
        ended = subprocess.run(
            [sys.executable, "-c", _MEASURE, figures.name, *command],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=True,
        )
        found = json.loads(figures.read())
    return Measured(Outcome(found["status"], ended.stdout, ended.stderr), found["seconds"], found["peak_kb"] / 1024)
