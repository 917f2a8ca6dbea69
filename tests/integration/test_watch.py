"""What those who watch are told: every change of an edge and nothing else, in order, and where to go on."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import grpc
import pytest
import pytest_asyncio
from grpc import aio

from graphd.client import Change, Client
from graphd.edge import State
from graphd.errors import InvalidArgumentError, OutOfRangeError
from graphd.limits import EVENTS_BUCKET_S, EVENTS_BUCKETS, RESUME_METADATA
from graphd.placement import slot_of
from graphd.storage.catalog import Catalog
from graphd.storage.cluster import Cluster
from graphd.storage.events import Events
from graphd.storage.shard import ShardSettings
from graphd.topology import Kind
from graphd.v1 import graph_pb2 as pb
from tests.calls import declare_kind, follow, write_all
from tests.databases import Databases
from tests.routers import GraphStub, RouterProcess
from tests.waiting import eventually

ADA, BO, CY = 1, 2, 3
OTHERS = range(100, 400)


@pytest_asyncio.fixture(loop_scope="session")
async def client(router: RouterProcess) -> AsyncIterator[Client]:
    async with Client(router.target) as found:
        yield found


async def beginning(graph: GraphStub, kinds: Sequence[str] = (), slots: Sequence[int] = ()) -> str:
    """The token of now."""
    call = graph.WatchEdges(pb.WatchEdgesRequest(kinds=kinds, slots=slots), timeout=10)
    metadata = dict(await call.initial_metadata())
    call.cancel()
    return str(metadata[RESUME_METADATA])


async def changes(client: Client, token: str, count: int, kinds: Sequence[str] = ()) -> list[Change]:
    """So many changes after a token."""
    found: list[Change] = []
    async for change in client.watch(kinds=kinds, resume_token=token):
        found.append(change)
        if len(found) == count:
            break
    return found


async def test_every_change_and_nothing_else(graph: GraphStub, client: Client) -> None:
    token = await beginning(graph)
    steps = [
        (client.unfollow(ADA, BO), None),  # a tombstone where nothing was is no change
        (client.request_follow(ADA, BO), State.REMOVED),
        (client.accept_follow(ADA, BO), State.PENDING),
        (client.follow(ADA, BO), None),  # UNCHANGED
        (client.block(BO, ADA), State.ACTIVE),
        (client.unblock(BO, ADA), State.BLOCKED),
        (client.follow(ADA, BO, position=time.time_ns() // 1_000 + 1_000_000), State.REMOVED),
        (client.follow(ADA, BO, position=5, backfill=True), None),  # STALE
    ]
    expected = []
    for step, previous in steps:
        result = await step
        if previous is not None:
            assert result.edge is not None
            expected.append((previous, result.edge))
    seen = await changes(client, token, len(expected))
    assert [(change.previous_state, change.edge) for change in seen] == expected
    assert (await changes(client, seen[2].resume_token, 2))[0] == seen[3]


async def test_it_begins_with_now_and_goes_on_after_each_event(graph: GraphStub, client: Client) -> None:
    await write_all([graph], [follow(other, CY) for other in OTHERS])
    token = await beginning(graph)
    later = range(OTHERS.stop, OTHERS.stop + 50)
    await write_all([graph], [follow(other, CY) for other in later])
    seen = await changes(client, token, len(later))
    assert sorted(change.edge.source_id for change in seen) == list(later)
    assert {change.previous_state for change in seen} == {None}
    # In order for each source only: two shards may be told of in turns that differ from time to time.
    for at in range(0, len(seen) - 1, 7):
        rest = await changes(client, seen[at].resume_token, len(seen) - 1 - at)
        assert sorted(change.edge for change in rest) == sorted(change.edge for change in seen[at + 1 :])


async def test_kinds_and_slots(graph: GraphStub, client: Client, databases: Databases) -> None:
    await declare_kind([graph], databases, "mute", 2)
    sources = range(1_000, 1_040)
    slots = sorted({slot_of(source, databases.slots) for source in sources})[::2]
    every, mutes = await beginning(graph), await beginning(graph, ["mute"])
    some = await beginning(graph, slots=slots)
    writes = [follow(source, CY, kind=kind) for source in sources for kind in ("follow", "mute")]
    await write_all([graph], writes)
    assert len(await changes(client, every, len(writes))) == len(writes)
    seen = await changes(client, mutes, len(sources), ["mute"])
    assert sorted((change.edge.source_id, change.edge.kind) for change in seen) == [(s, "mute") for s in sources]
    expected = {source for source in sources if slot_of(source, databases.slots) in slots}
    found: list[int] = []
    async for change in client.watch(slots=slots, resume_token=some):
        found.append(change.edge.source_id)
        if len(found) == 2 * len(expected):
            break
    assert set(found) == expected
    with pytest.raises(InvalidArgumentError, match="resume_token"):
        await changes(client, every, 1, ["mute"])


async def test_a_kind_may_be_kept_from_those_who_watch(graph: GraphStub, client: Client, databases: Databases) -> None:
    await Catalog(databases.catalog).add_kind(Kind(0, "quiet", events=False))
    token = await beginning(graph)
    await write_all(
        [graph], [follow(source, BO, kind=kind) for source in range(2_000, 2_020) for kind in ("quiet", "follow")]
    )
    assert {change.edge.kind for change in await changes(client, token, 20)} == {"follow"}


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.WatchEdgesRequest(kinds=["follow", "none"]), "kinds[1]"),
        (pb.WatchEdgesRequest(slots=[0, 64]), "slots[1]"),
        (pb.WatchEdgesRequest(slots=[-1]), "slots[0]"),
        (pb.WatchEdgesRequest(resume_token="x"), "resume_token"),
        (pb.WatchEdgesRequest(resume_token="A" * 100_000), "resume_token"),
        (pb.WatchEdgesRequest(resume_token="ä"), "resume_token"),
    ],
)
async def test_bad_requests_name_the_field(graph: GraphStub, request_: pb.WatchEdgesRequest, field: str) -> None:
    with pytest.raises(aio.AioRpcError) as caught:
        await graph.WatchEdges(request_, timeout=10).read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (caught.value.details() or "").startswith(f"{field}: ")


async def test_each_bit_of_a_token(graph: GraphStub, client: Client) -> None:
    token = await beginning(graph)
    for at in range(len(token)):
        changed = token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1 :]
        with pytest.raises(InvalidArgumentError, match="resume_token"):
            await changes(client, changed, 1)


@asynccontextmanager
async def opened(databases: Databases) -> AsyncIterator[dict[str, Events]]:
    cluster = await Cluster.open(databases.config, ShardSettings(application="forget"))
    try:
        await eventually(lambda: all(shard.up for shard in cluster.shards.values()), 10, "the lanes are connected")
        yield {name: Events(shard) for name, shard in cluster.shards.items()}
    finally:
        await cluster.close()


async def test_who_is_too_far_behind_is_told_to_start_over(
    graph: GraphStub, client: Client, databases: Databases
) -> None:
    token = await beginning(graph)
    await write_all([graph], [follow(other, BO) for other in range(5_000, 5_100)])
    now = time.time()
    async with opened(databases) as shards:
        for events in shards.values():
            # Kept as long as asked: three days, one day, and a moment less than until the ring comes round.
            for days in (3.0, 1.0):
                assert await events.forget(days * 86_400, now) == 0
                assert await events.forget(days * 86_400, now + days * 86_400) == 0
        assert len(await changes(client, token, 100)) == 100
        later = now + 3 * 86_400 + 2 * EVENTS_BUCKET_S
        assert later < now + EVENTS_BUCKET_S * (EVENTS_BUCKETS - 1)
        for events in shards.values():
            assert await events.forget(3 * 86_400, later) >= 1
            assert await events.forget(3 * 86_400, later) == 0
    with pytest.raises(OutOfRangeError, match="resume_token: is older"):
        await changes(client, token, 1)
    fresh = await beginning(graph)
    await client.follow(6_000, BO)
    assert (await changes(client, fresh, 1))[0].edge.source_id == 6_000
