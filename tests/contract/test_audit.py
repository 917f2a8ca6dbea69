"""The audit finds each kind of damage, and finds nothing where there is none."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from graphd.client import Client
from graphd.storage.audit import Audit, audit, largest, sources
from tests.databases import Databases
from tests.routers import RouterProcess
from tests.waiting import eventually

FOLLOWS = [(source, destination) for source in range(1, 9) for destination in range(1, 9) if source < destination]


@pytest_asyncio.fixture(loop_scope="session")
async def graph(databases: Databases, router: RouterProcess) -> AsyncIterator[Databases]:
    """28 follows, delivered."""
    databases.clear()
    async with Client(router.target) as client:
        for source, destination in FOLLOWS:
            await client.follow(source, destination)
        await client.unfollow(1, 2)

    async def delivered() -> bool:
        return (await audit(databases.config)).owed == 0

    await eventually(delivered, what="the outbox is empty")
    yield databases


async def looked_at(databases: Databases) -> Audit:
    return await audit(databases.config)


async def test_a_sound_graph(graph: Databases) -> None:
    found = await looked_at(graph)
    assert found.halves_agree
    assert found.forward.edges == found.reverse.edges == len(FOLLOWS)
    assert found.wrong_degrees == 0
    assert {shard.shard for shard in found.shards} == set(graph.names)
    assert all(shard.degrees for shard in found.shards)


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM reverse WHERE owner_id = 8 AND neighbor_id = 1",
        "DELETE FROM forward WHERE owner_id = 1 AND neighbor_id = 8",
        "UPDATE reverse SET state = 6 WHERE owner_id = 8 AND neighbor_id = 1",
        "UPDATE reverse SET position = position + 1 WHERE owner_id = 8 AND neighbor_id = 1",
        "UPDATE forward SET since = since - 1 WHERE owner_id = 1 AND neighbor_id = 8",
        # Two edges that swap their versions leave counts, and any sum over the columns, as they were.
        "UPDATE reverse AS a SET position = b.position, since = b.since FROM reverse AS b "
        "WHERE a.owner_id = 8 AND b.owner_id = 8 AND (a.neighbor_id, b.neighbor_id) IN ((1, 2), (2, 1))",
    ],
)
async def test_halves_that_differ(graph: Databases, damage: str) -> None:
    graph.do(damage)
    assert not (await looked_at(graph)).halves_agree


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE degrees SET degree = degree + 1 WHERE owner_id = 8 AND direction = 2 AND state = 1",
        "DELETE FROM degrees WHERE owner_id = 8 AND direction = 2 AND state = 1",
        "INSERT INTO degrees (owner_id, degree, direction, kind, state, slot) SELECT 99, -1, 1, 1, 1, slot FROM shard_slot",
    ],
)
async def test_degrees_unlike_a_recount(graph: Databases, damage: str) -> None:
    if "shard_slot" in damage:
        with graph.connect(graph.names[0]) as connection:
            connection.execute(damage.replace("shard_slot", "slots WHERE owned LIMIT 1").encode())
    else:
        graph.do(damage)
    found = await looked_at(graph)
    assert found.wrong_degrees == 1
    assert found.halves_agree


async def test_the_largest_and_those_who_follow(graph: Databases) -> None:
    assert await largest(graph.config, 1, 3) == [(8, 7), (7, 6), (6, 5)]
    assert await sources(graph.config, 1, 100) == [1, 2, 3, 4, 5, 6, 7]
    assert await sources(graph.config, 1, 2) == [1, 2]
