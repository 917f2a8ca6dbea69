"""`graphd export`: every edge as text, a file for each shard."""

import gzip
import os
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final

import typer

from graphd.cli.common import ConfigOption, DataOption, MisuseError, examples, load_config, run, say, spoken_errors
from graphd.cli.graph import StateName

if TYPE_CHECKING:
    from graphd.config import Config
    from graphd.edge import State

COMPRESSION: Final = 1
"""Edges shrink to a third already; more would cost five times the time for a tenth of the bytes."""


def export(
    directory: Annotated[
        str, typer.Argument(metavar="DIR|-", help="A folder, made if need be; - is standard output, plain.")
    ],
    kind: Annotated[str, typer.Option("--kind", help="Only edges of this kind.  [default: all]")] = "",
    state: Annotated[
        StateName | None,
        typer.Option("--state", case_sensitive=False, help="Only edges in this state.  [default: all]"),
    ] = None,
    config: ConfigOption = None,
    data: DataOption = None,
) -> None:
    """Write every edge: source, destination, kind, state, position and since, parted by tabs, after a line of comment and one of names.

    A folder gets a file SHARD.edges.gz for each shard, which stands under its name only when it is whole. Each file is one snapshot of its
    shard; two shards' snapshots are taken one after the other. Rows that only say that an operation was refused are not edges.
    """
    with spoken_errors():
        settings = load_config(config, data)
        from graphd.edge import State

        run(_export(settings, directory, kind, State[state.name] if state is not None else None))


async def _export(settings: "Config", directory: str, kind_name: str, state: "State | None") -> None:
    from graphd.storage.catalog import Catalog
    from graphd.storage.dump import HEADER, dump

    view = await Catalog(settings.catalog_conninfo()).load()
    kind = view.topology.kind(kind_name, "--kind") if kind_name else None
    folder = None if directory == "-" else _folder(directory)
    for at, name in enumerate(view.topology.shards):
        lines = dump(settings.shard_conninfo(name), view.identities[name], view.topology.kinds.values(), kind, state)
        if folder is None:
            await _write(sys.stdout.buffer, HEADER if at == 0 else b"", lines)
            continue
        with _whole(folder / f"{name}.edges.gz") as file:
            count = await _write(file, HEADER, lines)
        say(f"{name}: {count:,} edges")


async def _write(file: BinaryIO, header: bytes, lines: AsyncGenerator[bytes, None]) -> int:
    """Answers how many lines of edges were written."""
    count = 0
    file.write(header)
    async with aclosing(lines):
        async for block in lines:
            file.write(block)
            count += block.count(b"\n")
    file.flush()
    return count


def _folder(name: str) -> Path:
    path = Path(name)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise MisuseError(f"cannot write to {name}: {fault.strerror}") from fault
    return path


@contextmanager
def _whole(path: Path) -> Iterator[BinaryIO]:
    """A compressed file that gets its name when all of it is on the disk; nothing is left of one that failed."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as raw:
            # Without a time in its head the same edges make the same bytes.
            with gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=COMPRESSION, filename="", mtime=0) as file:
                yield file  # type: ignore[misc]
            raw.flush()
            os.fsync(raw.fileno())
        part.replace(path)
    except OSError as fault:
        say(f"cannot write {path.name}: {fault.strerror or type(fault).__name__}")
        raise typer.Exit(1) from fault
    finally:
        part.unlink(missing_ok=True)


def add_to(app: typer.Typer) -> None:
    """This command."""
    app.command(
        epilog=examples("graphd export backup/", "graphd export --kind follow --state active - | gzip > follows.gz")
    )(export)
