"""The pure part of set operations against Python's sets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphd.limits import MAX_ID, SET_WINDOW_MAX_IDS, SET_WINDOW_MIN_IDS
from graphd.setops import (
    FETCH_FACTOR,
    GROWTH_MAX,
    Part,
    Window,
    alongside,
    as_deep,
    below,
    common,
    descending,
    fetches,
    joined,
    merged,
    met,
    without,
)

ids = st.lists(st.integers(0, 12) | st.integers(0, MAX_ID) | st.sampled_from([0, MAX_ID - 1, MAX_ID]), max_size=30)


@given(ids)
def test_descending(values: list[int]) -> None:
    assert descending(values).tolist() == sorted(set(values), reverse=True)


@given(ids, st.none() | st.integers(0, MAX_ID), st.integers(0, 10))
def test_below(values: list[int], before: int | None, count: int) -> None:
    expected = [value for value in sorted(set(values), reverse=True) if before is None or value < before][:count]
    assert below(descending(values), before, count).tolist() == expected


@given(ids, ids, st.randoms())
def test_common_keeps_the_order_of_the_first(a: list[int], b: list[int], random: object) -> None:
    others = list(set(b))
    random.shuffle(others)  # type: ignore[attr-defined]
    found = common(descending(a), np.array(others, dtype=np.int64))
    assert found.tolist() == sorted(set(a) & set(b), reverse=True)
    assert found.dtype == np.int64


@given(ids, ids)
def test_without_and_merged(a: list[int], b: list[int]) -> None:
    assert without(descending(a), descending(b)).tolist() == sorted(set(a) - set(b), reverse=True)
    assert merged([descending(a), descending(b), descending([])]).tolist() == sorted(set(a) | set(b), reverse=True)


def test_fetched_or_probed() -> None:
    assert fetches(10, FETCH_FACTOR * 10, 1.0)
    assert not fetches(10, FETCH_FACTOR * 10 + 1, 1.0)
    assert fetches(10, 1_000 * FETCH_FACTOR, 0.01)
    assert fetches(1, 0, 1.0)


def test_parts_of_about_one_size_are_read_side_by_side() -> None:
    assert alongside([10, 10, FETCH_FACTOR * 10, FETCH_FACTOR * 10 + 1]) == [1, 2]
    assert alongside([0, 0, 1]) == [1]
    assert as_deep(100, 1_000, 4_000) > 400
    assert as_deep(100, 0, 0) > 0


parts = st.lists(st.tuples(st.sets(st.integers(0, 40)), st.integers(1, 12)), min_size=1, max_size=4)


def windows(sets: list[tuple[set[int], int]], before: int) -> list[Part]:
    """Each set's ids below `before`, as many of them as its number says."""
    found = []
    for values, count in sets:
        some = below(descending(list(values)), before, count)
        found.append(Part(some, int(some[-1]) if len(some) == count else 0))
    return found


@given(parts)
def test_windows_of_an_intersection_and_of_a_union(sets: list[tuple[set[int], int]]) -> None:
    for combine, expected in (
        (met, set.intersection(*(values for values, _ in sets))),
        (joined, set.union(*(values for values, _ in sets))),
    ):
        answer: list[int] = []
        before = 50
        while before:
            part = combine(windows(sets, before))
            assert part.lowest < before
            assert all(part.lowest <= one < before for one in part.ids)
            answer += part.ids.tolist()
            before = part.lowest
        assert answer == sorted(expected, reverse=True)


def test_an_intersection_leaps_over_what_one_part_does_not_reach() -> None:
    high, low = Part(descending([90, 80, 70]), 70), Part(descending([20, 10]), 10)
    part = met([high, low])
    assert (part.ids.tolist(), part.lowest) == ([], 21)
    empty = Part(descending([]), 0)
    assert met([high, empty]).lowest == 0


def test_windows_grow_to_what_is_missing_within_limits() -> None:
    assert Window.first(10) == Window(MAX_ID + 1, SET_WINDOW_MIN_IDS)
    window = Window.first(1_000, before=500)
    assert window == Window(500, 4_000)
    assert window.next(400, found=0, missing=1_001) == Window(400, 4_000 * GROWTH_MAX)
    assert window.next(400, found=500, missing=501).count == pytest.approx(5_010, abs=10)
    assert window.next(400, found=900, missing=1).count == SET_WINDOW_MIN_IDS
    assert window.next(400, found=0, missing=1_001, haste=0.5).count == 2_000
    assert Window(500, SET_WINDOW_MAX_IDS).next(400, found=0, missing=1).count == SET_WINDOW_MAX_IDS
