"""One line of an edge list, read with care: what it says, or why it is refused. Pure.

The fast reader (blocks.py) hands over every line that is not plain digits; for plain lines the two agree (a property test holds them
together).
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Final

from graphd.importer.layout import Layout, fields_of, is_data
from graphd.limits import MAX_AHEAD_US, MAX_ID

MAX_LINE_BYTES: Final = 65_536
"""A longer line is refused unread: no edge needs it, and a binary file has no line ends."""

_DIGITS: Final = re.compile(rb"[0-9]+")
_DECIMAL: Final = re.compile(rb"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,2})?")
_SHOWN_CHARS: Final = 40
_MAX_DECIMAL_CHARS: Final = 64


@dataclass(frozen=True, slots=True)
class Refused:
    """A line that is not imported: its number in the file, counted from 1, and why."""

    line: int
    reason: str


Row = tuple[int, int, int]
"""source_id, destination_id, and the position in microseconds, 0 where the file has no times."""


class RefusedError(Exception):
    """A line says what is wrong with it."""


def read_line(line: bytes, number: int, layout: Layout, now_us: int) -> Row | Refused | None:
    """The row of one line without its line end; None for a blank line, a comment and the header."""
    stripped = line.strip()
    if not is_data(stripped) or number == layout.header_line:
        return None
    if len(line) > MAX_LINE_BYTES:
        return Refused(number, f"longer than {MAX_LINE_BYTES} bytes")
    try:
        return _read(stripped, layout, now_us)
    except RefusedError as refusal:
        return Refused(number, str(refusal))


def _read(line: bytes, layout: Layout, now_us: int) -> Row:
    if b"\r" in line:
        raise RefusedError("holds a carriage return that ends no line")
    try:
        fields = fields_of(line, layout.comma)
    except csv.Error as error:
        raise RefusedError(f"bad quoting: {error}") from error
    if len(fields) != layout.width:
        raise RefusedError(f"has {columns_told(len(fields))}, where the file has {layout.width}")
    columns = layout.columns
    source_id = id_of(fields[columns.source], "source")
    destination_id = id_of(fields[columns.destination], "destination")
    position = 0 if columns.time is None else _position(fields[columns.time], now_us)
    return source_id, destination_id, position


def columns_told(n: int) -> str:
    """Their number, in words."""
    return "1 column" if n == 1 else f"{n} columns"


def id_of(field: bytes, end: str) -> int:
    """An account's id; `end` is what the field holds. Raises RefusedError."""
    if not _DIGITS.fullmatch(field):
        if field[:1] == b"-" and _DIGITS.fullmatch(field[1:]):
            raise RefusedError(f"{end}: {shown(field)} is negative; ids are 0 to {MAX_ID}")
        raise RefusedError(f"{end}: {shown(field)} is not a whole number" if field else f"{end}: is empty")
    digits = field.lstrip(b"0")
    if len(digits) > 19 or int(digits or b"0") > MAX_ID:
        raise RefusedError(f"{end}: {shown(field)} is too large; ids are 0 to {MAX_ID}")
    return int(digits or b"0")


def _position(field: bytes, now_us: int) -> int:
    if len(field) > _MAX_DECIMAL_CHARS or not _DECIMAL.fullmatch(field):
        if field[:1] == b"-" and _DECIMAL.fullmatch(field[1:]):
            raise RefusedError(f"time: {shown(field)} is negative")
        raise RefusedError(f"time: {shown(field)} is not a number of seconds" if field else "time: is empty")
    # In decimal arithmetic and rounded once: a float of seconds cannot hold today's microseconds.
    position = int((Decimal(field.decode()) * 1_000_000).to_integral_value(ROUND_HALF_EVEN))
    if position < 1:
        raise RefusedError(f"time: {shown(field)} is before the first microsecond of 1970")
    if position > now_us + MAX_AHEAD_US:
        raise RefusedError(f"time: {shown(field)} is ahead of now; times are seconds since 1970")
    return position


def shown(field: bytes) -> str:
    """What stands in a field, cut short and safe to print."""
    text = field.decode("utf-8", "backslashreplace")
    cut = text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."
    return ascii(cut)
