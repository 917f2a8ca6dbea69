"""`graphd demo`: a cluster that shows what it does, checks it, and goes. Here are the words of the command; run.py runs it."""

from pathlib import Path
from typing import Annotated

import typer

from graphd.cli.common import MisuseError, examples, quiet_grpc, spoken_errors

FileOption = Annotated[
    Path | None,
    typer.Option(
        "--file", metavar="EDGES", help="A real graph, as `graphd import` reads it.  [default: a made-up one]"
    ),
]
KeepOption = Annotated[
    bool, typer.Option("--keep", help="Leave the cluster running at the end, and tell how to reach it.")
]


def demo(file: FileOption = None, keep: KeepOption = False) -> None:
    """Start a cluster, show it at work, check what it says, then stop and delete it.

    A graph is imported, the calls are shown, a celebrity is stormed, a shard is stopped and started again. Exit status 1 if anything
    is not as it should be.
    """
    with spoken_errors():
        if file is not None:
            _check_readable(file)
        quiet_grpc()
        from graphd.cli.demo.run import run

        status = run(file, keep=keep)
    if status:
        raise typer.Exit(status)


def add_to(app: typer.Typer) -> None:
    """The one command."""
    app.command(epilog=examples("graphd demo", "graphd demo --file follows.txt.gz --keep"))(demo)


def _check_readable(file: Path) -> None:
    try:
        with file.open("rb"):
            pass
    except OSError as fault:
        raise MisuseError(f"cannot read {file}: {fault.strerror}") from fault
