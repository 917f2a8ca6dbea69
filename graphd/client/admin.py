"""AdminService for operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc

from graphd.client import codec
from graphd.client.calls import Connection
from graphd.client.listing import Listing
from graphd.client.values import Page, ShardInfo, SlotInfo, TopologyInfo
from graphd.limits import MAX_PAGE_SIZE
from graphd.v1 import admin_pb2 as pb
from graphd.v1.admin_pb2_grpc import AdminServiceStub

if TYPE_CHECKING:
    from graphd.v1.admin_pb2_grpc import AdminServiceAsyncStub  # generated for type checkers only


class AdminClient(Connection):
    """Calls of AdminService; `target` is the admin port."""

    def _bind(self, channel: grpc.aio.Channel) -> None:
        self._stub: AdminServiceAsyncStub = AdminServiceStub(channel)

    async def get_topology(self, *, deadline_s: float | None = None) -> TopologyInfo:
        """The topology as the router knows it."""
        request = pb.GetTopologyRequest()
        return codec.topology(await self._unary(self._stub.GetTopology, request, deadline_s))

    async def list_shards(self, *, deadline_s: float | None = None) -> list[ShardInfo]:
        """The shards, whether each answers, and what it holds."""
        answer = await self._unary(self._stub.ListShards, pb.ListShardsRequest(), deadline_s)
        return codec.shards(answer.shards)

    def slots(
        self, shard: str = "", *, page_size: int = MAX_PAGE_SIZE, deadline_s: float | None = None
    ) -> Listing[SlotInfo]:
        """The slots of one shard, or of all, with their sizes."""

        async def fetch(page_token: str, size: int) -> Page[SlotInfo]:
            request = pb.ListSlotsRequest(shard=shard, page_size=size, page_token=page_token)
            return codec.slot_page(await self._unary(self._stub.ListSlots, request, deadline_s))

        return Listing(fetch, page_size)
