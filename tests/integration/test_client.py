"""The client with real routers: every call it offers, and routers that are stopped and killed under it."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from graphd import errors
from graphd.client import (
    AdminClient,
    AllOf,
    AnyOf,
    Client,
    EdgeKey,
    FollowersOf,
    FollowingOf,
    ListOrder,
    Without,
    Write,
)
from graphd.clock import now_us
from graphd.edge import Direction, State
from graphd.operations import Operation, Outcome
from graphd.placement import slot_of
from tests.databases import Databases
from tests.routers import RouterProcess, running_routers

ADA, BO, CY, DEE = 0, 1, 2**53 + 1, 2**63 - 1
FANS = range(10_000, 12_500)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def client(router: RouterProcess) -> AsyncIterator[Client]:
    async with Client(router.target) as client:
        yield client


# Calls


async def test_one_edge(client: Client) -> None:
    with pytest.raises(errors.NotFoundError):
        await client.get_edge(ADA, DEE)
    before = now_us()
    result = await client.follow(ADA, DEE)
    assert (result.outcome, result.duplicate, result.reverse_pending) == (Outcome.APPLIED, False, False)
    found = await client.get_edge(ADA, DEE)
    assert found == result.edge
    assert found[:4] == (ADA, DEE, "follow", State.ACTIVE)
    assert before - 1_000_000 <= found.since == found.position <= now_us() + 1_000_000
    assert (await client.follow(ADA, DEE)).outcome is Outcome.UNCHANGED
    assert (await client.unfollow(ADA, DEE)).outcome is Outcome.APPLIED
    assert (await client.get_edge(ADA, DEE)).state is State.REMOVED
    assert (await client.follow(ADA, DEE, position=5, backfill=True)).outcome is Outcome.STALE
    assert await client.batch_get_edges([EdgeKey(DEE, ADA), EdgeKey(ADA, DEE, "follow")]) == [
        None,
        await client.get_edge(ADA, DEE),
    ]


async def test_a_request_id_answers_as_at_first(client: Client) -> None:
    first = await client.follow(BO, DEE, request_id="once")
    again = await client.follow(BO, DEE, request_id="once")
    assert again.duplicate
    assert (again.edge, again.outcome) == (first.edge, first.outcome)
    with pytest.raises(errors.RequestIdReusedError):
        await client.unfollow(BO, DEE, request_id="once")


async def test_errors_name_the_field(client: Client) -> None:
    with pytest.raises(errors.InvalidArgumentError) as raised:
        await client.follow(-1, BO)
    assert raised.value.field == "source_id"
    with pytest.raises(errors.InvalidArgumentError) as raised:
        await client.get_degrees(ADA, kind="nope")
    assert raised.value.field == "kind"
    with pytest.raises(errors.OutOfRangeError) as out:
        await client.follow(ADA, BO, position=now_us() + 3600 * 1_000_000)
    assert out.value.field == "position"
    with pytest.raises(errors.InvalidArgumentError) as raised:
        await client.followers(ADA).page("nonsense")
    assert raised.value.field == "page_token"


async def test_lists_degrees_and_sets(client: Client) -> None:
    batches = [FANS[i : i + 1000] for i in range(0, len(FANS), 1000)]
    for batch in batches:
        results = await client.batch_write([Write(Operation.FOLLOW, fan, CY) for fan in batch])
        assert {result.outcome for result in results} == {Outcome.APPLIED}
    edges = [edge async for edge in client.followers(CY)]
    assert sorted(edge.source_id for edge in edges) == list(FANS)
    assert {edge.destination_id for edge in edges} == {CY}
    assert [edge.since for edge in edges] == sorted((edge.since for edge in edges), reverse=True)
    assert [(n.account_id, n.since) async for n in client.follower_ids(CY, page_size=999)] == [
        (edge.source_id, edge.since) for edge in edges
    ]
    oldest = client.followers(CY, order=ListOrder.OLDEST_FIRST, page_size=700)
    assert [len(page.items) async for page in oldest.pages()] == [700, 700, 700, 400]
    second = await oldest.page((await oldest.page()).next_page_token)
    assert await oldest.page(second.previous_page_token) == await oldest.page()
    assert [n.account_id async for n in client.following_ids(FANS[3])] == [CY]
    assert [edge async for edge in client.following(CY)] == []

    found, nobody = await client.batch_get_degrees([CY, 77])
    assert found == await client.get_degrees(CY)
    assert (found.followers, found.following) == (len(FANS), 0)
    assert found.by_state == {(Direction.REVERSE, State.ACTIVE): len(FANS)}
    assert (nobody.account_id, nobody.followers, nobody.by_state) == (77, 0, {})

    common = client.intersect(FollowersOf(CY), list(range(9_000, 10_050)), page_size=7)
    assert [account async for account in common] == list(range(10_049, 9_999, -1))
    assert [account async for account in client.intersect(FollowingOf(FANS[0]), [CY, 5])] == [CY]
    assert [account async for account in client.union([1, 2], [2, 3], page_size=2)] == [3, 2, 1]
    assert [account async for account in client.difference([1, 2], [2, 3])] == [1]
    nested = Without(AnyOf(FollowersOf(CY), [5]), AllOf(FollowersOf(CY), list(FANS[3:])))
    expected = sorted({*FANS[:3], 5}, reverse=True)
    assert [account async for account in client.select(nested, page_size=3)] == expected
    assert await client.common_degree(FollowersOf(CY), FANS) == (len(FANS), True)
    assert await client.common_degree(FollowersOf(CY), FANS, limit=2) == (2, True)
    assert await client.distance(FANS[0], CY) == 1
    assert await client.distance(CY, FANS[0]) is None
    assert (await client.suggest(FANS[0])).accounts == ()


async def test_a_batch_has_a_result_for_each_item(client: Client) -> None:
    results = await client.batch_write(
        [
            Write(Operation.FOLLOW, 20, 21),
            Write(Operation.FOLLOW, -20, 21),
            Write(Operation.UNFOLLOW, 20, 21),
            Write(Operation.FOLLOW, 20, 20),
        ]
    )
    assert [result.outcome for result in results] == [
        Outcome.APPLIED,
        Outcome.REFUSED,
        Outcome.APPLIED,
        Outcome.REFUSED,
    ]
    assert results[1].reason == "INVALID"
    assert results[2].edge == await client.get_edge(20, 21)


async def test_operators_calls(router: RouterProcess, databases: Databases) -> None:
    async with AdminClient(router.admin) as admin:
        topology = await admin.get_topology()
        assert topology.owners == databases.view.topology.owners
        assert topology.shards == ("s1", "s2")
        assert [kind.name for kind in topology.kinds] == ["follow"]
        shards = await admin.list_shards()
        assert [(shard.name, shard.serving, shard.slots) for shard in shards] == [("s1", True, 32), ("s2", True, 32)]
        slots = [slot async for slot in admin.slots(page_size=10)]
        assert [slot.slot for slot in slots] == list(range(64))
        assert slots[slot_of(CY, 64)].reverse >= len(FANS)
        assert {slot.shard async for slot in admin.slots("s2")} == {"s2"}
        with pytest.raises(errors.InvalidArgumentError, match="shard"):
            await admin.slots("s9").page()


# Routers that go away


@pytest.fixture
def two_routers(databases: Databases, tmp_path: Path) -> Iterator[list[RouterProcess]]:
    with running_routers(databases, tmp_path, 2) as routers:
        yield routers


class Load:
    """16 tasks that write and read until told to stop."""

    def __init__(self, client: Client) -> None:
        self.client, self.done, self.failed = client, 0, Counter[str]()
        self.followed: list[tuple[int, int]] = []
        self.running = True
        self.one_more = asyncio.Condition()

    async def worker(self, number: int) -> None:
        source_id = 1_000_000 * (number + 1)
        while self.running:
            source_id += 1
            try:
                await self.client.follow(source_id, BO)
                self.followed.append((source_id, BO))
                await self.client.get_edge(source_id, BO)
            except errors.GraphdError as error:
                self.failed[repr(error)] += 1
            self.done += 1
            async with self.one_more:
                self.one_more.notify_all()

    async def progress(self, calls: int) -> None:
        goal = self.done + calls
        async with asyncio.timeout(30), self.one_more:
            await self.one_more.wait_for(lambda: self.done >= goal)


@asynccontextmanager
async def load_on(client: Client) -> AsyncIterator[Load]:
    load = Load(client)
    async with asyncio.TaskGroup() as group:
        for number in range(16):
            group.create_task(load.worker(number))
        try:
            yield load
        finally:
            load.running = False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
async def test_one_of_two_routers_ends_under_load(two_routers: list[RouterProcess], number: signal.Signals) -> None:
    first, second = two_routers
    async with Client([first.target, second.target]) as client, load_on(client) as load:
        await load.progress(200)
        for router in (first, second):
            router.signal(number)
            process = router.process
            assert process is not None
            await asyncio.to_thread(process.wait, 20)
            await load.progress(200)
            router.launch()
            await asyncio.to_thread(router.wait_ready, ["s1", "s2"])
            await load.progress(200)
    assert not load.failed
    async with Client(second.target) as client:
        found = await client.batch_get_edges([EdgeKey(*key) for key in load.followed[-1000:]])
        assert all(edge is not None and edge.state is State.ACTIVE for edge in found)
        degrees = await client.get_degrees(BO)
        assert degrees.followers == len({n.account_id async for n in client.follower_ids(BO)})


async def test_the_only_router_starts_again_under_load(two_routers: list[RouterProcess]) -> None:
    router = two_routers[0]
    async with Client(router.target) as client, load_on(client) as load:
        await load.progress(100)
        router.signal(signal.SIGTERM)
        process = router.process
        assert process is not None
        await asyncio.to_thread(process.wait, 20)
        router.launch()
        await load.progress(100)
    assert not load.failed
