"""Routers that are told to stop finish what they have, and a client with several of them does not notice."""

from __future__ import annotations

import asyncio
import random
import signal

from graphd.client import Client
from graphd.errors import GraphdError
from tests.databases import audit
from tests.simulation.check import settled
from tests.simulation.cluster import Site

CALLERS = 16
RESTARTS = 4


async def test_a_rolling_restart_fails_no_call(site: Site, chance: random.Random) -> None:
    failures: list[GraphdError] = []
    calls = 0
    stop = asyncio.Event()

    async def caller(client: Client, number: int) -> None:
        nonlocal calls
        while not stop.is_set():
            source, destination = 1 + number + CALLERS * chance.randrange(10), 10_000 + chance.randrange(50)
            try:
                match chance.randrange(4):
                    case 0:
                        await client.unfollow(source, destination)
                    case 1:
                        await client.get_degrees(destination)
                    case 2:
                        await client.followers(destination, page_size=20).page()
                    case _:
                        await client.follow(source, destination)
            except GraphdError as error:
                failures.append(error)
            calls += 1

    with site.routers(2) as routers, site.relay():
        async with Client([router.target for router in routers]) as client:
            callers = [asyncio.create_task(caller(client, number)) for number in range(CALLERS)]
            try:
                for restart in range(RESTARTS):
                    await asyncio.sleep(1)
                    router = routers[restart % 2]
                    router.signal(signal.SIGTERM)
                    assert router.process is not None
                    assert await asyncio.to_thread(router.process.wait, 20) == 0
                    await asyncio.sleep(0.3)
                    router.launch()
                    await asyncio.to_thread(router.wait_ready, site.databases.names)
            finally:
                stop.set()
                await asyncio.gather(*callers)
        assert not failures, f"{len(failures)} of {calls} calls failed, such as {failures[0]!r}"
        assert calls > 200
        await settled(site.databases)
    audit(site.databases)
