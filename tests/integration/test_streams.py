"""Whole lists in chunks: complete, in order, resumable after each chunk, and of no cost to who does not read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest
import pytest_asyncio
from grpc import aio

from graphd.client import Client
from graphd.errors import InvalidArgumentError
from graphd.v1 import graph_pb2 as pb
from tests.calls import follow, write_all
from tests.routers import GraphStub, RouterProcess
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
    chunk = await anext(client.stream_followers(CY, chunk_size=10))
    for other in (
        client.stream_followers(DEE, page_token=chunk.page_token),
        client.stream_following(CY, page_token=chunk.page_token),
    ):
        with pytest.raises(InvalidArgumentError, match="page_token"):
            await anext(other)


async def test_streams_that_nobody_reads_leave_nothing_behind(graph: GraphStub, router: RouterProcess) -> None:
    """Many begun and left: those who read are served meanwhile, and no place stays taken."""
    request = pb.StreamFollowersRequest(account_id=CY, chunk_size=100)
    left = [graph.StreamFollowers(request) for _ in range(200)]
    for call in left:
        assert await call.read() is not aio.EOF
    assert router.metric("graphd_streams") == len(left)
    answers = [answer async for answer in graph.StreamFollowers(request)]
    assert sum(len(answer.ids) for answer in answers) == COUNT
    for call in left:
        call.cancel()

    def idle() -> bool:
        calls = [router.metric(f'graphd_shard_calls{{shard="{shard}"}}') for shard in ("s1", "s2")]
        return router.metric("graphd_streams") == 0 and calls == [0, 0]

    await eventually(lambda: asyncio.to_thread(idle), 10, "no stream is served and no call waits")
