"""`graphd import`: files of edges into a cluster. What it does lies in graphd.importer; here are the words."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
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


class FormatName(StrEnum):
    """What the files hold."""

    EDGES = "edges"
    GRAPHD = "graphd"
    MASTODON = "mastodon"


def add_to(app: typer.Typer) -> None:
    """The one command."""
    app.command(
        "import",
        epilog=examples(
            "graphd import follows.txt.gz",
            "graphd import ratings.csv --columns source,destination,-,time --kind follow",
            "graphd import old.txt --position 1262304000000000 --on-error stop --json",
            "graphd import --format graphd backup/*.edges.gz",
            "graphd import --format mastodon following_accounts.csv --map handles.csv --owner ada@example.org",
        ),
    )(import_command)


def import_command(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="The files, each plain or gzip; - for standard input.")
    ],
    format_: Annotated[
        FormatName,
        typer.Option(
            "--format",
            help="edges: lists of edges. graphd: what graphd export writes. mastodon: whom one account follows, as Mastodon exports it.",
        ),
    ] = FormatName.EDGES,
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
            help="The position of every row, in microseconds since 1970.  [default: the moment of the file's first import]",
        ),
    ] = None,
    map_: Annotated[
        Path | None,
        typer.Option(
            "--map", metavar="FILE", help="For mastodon: a handle and its id on each line, parted by a comma or blanks."
        ),
    ] = None,
    owner: Annotated[
        str,
        typer.Option("--owner", metavar="HANDLE", help="For mastodon: whose file it is, a handle of the map or an id."),
    ] = "",
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

    --format graphd takes the files of graphd export, of a cluster with any number of shards and slots: each edge with its own kind, state,
    position and since, so that every list is as it was, order included. The kinds must be declared first (graphd kind add). What is
    stored and newer stays. The temporary folder needs 80 bytes a row.

    --format mastodon takes a following export (at most 20 MB and 100,000 lines), with or without its header, whose handles --map turns
    into ids; upper and lower case are one, and a handle that the map lacks is a refused line. The order of the file is kept: each row is a
    microsecond older than the one before it.

    Exit status: 0 imported, self-loops and duplicates being counted; 1 failed; 2 misuse; 3 lines were refused.
    """
    with spoken_errors(), _failures():
        from graphd.importer.job import Format, Request
        from graphd.importer.layout import parse_columns

        request = Request(
            kind=kind,
            columns=None if columns is None else parse_columns(columns),
            position=position,
            stop_at_refused=on_error is OnError.STOP,
            format=Format(format_),
            owner=owner,
        )
        cluster = load_config(config, data)
        summaries = _import_all(cluster, files, request, map_)
        if as_json:
            print_json(_as_json(summaries))
        else:
            print(_told(summaries))
        if any(summary.refused for summary in summaries.values()):
            raise typer.Exit(EXIT_REFUSED_LINES)


def _import_all(config: "Config", files: list[str], request: "Request", map_: Path | None) -> dict[str, "Summary"]:
    """One file after the other; those that cannot be read are told before the first is imported. By the name of the file."""
    from graphd.errors import InvalidArgumentError
    from graphd.importer.scan import UnreadableFileError

    if len(set(files)) < len(files):
        raise MisuseError("FILE: names a file twice")
    for name in files:
        if not Path(name).is_fifo():  # which can be opened once
            with _opened(name):
                pass
    summaries: dict[str, Summary] = {}
    for name in files:
        with _opened(name) as (opened, size), _mapped(map_) as handles:
            told = _listening(size, "" if len(files) == 1 else f"{name}: ")
            try:
                summaries[name] = _run(config, opened, replace(request, handles=handles), told)
            except (InvalidArgumentError, UnreadableFileError) as fault:
                if len(files) == 1:
                    raise
                kind = MisuseError if isinstance(fault, InvalidArgumentError) else UnreadableFileError
                raise kind(f"{name}: {fault}") from fault
        if summaries[name].stopped:
            break
    return summaries


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


@contextmanager
def _mapped(path: Path | None) -> Iterator[BinaryIO | None]:
    """The map from handles to ids, if there is one."""
    if path is None:
        yield None
        return
    try:
        opened = path.open("rb")
    except OSError as fault:
        raise MisuseError(f"--map: cannot read {path}: {fault.strerror}") from fault
    with opened:
        yield opened


def _run(
    config: "Config", file: BinaryIO, request: "Request", listening: AbstractContextManager["Listener"]
) -> "Summary":
    from graphd.importer import job

    with listening as listener:
        return run(job.run(config, file, request, listener))


@contextmanager
def _listening(size: int | None, prefix: str) -> Iterator["Listener"]:
    """Refused lines on stderr, the first of them, and a progress bar where stderr is a terminal. `prefix`: what stands before each line."""
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
            console.print(f"{prefix}line {line.line}: {line.reason}", soft_wrap=True)

    with progress:
        yield Listener(phase, done, refused)
    if refusals > SHOWN_REFUSALS:
        console.print(f"{prefix}... and {refusals - SHOWN_REFUSALS:,} more refused lines (all in --json)")


def _as_json(summaries: Mapping[str, "Summary"]) -> dict[str, object]:
    """Of one file its own summary; of several the total, and each file's."""
    from graphd.importer.job import total

    if len(summaries) == 1:
        return next(iter(summaries.values())).as_json()
    whole = total(list(summaries.values()))
    return {**whole.as_json(), "files": [{"file": name, **summary.as_json()} for name, summary in summaries.items()]}


def _told(summaries: Mapping[str, "Summary"]) -> str:
    from graphd.importer.job import total

    summary = total(list(summaries.values()))
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
        before = "" if len(summaries) == 1 else f" of {list(summaries)[-1]} or the files after it"
        lines.append(f"stopped at a refused line; nothing was imported{before}")
    return "\n".join(lines)
