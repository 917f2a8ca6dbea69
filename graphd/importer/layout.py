"""How a file's lines are cut into columns, and which column is which. Pure.

What the operator does not say is read off the first lines: the separator from the first line of data, whether that line is a header,
and how many columns a line has from most of the lines.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from graphd.errors import InvalidArgumentError

SOURCE: Final = "source"
DESTINATION: Final = "destination"
TIME: Final = "time"
SKIPPED: Final = "-"

MAX_COLUMNS: Final = 64
"""More than any edge list known; a line beyond it is no edge list."""

_COMMENTS: Final = b"#%"
_NUMBER_STARTS: Final = b"0123456789+-."


@dataclass(frozen=True, slots=True)
class Columns:
    """Which column holds what, counted from 0; `time` None: the file has no times."""

    source: int = 0
    destination: int = 1
    time: int | None = None

    @property
    def needed(self) -> int:
        """How many columns a line must have at least."""
        return 1 + max(self.source, self.destination, self.time or 0)


@dataclass(frozen=True, slots=True)
class Layout:
    """How to read a file. `comma`: separated by commas, else by runs of blanks. `width`: how many columns each line has.
    `header_line`: the number of the header's line, 0 when there is none."""

    columns: Columns
    comma: bool
    width: int
    header_line: int = 0


def parse_columns(text: str) -> Columns:
    """`source,destination,time` in any order, `-` for a column to skip. Raises InvalidArgumentError."""
    names = [name.strip().lower() for name in text.split(",")]
    for name in names:
        if name not in {SOURCE, DESTINATION, TIME, SKIPPED}:
            raise InvalidArgumentError("--columns", f"knows source, destination, time and - (skip), not {name!r}")
    if any(names.count(name) > 1 for name in (SOURCE, DESTINATION, TIME)):
        raise InvalidArgumentError("--columns", "names a column twice")
    if SOURCE not in names or DESTINATION not in names:
        raise InvalidArgumentError("--columns", "must name source and destination")
    if len(names) > MAX_COLUMNS:
        raise InvalidArgumentError("--columns", f"names more than {MAX_COLUMNS} columns")
    return Columns(names.index(SOURCE), names.index(DESTINATION), names.index(TIME) if TIME in names else None)


def is_data(line: bytes) -> bool:
    """Whether a line, stripped, is neither blank nor a comment."""
    return bool(line) and line[0] not in _COMMENTS


def fields_of(line: bytes, comma: bool) -> list[bytes]:
    """The columns of a line, each stripped; with commas a column may stand in double quotes. Raises csv.Error."""
    if not comma:
        return line.split()
    if b'"' in line:
        row = next(csv.reader([line.decode("latin-1")], skipinitialspace=True, strict=True))
        return [field.encode("latin-1").strip() for field in row]
    return [field.strip() for field in line.split(b",")]


def detect(lines: Iterable[bytes], chosen: Columns | None) -> Layout:
    """The layout of a file by its first lines. `chosen`: what --columns said, else source and destination come first unless a
    header names them."""
    data = [(number, line.strip()) for number, line in enumerate(lines, 1) if is_data(line.strip())]
    comma = bool(data) and b"," in data[0][1]
    rows = [(number, _fields_or_none(line, comma)) for number, line in data]
    columns = chosen or Columns()
    header_line = 0
    if rows and _is_header(rows[0][1], columns):
        header_line = rows[0][0]
        columns = chosen or _named(rows[0][1] or [])
    widths = Counter(
        len(fields) for number, fields in rows if fields and number != header_line and len(fields) >= columns.needed
    )
    width = widths.most_common(1)[0][0] if widths else columns.needed
    return Layout(columns, comma, width, header_line)


def _fields_or_none(line: bytes, comma: bool) -> list[bytes] | None:
    try:
        return fields_of(line, comma)
    except csv.Error:
        return None


def _is_header(fields: list[bytes] | None, columns: Columns) -> bool:
    """A first line is a header when neither end of an edge looks like a number."""
    if fields is None or len(fields) <= max(columns.source, columns.destination):
        return False
    ends = (fields[columns.source], fields[columns.destination])
    return all(field and field[0] not in _NUMBER_STARTS for field in ends)


def _named(header: list[bytes]) -> Columns:
    """A header that names both ends tells where they stand; nothing but --columns makes a column a time."""
    names = [field.decode("utf-8", "replace").lower() for field in header]
    for source, destination in ((SOURCE, DESTINATION), (SOURCE + "_id", DESTINATION + "_id")):
        if source in names and destination in names:
            return Columns(names.index(source), names.index(destination))
    return Columns()
