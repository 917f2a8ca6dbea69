"""Measures the speed table on this machine, in one run: `python -m tests.bench`.

A cluster of two shards and one router process, with fsync and metrics on; a bare gRPC server that answers with the
same bytes as the floor; this process as the only client. Ours and the floor are measured turn about in short windows,
and a row's figure is the median of the ratios of neighbouring windows.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf.message import Message

from graphd.process import loop_factory
from graphd.v1 import graph_pb2 as pb
from tests.bench import imports, lists
from tests.bench.check import check_halves
from tests.bench.data import QUICK, Graph, Sizes, check_result, write
from tests.bench.figures import Row, as_json, disturbance, rates, table
from tests.bench.meter import machine
from tests.bench.rows import PAGE, ROWS, Bench
from tests.bench.setting import TIMEOUT_S, Setting, cluster, connect, echo

if TYPE_CHECKING:
    from graphd.v1.graph_pb2_grpc import GraphServiceAsyncStub  # generated for type checkers only

ROOT = Path(__file__).resolve().parents[2]
IMPORT_EDGES = 1_000_000
IMPORT_ROUNDS = 3


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="exit status: 0 all measured rows hold, 1 a row does not or something went wrong, 2 misuse",
    )
    names = [target.name for target in (*ROWS, *imports.TARGETS)]
    more = [target.name for target in lists.TARGETS]
    told = f"{', '.join(names)}; and, only when named, {', '.join(more)}"
    parser.add_argument("--rows", nargs="+", choices=[*names, *more], default=names, metavar="NAME", help=told)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a window (default 3)")
    parser.add_argument("--windows", type=int, default=5, help="pairs of windows per row (default 5)")
    parser.add_argument(
        "--patience",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="on a machine that others use: wait so long for quiet before each pair, and repeat disturbed ones",
    )
    parser.add_argument("--quick", action="store_true", help="3 windows of 1 s, a small graph: to see that it works")
    parser.add_argument("--seed", type=int, default=1, help="of the graph")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the figures go (default: in bench-results/)")
    options = parser.parse_args(argv)
    if options.quick:
        options.seconds, options.windows = 1.0, 3
    if options.seconds <= 0 or options.windows < 1:
        parser.error("--seconds and --windows must be above zero")
    return options


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def prepare(stub: GraphServiceAsyncStub, graph: Graph, names: Sequence[str]) -> dict[str, Message]:
    """Writes the graph, as much of it as the rows need; the router's answers that the floor gives back."""
    began = time.perf_counter()
    done = await write(stub, graph.edges)
    done += await write(stub, graph.list_edges())
    if "deep-page" in names:
        done += await write(stub, graph.celebrity_edges())
    took_s = time.perf_counter() - began
    say(f"wrote {done:,} edges in {took_s:.1f} s, {done / took_s:,.0f} a second")
    (source, destination), followed = graph.edges[0], graph.list_accounts[0]
    fresh_source, fresh_destination = next(graph.new_edges())
    follow = await stub.Follow(
        pb.FollowRequest(source_id=fresh_source, destination_id=fresh_destination), timeout=TIMEOUT_S
    )
    check_result(follow.result)
    get_edge = pb.GetEdgeRequest(source_id=source, destination_id=destination)
    page = pb.ListFollowersRequest(account_id=followed, page_size=PAGE)
    return {
        "GetEdge": await stub.GetEdge(get_edge, timeout=TIMEOUT_S),
        "ListFollowers": await stub.ListFollowers(page, timeout=TIMEOUT_S),
        "Follow": follow,
    }


async def measure(setting: Setting, options: argparse.Namespace) -> list[Row]:
    graph = Graph(QUICK if options.quick else Sizes(), options.seed)
    rows: list[Row] = []
    async with connect(setting.router) as ours:
        answers = await prepare(ours, graph, options.rows)
        await asyncio.to_thread(setting.settle)
        # The graph stays; a collector that looks it through now and then would be the client's longest pause.
        gc.collect()
        gc.freeze()
        with echo(setting, answers) as address:
            async with connect(address) as floor:
                bench = Bench(setting, graph, ours, floor, options.windows, options.seconds, options.patience)
                for target, row in ROWS.items():
                    if target.name in options.rows:
                        rows.append(await row(bench, target))
                        say(f"{target.name}: {rows[-1].value:.2f} ({rows[-1].verdict})")
    say(await asyncio.to_thread(check_halves, setting))
    return rows


def measure_cluster(options: argparse.Namespace) -> tuple[dict[str, str], list[Row]]:
    """The settings of its servers, and the rows."""
    folder = Path(tempfile.mkdtemp(prefix="graphd-bench-"))
    folder.chmod(0o755)  # the servers may run as another user
    try:
        with cluster(folder) as setting, asyncio.Runner(loop_factory=loop_factory()) as runner:
            return setting.postgres_settings(), runner.run(measure(setting, options))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(sys.argv[1:] if argv is None else argv)
    # As Ctrl-C: whoever stops us leaves no servers behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began = datetime.now(UTC)
    about, rows = machine(), list[Row]()
    say(json.dumps(about))
    if any(target.name in options.rows for target in ROWS):
        about["postgres"], rows = measure_cluster(options)
    if any(target.name in options.rows for target in imports.TARGETS):
        edges, rounds = (100_000, 1) if options.quick else (IMPORT_EDGES, IMPORT_ROUNDS)
        rows += imports.measure(options.rows, edges=edges, rounds=rounds)
    if any(target.name in options.rows for target in lists.TARGETS):
        rows += lists.measure(options.rows, options.windows, options.seconds)
    print(table(rows), rates(rows), disturbance(rows), sep="\n\n")
    if options.quick:
        print("--quick: these figures show that the bench works, and no more")
    path: Path = options.json or ROOT / "bench-results" / f"{began:%Y%m%dT%H%M%SZ}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    settings = {name: getattr(options, name) for name in ("rows", "seconds", "windows", "patience", "quick", "seed")}
    values = as_json(rows, about, {**settings, "began": began.isoformat(timespec="seconds")})
    path.write_text(json.dumps(values, indent=1) + "\n")
    say(f"written to {path}")
    return 1 if any(row.verdict == "FAIL" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
