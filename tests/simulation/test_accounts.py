"""An account is archived and restored while everybody follows it, routers die and a shard restarts: both ends agree in the end."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc
import pytest
from grpc import aio

from graphd.clock import now_us
from graphd.edge import State, Version
from graphd.v1 import graph_pb2 as pb
from tests.calls import follow, unfollow, write_all
from tests.databases import audit, edges
from tests.routers import GraphStub, stubs
from tests.simulation.check import settled
from tests.simulation.cluster import Site
from tests.simulation.faults import kill, revive

FANS, LONG_FANS = 1_000, 20_000
ROUNDS, LONG_ROUNDS = 2, 10
WRITERS = 4
QUIET = 5
"""Every fifth fan does nothing: his edge must come back as it was."""

PASSING = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED)
ARCHIVED = (State.ARCHIVED_BY_SOURCE, State.ARCHIVED_BY_DESTINATION, State.ARCHIVED_BY_BOTH)

Request = type[pb.ArchiveAccountRequest] | type[pb.RestoreAccountRequest]


async def change(
    through: Sequence[GraphStub], request: Request, account: int, on_the_way: Callable[[], Awaitable[object]]
) -> None:
    """As a caller does it: again, at the other router, until it is done. `on_the_way` is called once, in the middle of the first walk."""
    name = request.DESCRIPTOR.name.removesuffix("Request")
    happened: asyncio.Future[object] | None = None
    for attempt in range(100):
        try:
            async for told in getattr(through[attempt % 2], name)(request(account_id=account), timeout=120):
                if told.done and happened is None:
                    happened = asyncio.ensure_future(on_the_way())
            assert happened is not None, "nothing was to be changed"
            await happened
            return
        except aio.AioRpcError as error:
            if error.code() not in PASSING:
                raise
        await asyncio.sleep(0.05)
    raise AssertionError(f"{name} is never done")


async def write(stub: GraphStub, account: int, fans: Sequence[int], chance: random.Random) -> None:
    """Follows and unfollows, live and given, of the account and by it, for ever; what is refused or fails is left."""
    while True:
        writes = []
        for fan in chance.sample(fans, 20):
            ends = (fan, account) if chance.random() < 0.8 else (account, fan)
            given = {"position": now_us()} if chance.random() < 0.2 else {}
            writes.append((follow if chance.random() < 0.7 else unfollow)(*ends, **given))
        with contextlib.suppress(aio.AioRpcError):
            await stub.BatchWrite(pb.BatchWriteRequest(writes=writes), timeout=5)
        await asyncio.sleep(0.005)


@asynccontextmanager
async def writing(
    through: Sequence[GraphStub], account: int, fans: Sequence[int], chance: random.Random
) -> AsyncIterator[None]:
    """While the writers write, through both routers."""
    tasks = [
        asyncio.ensure_future(write(through[n % 2], account, fans, random.Random(chance.random())))
        for n in range(WRITERS)
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(outcome, asyncio.CancelledError), outcome


def states_of(site: Site, account: int) -> dict[tuple[int, int], Version]:
    """The account's edges, on which both halves agree."""
    audit(site.databases)
    return {key[:2]: Version(*version) for key, version in edges(site.databases).items() if account in key[:2]}


@pytest.mark.timeout(1200)
async def test_archived_and_restored_while_all_follow(site: Site, chance: random.Random, is_long: bool) -> None:
    account = site.accounts("s1", 1)[0]
    fans = list(range(1_000_000, 1_000_000 + (LONG_FANS if is_long else FANS)))
    quiet, busy = fans[::QUIET], [fan for at, fan in enumerate(fans) if at % QUIET]
    with site.routers(2, {"reverse_wait_s": 2.0}) as routers, site.relay():
        async with stubs(routers) as through:
            await write_all(through, [follow(fan, account) for fan in fans])
            await settled(site.databases)
            before = states_of(site, account)

            async def router_dies() -> None:
                await asyncio.to_thread(kill, routers[0])
                await asyncio.to_thread(revive, routers[0])

            async def shard_restarts() -> None:
                await asyncio.to_thread(kill, site.servers["s2"])
                await asyncio.to_thread(revive, site.servers["s2"])

            for number in range(LONG_ROUNDS if is_long else ROUNDS):
                happens = router_dies if number % 2 == 0 else shard_restarts
                async with writing(through, account, busy, chance):
                    await change(through, pb.ArchiveAccountRequest, account, happens)
                    await asyncio.sleep(0.5)
                await settled(site.databases)
                archived = states_of(site, account)
                assert State.ACTIVE not in {version.state for version in archived.values()}
                assert {archived[fan, account].state for fan in quiet} == {State.ARCHIVED_BY_DESTINATION}
                async with writing(through, account, busy, chance):
                    await change(through, pb.RestoreAccountRequest, account, happens)
                    await asyncio.sleep(0.5)
                await settled(site.databases)
                restored = states_of(site, account)
                assert not {version.state for version in restored.values()} & {*ARCHIVED}
                for fan in quiet:
                    assert restored[fan, account][1:] == before[fan, account][1:]


async def test_two_changes_of_one_account(site: Site) -> None:
    """The second one wins; the first is told so."""
    account = site.accounts("s1", 1)[0]
    with site.routers(2) as routers, site.relay():
        async with stubs(routers) as through:
            await write_all(through, [follow(fan, account) for fan in range(1_000_000, 1_003_000)])
            first = through[0].ArchiveAccount(pb.ArchiveAccountRequest(account_id=account), timeout=60)
            told = await anext(aiter(first))
            assert told.total == 3_000
            second = through[1].RestoreAccount(pb.RestoreAccountRequest(account_id=account), timeout=60)
            assert tuple(await asyncio.gather(ended(first), ended(second))) == (
                grpc.StatusCode.ABORTED,
                grpc.StatusCode.OK,
            )
            await settled(site.databases)
    assert {version.state for version in states_of(site, account).values()} == {State.ACTIVE}


async def ended(stream: aio.UnaryStreamCall[Any, Any]) -> grpc.StatusCode:
    """How a stream ends that is read to its end."""
    read = partial(anext, aiter(stream), None)
    try:
        while await read() is not None:
            pass
    except aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK
