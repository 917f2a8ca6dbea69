"""Time. The only module of the library that reads a clock; everything pure is handed a number.

`HybridClock` is a hybrid logical clock (Kulkarni et al., "Logical Physical Clocks", 2014) with the logical part folded into the
microseconds: stamps of one process rise strictly, and follow the stamps of others that it has seen. A wrong peer cannot drag it
along: what is further ahead than `MAX_AHEAD_US` is not followed. The write statement holds a stamp to the database's own clock as
well, and takes `stored + 1` where the stored position is higher, so no skew loses a write.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from graphd.limits import MAX_AHEAD_US


def now_us() -> int:
    """Microseconds since the Unix epoch."""
    return time.time_ns() // 1000


class HybridClock:
    """Stamps that rise strictly. Not thread-safe: one per event loop."""

    __slots__ = ("_last", "_now_us")

    def __init__(self, now_us: Callable[[], int] = now_us) -> None:
        self._now_us = now_us
        self._last = 0

    def stamp(self) -> int:
        """A position above every earlier stamp and every position observed."""
        self._last = max(self._now_us(), self._last + 1)
        return self._last

    def observe(self, position_us: int) -> None:
        """Follow a position that another process gave out."""
        if self._last < position_us <= self._now_us() + MAX_AHEAD_US:
            self._last = position_us
