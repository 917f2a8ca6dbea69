"""Speed and memory of `graphd import` against plain COPY: `python -m tests.bench.import_speed [--rows N] [--rounds N]`.

Plain COPY gets the very same rows, in the order of the file, ready-made in binary (nothing to parse, sort or check), into the two
tables with their indexes, on both shards at once. The import is the whole command: start of the interpreter, checksum, parsing, sorting,
degrees. The two take turns in one run; the ratio is that of the medians.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphd.devcluster.postgres import PostgresServer, PostgresSpec, free_port, running
from graphd.edge import Direction
from graphd.placement import slots_of
from graphd.storage.bulk import Chunk, binary_rows
from graphd.storage.queries import statement
from tests.databases import Databases, new_databases
from tests.importing import run_measured, write_config

ACCOUNTS = 200_000
POSITION = 1_600_000_000_000_000
WANTED_RATIO = 0.5
WANTED_PEAK_MB = 200

Ids = npt.NDArray[np.int64]


def graph(rows: int) -> tuple[Ids, Ids]:
    """Distinct edges in random order: sources even, destinations by a power law."""
    rng = np.random.default_rng(7)
    source = rng.integers(0, ACCOUNTS, 2 * rows)
    destination = (rng.pareto(1.2, 2 * rows) * 500).astype(np.int64) % ACCOUNTS
    packed = np.unique((source << 32) | destination)
    packed = rng.permutation(packed[(packed >> 32) != (packed & 0xFFFFFFFF)])[:rows]
    assert len(packed) == rows, "too many doubles: fewer rows, or more accounts"
    return packed >> 32, packed & 0xFFFFFFFF


def copies(databases: Databases, source: Ids, destination: Ids, *, in_order: bool) -> dict[tuple[str, str], bytes]:
    """What plain COPY sends, by shard and table."""
    found = {}
    for direction, owner, neighbor in (
        (Direction.FORWARD, source, destination),
        (Direction.REVERSE, destination, source),
    ):
        if in_order:
            order = np.lexsort((neighbor, owner))
            owner, neighbor = owner[order], neighbor[order]
        slot = slots_of(owner, databases.slots)
        whole = Chunk.active(direction, 1, owner, neighbor, np.full(len(owner), POSITION), slot)
        for shard in databases.names:
            mask = np.isin(slot, databases.view.topology.slots_of(shard))
            found[shard, direction.table] = binary_rows(whole.where(mask))
    return found


def plain_copy(databases: Databases, data: Mapping[tuple[str, str], bytes]) -> float:
    """Seconds it takes, both shards side by side."""

    def load(shard: str) -> None:
        with databases.connect(shard) as connection:
            for table in ("forward", "reverse"):
                with connection.cursor().copy(statement("import", "copy_halves", table)) as copy:
                    copy.write(data[shard, table])

    begun = time.perf_counter()
    with ThreadPoolExecutor(len(databases.names)) as pool:
        list(pool.map(load, databases.names))
    return time.perf_counter() - begun


def empty(databases: Databases) -> None:
    """Every measurement begins with empty tables and nothing left to be flushed."""
    databases.do("TRUNCATE forward, reverse, degrees")
    databases.do("CHECKPOINT")


def measure(databases: Databases, folder: Path, rows: int, rounds: int) -> dict[str, Any]:
    """All figures, seconds and megabytes."""
    source, destination = graph(rows)
    file = folder / "edges.txt"
    np.savetxt(file, np.column_stack((source, destination)), fmt="%d")
    config = write_config(databases, folder)
    plain, ordered = (copies(databases, source, destination, in_order=in_order) for in_order in (False, True))
    seconds: dict[str, list[float]] = {"copy": [], "copy_in_key_order": [], "import": [], "import_again": []}
    peaks = []
    for _ in range(rounds):
        empty(databases)
        seconds["copy"].append(plain_copy(databases, plain))
        empty(databases)
        seconds["copy_in_key_order"].append(plain_copy(databases, ordered))
        empty(databases)
        for name, expected in (("import", "added"), ("import_again", "unchanged")):
            measured = run_measured(config, file)
            assert measured.outcome.counts() == {"read": rows, expected: rows}, measured.outcome.err
            seconds[name].append(measured.seconds)
            peaks.append(measured.peak_mb)
    medians = {name: round(statistics.median(values), 3) for name, values in seconds.items()}
    return {
        "rows": rows,
        "rounds": rounds,
        "seconds": medians,
        "rows_per_second": round(rows / medians["import"]),
        "ratio": round(medians["copy"] / medians["import"], 2),
        "ratio_to_copy_in_key_order": round(medians["copy_in_key_order"] / medians["import"], 2),
        "peak_mb": round(max(peaks), 1),
    }


def run(rows: int, rounds: int) -> dict[str, Any]:
    """Two shards with fsync on, in a folder of their own."""
    folder = Path(tempfile.mkdtemp(prefix="graphd-bench-"))
    folder.chmod(0o755)
    try:
        servers = [PostgresServer(PostgresSpec(f"pg{i}", folder / f"pg{i}" / "data", free_port())) for i in (1, 2)]
        with running(servers), new_databases(servers) as databases:
            return measure(databases, folder, rows, rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.import_speed", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    figures = run(arguments.rows, arguments.rounds)
    print(json.dumps(figures, indent=2))
    return 0 if figures["ratio"] >= WANTED_RATIO and figures["peak_mb"] < WANTED_PEAK_MB else 1


if __name__ == "__main__":
    raise SystemExit(main())
