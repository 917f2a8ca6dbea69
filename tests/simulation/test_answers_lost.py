"""A client that repeats what it heard no answer to, through a proxy that loses answers after the commit."""

from __future__ import annotations

import asyncio
import random

import pytest

from graphd.client import Client
from tests.databases import audit, edges
from tests.simulation.check import settled
from tests.simulation.cluster import Site

EVERY = 20
FOLLOWS, LONG_FOLLOWS = 2_000, 20_000
IN_FLIGHT = 32


@pytest.mark.timeout(900)
async def test_a_repeated_follow_counts_once(site: Site, chance: random.Random, is_long: bool) -> None:
    total = LONG_FOLLOWS if is_long else FOLLOWS
    cy = site.accounts("s2", 1)[0]
    fans = [account for account in range(1, total) if account != cy]
    # Some follow again, so that repetitions by the client mix with repetitions of the network.
    work = [chance.choice(fans) for _ in range(total)]
    with site.routers(1) as [router], site.relay():
        proxy = site.network.lossy(router.target, EVERY)
        duplicates = 0
        async with Client(proxy.target, deadline_s=30) as client:
            todo = iter(work)

            async def follow() -> None:
                nonlocal duplicates
                for source in todo:
                    result = await client.follow(source, cy)
                    duplicates += result.duplicate

            await asyncio.gather(*(follow() for _ in range(IN_FLIGHT)))
            assert proxy.lost >= total // EVERY
            assert proxy.lost >= duplicates > proxy.lost // 2
            distinct = set(work)
            assert (await client.get_degrees(cy)).followers == len(distinct)
            assert {edge.source_id async for edge in client.followers(cy)} == distinct
        await settled(site.databases)
        audit(site.databases)
        assert {source for source, destination, _ in edges(site.databases) if destination == cy} == distinct
