"""The catalog away: everything goes on as it was known, and what changed meanwhile is learnt when it is back."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from grpc import aio

from graphd.v1 import admin_pb2
from tests.databases import audit
from tests.routers import RouterProcess, admin_stub
from tests.simulation.calls import follow, is_edge, steady
from tests.simulation.check import settled
from tests.simulation.cluster import Site
from tests.simulation.moves import Move
from tests.simulation.proxy import Mode
from tests.waiting import eventually


async def epoch(router: RouterProcess) -> int:
    async with aio.insecure_channel(router.admin) as channel:
        answer = await admin_stub(channel).GetTopology(admin_pb2.GetTopologyRequest(), timeout=5)
    return int(answer.epoch)


@pytest.mark.parametrize("mode", [Mode.CUT, Mode.HOLD, Mode.BLACKHOLE])
async def test_nobody_needs_the_catalog_from_call_to_call(site: Site, mode: Mode) -> None:
    everybody = [account for name in site.databases.names for account in site.accounts(name, 4)]
    pairs = list(zip(everybody, reversed(everybody), strict=True))
    moving = site.accounts("s2", 1, first=9_000_000)[0]
    partner = site.accounts("s3", 1)[0]
    move = Move.of(site, moving, "s3")
    async with site.one_router() as (router, stub):
        await follow(stub, moving, partner)
        before = await epoch(router)
        async with steady(stub, pairs) as callers:
            with site.catalog_proxy.being(mode):
                await asyncio.to_thread(move.run)
                # The slot is elsewhere, and the router cannot know where: whoever needs it waits for the catalog.
                waiting = [
                    asyncio.ensure_future(is_edge(stub, moving, partner, 15)),
                    asyncio.ensure_future(follow(stub, moving, everybody[0], 15)),
                ]
                await asyncio.sleep(2)
                assert not any(task.done() for task in waiting)
                assert await epoch(router) == before
            found, result = await asyncio.gather(*waiting)
            assert found is True
            assert not isinstance(result, bool)
            await eventually(lambda: _newer(router, before), 5, "the router knows the new topology")
            await asyncio.to_thread(move.back().run)
            assert await is_edge(stub, moving, everybody[0])
        assert not callers.failures, f"{len(callers.failures)} of {callers.calls}: {callers.failures[:3]}"
    with site.relay():
        await settled(site.databases)
    audit(site.databases)


async def test_a_router_whose_session_with_the_catalog_falls_silent_learns_of_changes(site: Site) -> None:
    async with site.one_router({"topology_poll_s": 1.0}) as (router, _):
        before = await epoch(router)
        site.catalog_proxy.set(Mode.HOLD)
        await asyncio.sleep(1.5)
        site.catalog_proxy.forget()
        with psycopg.connect(site.databases.catalog, autocommit=True) as catalog:
            catalog.execute("UPDATE slots SET shard = shard WHERE slot = 0")
        await eventually(lambda: _newer(router, before), 20, "the router learns of the new epoch")


async def _newer(router: RouterProcess, than: int) -> bool:
    return await epoch(router) > than
