"""The pure part of set operations against Python's sets."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from graphd.limits import MAX_ID, SET_WINDOW_MAX_IDS, SET_WINDOW_MIN_IDS
from graphd.setops import FETCH_FACTOR, Window, below, common, descending, fetches, merged, without

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
    assert fetches(10, FETCH_FACTOR * 10)
    assert not fetches(10, FETCH_FACTOR * 10 + 1)
    assert fetches(1, 0)


def test_windows_grow_up_to_a_limit_and_go_down() -> None:
    assert Window.first(10) == Window(MAX_ID + 1, SET_WINDOW_MIN_IDS)
    window = Window.first(1000, before=500)
    assert window == Window(500, 4000)
    for lowest in range(100, 80, -1):
        window = window.next(lowest)
        assert window.before == lowest
    assert window.count == SET_WINDOW_MAX_IDS
