"""Set algebra over lists of ids, planned and combined without doing any input or output.

Answers are in descending id order and paged by id. An intersection is driven by its smallest operand: windows of it are read in id
order and narrowed by each other operand in turn. How the others are read (probed id by id, or fetched as a range) is chosen by their exact
degrees; the plan changes what an answer costs, never what it is: nothing is left out because a number said that it would be empty.

Cost of a window of w driving ids: an operand of degree d is fetched where d <= FETCH_FACTOR x w, else probed with the ids still left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from graphd.limits import MAX_ID, SET_WINDOW_MAX_IDS, SET_WINDOW_MIN_IDS

Ids = npt.NDArray[np.int64]
"""Ids, shape (n,), different, in descending order where not said otherwise."""

FETCH_FACTOR: Final = 4
"""A row fetched in order costs less than an id probed: 12 ms for a list of 100,000 against 215 ms (DESIGN.md section 6)."""


def descending(ids: Sequence[int] | Ids) -> Ids:
    """Ids in any order, with doubles: sorted and single."""
    return np.unique(np.asarray(ids, dtype=np.int64))[::-1]


def below(ids: Ids, before: int | None, count: int) -> Ids:
    """The first `count` of descending ids that are below `before` (None: from the top)."""
    start = 0 if before is None else int(np.searchsorted(-ids, -before, side="right"))
    return ids[start : start + count]


def common(a: Ids, b: Ids) -> Ids:
    """Ids in both: `a` as it is ordered, without those not in `b` (in any order)."""
    return a[np.isin(a, b, assume_unique=True)] if len(a) and len(b) else a[:0]


def without(a: Ids, b: Ids) -> Ids:
    """`a` as it is ordered, without what is in `b` (in any order)."""
    return a[~np.isin(a, b, assume_unique=True)] if len(a) and len(b) else a


def merged(parts: Sequence[Ids]) -> Ids:
    """Ids of all parts, each once, descending."""
    return np.unique(np.concatenate(parts))[::-1]


def fetches(candidates: int, degree: int) -> bool:
    """Whether an operand of this degree is fetched as a range rather than probed with the candidates."""
    return degree <= FETCH_FACTOR * candidates


@dataclass(frozen=True, slots=True)
class Window:
    """Where the next window of the driver begins (strictly below `before`; MAX_ID + 1 is the top) and how long it is."""

    before: int
    count: int

    @classmethod
    def first(cls, page_size: int, before: int = MAX_ID + 1) -> Window:
        """A few times as long as the page: dense answers are found in one round trip, sparse ones let it grow."""
        return cls(before, max(SET_WINDOW_MIN_IDS, 4 * page_size))

    def next(self, lowest: int) -> Window:
        """After a window that ended at `lowest`: twice as long, up to a limit, so that sparse answers cost few round trips."""
        return Window(lowest, min(2 * self.count, SET_WINDOW_MAX_IDS))
