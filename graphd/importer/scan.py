"""Reading a file: bytes to lines to rows, into two sorters, one for each direction.

The file is read once: its checksum is taken of the bytes as they are, gzip is undone, rows are sorted and doubles told apart. Nothing is
written to a shard before the whole file has been read, so a file that cannot be read changes nothing.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, Final

from graphd.errors import GraphdError
from graphd.importer.blocks import Rows, read_block
from graphd.importer.layout import Columns, Layout, detect
from graphd.importer.lines import MAX_LINE_BYTES, Refused
from graphd.importer.runs import SortedRuns

BLOCK_BYTES: Final = 1 << 20
"""Text read at a time: some 80,000 lines, 40 MB of columns while it is cut."""

SAMPLE_LINES: Final = 2_000
"""Lines looked at to tell how the file is laid out."""

MAX_KEPT_REFUSALS: Final = 100_000
"""Refused lines kept for the summary; further ones are counted."""

_GZIP: Final = b"\x1f\x8b"
_BOM: Final = b"\xef\xbb\xbf"


class UnreadableFileError(GraphdError):
    """The file cannot be read to its end: nothing was imported."""


@dataclass(slots=True)
class Scanned:
    """What a file holds. `read` counts its lines of data; `sha256` is of the file's bytes. The sorters own temporary files."""

    forward: SortedRuns
    reverse: SortedRuns
    has_times: bool = False
    read: int = 0
    self_loops: int = 0
    refused: int = 0
    refused_lines: list[Refused] = field(default_factory=list)
    sha256: str = ""
    stopped: bool = False

    def close(self) -> None:
        """Give the temporary files back."""
        self.forward.close()
        self.reverse.close()


class _Counted(io.RawIOBase):
    """The file's bytes on their way, hashed and counted."""

    def __init__(self, file: BinaryIO, begun: bytes, told: Callable[[int], None]) -> None:
        self._file, self._begun, self._told = file, begun, told
        self.hash = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        data = self._begun[: len(buffer)] or self._file.read(len(buffer))
        self._begun = self._begun[len(data) :] if self._begun else b""
        buffer[: len(data)] = data
        self.hash.update(data)
        self._told(len(data))
        return len(data)


def scan(
    file: BinaryIO,
    columns: Columns | None,
    *,
    allow_self: bool,
    stop_at_refused: bool,
    now_us: int,
    told_bytes: Callable[[int], None] = lambda n: None,
    told_refused: Callable[[Refused], None] = lambda refused: None,
) -> Scanned:
    """Read everything. `told_bytes` hears how many bytes were read, `told_refused` of each refused line in the file's order.

    Blocks; run it in a thread. Raises UnreadableFileError, OSError."""
    width = 3 if columns is not None and columns.time is not None else 2
    scanned = Scanned(SortedRuns(width), SortedRuns(width), has_times=width == 3)
    try:
        _scan(scanned, file, columns, allow_self, stop_at_refused, now_us, told_bytes, told_refused)
    except BaseException:
        scanned.close()
        raise
    return scanned


def _scan(
    scanned: Scanned,
    file: BinaryIO,
    columns: Columns | None,
    allow_self: bool,
    stop_at_refused: bool,
    now_us: int,
    told_bytes: Callable[[int], None],
    told_refused: Callable[[Refused], None],
) -> None:
    begun = file.read(len(_GZIP))
    counted = _Counted(file, begun, told_bytes)
    raw = io.BufferedReader(counted, BLOCK_BYTES)
    text: BinaryIO = gzip.GzipFile(fileobj=raw, mode="rb") if begun == _GZIP else raw  # type: ignore[assignment]
    layout: Layout | None = None
    lines = 0
    try:
        for block in _blocks(text):
            if layout is None:
                layout = detect(block.split(b"\n", SAMPLE_LINES)[:SAMPLE_LINES], columns)
            rows = read_block(block, lines, layout, now_us)
            lines += rows.lines
            if stop_at_refused:
                del rows.refused[1:]
            _take(scanned, rows, allow_self, told_refused)
            if stop_at_refused and scanned.refused:
                scanned.stopped = True
                return
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UnreadableFileError("the file is damaged or cut off: its gzip data do not end as they should") from error
    scanned.sha256 = counted.hash.hexdigest()


def _take(scanned: Scanned, rows: Rows, allow_self: bool, told_refused: Callable[[Refused], None]) -> None:
    scanned.read += len(rows.source_id) + len(rows.refused)
    scanned.refused += len(rows.refused)
    for refused in rows.refused:
        told_refused(refused)
    scanned.refused_lines += rows.refused[: MAX_KEPT_REFUSALS - len(scanned.refused_lines)]
    source_id, destination_id, position = rows.source_id, rows.destination_id, rows.position
    loops = source_id == destination_id
    if not allow_self and loops.any():
        scanned.self_loops += int(loops.sum())
        source_id, destination_id = source_id[~loops], destination_id[~loops]
        position = position[~loops] if position is not None else None
    times = () if position is None else (position,)
    scanned.forward.add(source_id, destination_id, *times)
    scanned.reverse.add(destination_id, source_id, *times)


def _blocks(text: BinaryIO) -> Iterator[bytes]:
    """Whole lines, about BLOCK_BYTES at a time; of a line that is too long only as much as shows that it is."""
    rest = b""
    first = True
    while data := text.read(BLOCK_BYTES):
        if first:
            data, first = data.removeprefix(_BOM), False
        end = data.rfind(b"\n") + 1
        if end:
            yield rest + data[:end]
            rest = data[end:]
        else:
            rest += data
        if len(rest) > MAX_LINE_BYTES:
            # Nothing that is kept of it may pass for the whole line; whether it is a comment must be kept.
            rest = (b"#" if rest.lstrip()[:1] in (b"#", b"%") else b"\0") * (MAX_LINE_BYTES + 1)
    if rest:
        yield rest
