"""The pool for long questions: back as soon as the shard is, and of no consequence to who shares its sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from graphd.config import from_values
from graphd.errors import GraphdError
from graphd.storage.cluster import Cluster
from graphd.storage.shard import Shard, ShardSettings
from tests.simulation.cluster import SLOTS, Site
from tests.simulation.proxy import Mode
from tests.waiting import eventually

OUTAGE_S = 8.0
"""Long enough that the pool's own pauses between two tries, which double from 1 s on, are longer than RESUME_S."""

RESUME_S = 2.0


@asynccontextmanager
async def opened(site: Site) -> AsyncIterator[Cluster]:
    """A cluster as a process of its own would see it, through the proxies."""
    values = {"catalog": site.proxied.catalog, "slots": SLOTS, "shards": site.proxied.conninfo}
    cluster = await Cluster.open(from_values(values, "the test's configuration"), ShardSettings(application="pool"))
    try:
        await eventually(lambda: all(shard.up for shard in cluster.shards.values()), 10, "the lanes are connected")
        yield cluster
    finally:
        await cluster.close()


async def answers(shard: Shard) -> bool:
    try:
        await shard.summary()
    except GraphdError:
        return False
    return True


async def test_operators_questions_are_answered_as_soon_as_the_shard_is_back(site: Site) -> None:
    loop = asyncio.get_running_loop()
    async with opened(site) as cluster:
        shard = cluster.shards["s2"]
        assert await answers(shard)
        with site.proxies["s2"].being(Mode.CUT):
            await eventually(lambda: not shard.up, 10, "the lanes notice")
            end = loop.time() + OUTAGE_S
            while loop.time() < end:
                assert not await answers(shard)
                await asyncio.sleep(0.2)  # the outage has to last: this is the time it takes
        await eventually(lambda: shard.up, RESUME_S, "the lanes are back")
        await eventually(lambda: answers(shard), RESUME_S, "questions are answered")


async def test_nothing_is_prepared_in_sessions_of_the_pool(site: Site) -> None:
    # A pooler before the shard, or an operator's DEALLOCATE ALL, takes prepared statements away from under the session.
    async with opened(site) as cluster:
        shard = cluster.shards["s1"]
        for _ in range(10):
            await shard.summary()
            await shard.window("reverse", 1, 1, 0, 1, 2**63 - 1, 0, 10)
        async with shard.session() as connection:
            cursor = await connection.execute("SELECT count(*) FROM pg_prepared_statements")
            assert await cursor.fetchone() == (0,)
