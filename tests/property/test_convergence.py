"""Whatever order, repetition and batching: both halves end in the same versions, and the degrees equal a recount.

Every example runs against two real shards. The examples drive the write statement itself, so that what a network would do to the
versions between the shards (late, doubled, shuffled) is part of the example.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from graphd.edge import Key, Version
from graphd.operations import Decision, Operation, Outcome, decide, decide_given
from tests.databases import Databases, audit, edges
from tests.lanework import FOLLOW_KIND, Op, Owed, Shards, open_shards, rounds

EXAMPLES = settings().max_examples * 6 // 10
"""Each of them asks real servers some dozens of times."""

CALLERS = [operation for operation in Operation if operation <= Operation.UNBLOCK]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shards(databases: Databases) -> AsyncIterator[Shards]:
    async with open_shards(databases) as found:
        yield found


Write = tuple[Operation, int, int, int]
"""(operation, number of the source, number of the destination, position or stamp)"""


def writes(operations: Sequence[Operation], most: int) -> st.SearchStrategy[list[Write]]:
    """Writes among four sources and four destinations, two of each on either shard, at few positions, so that they tie."""
    write = st.tuples(st.sampled_from(operations), st.integers(0, 3), st.integers(0, 3), st.integers(1, 6))
    return st.lists(write, max_size=most)


def ops(shards: Shards, wanted: Sequence[Write], given: bool) -> list[Op]:
    """The writes as operations. Some accounts are source and destination, of other edges."""
    accounts = [*shards.accounts("s1", 3), *shards.accounts("s2", 3)]
    sources, destinations = [accounts[at] for at in (0, 1, 3, 4)], [accounts[at] for at in (1, 2, 4, 5)]
    return [
        Op(operation, Key(FOLLOW_KIND, sources[source], destinations[destination]), stamp, given)
        for operation, source, destination, stamp in wanted
    ]


async def carry_all(shards: Shards, batches: Sequence[Sequence[Op]], chance: random.Random) -> None:
    """The batches in order, each split between the shards; owed versions arrive with a later batch of their shard, or twice, or last."""
    delivered: list[Owed] = []
    for batch in batches:
        for name in shards.sessions:
            mine = [op for op in batch if shards.home(op.key.source_id) == name]
            due = [
                owed for owed in shards.owed if shards.home(owed.key.destination_id) == name and chance.random() < 0.5
            ]
            again = [
                owed for owed in delivered if shards.home(owed.key.destination_id) == name and chance.random() < 0.2
            ]
            strikes = [owed for owed in delivered if shards.home(owed.key.source_id) == name and chance.random() < 0.5]
            arriving = due + [Owed(owed.key, owed.version, None) for owed in again]
            chance.shuffle(arriving)
            await shards.carry(name, mine, arriving, [owed.outbox for owed in strikes if owed.outbox is not None])
            shards.owed = [owed for owed in shards.owed if owed not in due]
            delivered += due
    shards.owed += [Owed(owed.key, owed.version, owed.outbox) for owed in delivered]
    chance.shuffle(shards.owed)
    await shards.deliver_all()


def begin(shards: Shards, seed: int) -> random.Random:
    """Empty shards for an example, also after one that failed; and its chances."""
    shards.databases.clear()
    shards.owed.clear()
    shards.counters.clear()
    return random.Random(seed)


def check(shards: Shards, expected: dict[Key, Version | None]) -> None:
    """Both halves hold what the model holds; degrees equal a recount; nothing is owed."""
    audit(shards.databases)
    stored = {
        Key(kind, source, destination): row for (source, destination, kind), row in edges(shards.databases).items()
    }
    assert stored == {key: version for key, version in expected.items() if version is not None}


@given(wanted=writes(CALLERS, 14), seed=st.integers(0, 2**32))
@settings(max_examples=EXAMPLES)
async def test_given_operations_in_any_order(shards: Shards, wanted: list[Write], seed: int) -> None:
    chance = begin(shards, seed)
    expected: dict[Key, Version | None] = {}
    for op in ops(shards, wanted, given=True):
        expected[op.key] = decide_given(op.operation, expected.get(op.key), op.stamp).version
    repeated = wanted + [write for write in wanted if chance.random() < 0.4]
    chance.shuffle(repeated)
    batches = rounds(ops(shards, repeated, given=True))
    # Split further at random: a batch may be of any size.
    split: list[list[Op]] = []
    for batch in batches:
        cut = chance.randint(0, len(batch))
        split += [batch[:cut], batch[cut:]]
    await carry_all(shards, split, chance)
    check(shards, expected)


@given(wanted=writes(list(Operation), 14), seed=st.integers(0, 2**32))
@settings(max_examples=EXAMPLES)
async def test_live_operations_follow_the_table(shards: Shards, wanted: list[Write], seed: int) -> None:
    chance = begin(shards, seed)
    mixed = [
        op
        for live, register in zip(ops(shards, wanted, given=False), ops(shards, wanted, given=True), strict=True)
        for op in ((register,) if register.operation in CALLERS and chance.random() < 0.25 else (live,))
    ]
    expected: dict[Key, Version | None] = {}
    decisions: list[tuple[Op, Decision]] = []
    for op in mixed:
        decision = (decide_given if op.given else decide)(op.operation, expected.get(op.key), op.stamp)
        expected[op.key] = decision.version
        decisions.append((op, decision))
    await carry_all(shards, rounds(mixed), chance)
    for op, decision in decisions:
        assert op.answer is not None
        unwritten = op.answer.version is None
        told = decision.outcome in (Outcome.REFUSED, Outcome.STALE) or (
            op.given and decision.outcome is Outcome.UNCHANGED
        )
        if unwritten:
            assert told, (op, decision)
        else:
            assert (op.answer.version, op.outcome) == (decision.version, decision.outcome), (op, decision)
    check(shards, expected)


@pytest.mark.parametrize("blocked_first", [True, False])
async def test_block_and_unblock_out_of_order(shards: Shards, blocked_first: bool) -> None:
    # F020: the Follow at 5 was severed by the Block at 10, whichever way round Block and Unblock arrive.
    begin(shards, 0)
    [source], [destination] = shards.accounts("s1", 1), shards.accounts("s2", 1)
    key = Key(FOLLOW_KIND, source, destination)
    block, unblock = Op(Operation.BLOCK, key, 10, True), Op(Operation.UNBLOCK, key, 20, True)
    sequence = [block, unblock] if blocked_first else [unblock, block]
    for op in [Op(Operation.FOLLOW, key, 5, True), *sequence, Op(Operation.FOLLOW, key, 15, True)]:
        await shards.carry("s1", [op])
    await shards.deliver_all()
    check(shards, {key: Version(20, 6, 20)})
    if not blocked_first:
        # Too late to matter, and told so: nothing was written.
        assert block.answer is not None
        assert block.answer.version is None
