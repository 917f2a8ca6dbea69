"""Set algebra over lists of ids, planned and combined without doing any input or output.

Answers are in descending id order and paged by id. What they are made of is read in windows: runs of ids in descending order. An
intersection is driven by its smallest part. Parts not much larger are read as windows alongside it, at the same time, and merged as far
down as all of them are complete; of much larger ones it is asked only which of the ids left they hold, id by id or as a range. Exact
degrees choose the plan; the plan changes what an answer costs, never what it is: nothing is left out because a number said that it would
be empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from graphd.limits import MAX_ID, SET_WINDOW_MAX_IDS, SET_WINDOW_MIN_IDS

Ids = npt.NDArray[np.int64]
"""Ids, shape (n,), different, in descending order where not said otherwise."""

FETCH_FACTOR: Final = 4
"""A row fetched in order costs less than an id probed: 12 ms for a list of 100,000 against 215 ms (DESIGN.md section 6)."""


GROWTH_MAX: Final = 16
"""By how much a window may grow over the one before it: sparse answers cost few round trips."""


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


def fetches(candidates: int, degree: int, share: float) -> bool:
    """Whether a list of this degree is fetched as a range rather than probed with the candidates, whose range holds about `share` of it."""
    return degree * share <= FETCH_FACTOR * candidates


def alongside(sizes: Sequence[int]) -> list[int]:
    """Which parts of an intersection, smallest first, are read as windows alongside the first: places in `sizes`, which may be wrong."""
    return [at for at in range(1, len(sizes)) if sizes[at] <= FETCH_FACTOR * sizes[0]]


def as_deep(count: int, driver: int, size: int) -> int:
    """How many ids of a part of this size reach about as deep as `count` of the driver's, and a little deeper."""
    return count * size // max(1, driver) * 9 // 8 + SET_WINDOW_MIN_IDS // 2


@dataclass(frozen=True, slots=True)
class Window:
    """Where a window begins (strictly below `before`; MAX_ID + 1 is the top) and how many ids it has."""

    before: int
    count: int

    @classmethod
    def first(cls, page_size: int, before: int = MAX_ID + 1) -> Window:
        """A few times as long as the page: dense answers are found in one round trip, sparse ones let it grow."""
        return cls(before, max(SET_WINDOW_MIN_IDS, 4 * page_size))

    def next(self, lowest: int, found: int, missing: int, haste: float = inf) -> Window:
        """After a window that was complete down to `lowest` and held `found` ids: as long as it takes to find those missing, if the rest
        is like it. `haste`: the time left as a multiple of what this window took, so that the next one ends in time."""
        growth = GROWTH_MAX if not found else min(GROWTH_MAX, 1.25 * missing / found)
        return Window(lowest, min(SET_WINDOW_MAX_IDS, max(SET_WINDOW_MIN_IDS, int(self.count * min(growth, haste)))))


class Part(NamedTuple):
    """Ids of a window in descending order, complete down to `lowest`; 0: there are no more."""

    ids: Ids
    lowest: int

    @property
    def top(self) -> int:
        """No id of the window, nor of what is below it, is higher; -1: there is none."""
        return int(self.ids[0]) if len(self.ids) else self.lowest - 1


def met(parts: Sequence[Part]) -> Part:
    """The window of an intersection: ids in all parts, as far down as every one is complete, or farther where one holds none so high up."""
    lowest = max(part.lowest for part in parts)
    first, *others = parts
    ids = first.ids[first.ids >= lowest]
    for other in others:
        ids = common(ids, other.ids)
    return Part(ids, min(lowest, min(part.top for part in parts) + 1))


def joined(parts: Sequence[Part]) -> Part:
    """The window of a union: ids of all parts, as far down as every one is complete."""
    lowest = max(part.lowest for part in parts)
    ids = merged([part.ids for part in parts])
    return Part(ids[ids >= lowest], lowest)
