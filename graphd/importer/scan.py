"""Reading a file: bytes to lines to rows, into two sorters for each kind, one for each direction.

The file is read once: its checksum is taken of the bytes as they are, gzip is undone, rows are sorted and doubles told apart. Nothing is
written to a shard before the whole file has been read, so a file that cannot be read changes nothing.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, BinaryIO, Final

from graphd.edge import Direction
from graphd.errors import GraphdError, InvalidArgumentError
from graphd.importer.blocks import Ints, Rows, read_block
from graphd.importer.layout import Columns, Layout, detect
from graphd.importer.lines import MAX_LINE_BYTES, Refused
from graphd.importer.mastodon import MAX_FILE_BYTES, Following, handle_of, read_map
from graphd.importer.runs import RUN_ROWS, SortedRuns, temporary_file
from graphd.limits import MAX_ID
from graphd.topology import Kind

BLOCK_BYTES: Final = 1 << 20
"""Text read at a time: some 80,000 lines, 40 MB of columns while it is cut."""

SAMPLE_LINES: Final = 2_000
"""Lines looked at to tell how the file is laid out."""

MAX_KEPT_REFUSALS: Final = 100_000
"""Refused lines kept for the summary; further ones are counted."""

HELD_ROWS: Final = 2 * RUN_ROWS
"""Rows in memory of all kinds and both directions together: 16 MB without versions."""

HELD_WHOLE_ROWS: Final = RUN_ROWS
"""The same of edges with whole versions, which take 40 bytes a row: 20 MB."""

_WHOLE: Final = 5
"""Columns of an edge with its whole version."""

_GZIP: Final = b"\x1f\x8b"
_BOM: Final = b"\xef\xbb\xbf"


class UnreadableFileError(GraphdError):
    """The file cannot be read to its end: nothing was imported."""


Reader = Callable[[bytes, int], Rows]
"""(whole lines, how many came before) -> what they say. The first block has at least the first lines of the file."""


@dataclass(slots=True)
class Sorted:
    """The edges of one kind, in the order of either end."""

    forward: SortedRuns
    reverse: SortedRuns


@dataclass(slots=True)
class Scanned:
    """What a file holds; `parts` by the number of the kind. `read` counts its lines of data; `sha256` names the file, for its position.
    It owns one temporary file."""

    kinds: Sequence[Kind]
    parts: dict[int, Sorted] = field(default_factory=dict)
    read: int = 0
    self_loops: int = 0
    refused: int = 0
    refused_lines: list[Refused] = field(default_factory=list)
    sha256: str = ""
    stopped: bool = False
    _file: IO[bytes] = field(default_factory=temporary_file)

    @property
    def duplicates(self) -> int:
        """Final when all has been read from the sorters."""
        return sum(part.forward.doubles for part in self.parts.values())

    def close(self) -> None:
        """Give the temporary file back."""
        self._file.close()

    def take(self, rows: Rows, told_refused: Callable[[Refused], None]) -> None:
        """Sort what a block says into its parts. Raises OSError when the temporary folder is full."""
        self.read += len(rows.source_id) + len(rows.refused)
        self.refused += len(rows.refused)
        for refused in rows.refused:
            told_refused(refused)
        self.refused_lines += rows.refused[: MAX_KEPT_REFUSALS - len(self.refused_lines)]
        for kind in self.kinds:
            if rows.kind is None:
                self._add(kind, rows.columns)
            elif (mine := rows.kind == kind.number).any():
                self._add(kind, [column[mine] for column in rows.columns])
        self._spill(HELD_WHOLE_ROWS if len(rows.columns) == _WHOLE else HELD_ROWS)

    def _add(self, kind: Kind, columns: Sequence[Ints]) -> None:
        source_id, destination_id, *version = columns
        loops = source_id == destination_id
        if not kind.allow_self and loops.any():
            self.self_loops += int(loops.sum())
            source_id, destination_id, *version = (column[~loops] for column in columns)
        if kind.number not in self.parts:
            forward, reverse = (SortedRuns(len(columns), file=self._file) for _ in Direction)
            self.parts[kind.number] = Sorted(forward, reverse)
        part = self.parts[kind.number]
        part.forward.add(source_id, destination_id, *version)
        part.reverse.add(destination_id, source_id, *version)

    def _spill(self, most: int) -> None:
        """Memory does not grow with the number of kinds."""
        sorters = [sorter for part in self.parts.values() for sorter in (part.forward, part.reverse)]
        if sum(sorter.held for sorter in sorters) > most:
            for sorter in sorters:
                sorter.spill()


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
    reader: Reader,
    kinds: Sequence[Kind],
    *,
    stop_at_refused: bool,
    told_bytes: Callable[[int], None] = lambda n: None,
    told_refused: Callable[[Refused], None] = lambda refused: None,
) -> Scanned:
    """Read everything. `kinds`: the one of all edges, or, where the reader tells each edge's kind, all it may tell. `told_bytes` hears how
    many bytes were read, `told_refused` of each refused line in the file's order.

    Blocks; run it in a thread. Raises UnreadableFileError, OSError."""
    scanned = Scanned(kinds)
    try:
        lines = 0
        with opened(file, told_bytes) as (text, counted):
            for block in _blocks(text):
                rows = reader(block, lines)
                lines += rows.lines
                if stop_at_refused:
                    del rows.refused[1:]
                scanned.take(rows, told_refused)
                if stop_at_refused and scanned.refused:
                    scanned.stopped = True
                    return scanned
        scanned.sha256 = counted.hash.hexdigest()
    except BaseException:
        scanned.close()
        raise
    return scanned


def edge_reader(columns: Columns | None, now_us: int) -> Reader:
    """Reads edge lists. `columns` None: as the first lines have them."""
    layout: Layout | None = None

    def read(block: bytes, lines_before: int) -> Rows:
        nonlocal layout
        if layout is None:
            layout = detect(block.split(b"\n", SAMPLE_LINES)[:SAMPLE_LINES], columns)
        return read_block(block, lines_before, layout, now_us)

    return read


def scan_following(
    file: BinaryIO,
    handles: BinaryIO,
    owner: str,
    kind: Kind,
    *,
    stop_at_refused: bool,
    told_bytes: Callable[[int], None] = lambda n: None,
    told_refused: Callable[[Refused], None] = lambda refused: None,
) -> Scanned:
    """Read Mastodon's following export of the account `owner`, a handle or an id, with a map from handles to ids. Rows have positions that
    count down from 0, to be added to that of the file.

    Blocks; run it in a thread. Raises UnreadableFileError, InvalidArgumentError, OSError."""
    with opened(file, told_bytes) as (text, counted):
        data = text.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise InvalidArgumentError("FILE", f"must have at most {MAX_FILE_BYTES >> 20} MB, as Mastodon has it")
    following = Following(data.removeprefix(_BOM))
    with opened(handles, lambda n: None) as (text, _):
        ids = read_map(text, {*following.handles.values(), handle_of(owner)})
    owner_id = _account(owner, ids)
    rows = following.rows(owner_id, ids)
    if stop_at_refused:
        del rows.refused[1:]
    # Two accounts may follow the same: their files are equal, and yet two.
    name = hashlib.sha256(counted.hash.digest() + owner_id.to_bytes(8)).hexdigest()
    scanned = Scanned([kind], sha256=name, stopped=stop_at_refused and bool(rows.refused))
    try:
        scanned.take(rows, told_refused)
    except BaseException:
        scanned.close()
        raise
    return scanned


def _account(owner: str, ids: Mapping[str, int]) -> int:
    """The id of whose export it is."""
    if owner.isascii() and owner.isdigit() and int(owner[:20]) <= MAX_ID:
        return int(owner)
    if handle_of(owner) not in ids:
        raise InvalidArgumentError("--owner", "must be an account's id, or a handle that the map knows")
    return ids[handle_of(owner)]


@contextmanager
def opened(file: BinaryIO, told_bytes: Callable[[int], None]) -> Iterator[tuple[BinaryIO, _Counted]]:
    """The text of a file, plain or gzip, and the bytes on their way. Raises UnreadableFileError."""
    begun = file.read(len(_GZIP))
    counted = _Counted(file, begun, told_bytes)
    raw = io.BufferedReader(counted, BLOCK_BYTES)
    try:
        yield gzip.GzipFile(fileobj=raw, mode="rb") if begun == _GZIP else raw, counted  # type: ignore[misc]
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UnreadableFileError("the file is damaged or cut off: its gzip data do not end as they should") from error


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
