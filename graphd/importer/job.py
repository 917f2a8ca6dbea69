"""One import from end to end: read the file, find its position, load both directions, count."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, BinaryIO, Final

from graphd import clock
from graphd.config import Config
from graphd.edge import Direction
from graphd.errors import InvalidArgumentError
from graphd.importer.layout import Columns
from graphd.importer.lines import Refused
from graphd.importer.load import Loader, Totals
from graphd.importer.scan import Reader, Scanned, edge_reader, scan, scan_following
from graphd.importer.versions import VersionReader
from graphd.limits import MAX_AHEAD_US
from graphd.placement import check_golden
from graphd.storage.catalog import Catalog
from graphd.topology import Kind


class Format(StrEnum):
    """What the file holds: edge lists, an export of graphd, or Mastodon's following export."""

    EDGES = "edges"
    GRAPHD = "graphd"
    MASTODON = "mastodon"


READING: Final = "reading"
LOADING: Final = "loading"


@dataclass(frozen=True, slots=True)
class Request:
    """What to import. `kind` empty: the default one. `columns` None: source and destination come first, or a header names them. `position`
    in microseconds; None: that of the file's first import, or the times of the file. An export of graphd has all three in its lines.
    `handles` and `owner` (an id or a handle) belong to MASTODON: the map, and whose export it is."""

    kind: str = ""
    columns: Columns | None = None
    position: int | None = None
    stop_at_refused: bool = False
    format: Format = Format.EDGES
    handles: BinaryIO | None = None
    owner: str = ""

    @property
    def has_times(self) -> bool:
        """Whether rows have positions of their own."""
        return self.format is Format.GRAPHD or (self.columns is not None and self.columns.time is not None)


@dataclass(frozen=True, slots=True)
class Summary:
    """How it ended. `read` = added + updated + unchanged + self_loops + duplicates + refused, unless it was `stopped` at a refused line,
    with nothing imported. `kind`: of several the names, parted by commas. `position` in microseconds, None where rows have their own.
    `refused_lines` holds the first 100,000."""

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


def total(summaries: Sequence[Summary]) -> Summary:
    """Of several files, without their refused lines, whose numbers mean nothing without the file. `over_limit` is the greatest: each counts
    all accounts."""
    positions = {summary.position for summary in summaries}
    kinds = {kind: None for summary in summaries for kind in summary.kind.split(",") if kind}
    return Summary(
        kind=",".join(kinds),
        read=sum(summary.read for summary in summaries),
        added=sum(summary.added for summary in summaries),
        updated=sum(summary.updated for summary in summaries),
        unchanged=sum(summary.unchanged for summary in summaries),
        self_loops=sum(summary.self_loops for summary in summaries),
        duplicates=sum(summary.duplicates for summary in summaries),
        refused=sum(summary.refused for summary in summaries),
        refused_lines=[],
        position=positions.pop() if len(positions) == 1 else None,
        over_limit=max(summary.over_limit for summary in summaries),
        stopped=summaries[-1].stopped,
    )


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
    now_us = clock.now_us()
    _check(request, now_us)
    listener = listener or Listener()
    catalog = Catalog(config.catalog_conninfo())
    view = await catalog.load()
    several = request.format is Format.GRAPHD
    kinds = list(view.topology.kinds.values()) if several else [view.topology.kind(request.kind)]
    async with Loader(config, catalog, view) as loader:
        listener.phase(READING, None)
        scanned = await _scan(file, request, listener, kinds, now_us)
        try:
            if scanned.stopped:
                return _summary(scanned)
            position = request.position
            if position is None and not request.has_times:
                position = await catalog.import_position(scanned.sha256, kinds[0].number, now_us)
            listener.phase(LOADING, 2 * (scanned.read - scanned.refused - scanned.self_loops))
            return await _load(loader, scanned, position, listener)
        finally:
            scanned.close()


async def _load(loader: Loader, scanned: Scanned, position: int | None, listener: Listener) -> Summary:
    """Forward halves first, whatever their kind."""
    loaded = Totals()
    over_limit = 0
    kinds = [kind for kind in scanned.kinds if kind.number in scanned.parts]
    for kind in kinds:
        loaded += await loader.load(
            Direction.FORWARD, kind, scanned.parts[kind.number].forward, position or 0, listener.done
        )
    for kind in kinds:
        part = scanned.parts[kind.number]
        await loader.load(Direction.REVERSE, kind, part.reverse, position or 0, listener.done)
        assert part.forward.doubles == part.reverse.doubles, "both directions hold the same pairs"
        over_limit += await loader.over_limit(kind)
    return _summary(scanned, loaded, position, over_limit)


class _CancelledError(Exception):
    """Ends the reading thread; nobody hears of it."""


async def _scan(file: BinaryIO, request: Request, listener: Listener, kinds: Sequence[Kind], now_us: int) -> Scanned:
    """The whole file, read in a thread, which ends soon after the caller was cancelled: a process waits for its threads before it ends."""
    cancelled = False

    def told_bytes(n: int) -> None:
        if cancelled:
            raise _CancelledError
        listener.done(n)

    how: dict[str, Any] = {
        "stop_at_refused": request.stop_at_refused,
        "told_bytes": told_bytes,
        "told_refused": listener.refused,
    }
    try:
        if request.format is Format.MASTODON:
            assert request.handles is not None
            return await asyncio.to_thread(scan_following, file, request.handles, request.owner, kinds[0], **how)
        if request.format is Format.GRAPHD:
            reader: Reader = VersionReader({kind.name: kind.number for kind in kinds}, now_us)
        else:
            reader = edge_reader(request.columns, now_us)
        return await asyncio.to_thread(scan, file, reader, kinds, **how)
    except asyncio.CancelledError:
        cancelled = True
        raise


def _check(request: Request, now_us: int) -> None:
    if request.format is Format.GRAPHD:
        for option, said in (("--kind", request.kind), ("--position", request.position)):
            if said:
                raise InvalidArgumentError(option, "cannot stand beside --format graphd: each edge has its own")
    if request.columns is not None and request.format is not Format.EDGES:
        raise InvalidArgumentError("--columns", "belongs to --format edges")
    if (request.format is Format.MASTODON) != (request.handles is not None):
        raise InvalidArgumentError("--map", "is needed with --format mastodon, and belongs to it")
    if (request.format is Format.MASTODON) != bool(request.owner):
        raise InvalidArgumentError("--owner", "is needed with --format mastodon, and belongs to it: whose export it is")
    if request.position is None:
        return
    if request.has_times:
        raise InvalidArgumentError("--position", "cannot stand beside a time column: each row has its own")
    if not 1 <= request.position <= now_us + MAX_AHEAD_US:
        raise InvalidArgumentError("--position", "must be microseconds since 1970, from 1 to now")


def _summary(
    scanned: Scanned, loaded: Totals | None = None, position: int | None = None, over_limit: int = 0
) -> Summary:
    loaded = loaded or Totals()
    found = [kind.name for kind in scanned.kinds if kind.number in scanned.parts or len(scanned.kinds) == 1]
    return Summary(
        kind=",".join(found),
        read=scanned.read,
        added=loaded.added,
        updated=loaded.updated,
        unchanged=loaded.unchanged,
        self_loops=scanned.self_loops,
        # Told apart while they were loaded.
        duplicates=scanned.duplicates,
        refused=scanned.refused,
        refused_lines=scanned.refused_lines,
        position=position,
        over_limit=over_limit,
        stopped=scanned.stopped,
    )
