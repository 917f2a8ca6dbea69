"""The row comparison of the write statement is merge.merge, whether versions meet in a batch or on disk."""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator
from functools import reduce

import pytest_asyncio

from graphd.edge import Key, State, Version
from graphd.merge import merge
from tests.databases import Databases, edges, problems
from tests.lanework import FOLLOW_KIND, Owed, Shards, open_shards

SEED = 20_251_130

Pair = tuple[Version, Version]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shards(databases: Databases) -> AsyncIterator[Shards]:
    async with open_shards(databases) as found:
        yield found


def pairs() -> list[Pair]:
    """Every pair of a small grid, so that ties of each depth are there, and random ones over the whole range."""
    grid = [Version(position, state, since) for position in (1, 2) for state in State for since in (1, 2)]
    chance = random.Random(SEED)

    def some() -> Version:
        return Version(1 + chance.getrandbits(62), chance.choice(list(State)), chance.getrandbits(63))

    return [*itertools.product(grid, grid), *((some(), some()) for _ in range(500))]


async def joined(shards: Shards, wanted: list[Pair], batches: list[int]) -> list[Version]:
    """The stored reverse halves after both versions of each pair were delivered; `batches` says which version in which batch."""
    shards.databases.clear()
    destinations = shards.accounts("s1", 1)
    keys = [Key(FOLLOW_KIND, 1_000 + at, destinations[0]) for at in range(len(wanted))]
    for batch in sorted(set(batches)):
        here = [at for at, number in enumerate(batches) if number == batch]
        versions = [Owed(key, pair[at], None) for at in here for key, pair in zip(keys, wanted, strict=True)]
        for first in range(0, len(versions), 500):
            await shards.carry("s1", [], versions[first : first + 500])
    stored = edges(shards.databases, "reverse")
    wrong = [line for line in problems(shards.databases) if "degree" in line]
    assert not wrong, wrong
    return [Version(*stored[key.source_id, key.destination_id, FOLLOW_KIND]) for key in keys]


async def test_on_disk(shards: Shards) -> None:
    wanted = pairs()
    assert await joined(shards, wanted, [0, 1]) == [merge(a, b) for a, b in wanted]


async def test_in_one_batch(shards: Shards) -> None:
    # At most 500 versions go into a batch, so each half of the list holds both versions of its pairs.
    wanted = pairs()
    for first in range(0, len(wanted), 250):
        part = wanted[first : first + 250]
        assert await joined(shards, part, [0, 0]) == [merge(a, b) for a, b in part]


async def test_many_versions_of_one_edge_fold_into_the_greatest(shards: Shards) -> None:
    chance = random.Random(SEED)
    shards.databases.clear()
    [destination] = shards.accounts("s1", 1)
    expected = {}
    arriving = []
    for source in range(20):
        versions = [
            Version(chance.randint(1, 4), chance.choice(list(State)), chance.randint(1, 4))
            for _ in range(chance.randint(2, 30))
        ]
        arriving += [Owed(Key(FOLLOW_KIND, source, destination), version, None) for version in versions]
        expected[source, destination, FOLLOW_KIND] = reduce(max, versions)
    chance.shuffle(arriving)
    await shards.carry("s1", [], arriving)
    assert edges(shards.databases, "reverse") == expected
