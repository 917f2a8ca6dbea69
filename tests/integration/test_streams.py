"""Whole lists in chunks: complete, in order, resumable after each chunk, and of no cost to who does not read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator

import grpc
import pytest
import pytest_asyncio
from grpc import aio

from graphd.client import Client
from graphd.errors import InvalidArgumentError
from graphd.placement import slot_of
from graphd.v1 import graph_pb2 as pb
from tests.calls import follow, refused, write_all
from tests.databases import Databases
from tests.routers import GraphStub, RouterProcess, graph_stub
from tests.simulation.proxy import Network
from tests.waiting import eventually

CY, DEE = 3, 4
COUNT = 2_503
TIED = 1_700_000_000_000_000
FANS = range(10_000, 10_000 + COUNT)


@pytest_asyncio.fixture(scope="module", loop_scope="session", autouse=True)
async def _lists(graph: GraphStub) -> None:
    """Followers of cy, and followed by dee; half of them since one moment."""
    writes = [follow(fan, CY, TIED + (fan % 2) * fan, backfill=True) for fan in FANS]
    writes += [follow(DEE, fan, TIED + (fan % 2) * fan, backfill=True) for fan in FANS]
    await write_all([graph], writes)


@pytest_asyncio.fixture(loop_scope="session")
async def client(router: RouterProcess) -> AsyncIterator[Client]:
    async with Client(router.target) as found:
        yield found


NEWEST_FIRST = sorted(FANS, key=lambda fan: (TIED + (fan % 2) * fan, fan), reverse=True)


@pytest.mark.parametrize("chunk_size", [0, 1, 7, 999, 1_000, 5_000])
async def test_the_whole_list_in_order(client: Client, chunk_size: int) -> None:
    for chunks in (
        client.stream_followers(CY, chunk_size=chunk_size),
        client.stream_following(DEE, chunk_size=chunk_size),
    ):
        found = [chunk async for chunk in chunks]
        size = min(chunk_size or 1_000, 1_000)
        assert [account for chunk in found for account in chunk.ids] == NEWEST_FIRST
        assert [len(chunk.ids) for chunk in found[:-1]] == [size] * (len(found) - 1)
        assert [bool(chunk.page_token) for chunk in found] == [True] * (len(found) - 1) + [False]


async def test_it_goes_on_after_each_chunk(client: Client) -> None:
    chunks = [chunk async for chunk in client.stream_followers(CY, chunk_size=500)]
    for at, chunk in enumerate(chunks[:-1]):
        rest = [later async for later in client.stream_followers(CY, chunk_size=500, page_token=chunk.page_token)]
        assert rest == chunks[at + 1 :]


async def test_an_empty_list_is_one_empty_chunk(graph: GraphStub) -> None:
    answers = [answer async for answer in graph.StreamFollowers(pb.StreamFollowersRequest(account_id=99))]
    assert [(list(answer.ids), answer.page_token) for answer in answers] == [([], "")]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "account_id"),
        ({"account_id": -1}, "account_id"),
        ({"account_id": CY, "chunk_size": -1}, "chunk_size"),
        ({"account_id": CY, "kind": "none"}, "kind"),
        ({"account_id": CY, "page_token": "x"}, "page_token"),
    ],
)
async def test_bad_requests_name_the_field(graph: GraphStub, fields: dict[str, object], field: str) -> None:
    calls = (
        graph.StreamFollowers(pb.StreamFollowersRequest(**fields)),  # type: ignore[arg-type]
        graph.StreamFollowing(pb.StreamFollowingRequest(**fields)),  # type: ignore[arg-type]
    )
    for call in calls:
        with pytest.raises(aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert (caught.value.details() or "").startswith(f"{field}: ")


async def test_a_token_serves_its_own_list(client: Client) -> None:
    token = (await anext(client.stream_followers(CY, chunk_size=10))).page_token
    for other in (
        client.stream_followers(DEE, page_token=token),
        client.stream_following(CY, page_token=token),
        client.stream_followers(CY, page_token=token[:-1]),
        client.stream_followers(CY, page_token=("B" if token[20] == "A" else "A").join((token[:20], token[21:]))),
    ):
        with pytest.raises(InvalidArgumentError, match="page_token"):
            await anext(other)


async def test_a_token_of_a_page_of_the_same_list_leads_on_into_a_stream_but_not_back(graph: GraphStub) -> None:
    page = await graph.ListFollowers(pb.ListFollowersRequest(account_id=CY, page_size=40, view=pb.VIEW_IDS))
    on = pb.StreamFollowersRequest(account_id=CY, page_token=page.next_page_token)
    rest = await all_of(graph.StreamFollowers(on))
    assert [*page.ids, *rest] == NEWEST_FIRST
    second = await graph.ListFollowers(pb.ListFollowersRequest(account_id=CY, page_token=page.next_page_token))
    back = pb.StreamFollowersRequest(account_id=CY, page_token=second.previous_page_token)
    await refused(graph.StreamFollowers(back).read(), field="page_token")


async def test_the_client_goes_on_by_itself(router: RouterProcess) -> None:
    """The connection is reset after every third chunk: none is lost, none comes twice."""
    host, _, port = router.target.rpartition(":")
    with Network() as network:
        proxy = network.tcp(int(port))
        async with Client(f"{host}:{proxy.port}") as client:
            found: list[int] = []
            at = 0
            async for chunk in client.stream_followers(CY, chunk_size=250):
                found += chunk.ids
                at += 1
                if at % 3 == 0:
                    await asyncio.to_thread(proxy.cut)
        assert found == NEWEST_FIRST
        assert proxy.accepted >= 3


async def all_of(call: AsyncIterable[pb.StreamFollowersResponse]) -> list[int]:
    """The ids of all answers."""
    return [account async for answer in call for account in answer.ids]


async def test_a_slot_on_its_way_is_waited_for(graph: GraphStub, databases: Databases) -> None:
    """While no shard owns the list the stream waits; it does not take the list for empty."""
    slot = slot_of(CY, databases.slots)
    shard = databases.view.topology.owners[slot]
    with databases.connect(shard) as connection:
        try:
            connection.execute("UPDATE slots SET owned = false WHERE slot = %s", (slot,))
            call = graph.StreamFollowers(pb.StreamFollowersRequest(account_id=CY), timeout=20)
            first = asyncio.ensure_future(all_of(call))
            done, _ = await asyncio.wait([first], timeout=0.3)
            assert not done
        finally:
            connection.execute("UPDATE slots SET owned = true WHERE slot = %s", (slot,))
    assert await first == NEWEST_FIRST


async def test_a_deadline_ends_a_stream(graph: GraphStub, router: RouterProcess, databases: Databases) -> None:
    slot = slot_of(CY, databases.slots)
    with databases.connect(databases.view.topology.owners[slot]) as connection:
        try:
            connection.execute("UPDATE slots SET owned = false WHERE slot = %s", (slot,))
            call = graph.StreamFollowers(pb.StreamFollowersRequest(account_id=CY), timeout=0.4)
            await refused(call.read(), grpc.StatusCode.DEADLINE_EXCEEDED)
            await eventually(
                lambda: asyncio.to_thread(lambda: idle(router)), 10, "the stream is over at the router too"
            )
        finally:
            connection.execute("UPDATE slots SET owned = true WHERE slot = %s", (slot,))


def idle(router: RouterProcess) -> bool:
    """No stream is served, and no call waits for a shard."""
    calls = [router.metric(f'graphd_shard_calls{{shard="{shard}"}}') for shard in ("s1", "s2")]
    return router.metric("graphd_streams") == 0 and calls == [0, 0]


async def test_streams_that_nobody_reads_leave_nothing_behind(graph: GraphStub, router: RouterProcess) -> None:
    """Many begun and left: those who read are served meanwhile, and no place stays taken."""
    # Of this size a list does not fit into what the network holds for a caller who does not read; which must not grow.
    request = pb.StreamFollowersRequest(account_id=CY, chunk_size=1)
    async with aio.insecure_channel(router.target, options=[("grpc.http2.bdp_probe", 0)]) as channel:
        left = [graph_stub(channel).StreamFollowers(request) for _ in range(60)]
        for call in left:
            assert await call.read() is not aio.EOF
        assert router.metric("graphd_streams") == len(left)
        assert await all_of(graph.StreamFollowers(request)) == NEWEST_FIRST
        for call in left:
            call.cancel()
        await eventually(lambda: asyncio.to_thread(lambda: idle(router)), 10, "no stream is served and no call waits")
