"""The transition table against the design's, cell by cell, and the decisions made by it."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphd.edge import State, Version
from graphd.merge import merge
from graphd.operations import (
    GIVEN,
    SUSPENDED,
    TABLE,
    Operation,
    Outcome,
    acting_account,
    counter_operations,
    decide,
    decide_given,
    given_states,
    refusal_reason,
    transition_matrix,
)
from graphd.v1 import graph_pb2 as pb

# DESIGN.md section 2, written out for each archived state. `-` is refused.
DESIGN = """
               absent   ACTIVE   PENDING  BY_S     BY_D     BY_2     REMOVED  BLOCKED  | given    | refusals
FOLLOW         ACTIVE   ACTIVE   ACTIVE   -        -        -        ACTIVE   -        | ACTIVE   | ACCOUNT_ARCHIVED BLOCKED
UNFOLLOW       REMOVED  REMOVED  REMOVED  REMOVED  REMOVED  REMOVED  REMOVED  -        | REMOVED  | BLOCKED
REQUEST        PENDING  ACTIVE   PENDING  -        -        -        PENDING  -        | PENDING  | ACCOUNT_ARCHIVED BLOCKED
ACCEPT         -        ACTIVE   ACTIVE   -        -        -        -        -        | ACTIVE   | NOT_PENDING
REJECT         -        -        REMOVED  -        -        -        -        -        | REMOVED  | NOT_PENDING
BLOCK          BLOCKED  BLOCKED  BLOCKED  BLOCKED  BLOCKED  BLOCKED  BLOCKED  BLOCKED  | BLOCKED  |
UNBLOCK        -        -        -        -        -        -        -        REMOVED  | REMOVED  | NOT_BLOCKED
ARCHIVE_BY_S   -        BY_S     -        BY_S     BY_2     BY_2     -        -        |          |
ARCHIVE_BY_D   -        BY_D     -        BY_2     BY_D     BY_2     -        -        |          |
RESTORE_BY_S   -        -        -        ACTIVE   BY_D     BY_D     -        -        |          |
RESTORE_BY_D   -        -        -        BY_S     ACTIVE   BY_S     -        -        |          |
"""
SHORT = {
    "BY_S": State.ARCHIVED_BY_SOURCE,
    "BY_D": State.ARCHIVED_BY_DESTINATION,
    "BY_2": State.ARCHIVED_BY_BOTH,
    "ARCHIVE_BY_S": Operation.ARCHIVE_BY_SOURCE,
    "ARCHIVE_BY_D": Operation.ARCHIVE_BY_DESTINATION,
    "RESTORE_BY_S": Operation.RESTORE_BY_SOURCE,
    "RESTORE_BY_D": Operation.RESTORE_BY_DESTINATION,
}
COLUMNS: list[State | None] = [None, *State]

# DESIGN.md section 8: what differs while the source is suspended, and while it is not.
SUSPENDED_SOURCE = """
FOLLOW         -        -        -        -        -        -        -        -        | BY_S     | ACCOUNT_ARCHIVED BLOCKED
REQUEST        -        -        -        -        -        -        -        -        | PENDING  | ACCOUNT_ARCHIVED BLOCKED
ACCEPT         -        -        -        -        -        -        -        -        | BY_S     | NOT_PENDING
RESTORE_BY_S   -        -        -        -        -        -        -        -        |          |
RESTORE_BY_D   -        -        -        BY_S     BY_S     BY_S     -        -        |          |
"""
OTHER_SOURCE = """
ARCHIVE_BY_S   -        -        -        -        -        -        -        -        |          |
RESTORE_BY_D   -        -        -        BY_S     ACTIVE   ACTIVE   -        -        |          |
"""


def _state(word: str) -> State:
    found = SHORT.get(word) or State[word]
    assert isinstance(found, State)
    return found


def _operation(word: str) -> Operation:
    found = SHORT.get(word) or Operation[word]
    assert isinstance(found, Operation)
    return found


class Row(NamedTuple):
    """One operation's row of the table, for a source that is suspended or one that is not."""

    operation: Operation
    suspended: bool
    after: list[State | None]
    given: State | None
    refusals: list[str]


def _row(line: str, suspended: bool) -> Row:
    cells, given_state, refusals = (part.split() for part in line.split("|"))
    after = [None if word == "-" else _state(word) for word in cells[1:]]
    return Row(_operation(cells[0]), suspended, after, _state(given_state[0]) if given_state else None, refusals)


def _rows(suspended: bool) -> list[Row]:
    table = {line.split()[0]: line for line in DESIGN.strip().splitlines()[1:]}
    table |= {line.split()[0]: line for line in (SUSPENDED_SOURCE if suspended else OTHER_SOURCE).strip().splitlines()}
    return [_row(line, suspended) for line in table.values()]


ROWS = [*_rows(False), *_rows(True)]
CELLS = [
    pytest.param(
        row,
        stored,
        after,
        id=f"{row.operation.name}-{stored.name if stored else 'absent'}{'-suspended' if row.suspended else ''}",
    )
    for row in ROWS
    for stored, after in zip(COLUMNS, row.after, strict=True)
]


@pytest.mark.parametrize(("row", "stored", "after"), CELLS)
def test_cell(row: Row, stored: State | None, after: State | None) -> None:
    operation, suspended, _, _, refusals = row
    assert transition_matrix()[operation - 1 + SUSPENDED * suspended][stored or 0] == (after or 0)
    reason = refusal_reason(operation, stored, suspended=suspended)
    assert (reason is None) == (after is not None)
    if reason is not None and refusals:
        expected = refusals[0]
        if stored is State.BLOCKED and "BLOCKED" in refusals:
            expected = "BLOCKED"
        elif suspended and stored in TABLE[operation].after:
            # Only the suspension refuses it.
            expected = "ACCOUNT_ARCHIVED"
        assert reason == expected
    before = Version(100, stored, 50) if stored is not None else None
    decision = decide(operation, before, stamp=200, suspended=suspended)
    if after is None:
        assert (decision.version, decision.outcome) == (before, Outcome.REFUSED)
        return
    keeps = stored is after or operation >= Operation.ARCHIVE_BY_SOURCE
    assert decision.version == Version(200, after, 50 if keeps else 200)
    if stored is None:
        assert decision.outcome is (Outcome.UNCHANGED if after is State.REMOVED else Outcome.APPLIED)
    else:
        assert decision.outcome is (Outcome.UNCHANGED if stored is after else Outcome.APPLIED)


def test_every_operation_and_state_is_in_the_table() -> None:
    assert [row.operation for row in ROWS] == [*Operation, *Operation]
    for row in ROWS:
        assert given_states()[row.operation - 1 + SUSPENDED * row.suspended] == (row.given or 0)
    # Nothing between the two halves of what SQL is handed.
    between = slice(len(Operation), SUSPENDED)
    assert not any(map(any, transition_matrix()[between]))
    assert not any(given_states()[between] + counter_operations()[between])
    sizes = {len(transition_matrix()), len(given_states()), len(counter_operations())}
    assert sizes == {SUSPENDED + len(Operation)}
    assert SUSPENDED + max(Operation) < GIVEN


def test_numbers_are_those_of_the_contract() -> None:
    for name, number in pb.Operation.items():
        if number:
            assert Operation(number).name == name.removeprefix("OPERATION_")
    for outcome in Outcome:
        assert pb.Outcome.Name(int(outcome)) == f"OUTCOME_{outcome.name}"  # type: ignore[arg-type]
    for state in State:
        assert pb.State.Name(int(state)) == f"STATE_{state.name}"  # type: ignore[arg-type]


def test_a_skewed_stamp_never_loses_a_write() -> None:
    stored = Version(1_000, State.ACTIVE, 900)
    assert decide(Operation.UNFOLLOW, stored, stamp=1).version == Version(1_001, State.REMOVED, 1_001)
    # A double-tapped Follow moves nothing but the position.
    assert decide(Operation.FOLLOW, stored, stamp=1).version == Version(1_001, State.ACTIVE, 900)


def test_acting_account() -> None:
    by_source = [operation for operation in Operation if acting_account(operation, 1, 2) == 1]
    assert set(by_source) & {*map(Operation, range(1, 8))} == {Operation.FOLLOW, Operation.UNFOLLOW, Operation.REQUEST}


given_operations = st.sampled_from([operation for operation in Operation if operation <= Operation.UNBLOCK])
stored_versions = st.none() | st.builds(Version, st.integers(1, 5), st.sampled_from(State), st.integers(1, 5))


@given(given_operations, stored_versions, st.integers(1, 5))
def test_given_is_merge_and_never_refused(operation: Operation, stored: Version | None, position: int) -> None:
    decision = decide_given(operation, stored, position)
    state = State(given_states()[operation - 1])
    version = Version(position, state, position)
    if stored is not None and stored[:2] == version[:2]:
        assert (decision.version, decision.outcome) == (stored, Outcome.UNCHANGED)
        return
    assert decision.version == merge(stored, version)
    if decision.version != version:
        assert decision.outcome is Outcome.STALE
    elif stored is None and state is State.REMOVED:
        assert decision.outcome is Outcome.UNCHANGED
    else:
        assert decision.outcome is not Outcome.STALE


@given(st.lists(st.tuples(given_operations, st.integers(1, 6)), max_size=8), st.randoms())
def test_given_operations_commute(writes: list[tuple[Operation, int]], random: object) -> None:
    def end(sequence: list[tuple[Operation, int]]) -> Version | None:
        stored = None
        for operation, position in sequence:
            stored = decide_given(operation, stored, position).version
        return stored

    shuffled = writes * 2
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert end(writes) == end(shuffled)


def test_archive_and_restore_keep_since_in_either_order() -> None:
    active = Version(10, State.ACTIVE, 7)
    for first, second in [("SOURCE", "DESTINATION"), ("DESTINATION", "SOURCE")]:
        version: Version | None = active
        suspended = False
        for name in (f"ARCHIVE_BY_{first}", f"ARCHIVE_BY_{second}", f"RESTORE_BY_{first}", f"RESTORE_BY_{second}"):
            if name.endswith("SOURCE"):
                suspended = name.startswith("ARCHIVE")
            version = decide(Operation[name], version, stamp=0, suspended=suspended).version
        assert version == Version(14, State.ACTIVE, 7)
