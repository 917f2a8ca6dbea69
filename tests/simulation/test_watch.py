"""Writers at once through two routers, a consumer that dies again and again, a shard that restarts: the events are the whole story."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from grpc import aio

from graphd.client import Change, Client
from graphd.edge import State
from graphd.limits import RESUME_METADATA
from graphd.v1 import graph_pb2 as pb
from tests.databases import audit, edges
from tests.routers import GraphStub, stubs
from tests.simulation.check import settled
from tests.simulation.cluster import Site
from tests.waiting import eventually

WRITERS = 4
CHANGES, LONG_CHANGES = 1_500, 20_000
DEATHS = 20
SOURCES, DESTINATIONS = 40, 12
BATCH = 20
OPERATIONS = [
    pb.OPERATION_FOLLOW, pb.OPERATION_FOLLOW, pb.OPERATION_UNFOLLOW, pb.OPERATION_REQUEST, pb.OPERATION_ACCEPT,
    pb.OPERATION_BLOCK, pb.OPERATION_UNBLOCK,
]  # fmt: skip


class Consumer:
    """Remembers what it saw and where it was, as one does that writes both down together."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.seen: list[Change] = []

    async def run(self, targets: list[str]) -> None:
        """Until killed."""
        async with Client(targets) as client:
            async for change in client.watch(resume_token=self.token):
                self.seen.append(change)
                self.token = change.resume_token


async def write(stub: GraphStub, chance: random.Random, changes: int) -> None:
    """Random operations on few edges, most of them contended; what a restart fails is tried again."""
    for _ in range(changes // BATCH):
        writes = [
            pb.Write(
                operation=chance.choice(OPERATIONS),
                source_id=chance.randrange(SOURCES),
                destination_id=1_000 + chance.randrange(DESTINATIONS),
            )
            for _ in range(BATCH)
        ]
        while True:
            try:
                await stub.BatchWrite(pb.BatchWriteRequest(writes=writes), timeout=10)
                break
            except aio.AioRpcError:
                await asyncio.sleep(0.05)


@asynccontextmanager
async def dying(consumer: Consumer, targets: list[str], chance: random.Random) -> AsyncIterator[None]:
    """The consumer runs, and is killed and begun again so many times; at the end it still runs."""
    task = asyncio.ensure_future(consumer.run(targets))

    async def kill_it() -> None:
        nonlocal task
        for _ in range(DEATHS):
            await asyncio.sleep(0.02 + chance.random() * 0.2)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            task = asyncio.ensure_future(consumer.run(targets))

    killer = asyncio.ensure_future(kill_it())
    try:
        yield
        await killer
    finally:
        for running in (killer, task):
            running.cancel()
        await asyncio.gather(killer, task, return_exceptions=True)


async def token_of_now(stub: GraphStub) -> str:
    call = stub.WatchEdges(pb.WatchEdgesRequest(), timeout=10)
    metadata = dict(await call.initial_metadata())
    call.cancel()
    return str(metadata[RESUME_METADATA])


@pytest.mark.timeout(600)
async def test_the_events_are_the_whole_story(site: Site, chance: random.Random, is_long: bool) -> None:
    with site.routers(2, {"reverse_wait_s": 5.0}) as routers, site.relay():
        targets = [router.target for router in routers]
        async with stubs(routers) as through:
            consumer = Consumer(await token_of_now(through[0]))
            writers = [
                write(through[n % 2], random.Random(chance.random()), LONG_CHANGES if is_long else CHANGES)
                for n in range(WRITERS)
            ]
            async with dying(consumer, targets, chance):
                working = asyncio.gather(*writers)
                await asyncio.sleep(0.5)
                await asyncio.to_thread(site.servers["s2"].stop)
                await asyncio.to_thread(site.servers["s2"].start)
                await working
                await settled(site.databases)
                stored = edges(site.databases)
                last = {key: version[0] for key, version in stored.items()}

                def is_told() -> bool:
                    told = {change.edge[:2]: change.edge for change in consumer.seen}
                    # An UNCHANGED write raises the position without an event, so the state and the since are what must agree.
                    return all(
                        key[:2] in told and (told[key[:2]].state, told[key[:2]].since) == (version[1], version[2])
                        for key, version in stored.items()
                        if version[1] != State.REMOVED or key[:2] in told
                    )

                await eventually(is_told, 20, "the consumer has seen the last change of each edge")
    audit(site.databases)
    states: dict[tuple[int, int], State | None] = {}
    positions: dict[tuple[int, int], int] = {}
    for change in consumer.seen:
        key = (change.edge.source_id, change.edge.destination_id)
        # Each begins where the one before it ended: none is missing, none comes twice, and they are in order.
        assert change.previous_state == states.get(key, absent(change)), change
        assert change.edge.position > positions.get(key, 0), change
        states[key], positions[key] = change.edge.state, change.edge.position
    assert len(consumer.seen) > len(states) > SOURCES
    for key3, version in stored.items():
        assert states.get(key3[:2], State.REMOVED) == version[1]
        assert positions.get(key3[:2], 0) <= last[key3]


def absent(change: Change) -> State | None:
    """What an edge was before its first event: absent, or a tombstone of an operation that changed nothing."""
    return change.previous_state if change.previous_state is State.REMOVED else None
