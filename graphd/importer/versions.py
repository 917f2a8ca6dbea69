"""Lines of an export (graphd/storage/dump.py): source, destination, kind, state, position and since, parted by tabs. Pure.

Two readers, as for edge lists: a block of lines that are all as an export writes them goes through one regular expression, any other line
by line, which tells what is wrong with each. A line of a kind that nobody declared is no bad line but ends the import: whole kinds would be
missing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from graphd.edge import State
from graphd.errors import InvalidArgumentError
from graphd.importer.blocks import Rows
from graphd.importer.lines import MAX_LINE_BYTES, Refused, RefusedError, columns_told, id_of, shown
from graphd.limits import MAX_AHEAD_US, MAX_ID
from graphd.topology import kind_name_rule

COLUMNS: Final = ("source", "destination", "kind", "state", "position", "since")
HEADER: Final = "\t".join(COLUMNS).encode()
"""Names the columns. It may come again, where files were put one behind the other, or not at all, where somebody picked lines."""

_FORMAT: Final = b"# graphd edges "
_KNOWN_FORMAT: Final = _FORMAT + b"1"

_LINE: Final = re.compile(
    rb"^([0-9]{1,19})\t([0-9]{1,19})\t([^\t\n]+)\t([A-Z_]+)\t([0-9]{1,19})\t([0-9]{1,19})$", re.MULTILINE
)
"""A plain line. Numbers of 19 digits fit into 64 bits without a sign."""

_STATES: Final = {state.name.encode(): int(state) for state in State}
_NAMES: Final = [state.name for state in State]

Ints = npt.NDArray[np.int64]
_Row = tuple[int, int, int, int, int, int]


class VersionReader:
    """Reads blocks. `kinds`: the number of each kind by its name."""

    def __init__(self, kinds: Mapping[str, int], now_us: int) -> None:
        self._kinds = {name.encode(): number for name, number in kinds.items()}
        self._latest = now_us + MAX_AHEAD_US

    def __call__(self, block: bytes, lines_before: int) -> Rows:
        """Whole lines, the last with or without its line end. `lines_before`: how many lines came before.

        Raises InvalidArgumentError for a kind that is not declared, and for a file of a later release."""
        block = block.replace(b"\r\n", b"\n").removesuffix(b"\n")
        lines = block.count(b"\n") + 1
        table = self._plain(block, lines)
        refused: list[Refused] = []
        if table is None:
            rows: list[_Row] = []
            for number, line in enumerate(block.split(b"\n"), lines_before + 1):
                try:
                    row = self._row(line.removesuffix(b"\r"), number)
                except RefusedError as refusal:
                    refused.append(Refused(number, str(refusal)))
                else:
                    rows += [row] if row is not None else []
            table = np.array(rows, dtype=np.int64).reshape(-1, len(COLUMNS)).T
        source_id, destination_id, kind, state, position, since = table
        return Rows(source_id, destination_id, position, refused, lines, kind, state, since)

    def _plain(self, block: bytes, lines: int) -> Ints | None:
        """Shape (6, n); None when a line is not plain or not right."""
        found = _LINE.findall(block)
        if len(found) != lines:
            return None
        fields = list(zip(*found, strict=True))
        table = np.empty((len(COLUMNS), lines), dtype=np.int64)
        try:
            table[2] = [self._kinds[name] for name in fields[2]]
            table[3] = [_STATES[name] for name in fields[3]]
        except KeyError:
            return None
        for column in (0, 1, 4, 5):
            # What is above 2^63 becomes negative.
            table[column] = np.array(fields[column]).astype(np.uint64).view(np.int64)
        versions = table[4:]
        right = table.min() >= 0 and versions.min() >= 1 and versions.max() <= self._latest
        return table if right else None

    def _row(self, line: bytes, number: int) -> _Row | None:
        """One line; None for a blank one, a comment and the names of the columns. Raises RefusedError."""
        if line.startswith(_FORMAT) and line != _KNOWN_FORMAT:
            raise InvalidArgumentError("FILE", f"line {number}: is of another release, which wrote {shown(line[2:])}")
        if not line.strip() or line[:1] == b"#" or line == HEADER:
            return None
        if len(line) > MAX_LINE_BYTES:
            raise RefusedError(f"longer than {MAX_LINE_BYTES} bytes")
        fields = line.split(b"\t")
        if len(fields) != len(COLUMNS):
            raise RefusedError(
                f"has {columns_told(len(fields))}, where an export has {', '.join(COLUMNS)}, parted by tabs"
            )
        source, destination, kind, state, position, since = fields
        if kind not in self._kinds:
            if rule := kind_name_rule(kind.decode("utf-8", "replace")):
                raise RefusedError(f"kind: {shown(kind)} {rule}")
            name = kind.decode()
            raise InvalidArgumentError(
                "FILE",
                f"line {number}: kind {name} is not declared in this cluster; declare it: graphd kind add {name}",
            )
        if state not in _STATES:
            raise RefusedError(f"state: {shown(state)} is none; states are {', '.join(_NAMES)}")
        return (
            id_of(source, "source"),
            id_of(destination, "destination"),
            self._kinds[kind],
            _STATES[state],
            self._moment(position, "position"),
            self._moment(since, "since"),
        )

    def _moment(self, field: bytes, name: str) -> int:
        if not field.isdigit() or len(field) > len(str(MAX_ID)) or int(field) < 1:
            raise RefusedError(f"{name}: {shown(field)} is not a position, which is at least 1")
        if int(field) > self._latest:
            raise RefusedError(f"{name}: {shown(field)} is ahead of now (microseconds since 1970)")
        return int(field)
