"""`graphd dev`: a whole cluster on this machine. What it does lies in graphd.devcluster; here are the words."""

import json
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from graphd.devcluster.cluster import DevCluster, Options

app = typer.Typer(
    help="A whole cluster on this machine: real Postgres servers, router and repair daemon.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def _examples(*commands: str) -> str:
    """The end of a command's help; the mark \\b keeps the lines as they are."""
    return "\b\nExamples:\n" + "\n".join(f"  {command}" for command in commands)


DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data", metavar="DIR", help="The cluster's folder. Default: $GRAPHD_DATA, else ~/.local/share/graphd/dev."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


@app.command(
    epilog=_examples(
        "graphd dev up",
        "graphd dev up --shards 2 --data /tmp/try --port 7700 --workers 2",
        "graphd dev up --foreground",
    )
)
def up(
    shards: Annotated[int | None, typer.Option(help="Postgres servers; fixed for ever.  [default: 3]")] = None,
    slots: Annotated[
        int | None, typer.Option(help="Units of placement, a power of two; fixed for ever.  [default: 64]")
    ] = None,
    data: DataOption = None,
    port: Annotated[
        int | None,
        typer.Option(
            help="The router's port, 0 for a free one, if the cluster has none yet; all others are free ones.  [default: 7600]"
        ),
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Router processes on that port.  [default: 1]")] = None,
    repair: Annotated[
        bool | None, typer.Option("--repair/--no-repair", help="With the repair daemon or without.")
    ] = None,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay until Ctrl-C or SIGTERM, then stop the cluster.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Start the cluster, or whatever is missing of it, and return when it serves.

    Its data survives `down`. An option that is left out stays as the cluster has it.
    """
    with _spoken_errors():
        from graphd.devcluster.cluster import DevCluster, Options

        cluster = DevCluster(data)
        options = Options(shards=shards, slots=slots, port=port, workers=workers, repair=repair)
        if foreground:
            _stay(cluster, options, as_json)
            return
        if not cluster.up(options, say=_say):
            _say("everything ran already")
        _print_status(cluster.status(), as_json)


@app.command(epilog=_examples("graphd dev down", "graphd dev down --delete --data /tmp/try"))
def down(
    data: DataOption = None,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the data, too.")] = False,
) -> None:
    """Stop the cluster. Its data stays for the next `up`."""
    with _spoken_errors():
        from graphd.devcluster.cluster import DevCluster

        cluster = DevCluster(data)
        if not cluster.down(delete=delete, say=_say):
            _say(f"there is no dev cluster in {cluster.folder.path}")
        else:
            _say("stopped, and its data deleted" if delete else "stopped; its data stays")


@app.command(
    epilog=_examples(
        "graphd dev status",
        "graphd dev status --json",
        "psql \"$(graphd dev status --json | jq -r '.shards[0].conninfo')\"",
    )
)
def status(data: DataOption = None, as_json: JsonOption = False) -> None:
    """Tell addresses, process ids and how to reach each shard with psql."""
    with _spoken_errors():
        from graphd.devcluster.cluster import DevCluster

        _print_status(DevCluster(data).status(), as_json)


@app.command(epilog=_examples("graphd dev logs", "graphd dev logs router --follow", "graphd dev logs s1 --lines 200"))
def logs(
    name: Annotated[str | None, typer.Argument(help="router, repair or a shard; all when left out.")] = None,
    data: DataOption = None,
    lines: Annotated[int, typer.Option(min=0, help="How many lines of each log's end.")] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is added, until Ctrl-C.")] = False,
) -> None:
    """Show what router, repair daemon and Postgres servers logged."""
    with _spoken_errors():
        from graphd.devcluster.cluster import DevCluster, MisuseError

        paths = DevCluster(data).logs()
        if name is not None and name not in paths:
            raise MisuseError(f"there is no log {name!r}: there are {', '.join(paths)}")
        chosen = paths if name is None else {name: paths[name]}
        try:
            for text in _log_lines(chosen, lines, follow):
                print(text, flush=True)
        except KeyboardInterrupt:
            pass


@contextmanager
def _spoken_errors() -> Iterator[None]:
    """One clear line on stderr: exit status 2 for misuse, 1 for all else that graphd foresees."""
    from graphd.devcluster.plan import DevClusterError, MisuseError

    try:
        yield
    except DevClusterError as fault:
        _say(str(fault))
        raise typer.Exit(2 if isinstance(fault, MisuseError) else 1) from None


def _say(text: str) -> None:
    print(f"graphd dev: {text}", file=sys.stderr, flush=True)


def _stay(cluster: "DevCluster", options: "Options", as_json: bool) -> None:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        cluster.up(options, say=_say)
        _print_status(cluster.status(), as_json)
        _say("runs until Ctrl-C")
        while True:
            signal.pause()
    except KeyboardInterrupt:
        cluster.down(say=_say)
    finally:
        signal.signal(signal.SIGTERM, before)


def _print_status(status: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(status, indent=2))
        return
    repair = status["repair"]
    routers = ", ".join(str(router["pid"]) for router in status["routers"])
    print(f"{'router':<8} {status['router']:<22} {_process(routers)}")
    print(f"{'admin':<8} {status['admin']}")
    print(f"{'metrics':<8} http://{status['metrics']}/metrics")
    print(f"{'repair':<8} {repair['metrics']:<22} {_process(repair['pid']) if repair['enabled'] else 'switched off'}")
    for shard in status["shards"]:
        print(f"{shard['name']:<8} psql '{shard['conninfo']}'  {_process(shard['pid'])}")
    print(f"{'catalog':<8} psql '{status['catalog']['conninfo']}'")
    print(f"{'data':<8} {status['data']}")
    print(f"{'config':<8} {status['config']}")


def _process(pid: object) -> str:
    return f"process {pid}" if pid else "does not run"


def _log_lines(paths: dict[str, Path], lines: int, follow: bool) -> Iterator[str]:
    """The last lines of each log, then what is added to any of them; each behind its name where there are several."""
    width = max(len(name) for name in paths)
    offsets: dict[str, int] = {}
    for name, path in paths.items():
        if not path.exists():
            continue
        with open(path, errors="replace") as log:
            yield from (_labelled(name, line, width, paths) for line in deque(iter(log.readline, ""), maxlen=lines))
            offsets[name] = log.tell()
    while follow:
        time.sleep(0.3)
        for name, path in paths.items():
            if not path.exists():
                continue
            with open(path, errors="replace") as log:
                # A shorter file than before is a new one.
                log.seek(offsets.get(name, 0) if path.stat().st_size >= offsets.get(name, 0) else 0)
                yield from (_labelled(name, line, width, paths) for line in iter(log.readline, ""))
                offsets[name] = log.tell()


def _labelled(name: str, line: str, width: int, paths: dict[str, Path]) -> str:
    line = line.rstrip("\n")
    return f"{name:<{width}} | {line}" if len(paths) > 1 else line
