"""A kind declared while the catalog is away from some: they cannot know it, go on with what they know, and lose nothing of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc import aio

from graphd.limits import RESUME_METADATA
from graphd.storage.catalog import Catalog
from graphd.topology import Kind
from graphd.v1 import graph_pb2 as pb
from tests.calls import refused
from tests.databases import audit
from tests.routers import GraphStub, detail, new_router, stubs
from tests.simulation.check import owed, settled
from tests.simulation.cluster import Site
from tests.simulation.proxy import Mode
from tests.waiting import eventually

SOON_S = 3.0


@asynccontextmanager
async def knowing_router(site: Site, name: str) -> AsyncIterator[GraphStub]:
    """A router whose way to the catalog is never hurt."""
    router = new_router(replace(site.proxied, catalog=site.databases.catalog), site.folder, name)
    try:
        router.launch()
        router.wait_ready(site.databases.names)
        async with stubs([router]) as [stub]:
            yield stub
    finally:
        router.stop()
    assert not router.errors(), router.errors()[:3]


@pytest.mark.parametrize("mode", [Mode.CUT, Mode.HOLD, Mode.BLACKHOLE])
async def test_an_unknown_kind_stays_unknown_and_known_ones_go_on(site: Site, mode: Mode) -> None:
    kind = f"away-{mode.value}"
    ada, bo = site.accounts("s1", 1)[0], site.accounts("s2", 1)[0]
    wanted = pb.FollowRequest(source_id=ada, destination_id=bo, kind=kind)
    async with site.one_router() as (_, stub):
        with site.catalog_proxy.being(mode):
            await Catalog(site.databases.catalog).add_kind(Kind(0, kind))
            loop = asyncio.get_running_loop()
            for _ in range(2):
                began = loop.time()
                errors = await asyncio.gather(
                    *(refused(stub.Follow(wanted, timeout=10), field="kind") for _ in range(50))
                )
                assert loop.time() - began < SOON_S
                assert all("follow" in (error.details() or "") for error in errors)
            # A caller in a hurry is told in his time.
            await refused(stub.Follow(wanted, timeout=0.5), field="kind")
            assert (
                await stub.Follow(pb.FollowRequest(source_id=ada, destination_id=bo), timeout=5)
            ).result.edge.source_id

        async def is_known() -> bool:
            try:
                return (await stub.Follow(wanted, timeout=5)).result.outcome != pb.OUTCOME_UNSPECIFIED
            except aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.INVALID_ARGUMENT:
                    raise
                return False

        await eventually(is_known, 15, "the kind is known when the catalog is back")
    await settled(site.databases)
    audit(site.databases)


async def test_no_event_of_a_kind_that_is_not_known_yet_is_passed_over(site: Site) -> None:
    ada, bo = site.accounts("s1", 1)[0], site.accounts("s2", 1)[0]
    async with site.one_router() as (_, blind), knowing_router(site, "knowing-watch") as knowing:
        watch = blind.WatchEdges(pb.WatchEdgesRequest(), timeout=60)
        token = next(value for key, value in await watch.initial_metadata() or () if key == RESUME_METADATA)
        with site.catalog_proxy.being(Mode.CUT):
            await Catalog(site.databases.catalog).add_kind(Kind(0, "unheard"))
            await knowing.Follow(pb.FollowRequest(source_id=ada, destination_id=bo, kind="unheard"), timeout=10)
            with pytest.raises(aio.AioRpcError) as caught:
                await watch.read()
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            info = detail(caught.value, error_details_pb2.ErrorInfo)
            assert info is not None
            assert info.reason == "CATALOG_UNAVAILABLE"

        kinds: list[str] = []

        async def is_told() -> bool:
            again = blind.WatchEdges(pb.WatchEdgesRequest(resume_token=str(token)), timeout=20)
            try:
                event = await again.read()
            except aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                return False
            finally:
                again.cancel()
            assert isinstance(event, pb.WatchEdgesResponse)
            kinds.append(event.edge.kind)
            return True

        await eventually(is_told, 15, "the event is delivered")
        assert kinds == ["unheard"]
    await settled(site.databases)


async def test_what_is_owed_in_a_kind_that_the_relay_has_not_heard_of_is_not_parked(site: Site) -> None:
    ada, bo = site.accounts("s1", 1)[0], site.accounts("s2", 1)[0]

    def tries() -> int:
        rows = site.databases.all_rows("SELECT attempts FROM outbox WHERE NOT parked")
        return int(rows[0][0]) if rows else 0

    async with knowing_router(site, "knowing-write") as stub:
        with site.relay():
            with site.catalog_proxy.being(Mode.CUT):
                await Catalog(site.databases.catalog).add_kind(Kind(0, "owed"))
                with site.proxies["s2"].being(Mode.CUT):
                    request = pb.FollowRequest(source_id=ada, destination_id=bo, kind="owed")
                    result = (await stub.Follow(request, timeout=20)).result
                    assert (result.outcome, result.reverse_pending) == (pb.OUTCOME_APPLIED, True)
                await eventually(lambda: tries() >= 2, 20, "the relay has met the row, and again")
                assert await asyncio.to_thread(owed, site.databases) == (1, 0)
            await settled(site.databases)
        page = await stub.ListFollowers(pb.ListFollowersRequest(account_id=bo, kind="owed"), timeout=5)
        assert [edge.source_id for edge in page.edges] == [ada]
    audit(site.databases)
