"""Bounded work: how many calls are in flight, for each shard, and when the next one is shed.

A call that would be the `max_calls_per_shard + 1`st to wait for a shard is refused at once with RESOURCE_EXHAUSTED and a hint when to
come back, so an overloaded or a severed shard costs its own callers and nobody else's. Health checks are served apart and never shed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from graphd.errors import OverloadedError

RETRY_AFTER_S: Final = 0.25
SMOOTHING: Final = 0.1
"""Weight of the newest reading in the smoothed number of calls in flight."""


class Admission:
    """Counts of calls in flight. Single-threaded: one per event loop."""

    __slots__ = ("_limit", "_per_shard", "in_flight", "shed", "smoothed", "streams")

    def __init__(self, max_calls_per_shard: int) -> None:
        self._limit = max_calls_per_shard
        self._per_shard: dict[str, int] = {}
        self.in_flight = 0
        self.smoothed = 0.0
        self.shed = 0
        self.streams = 0
        """Streams being served. They take no place of their own: what they read counts while it is read."""

    def begin(self) -> None:
        """A call arrived."""
        self.in_flight += 1
        self.smoothed += SMOOTHING * (self.in_flight - self.smoothed)

    def end(self) -> None:
        """A call was answered."""
        self.in_flight -= 1

    @contextmanager
    def aside(self) -> Iterator[None]:
        """While a call waits for something else than a shard it is no company, and lanes must not wait for it."""
        self.in_flight -= 1
        try:
            yield
        finally:
            self.in_flight += 1

    def pressure(self) -> float:
        """Calls in flight, smoothed: what lanes ask to know whether company is worth waiting for."""
        return self.smoothed

    def enter(self, shard: str) -> None:
        """The call needs this shard. Raises OverloadedError when too many do; else `leave` must follow."""
        count = self._per_shard.get(shard, 0)
        if count >= self._limit:
            self.shed += 1
            raise OverloadedError(f"shard {shard}", RETRY_AFTER_S)
        self._per_shard[shard] = count + 1

    def leave(self, shard: str) -> None:
        """The call needs the shard no longer."""
        self._per_shard[shard] -= 1

    def enter_all(self, shards: Iterable[str]) -> list[str]:
        """`enter` for each of several shards, or for none."""
        entered: list[str] = []
        try:
            for shard in shards:
                self.enter(shard)
                entered.append(shard)
        except OverloadedError:
            self.leave_all(entered)
            raise
        return entered

    def leave_all(self, shards: Iterable[str]) -> None:
        """`leave` for each."""
        for shard in shards:
            self.leave(shard)

    def waiting(self) -> dict[str, int]:
        """Calls in flight for each shard, for metrics."""
        return dict(self._per_shard)
