"""A block of whole lines, read column by column in numpy; what is not plain goes line by line to lines.py. Pure.

A plain line has the file's number of columns, ids of up to 19 digits, and a time of up to 17 digits with at most six behind the
point. About 0.2 us a line, a tenth of what a loop over lines takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from graphd.importer.layout import Columns, Layout
from graphd.importer.lines import MAX_LINE_BYTES, Refused, read_line
from graphd.limits import MAX_AHEAD_US, MAX_ID

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]

_PLAIN_ID_DIGITS: Final = 19  # which fit into 64 bits without a sign
_PLAIN_TIME_CHARS: Final = 17
_FRACTION_DIGITS: Final = 6
_POWERS: Final = 10 ** np.arange(_FRACTION_DIGITS + 1, dtype=np.int64)
_ZERO, _POINT, _NEWLINE = ord("0"), ord("."), ord("\n")

_DIGIT, _SEPARATOR, _END, _OTHER = 0, 1, 2, 3


def _classes(separators: bytes) -> Bytes:
    table = np.full(256, _OTHER, dtype=np.uint8)
    table[[ord(c) for c in "0123456789"]] = _DIGIT
    table[list(separators)] = _SEPARATOR
    table[_NEWLINE] = _END
    return table


_BY_BLANKS: Final = _classes(b" \t")
_BY_COMMAS: Final = _classes(b",")


@dataclass(frozen=True, slots=True)
class Rows:
    """What a block says: columns of shape (n,), the refused lines, and how many lines the block has. `position` is None where the file
    has no times, the others where it has no whole versions."""

    source_id: Ints
    destination_id: Ints
    position: Ints | None
    refused: list[Refused]
    lines: int
    kind: Ints | None = None
    state: Ints | None = None
    since: Ints | None = None

    @property
    def columns(self) -> list[Ints]:
        """What is told of each edge: source, destination and, where there is one, its version."""
        found = (self.source_id, self.destination_id, self.position, self.state, self.since)
        return [column for column in found if column is not None]


@dataclass(frozen=True, slots=True)
class _Cut:
    """A block cut into lines and fields: `first[i]` is the first field of line i, fields lie at `start`..`end` of `text`."""

    text: Bytes
    line_start: Ints
    line_end: Ints
    start: Ints
    end: Ints
    first: Ints
    others: npt.NDArray[np.int32]


def read_block(block: bytes, lines_before: int, layout: Layout, now_us: int) -> Rows:
    """Read whole lines, the last with or without its line end. `lines_before`: how many lines of the file came before."""
    if not block.endswith(b"\n"):
        block += b"\n"
    if b"\r" in block:
        block = block.replace(b"\r\n", b"\n")
    if layout.comma and b", " in block:
        block = block.replace(b", ", b",")
    cut = _cut(np.frombuffer(block, dtype=np.uint8), layout.comma)
    plain, values = _plain(cut, layout, now_us)
    has_header = 0 < layout.header_line - lines_before <= len(plain)
    if has_header:
        plain[layout.header_line - lines_before - 1] = False
    rows, refused = [], []
    for i in np.flatnonzero(~plain).tolist():
        read = read_line(block[cut.line_start[i] : cut.line_end[i]], lines_before + i + 1, layout, now_us)
        if isinstance(read, Refused):
            refused.append(read)
        elif read is not None:
            rows.append(read)
    by_hand = np.array(rows, dtype=np.int64).reshape(-1, 3)
    source_id, destination_id, position = (
        np.concatenate((column[plain], by_hand[:, i])) if column is not None else None
        for i, column in enumerate(values)
    )
    assert source_id is not None
    assert destination_id is not None
    return Rows(source_id, destination_id, position, refused, len(plain))


def _cut(text: Bytes, comma: bool) -> _Cut:
    kind = (_BY_COMMAS if comma else _BY_BLANKS)[text]
    inside = (kind == _DIGIT) | (kind == _OTHER)
    # A field begins and ends where `inside` changes; every block ends outside, with a line end.
    edges = np.flatnonzero(np.diff(inside, prepend=False))
    start, end = edges[::2], edges[1::2]
    line_end = np.flatnonzero(kind == _END)
    line_start = np.concatenate(([0], line_end[:-1] + 1))
    others = np.concatenate(([0], np.cumsum(kind == _OTHER, dtype=np.int32)))
    return _Cut(text, line_start, line_end, start, end, np.searchsorted(start, line_start), others)


def _plain(cut: _Cut, layout: Layout, now_us: int) -> tuple[Mask, tuple[Ints, Ints, Ints | None]]:
    """Which lines are plain, and the three columns of all lines; what stands there for the other lines means nothing."""
    columns: Columns = layout.columns
    fields = np.diff(cut.first, append=len(cut.start))
    plain = (fields == layout.width) & (cut.line_end - cut.line_start <= MAX_LINE_BYTES)
    if layout.comma:
        # As many commas as gaps between fields: then there is just one in each, and none at either end.
        commas = np.concatenate(([0], np.cumsum(cut.text == ord(","), dtype=np.int32)))
        plain &= commas[cut.line_end] - commas[cut.line_start] == layout.width - 1
    if not plain.any():
        nothing = np.zeros(len(plain), dtype=np.int64)
        return plain, (nothing, nothing, None if columns.time is None else nothing)
    # Lines of another width borrow the fields of a plain one, so that every array has a field for every line.
    first = np.where(plain, cut.first, cut.first[np.argmax(plain)])
    plain &= ~np.isin(cut.text[cut.start[first]], np.frombuffer(b"#%", dtype=np.uint8))
    source_id = _ids(cut, first + columns.source, plain)
    destination_id = _ids(cut, first + columns.destination, plain)
    if columns.time is None:
        return plain, (source_id, destination_id, None)
    position = _positions(cut, first + columns.time, plain)
    plain &= (position >= 1) & (position <= now_us + MAX_AHEAD_US)
    return plain, (source_id, destination_id, position)


def _ids(cut: _Cut, field: Ints, plain: Mask) -> Ints:
    """The fields as numbers; takes lines out of `plain` whose field is not plain digits."""
    start, end = cut.start[field], cut.end[field]
    length = end - start
    plain &= (cut.others[end] == cut.others[start]) & (length <= _PLAIN_ID_DIGITS)
    value = np.zeros(len(field), dtype=np.uint64)
    for i in range(_longest(length, plain)):
        digit = cut.text[np.minimum(start + i, len(cut.text) - 1)] - np.uint8(_ZERO)
        value = np.where(i < length, value * np.uint64(10) + digit, value)
    plain &= value <= MAX_ID
    return value.view(np.int64)


def _positions(cut: _Cut, field: Ints, plain: Mask) -> Ints:
    """Seconds as microseconds; takes lines out of `plain` whose field is not plain."""
    start, end = cut.start[field], cut.end[field]
    length = end - start
    plain &= length <= _PLAIN_TIME_CHARS
    value = np.zeros(len(field), dtype=np.int64)
    fraction = np.full(len(field), -1, dtype=np.int64)
    points = np.zeros(len(field), dtype=np.int64)
    for i in range(_longest(length, plain)):
        byte = cut.text[np.minimum(start + i, len(cut.text) - 1)]
        here = i < length
        point = here & (byte == _POINT)
        digit = here & ~point
        value = np.where(digit, value * 10 + (byte - np.uint8(_ZERO)), value)
        fraction += (digit & (fraction >= 0)) | point
        points += point
    fraction = np.maximum(fraction, 0)
    plain &= (points <= 1) & (cut.others[end] - cut.others[start] == points) & (length > points)
    # At most 17 characters in all: scaled to microseconds it stays under 2^63 if the whole part has at most 12 digits.
    plain &= (fraction <= _FRACTION_DIGITS) & (length - points - fraction <= 12)
    scale = _POWERS[np.clip(_FRACTION_DIGITS - fraction, 0, _FRACTION_DIGITS)]
    scaled: Ints = np.where(plain, value, 0) * scale
    return scaled


def _longest(length: Ints, plain: Mask) -> int:
    return int(length[plain].max()) if plain.any() else 0
