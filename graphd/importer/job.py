"""One import from end to end: read the file, find its position, load both directions, count."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final

from graphd import clock
from graphd.config import Config
from graphd.edge import Direction
from graphd.errors import InvalidArgumentError
from graphd.importer.layout import Columns
from graphd.importer.lines import Refused
from graphd.importer.load import Loader
from graphd.importer.scan import Scanned, scan
from graphd.limits import MAX_AHEAD_US
from graphd.placement import check_golden
from graphd.storage.catalog import Catalog

READING: Final = "reading"
LOADING: Final = "loading"


@dataclass(frozen=True, slots=True)
class Request:
    """What to import. `kind` empty: the default one. `columns` None: source and destination come first, or a header names them.
    `position` in microseconds; None: that of the file's first import, or the times of the file."""

    kind: str = ""
    columns: Columns | None = None
    position: int | None = None
    stop_at_refused: bool = False


@dataclass(frozen=True, slots=True)
class Summary:
    """How it ended. `read` = added + updated + unchanged + self_loops + duplicates + refused, unless it was `stopped` at a refused line,
    with nothing imported. `position` in microseconds, None where rows have their own. `refused_lines` holds the first 100,000."""

    kind: str
    read: int
    added: int
    updated: int
    unchanged: int
    self_loops: int
    duplicates: int
    refused: int
    refused_lines: list[Refused]
    position: int | None
    over_limit: int
    stopped: bool

    def as_json(self) -> dict[str, Any]:
        """For scripts; positions are strings, as every 64-bit number in proto JSON."""
        return {
            "kind": self.kind,
            "read": self.read,
            "added": self.added,
            "updated": self.updated,
            "unchanged": self.unchanged,
            "self_loops": self.self_loops,
            "duplicates": self.duplicates,
            "refused": self.refused,
            "refused_lines": [{"line": refused.line, "reason": refused.reason} for refused in self.refused_lines],
            "position": None if self.position is None else str(self.position),
            "over_limit": self.over_limit,
            "stopped": self.stopped,
        }


@dataclass(frozen=True, slots=True)
class Listener:
    """Who hears how it goes on. `phase`: READING in bytes of the file, or LOADING with the number of halves there are to load.
    `read` is called from another thread."""

    phase: Callable[[str, int | None], None] = field(default=lambda name, total: None)
    done: Callable[[int], None] = field(default=lambda n: None)
    refused: Callable[[Refused], None] = field(default=lambda refused: None)


async def run(config: Config, file: BinaryIO, request: Request, listener: Listener | None = None) -> Summary:
    """Import a file of edges into the cluster.

    Raises InvalidArgumentError for a request that makes no sense, UnreadableFileError, CatalogUnavailableError, ShardUnavailableError,
    StalePlacementError, StartError, OSError. After an error or a kill at any moment the same import can be run again: it ends as if it
    had run once.
    """
    check_golden()
    listener = listener or Listener()
    catalog = Catalog(config.catalog_conninfo())
    view = await catalog.load()
    kind = view.topology.kind(request.kind)
    now_us = clock.now_us()
    _check(request, now_us)
    async with Loader(config, catalog, view, kind) as loader:
        listener.phase(READING, None)
        scanned = await _scan(file, request, listener, allow_self=kind.allow_self, now_us=now_us)
        try:
            if scanned.stopped:
                return _summary(kind.name, scanned)
            position = request.position
            if position is None and not scanned.has_times:
                position = await catalog.import_position(scanned.sha256, kind.number, now_us)
            listener.phase(LOADING, 2 * (scanned.read - scanned.refused - scanned.self_loops))
            forward = await loader.load(Direction.FORWARD, scanned.forward, position or 0, listener.done)
            await loader.load(Direction.REVERSE, scanned.reverse, position or 0, listener.done)
            assert scanned.forward.doubles == scanned.reverse.doubles, "both directions hold the same pairs"
            return _summary(
                kind.name,
                scanned,
                added=forward.added,
                updated=forward.updated,
                unchanged=forward.unchanged,
                duplicates=scanned.forward.doubles,
                position=position,
                over_limit=await loader.over_limit(),
            )
        finally:
            scanned.close()


class _CancelledError(Exception):
    """Ends the reading thread; nobody hears of it."""


async def _scan(file: BinaryIO, request: Request, listener: Listener, *, allow_self: bool, now_us: int) -> Scanned:
    """`scan` in a thread, which ends soon after the caller was cancelled: a process waits for its threads before it ends."""
    cancelled = False

    def told_bytes(n: int) -> None:
        if cancelled:
            raise _CancelledError
        listener.done(n)

    try:
        return await asyncio.to_thread(
            scan,
            file,
            request.columns,
            allow_self=allow_self,
            stop_at_refused=request.stop_at_refused,
            now_us=now_us,
            told_bytes=told_bytes,
            told_refused=listener.refused,
        )
    except asyncio.CancelledError:
        cancelled = True
        raise


def _check(request: Request, now_us: int) -> None:
    if request.position is None:
        return
    if request.columns is not None and request.columns.time is not None:
        raise InvalidArgumentError("--position", "cannot stand beside a time column: each row has its own")
    if not 1 <= request.position <= now_us + MAX_AHEAD_US:
        raise InvalidArgumentError("--position", "must be microseconds since 1970, from 1 to now")


def _summary(
    kind: str,
    scanned: Scanned,
    *,
    added: int = 0,
    updated: int = 0,
    unchanged: int = 0,
    duplicates: int = 0,
    position: int | None = None,
    over_limit: int = 0,
) -> Summary:
    return Summary(
        kind=kind,
        read=scanned.read,
        added=added,
        updated=updated,
        unchanged=unchanged,
        self_loops=scanned.self_loops,
        duplicates=duplicates,
        refused=scanned.refused,
        refused_lines=scanned.refused_lines,
        position=position,
        over_limit=over_limit,
        stopped=scanned.stopped,
    )
