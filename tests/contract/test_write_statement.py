"""The write statement is operations.decide and decide_given, in every cell, and keeps both halves, degrees and receipts by it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio

from graphd.edge import Key, State, Version
from graphd.limits import MAX_AHEAD_US
from graphd.operations import Decision, Operation, Outcome, decide, decide_given
from graphd.storage.items import Answer, Receipt
from tests.databases import Databases, audit, edges, suspend
from tests.lanework import FOLLOW_KIND, Op, Owed, Shards, open_shards

STORED_AT, SINCE = 1_000, 400
STAMP = 5_000
TOMBSTONE = Version(0, State.REMOVED, 700)
"""What an operation that was refused from absent leaves."""

STORED = [None, TOMBSTONE, *(Version(STORED_AT, state, SINCE) for state in State)]
STORED += [Version(STORED_AT, state, STORED_AT) for state in State]


@dataclass(slots=True)
class Case:
    """One cell: what is stored, what is asked, and what the rule says."""

    stored: Version | None
    op: Op
    expected: Decision
    destination_suspended: bool = False

    @property
    def mark(self) -> tuple[int, int, int] | None:
        """What the reverse half owes to its edge: (owner, neighbor, operation)."""
        version = self.expected.version
        if version == self.stored or version is None or self.expected.outcome in (Outcome.REFUSED, Outcome.STALE):
            return None
        marked = version.state in (State.ARCHIVED_BY_DESTINATION, State.ARCHIVED_BY_BOTH)
        markable = marked or version.state in (State.ACTIVE, State.ARCHIVED_BY_SOURCE)
        if not markable or marked is self.destination_suspended:
            return None
        owed = Operation.RESTORE_BY_DESTINATION if marked else Operation.ARCHIVE_BY_DESTINATION
        return (self.op.key.destination_id, self.op.key.source_id, owed)

    def __str__(self) -> str:
        return f"{'given' if self.op.given else 'live'} {self.op.operation.name} at {self.op.stamp} on {self.stored}"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shards(databases: Databases) -> AsyncIterator[Shards]:
    async with open_shards(databases) as found:
        yield found


SUSPENDED = [(False, False), (True, False), (False, True), (True, True)]
"""Whether the source is suspended, and whether the destination is."""


def cases(shards: Shards, same_shard: bool, suspended: tuple[bool, bool] = (False, False)) -> list[Case]:
    """Every operation on every stored state, live (with a stamp above and below what is stored) and given (below, at, above)."""
    wanted = [(stored, operation, False, stamp) for stored in STORED for operation in Operation for stamp in (1, STAMP)]
    wanted += [
        (stored, operation, True, position)
        for stored in STORED
        for operation in Operation
        if operation <= Operation.UNBLOCK
        for position in (1, STORED_AT - 1, STORED_AT, STORED_AT + 1)
    ]
    sources = shards.accounts("s1", len(wanted))
    destinations = shards.accounts("s1" if same_shard else "s2", len(wanted), 100_000)
    found = []
    for at, (stored, operation, given, stamp) in enumerate(wanted):
        key = Key(FOLLOW_KIND, sources[at], destinations[at])
        known = stored if stored is not None and stored.position else None
        rule = decide_given if given else decide
        decision = rule(operation, known, stamp, suspended=suspended[0])
        op = Op(operation, key, stamp, given, Receipt(key.source_id, "r", at))
        found.append(Case(stored, op, decision, suspended[1]))
    return found


def store(databases: Databases, cases: list[Case]) -> None:
    """Put the stored versions into both halves and the degrees, by plain SQL."""
    for direction, table, names in ((1, "forward", (1, 2)), (2, "reverse", (2, 1))):
        rows = []
        for case in cases:
            version = case.stored
            # The tombstone of a refusal has no reverse half.
            if version is None or (table == "reverse" and not version.position):
                continue
            owner, neighbor = (case.op.key[at] for at in names)
            rows.append((owner, neighbor, version.position, version.since, FOLLOW_KIND, version.state, owner))
        for shard in databases.names:
            with databases.connect(shard) as connection, connection.cursor() as cursor:
                cursor.executemany(
                    f"INSERT INTO {table} (owner_id, neighbor_id, position, since, slot, kind, state, operation)"
                    " SELECT %s, %s, %s, %s, slot, %s, %s, 1 FROM slots WHERE slot = hashint8extended(%s::bigint, 0) & 63 AND owned",
                    rows,
                )
                cursor.execute(
                    "INSERT INTO degrees (owner_id, direction, kind, state, slot, degree)"
                    f" SELECT owner_id, {direction}, kind, state, slot, count(*) FROM {table} WHERE position > 0 GROUP BY 1, 3, 4, 5"
                )


def check(databases: Databases, cases: list[Case]) -> None:
    """Everything is as the rule says."""
    marks = databases.all_rows("DELETE FROM outbox WHERE operation > 7 RETURNING source_id, destination_id, operation")
    assert sorted(marks) == sorted(case.mark for case in cases if case.mark is not None)
    audit(databases)
    rows = edges(databases)
    kept = databases.all_rows("SELECT actor_id, fingerprint, outcome, position, state, since, slot, id FROM receipts")
    receipts = {row[0]: row for row in kept}
    for case in cases:
        answer, expected = case.op.answer, case.expected
        assert answer is not None
        owes = case.op.operation is Operation.BLOCK and not case.op.given and expected.outcome is Outcome.APPLIED
        assert (answer.counter_id is not None) is owes, str(case)
        assert rows.get((case.op.key.source_id, case.op.key.destination_id, FOLLOW_KIND)) == expected.version, str(case)
        receipt = receipts.get(case.op.key.source_id)
        written = expected.version != case.stored and expected.outcome not in (Outcome.REFUSED, Outcome.STALE)
        if not written:
            assert answer.version is None, str(case)
            assert receipt is None, str(case)
            continue
        assert answer.version == expected.version, str(case)
        assert answer.before == (case.stored if case.stored is not None and case.stored.position else None), str(case)
        assert case.op.outcome is expected.outcome, str(case)
        assert receipt is not None, str(case)
        # The receipt is written by SQL alone: its outcome must be what Python would have answered.
        assert expected.version is not None
        assert receipt[2:6] == (expected.outcome, *expected.version), str(case)


@pytest.mark.parametrize(
    "suspended", SUSPENDED, ids=["", "source suspended", "destination suspended", "both suspended"]
)
@pytest.mark.parametrize("same_shard", [True, False], ids=["both ends here", "destination elsewhere"])
async def test_every_cell(shards: Shards, same_shard: bool, suspended: tuple[bool, bool]) -> None:
    shards.databases.clear()
    found = cases(shards, same_shard, suspended)
    store(shards.databases, found)
    for end, is_suspended in enumerate(suspended):
        if is_suspended:
            suspend(shards.databases, [case.op.key[1 + end] for case in found], FOLLOW_KIND)
    for first in range(0, len(found), 500):
        await shards.carry("s1", [case.op for case in found[first : first + 500]])
    assert bool(shards.owed) is not same_shard
    await shards.deliver_all()
    check(shards.databases, found)


async def test_a_cell_alone_is_a_cell_among_many(shards: Shards) -> None:
    shards.databases.clear()
    found = cases(shards, False)[::7]
    store(shards.databases, found)
    for case in found:
        await shards.carry("s1", [case.op])
    await shards.deliver_all()
    check(shards.databases, found)


async def test_refusals_leave_what_is_absent_to_every_read(shards: Shards) -> None:
    shards.databases.clear()
    source, destination = shards.accounts("s1", 2)
    op = Op(Operation.ACCEPT, Key(FOLLOW_KIND, source, destination), STAMP)
    await shards.carry("s1", [op])
    assert op.outcome is None
    assert shards.databases.all_rows("SELECT position, state FROM forward") == [(0, State.REMOVED)]
    assert shards.databases.all_rows("SELECT * FROM reverse") == []
    assert shards.databases.all_rows("SELECT * FROM degrees") == []


async def test_a_stamp_is_held_to_the_database_s_clock(shards: Shards) -> None:
    shards.databases.clear()
    source, destination = shards.accounts("s1", 2)
    now = time.time_ns() // 1000
    op = Op(Operation.FOLLOW, Key(FOLLOW_KIND, source, destination), now + 3_600_000_000)
    await shards.carry("s1", [op])
    assert op.answer is not None
    assert op.answer.version is not None
    assert now < op.answer.version.position < now + MAX_AHEAD_US + 60_000_000


@pytest.mark.parametrize("ahead_us", [MAX_AHEAD_US // 2, MAX_AHEAD_US + 60_000_000])
async def test_a_given_position_ahead_of_the_database_s_clock_is_not_written(shards: Shards, ahead_us: int) -> None:
    # A router whose clock is fast lets it pass; nothing could be written over it until the time has come.
    source = shards.accounts("s1", 1, 700_000 + ahead_us)[0]
    key = Key(FOLLOW_KIND, source, source + 1)
    op = Op(Operation.FOLLOW, key, time.time_ns() // 1000 + ahead_us, given=True)
    await shards.carry("s1", [op])
    assert op.answer is not None
    is_stored = (source, source + 1, FOLLOW_KIND) in edges(shards.databases)
    if ahead_us < MAX_AHEAD_US:
        assert (op.answer.ahead, op.outcome, is_stored) == (False, Outcome.APPLIED, True)
    else:
        assert (op.answer.ahead, op.answer.version, is_stored) == (True, None, False)
    await shards.deliver_all()


async def test_no_more_edges_become_active_than_a_kind_allows(shards: Shards) -> None:
    """Of what one statement carries: ranked in the order given, what is freed counted in, other owners and what is ACTIVE already aside."""
    shards.databases.clear()
    ada, bo, *others = shards.accounts("s1", 12)

    def op(operation: Operation, source: int, destination: int, *, given: bool = False) -> Op:
        return Op(operation, Key(FOLLOW_KIND, source, destination), STAMP, given, most=3)

    await shards.carry("s1", [op(Operation.FOLLOW, ada, others[0]), op(Operation.REQUEST, ada, others[1])])
    second = [
        op(Operation.FOLLOW, ada, others[0]),  # ACTIVE already
        op(Operation.UNFOLLOW, ada, others[2]),  # frees nothing
        op(Operation.ACCEPT, ada, others[1]),
        op(Operation.FOLLOW, ada, others[3]),
        op(Operation.FOLLOW, ada, others[4]),  # the fourth
        op(Operation.FOLLOW, bo, others[4]),
        op(Operation.FOLLOW, ada, others[5], given=True),  # never refused
    ]
    await shards.carry("s1", second)
    assert [o.answer.crowded for o in second if o.answer is not None] == [False] * 4 + [True] + [False] * 2
    assert second[4].answer == Answer(True, crowded=True)
    third = [
        op(Operation.UNFOLLOW, ada, others[0]),
        op(Operation.BLOCK, ada, others[1]),
        op(Operation.FOLLOW, ada, others[6]),
        op(Operation.FOLLOW, ada, others[7]),
    ]
    await shards.carry("s1", third)
    # Four were ACTIVE, two are freed, so one is left.
    assert [o.answer.crowded for o in third if o.answer is not None] == [False, False, False, True]
    await shards.deliver_all()
    audit(shards.databases)


async def test_a_second_use_of_a_receipt_does_nothing(shards: Shards) -> None:
    shards.databases.clear()
    source, destination = shards.accounts("s1", 2)
    key, receipt = Key(FOLLOW_KIND, source, destination), Receipt(source, "r", -5)
    first, second = (Op(Operation.FOLLOW, key, stamp, receipt=receipt) for stamp in (10, 20))
    await shards.carry("s1", [first])
    await shards.carry("s1", [second])
    assert first.answer is not None
    assert second.answer is not None
    remembered = second.answer.remembered
    assert remembered is not None
    assert (remembered.fingerprint, remembered.outcome, remembered.version) == (
        -5,
        Outcome.APPLIED,
        first.answer.version,
    )
    assert shards.databases.all_rows("SELECT count(*)::int FROM receipts WHERE fingerprint = -5") == [(1,), (0,)]
    audit(shards.databases)


async def test_not_owned_does_nothing(shards: Shards) -> None:
    shards.databases.clear()
    source, destination = shards.accounts("s2", 2)
    op = Op(Operation.FOLLOW, Key(FOLLOW_KIND, source, destination), STAMP)
    owed = Owed(op.key, Version(1, State.ACTIVE, 1), None)
    with pytest.raises(AssertionError):
        await shards.carry("s1", [op], [owed])
    assert op.answer is not None
    assert not op.answer.owned
    assert owed.answer is False
    assert shards.databases.all_rows("SELECT owner_id FROM forward UNION ALL SELECT owner_id FROM reverse") == []
