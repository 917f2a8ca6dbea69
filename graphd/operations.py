"""What may follow what: the transition table, stated once, as data.

An operation without a position is *live*: it is decided by the state stored at the forward half, atomically at its row, by the
table below. An operation with a position is *given*: a plain register write of (position, its state, position), joined by merge
and never refused. The router hands `transition_matrix()` to the write statement as a parameter; `decide` is the same rule in Python,
the model that tests hold the statement to and repair reasons with.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from graphd.edge import State, Version
from graphd.merge import merge


class Operation(IntEnum):
    """The numbers are the wire values; from ARCHIVE_BY_SOURCE on they are internal and never on the wire."""

    FOLLOW = 1
    UNFOLLOW = 2
    REQUEST = 3
    ACCEPT = 4
    REJECT = 5
    BLOCK = 6
    UNBLOCK = 7
    ARCHIVE_BY_SOURCE = 8
    ARCHIVE_BY_DESTINATION = 9
    RESTORE_BY_SOURCE = 10
    RESTORE_BY_DESTINATION = 11


class Outcome(IntEnum):
    """What a write did; the numbers are the wire values."""

    APPLIED = 1
    UNCHANGED = 2
    STALE = 3
    REFUSED = 4
    FAILED = 5


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table.

    `after` maps the stored state (None: absent) to the state after; what is missing is refused, with the reason in `refusals` for
    that state or else `refusal`. `given` is the state of a given write; None for internal operations, which are never given. `counter` is
    what a live write that changed the state owes to the edge the other way.
    """

    after: dict[State | None, State]
    given: State | None
    refusal: str = ""
    refusals: dict[State, str] | None = None
    keeps_since: bool = False
    acts_as_destination: bool = False
    counter: Operation | None = None


_A, _P, _R, _B = State.ACTIVE, State.PENDING, State.REMOVED, State.BLOCKED
_BY_S, _BY_D, _BY_2 = State.ARCHIVED_BY_SOURCE, State.ARCHIVED_BY_DESTINATION, State.ARCHIVED_BY_BOTH
ACCOUNT_ARCHIVED: Final = "ACCOUNT_ARCHIVED"
_ARCHIVED: Final = {_BY_S: ACCOUNT_ARCHIVED, _BY_D: ACCOUNT_ARCHIVED, _BY_2: ACCOUNT_ARCHIVED}

TABLE: Final[dict[Operation, Rule]] = {
    Operation.FOLLOW: Rule(after={None: _A, _A: _A, _P: _A, _R: _A}, given=_A, refusals=_ARCHIVED | {_B: "BLOCKED"}),
    Operation.UNFOLLOW: Rule(
        after={None: _R, _A: _R, _P: _R, _BY_S: _R, _BY_D: _R, _BY_2: _R, _R: _R}, given=_R, refusals={_B: "BLOCKED"}
    ),
    Operation.REQUEST: Rule(after={None: _P, _A: _A, _P: _P, _R: _P}, given=_P, refusals=_ARCHIVED | {_B: "BLOCKED"}),
    Operation.ACCEPT: Rule(after={_A: _A, _P: _A}, given=_A, refusal="NOT_PENDING", acts_as_destination=True),
    Operation.REJECT: Rule(after={_P: _R}, given=_R, refusal="NOT_PENDING", acts_as_destination=True),
    Operation.BLOCK: Rule(
        after={None: _B, _A: _B, _P: _B, _BY_S: _B, _BY_D: _B, _BY_2: _B, _R: _B, _B: _B},
        given=_B,
        acts_as_destination=True,
        counter=Operation.UNFOLLOW,
    ),
    Operation.UNBLOCK: Rule(after={_B: _R}, given=_R, refusal="NOT_BLOCKED", acts_as_destination=True),
    Operation.ARCHIVE_BY_SOURCE: Rule(
        after={_A: _BY_S, _BY_S: _BY_S, _BY_D: _BY_2, _BY_2: _BY_2}, given=None, refusal="NOT_ACTIVE", keeps_since=True
    ),
    Operation.ARCHIVE_BY_DESTINATION: Rule(
        after={_A: _BY_D, _BY_D: _BY_D, _BY_S: _BY_2, _BY_2: _BY_2}, given=None, refusal="NOT_ACTIVE", keeps_since=True
    ),
    Operation.RESTORE_BY_SOURCE: Rule(
        after={_BY_S: _A, _BY_2: _BY_D, _BY_D: _BY_D}, given=None, refusal="NOT_ARCHIVED", keeps_since=True
    ),
    Operation.RESTORE_BY_DESTINATION: Rule(
        after={_BY_D: _A, _BY_2: _BY_S, _BY_S: _BY_S}, given=None, refusal="NOT_ARCHIVED", keeps_since=True
    ),
}

GIVEN: Final = 64
"""Added to an operation's number where it is handed to SQL as a given write."""

SUSPENDED: Final = 16
"""Added to an operation's number by the write statement where the source is suspended (archived or removed)."""

FIRST_KEEPING_SINCE: Final = int(Operation.ARCHIVE_BY_SOURCE)
"""Operations from this number on keep since; the write statement tells them by it."""

ENTERING: Final = frozenset({Operation.FOLLOW, Operation.REQUEST, Operation.ACCEPT})
"""What is refused while either account is suspended."""

_ROWS: Final = [
    (operation, suspended)
    for suspended in (False, True)
    for operation in [*Operation, *[None] * (SUSPENDED - len(Operation))]
][: SUSPENDED + len(Operation)]
"""The rows of what SQL is handed, from 1 on: each operation, nothing up to SUSPENDED, each operation of a suspended source."""


def state_after(operation: Operation, stored: State | None, *, suspended: bool = False) -> State | None:
    """The table with the source's suspension taken into account (`suspended`); None is REFUSED.

    A suspended source gets no edge that is ACTIVE or PENDING anew, and only the suspension's own walk archives its edges or restores
    them: what is left of an older walk does nothing. A RESTORE by destination leaves to a suspended source its own mark, whether the walk
    has set it yet or not, and takes off one that a source which is not suspended should not have any more.
    """
    after = TABLE[operation].after.get(stored)
    if operation in ENTERING or operation is Operation.RESTORE_BY_SOURCE:
        return None if suspended else after
    if operation is Operation.ARCHIVE_BY_SOURCE:
        return after if suspended else None
    if operation is Operation.RESTORE_BY_DESTINATION:
        if suspended and after is State.ACTIVE:
            return State.ARCHIVED_BY_SOURCE
        if not suspended and stored is State.ARCHIVED_BY_BOTH:
            return State.ACTIVE
    return after


def given_state(operation: Operation, *, suspended: bool = False) -> State | None:
    """The state of a given write; None for internal operations."""
    given = TABLE[operation].given
    return State.ARCHIVED_BY_SOURCE if suspended and given is State.ACTIVE else given


def transition_matrix() -> list[list[int]]:
    """`state_after` for SQL: `matrix[operation][1 + state]`, both counted from 1, with state 0 for absent; 0 is REFUSED. SUSPENDED is added
    to the operation where the source is suspended."""
    columns: list[State | None] = [None, *State]
    return [
        [int((operation and state_after(operation, state, suspended=suspended)) or 0) for state in columns]
        for operation, suspended in _ROWS
    ]


def given_states() -> list[int]:
    """The state of a given write, for the same rows; 0 for internal operations."""
    return [int((operation and given_state(operation, suspended=suspended)) or 0) for operation, suspended in _ROWS]


def counter_operations() -> list[int]:
    """What each operation owes to the edge the other way, for the same rows; 0 for nothing."""
    return [int((operation and TABLE[operation].counter) or 0) for operation, _ in _ROWS]


def refusal_reason(operation: Operation, stored: State | None, *, suspended: bool = False) -> str | None:
    """Why a live operation on this stored state is refused; None if it is not."""
    rule = TABLE[operation]
    if stored in rule.after:
        return None if state_after(operation, stored, suspended=suspended) is not None else ACCOUNT_ARCHIVED
    if stored is not None and rule.refusals is not None and stored in rule.refusals:
        return rule.refusals[stored]
    return rule.refusal


def acting_account(operation: Operation, source_id: int, destination_id: int) -> int:
    """The account that acts, to which a request_id is scoped."""
    return destination_id if TABLE[operation].acts_as_destination else source_id


@dataclass(frozen=True, slots=True)
class Decision:
    """What a write does to one edge: the version stored afterwards (None: still absent), and what is told to the caller."""

    version: Version | None
    outcome: Outcome
    reason: str = ""


def decide(operation: Operation, stored: Version | None, stamp: int, *, suspended: bool = False) -> Decision:
    """A live operation: position `max(stamp, stored + 1)`; since stays where the state stays and across archive and restore."""
    state = State(stored.state) if stored is not None else None
    after = state_after(operation, state, suspended=suspended)
    if after is None:
        return Decision(stored, Outcome.REFUSED, refusal_reason(operation, state, suspended=suspended) or "")
    rule = TABLE[operation]
    if stored is None:
        outcome = Outcome.UNCHANGED if after is State.REMOVED else Outcome.APPLIED
        return Decision(Version(stamp, after, stamp), outcome)
    position = max(stamp, stored.position + 1)
    since = stored.since if after is state or rule.keeps_since else position
    return Decision(Version(position, after, since), outcome_of(stored, Version(position, after, since)))


def decide_given(operation: Operation, stored: Version | None, position: int, *, suspended: bool = False) -> Decision:
    """A given operation: merge with (position, its state, position); never refused."""
    state = given_state(operation, suspended=suspended)
    assert state is not None, "internal operations are never given"
    version = Version(position, state, position)
    if stored is not None and (position, state) == (stored.position, stored.state):
        return Decision(stored, Outcome.UNCHANGED)
    merged = merge(stored, version)
    if merged != version:
        return Decision(stored, Outcome.STALE)
    return Decision(version, outcome_of(stored, version))


def outcome_of(before: Version | None, after: Version) -> Outcome:
    """APPLIED if the state or the since changed; a tombstone where nothing was changes nothing."""
    if before is None:
        return Outcome.UNCHANGED if after.state == State.REMOVED else Outcome.APPLIED
    changed = (before.state, before.since) != (after.state, after.since)
    return Outcome.APPLIED if changed else Outcome.UNCHANGED
