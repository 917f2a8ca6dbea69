"""A client that pings while it has nothing to ask keeps its connection (F094)."""

from __future__ import annotations

import asyncio

import pytest
from grpc import aio

from tests.routers import graph_stub
from tests.simulation.calls import serves
from tests.simulation.cluster import Site

IDLE_S = 190.0
PING_EVERY_MS = 10_000
"""What the router allows; its documented least."""


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_three_idle_minutes_do_not_cost_the_connection(site: Site) -> None:
    ada, bo = site.accounts("s1", 1)[0], site.accounts("s2", 1)[0]
    options = (
        ("grpc.keepalive_time_ms", PING_EVERY_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    )
    async with site.one_router() as (router, _), aio.insecure_channel(router.target, options=options) as channel:
        stub = graph_stub(channel)
        assert await serves(stub, ada, bo)
        lost = asyncio.ensure_future(channel.wait_for_state_change(channel.get_state()))
        # Being idle is what is tried: a GOAWAY of the router would end this before its time.
        await asyncio.wait([lost], timeout=IDLE_S)
        assert not lost.done(), f"the connection became {channel.get_state()}"
        lost.cancel()
        assert await serves(stub, ada, bo)
