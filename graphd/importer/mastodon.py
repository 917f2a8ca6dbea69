"""Mastodon's following export: whom one account follows, as handles, without times.

What Mastodon and its kin write (facts: app/models/export.rb and form/import.rb at 03006bd and 0dbb2d2; GoToSocial writes two columns,
Misskey one): UTF-8, commas, a header or none, the column `Account address` first unless the header has it elsewhere, other columns that
do not matter, `@` before a handle or not, the newest relation first. Blank lines are skipped.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from typing import BinaryIO, Final

import numpy as np

from graphd.errors import InvalidArgumentError
from graphd.importer.blocks import Rows
from graphd.importer.lines import MAX_LINE_BYTES, Refused, RefusedError, shown
from graphd.limits import MAX_ID

ADDRESS: Final = "account address"
_KNOWN: Final = {ADDRESS, "show boosts", "notify on new posts", "languages", "hide notifications"}

MAX_FILE_BYTES: Final = 20 * 1024 * 1024
"""As much as Mastodon itself takes. The file is held in memory while the map is read, so that the map may be of any size."""

MAX_LINES: Final = 100_000
"""Five times what Mastodon itself takes."""


def handle_of(text: str) -> str:
    """A handle as it is compared: no `@` in front, no blanks around, and of either case, which Mastodon does not tell apart."""
    return text.strip().removeprefix("@").strip().casefold()


class Following:
    """The handles of a file, by the number of their line; and the lines that are none. Raises InvalidArgumentError."""

    def __init__(self, text: bytes) -> None:
        self.handles: dict[int, str] = {}
        self.refused: list[Refused] = []
        column: int | None = None
        if text.count(b"\n") > MAX_LINES:
            raise InvalidArgumentError("FILE", f"must have at most {MAX_LINES:,} lines, far more than Mastodon takes")
        lines = text.removesuffix(b"\n").split(b"\n")
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.lstrip()[:1] == b"#":
                continue
            try:
                fields = _fields(line)
                if column is None:
                    column = _column(fields)
                    if _is_header(fields):
                        continue
                handle = handle_of(fields[column]) if len(fields) > column else ""
                if not handle:
                    raise RefusedError("has no account address")
                self.handles[number] = handle
            except RefusedError as refusal:
                self.refused.append(Refused(number, str(refusal)))
        self.lines = len(lines)

    def rows(self, source_id: int, ids: Mapping[str, int]) -> Rows:
        """The edges from an account to all whom the map knows; the others are refused. The position counts down from 0: the first is the
        newest."""
        refused = [
            Refused(number, f"{shown(handle.encode())} is not in the map")
            for number, handle in self.handles.items()
            if handle not in ids
        ]
        known = np.array([ids[handle] for handle in self.handles.values() if handle in ids], dtype=np.int64)
        refused = sorted([*self.refused, *refused], key=lambda one: one.line)
        return Rows(np.full(len(known), source_id), known, -np.arange(len(known)), refused, self.lines)


def _fields(line: bytes) -> list[str]:
    if len(line) > MAX_LINE_BYTES:
        raise RefusedError(f"longer than {MAX_LINE_BYTES} bytes")
    try:
        # A handle that is no UTF-8 is in no map.
        return next(csv.reader([line.decode("utf-8", "replace").rstrip("\r")], skipinitialspace=True, strict=True))
    except csv.Error as error:
        raise RefusedError(f"bad quoting: {error}") from error


def _is_header(fields: list[str]) -> bool:
    return bool({field.strip().casefold() for field in fields} & _KNOWN)


def _column(first: list[str]) -> int:
    """Where the handles stand."""
    if not _is_header(first):
        return 0
    names = [field.strip().casefold() for field in first]
    if ADDRESS not in names:
        raise InvalidArgumentError("FILE", "is no following export: its header names no column Account address")
    return names.index(ADDRESS)


def read_map(file: BinaryIO, wanted: set[str]) -> dict[str, int]:
    """The ids of the wanted handles: `handle,id` or `handle id` on each line; a header and comments are passed over.

    Raises InvalidArgumentError, with the line, for what is no such line, and for a handle with two ids."""
    found: dict[str, int] = {}
    first = True
    for number, line in enumerate(_lines(file), 1):
        text = line.decode("utf-8-sig" if number == 1 else "utf-8", "replace").strip()
        if not text or text.startswith("#"):
            continue
        handle, id_ = _pair(text)
        if id_ is None and not first:
            raise InvalidArgumentError("--map", f"line {number}: must be a handle and an id, 0 to {MAX_ID}")
        if id_ is not None and handle in wanted and found.setdefault(handle, id_) != id_:
            raise InvalidArgumentError("--map", f"line {number}: gives a handle a second id")
        first = False
    return found


def _lines(file: BinaryIO) -> Iterator[bytes]:
    return iter(lambda: file.readline(MAX_LINE_BYTES), b"")


def _pair(text: str) -> tuple[str, int | None]:
    """A handle and its id; None where there is none, as in a header."""
    fields = text.replace(",", " ").replace('"', " ").split()
    if len(fields) != 2 or not (fields[1].isascii() and fields[1].isdigit()) or int(fields[1]) > MAX_ID:
        return "", None
    return handle_of(fields[0]), int(fields[1])
