"""Stamps rise, follow what was seen, and are not dragged along by a wrong peer."""

from __future__ import annotations

from graphd.clock import HybridClock, now_us
from graphd.limits import MAX_AHEAD_US


class Time:
    """A clock to set."""

    def __init__(self, us: int) -> None:
        self.us = us

    def __call__(self) -> int:
        return self.us


def test_stamps_rise_while_time_stands_or_falls() -> None:
    time = Time(1_000)
    clock = HybridClock(time)
    assert [clock.stamp() for _ in range(3)] == [1_000, 1_001, 1_002]
    time.us = 10
    assert clock.stamp() == 1_003
    time.us = 5_000
    assert clock.stamp() == 5_000


def test_follows_what_it_has_seen() -> None:
    time = Time(1_000)
    clock = HybridClock(time)
    clock.observe(9_000)
    assert clock.stamp() == 9_001
    clock.observe(5)
    assert clock.stamp() == 9_002


def test_is_not_dragged_into_the_future() -> None:
    time = Time(1_000)
    clock = HybridClock(time)
    clock.observe(1_000 + MAX_AHEAD_US + 1)
    assert clock.stamp() == 1_000
    clock.observe(1_000 + MAX_AHEAD_US)
    assert clock.stamp() == 1_001 + MAX_AHEAD_US


def test_unit_is_microseconds_since_the_epoch() -> None:
    year = 365 * 24 * 3600 * 1_000_000
    assert 50 * year < now_us() < 200 * year
