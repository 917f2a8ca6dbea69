"""`graphd import`: a file of edges into a cluster. What it does lies in graphd.importer; here are the words."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final

import typer

from graphd.cli.common import (
    ConfigOption,
    DataOption,
    JsonOption,
    MisuseError,
    examples,
    load_config,
    print_json,
    run,
    say,
    spoken_errors,
)

if TYPE_CHECKING:
    from graphd.config import Config
    from graphd.importer.job import Listener, Request, Summary
    from graphd.importer.lines import Refused

SHOWN_REFUSALS: Final = 20

EXIT_FAILED: Final = 1
EXIT_REFUSED_LINES: Final = 3
EXIT_INTERRUPTED: Final = 130
AGAIN: Final = "run the same command again, it ends as if it had run once"


class OnError(StrEnum):
    """What to do with lines that are refused."""

    SKIP = "skip"
    STOP = "stop"


def add_to(app: typer.Typer) -> None:
    """The one command."""
    app.command(
        "import",
        epilog=examples(
            "graphd import follows.txt.gz",
            "graphd import ratings.csv --columns source,destination,-,time --kind follow",
            "graphd import old.txt --position 1262304000000000 --on-error stop --json",
        ),
    )(import_command)


def import_command(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The file, plain or gzip; - for standard input.")],
    format_: Annotated[str, typer.Option("--format", help="edges, the only one yet.")] = "edges",
    kind: Annotated[str, typer.Option("--kind", help="The kind of the edges.  [default: follow]")] = "",
    columns: Annotated[
        str | None,
        typer.Option(
            "--columns",
            help="What each column holds: source, destination, time (seconds since 1970) or - to skip it.  "
            "[default: source,destination]",
        ),
    ] = None,
    position: Annotated[
        int | None,
        typer.Option(
            "--position",
            help="The position of every row, in microseconds since 1970.  [default: the moment of this file's first import]",
        ),
    ] = None,
    map_: Annotated[Path | None, typer.Option("--map", help="For mastodon, in a later release.", hidden=True)] = None,
    on_error: Annotated[
        OnError, typer.Option("--on-error", help="skip refused lines, or stop at the first with nothing imported.")
    ] = OnError.SKIP,
    config: ConfigOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Import edges: one per line, source then destination, separated by blanks, tabs or commas.

    Lines that begin with # or % are comments; a first line of words is a header. Every line must have as many columns as most of the
    first lines; columns that --columns does not name are ignored. Ids are 0 to 9223372036854775807.

    A row is the version (time, ACTIVE, time) and never undoes anything newer. Without a time column all rows get one position, the moment
    of this file's first import: newer than all that was written before it, so that unfollows and blocks made before are undone, and edges
    that were there count from then on. For old data name the times, or one --position. It is the same position each time this file is
    imported, so an import may be repeated, and after an interruption it must be. There is no limit of rows:
    memory stays under 200 MB, and the temporary folder ($TMPDIR) needs 32 bytes a row, 48 with times.

    Exit status: 0 imported, self-loops and duplicates being counted; 1 failed; 2 misuse; 3 lines were refused.
    """
    with spoken_errors(), _failures():
        _refuse_formats(format_, map_)
        from graphd.importer.job import Request
        from graphd.importer.layout import parse_columns

        request = Request(
            kind=kind,
            columns=None if columns is None else parse_columns(columns),
            position=position,
            stop_at_refused=on_error is OnError.STOP,
        )
        cluster = load_config(config, data)
        with _opened(file) as (opened, size):
            summary = _run(cluster, opened, size, request)
        if as_json:
            print_json(summary.as_json())
        else:
            print(_told(summary))
        if summary.refused:
            raise typer.Exit(EXIT_REFUSED_LINES)


@contextmanager
def _failures() -> Iterator[None]:
    """What may be tried again says so; the other errors are spoken as everywhere."""
    from graphd.errors import GraphdError

    try:
        yield
    except GraphdError as fault:
        if not fault.retryable:
            raise
        say(f"{fault}; {AGAIN}")
        raise typer.Exit(EXIT_FAILED) from None
    except OSError as fault:
        say(f"the import failed: {fault.strerror or type(fault).__name__}; when that is mended, {AGAIN}")
        raise typer.Exit(EXIT_FAILED) from None
    except KeyboardInterrupt:
        say(f"interrupted; {AGAIN}")
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _refuse_formats(name: str, map_: Path | None) -> None:
    if name in {"graphd", "mastodon"}:
        raise MisuseError(f"--format {name}: not offered by this release; edges is")
    if name != "edges":
        raise MisuseError(f"--format: must be edges, not {name!r}")
    if map_ is not None:
        raise MisuseError("--map: belongs to --format mastodon, which is not offered by this release")


@contextmanager
def _opened(name: str) -> Iterator[tuple[BinaryIO, int | None]]:
    """The file and its size in bytes, None where it is not known."""
    if name == "-":
        yield sys.stdin.buffer, None
        return
    path = Path(name)
    try:
        opened = path.open("rb")
    except OSError as fault:
        raise MisuseError(f"cannot read {name}: {fault.strerror}") from fault
    with opened:
        yield opened, path.stat().st_size if path.is_file() else None


def _run(config: "Config", file: BinaryIO, size: int | None, request: "Request") -> "Summary":
    from graphd.importer import job

    with _listening(size) as listener:
        return run(job.run(config, file, request, listener))


@contextmanager
def _listening(size: int | None) -> Iterator["Listener"]:
    """Refused lines on stderr, the first of them, and a progress bar where stderr is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from graphd.importer.job import READING, Listener

    refusals = 0
    console = Console(stderr=True, highlight=False, markup=False)
    progress = Progress(
        TextColumn("{task.description:<8}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.completed:,.0f} {task.fields[unit]}"),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )

    def phase(name: str, total: int | None) -> None:
        for task in progress.tasks:
            progress.update(task.id, visible=False)
        reading = name == READING
        progress.add_task(name, total=size if reading else total, unit="bytes" if reading else "halves", speed="")

    def done(n: int) -> None:
        if progress.tasks:
            task = progress.tasks[-1]
            speed = f"{task.speed:,.0f}/s" if task.speed else ""
            progress.update(task.id, advance=n, speed=speed)

    def refused(line: "Refused") -> None:
        nonlocal refusals
        refusals += 1
        if refusals <= SHOWN_REFUSALS:
            console.print(f"line {line.line}: {line.reason}", soft_wrap=True)

    with progress:
        yield Listener(phase, done, refused)
    if refusals > SHOWN_REFUSALS:
        console.print(f"... and {refusals - SHOWN_REFUSALS:,} more refused lines (all in --json)")


def _told(summary: "Summary") -> str:
    lines = [
        f"{'read':<12}{summary.read:>14,}",
        f"{'added':<12}{summary.added:>14,}",
        f"{'updated':<12}{summary.updated:>14,}",
        f"{'unchanged':<12}{summary.unchanged:>14,}",
        f"{'self-loops':<12}{summary.self_loops:>14,}",
        f"{'duplicates':<12}{summary.duplicates:>14,}",
        f"{'refused':<12}{summary.refused:>14,}",
    ]
    if summary.over_limit:
        lines.append(f"{summary.over_limit:,} accounts now have more edges than the kind allows to live writes")
    if summary.stopped:
        lines.append("stopped at a refused line; nothing was imported")
    return "\n".join(lines)
