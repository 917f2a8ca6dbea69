"""Who wins: a maximum over a total order, and so a join."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from graphd.edge import State, Version
from graphd.merge import merge

# Few different values, so that ties of every depth are common.
versions = st.none() | st.builds(
    Version, st.integers(1, 3) | st.integers(1, 2**63 - 1), st.sampled_from(State), st.integers(1, 3)
)


@given(versions, versions)
def test_commutes(a: Version | None, b: Version | None) -> None:
    assert merge(a, b) == merge(b, a)


@given(versions, versions, versions)
def test_associates(a: Version | None, b: Version | None, c: Version | None) -> None:
    assert merge(a, merge(b, c)) == merge(merge(a, b), c)


@given(versions, versions)
def test_is_idempotent_and_takes_one_whole(a: Version | None, b: Version | None) -> None:
    assert merge(a, a) == a
    assert merge(a, b) in (a, b)
    assert merge(merge(a, b), b) == merge(a, b)


def test_position_before_state_before_since() -> None:
    older = Version(5, State.BLOCKED, 9)
    newer = Version(6, State.ACTIVE, 1)
    assert merge(older, newer) == newer
    # In a tie of positions the one that shows less stands: states are numbered so.
    assert merge(Version(5, State.ACTIVE, 9), Version(5, State.REMOVED, 1)) == Version(5, State.REMOVED, 1)
    assert merge(Version(5, State.REMOVED, 9), Version(5, State.BLOCKED, 1)) == Version(5, State.BLOCKED, 1)
    assert merge(Version(5, State.ACTIVE, 1), Version(5, State.ACTIVE, 2)) == Version(5, State.ACTIVE, 2)
    assert merge(None, older) == older


def test_numbers_of_the_states_are_those_of_the_contract() -> None:
    assert [state.name for state in sorted(State)] == [
        "ACTIVE", "PENDING", "ARCHIVED_BY_SOURCE", "ARCHIVED_BY_DESTINATION", "ARCHIVED_BY_BOTH", "REMOVED", "BLOCKED",
    ]  # fmt: skip
    assert [int(state) for state in sorted(State)] == [1, 2, 3, 4, 5, 6, 7]
