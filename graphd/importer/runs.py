"""Sorting more rows than memory holds: sorted runs in a temporary file, merged again as they are read.

Sorted, a double stands beside its twin, so doubles are found exactly; and rows reach the B-trees in their order, which makes loading
three times as fast. The file has no name, so nothing is left of it however the process ends.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

RUN_ROWS: Final = 1 << 19
"""Rows sorted in memory at once: 8 or 12 MB, and as much again while they are sorted."""

MERGE_ROWS: Final = 1 << 18
"""Rows held of all runs together while they are merged."""

_FIRST_ROWS: Final = 1 << 12
_MIN_BLOCK_ROWS: Final = 1_024
_SMALL: Final = 1 << 32


def temporary_file() -> IO[bytes]:
    """For runs. Raises OSError."""
    return tempfile.TemporaryFile(prefix="graphd-import-", buffering=0)


class SortedRuns:
    """Rows (owner_id, neighbor_id), with or without a position or a whole version (position, state, since) behind them, given in any
    order and read sorted by the first two, each pair once: of doubles the one with the greatest version stays, as merge has it. `doubles`
    counts the others; it is final when all has been read. Several may share one `file`, which is then the caller's to close."""

    def __init__(
        self, width: int, run_rows: int = RUN_ROWS, merge_rows: int = MERGE_ROWS, file: IO[bytes] | None = None
    ) -> None:
        assert width in (2, 3, 5)
        self.doubles = 0
        self._width, self._run_rows, self._merge_rows = width, run_rows, merge_rows
        self._waiting = np.empty((0, width), dtype=np.int64)
        self._filled = 0
        self._runs: list[tuple[int, int]] = []  # offset in the file, in bytes, and rows
        self._shared = file is not None
        self._file = file or temporary_file()

    @property
    def held(self) -> int:
        """Rows in memory."""
        return self._filled

    def add(self, *columns: Ints) -> None:
        """Columns of shape (n,). Raises OSError when the temporary folder is full."""
        taken, n = 0, len(columns[0])
        while taken < n:
            if self._filled == len(self._waiting):
                self._make_room()
            room = min(n - taken, len(self._waiting) - self._filled)
            for i, column in enumerate(columns):
                self._waiting[self._filled : self._filled + room, i] = column[taken : taken + room]
            self._filled += room
            taken += room

    def spill(self) -> None:
        """Write what is in memory to the file, and give the memory back. Raises OSError."""
        self._write_run()
        self._waiting = np.empty((0, self._width), dtype=np.int64)

    def close(self) -> None:
        """Give the file back."""
        if not self._shared:
            self._file.close()

    def read(self) -> Iterator[Ints]:
        """All rows in order, in pieces of shape (n, width) with n > 0. Once only; nothing can be added any more."""
        self.spill()
        block_rows = max(_MIN_BLOCK_ROWS, self._merge_rows // max(1, len(self._runs)))
        runs = [_Run(self._file.fileno(), offset, rows, self._width, block_rows) for offset, rows in self._runs]
        while runs := [run for run in runs if run.fill()]:
            yield self._once(sort(np.concatenate(_next(runs))))

    def _make_room(self) -> None:
        if len(self._waiting) >= self._run_rows:
            self._write_run()
            return
        larger = np.empty((min(self._run_rows, max(_FIRST_ROWS, 2 * self._filled)), self._width), dtype=np.int64)
        larger[: self._filled] = self._waiting
        self._waiting = larger

    def _write_run(self) -> None:
        if self._filled:
            run = self._once(sort(self._waiting[: self._filled]))
            self._runs.append((self._file.seek(0, os.SEEK_END), len(run)))
            rest = np.ascontiguousarray(run).data.cast("B")
            while rest:
                rest = rest[self._file.write(rest) :]
            self._filled = 0

    def _once(self, rows: Ints) -> Ints:
        """Of equal pairs the last, which has the greatest version."""
        last = np.ones(len(rows), dtype=np.bool_)
        last[:-1] = (rows[1:, 0] != rows[:-1, 0]) | (rows[1:, 1] != rows[:-1, 1])
        kept = int(last.sum())
        self.doubles += len(rows) - kept
        return rows if kept == len(rows) else rows[last]


@dataclass(slots=True)
class _Run:
    """A sorted run being read: `block` is what is in memory of it."""

    descriptor: int
    offset: int
    left: int
    width: int
    block_rows: int
    block: Ints | None = None

    def fill(self) -> bool:
        """Read on if nothing is in memory; False at the end."""
        if (self.block is None or not len(self.block)) and self.left:
            rows = min(self.left, self.block_rows)
            self.block = np.empty((rows, self.width), dtype=np.int64)
            view = self.block.data.cast("B")
            while view:
                n = os.preadv(self.descriptor, [view], self.offset)
                assert n > 0, "the run is as long as it was written"
                view = view[n:]
                self.offset += n
            self.left -= rows
        return self.block is not None and len(self.block) > 0

    def take(self, bound: Ints | None) -> Ints:
        """The rows in memory up to the pair `bound`, itself included; None: all."""
        assert self.block is not None
        cut = len(self.block) if bound is None else _up_to(self.block, bound)
        taken, self.block = self.block[:cut], self.block[cut:]
        return taken


def _next(runs: list[_Run]) -> list[Ints]:
    """What can be merged now: up to the lowest of the last pairs in memory, beyond which a run may have more on disk. As no run has a
    pair twice, all doubles of a pair are taken together."""
    lasts = np.array([run.block[-1] for run in runs if run.left and run.block is not None])
    bound = lasts[np.lexsort((lasts[:, 1], lasts[:, 0]))[0]] if len(lasts) else None
    return [run.take(bound) for run in runs]


def _up_to(rows: Ints, bound: Ints) -> int:
    """How many rows of a sorted block are not above the pair."""
    low = int(np.searchsorted(rows[:, 0], bound[0], side="left"))
    high = int(np.searchsorted(rows[:, 0], bound[0], side="right"))
    return low + int(np.searchsorted(rows[low:high, 1], bound[1], side="right"))


def sort(rows: Ints) -> Ints:
    """Rows ordered by all their columns."""
    if rows[:, :2].max(initial=0) >= _SMALL:
        return rows[np.lexsort(rows.T[::-1])]
    # Two small ids fit into one number, which sorts four times as fast.
    packed = (rows[:, 0] << 32).view(np.uint64) | rows[:, 1].view(np.uint64)
    if rows.shape[1] == 2:
        packed.sort()
        return _unpacked(packed)
    order = np.lexsort((*rows.T[:1:-1], packed))
    return rows[order]


def _unpacked(packed: npt.NDArray[np.uint64]) -> Ints:
    rows = np.empty((len(packed), 2), dtype=np.int64)
    rows[:, 0] = (packed >> np.uint64(32)).view(np.int64)
    rows[:, 1] = (packed & np.uint64(_SMALL - 1)).view(np.int64)
    return rows
