"""AdminService: what operators ask of a cluster."""

from __future__ import annotations

import asyncio
from typing import Final

import grpc
import structlog

from graphd import cursor as tokens
from graphd.cursor import Cursor
from graphd.errors import InvalidArgumentError, ShardUnavailableError
from graphd.storage.cluster import Cluster
from graphd.storage.shard import Shard
from graphd.topology import Topology
from graphd.v1 import admin_pb2 as pb
from router import codec
from router.reads import deadline_at
from router.service import Call, Wrapper, handler_of

log = structlog.get_logger()

_SLOTS_SCOPE: Final = b"slots:"


class AdminService:
    """The operators' calls."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def handler(self, wrapper: Wrapper) -> grpc.GenericRpcHandler:
        """All methods of the contract; those not offered say so."""
        offered: dict[str, Call] = {
            "GetTopology": self.get_topology,
            "ListShards": self.list_shards,
            "ListSlots": self.list_slots,
        }
        return handler_of(pb.DESCRIPTOR.services_by_name["AdminService"], offered, wrapper)

    async def get_topology(self, request: pb.GetTopologyRequest, deadline: float) -> pb.GetTopologyResponse:
        """The topology as this router knows it."""
        topology = self._cluster.topology
        return pb.GetTopologyResponse(
            epoch=topology.epoch,
            slots=topology.slots,
            shards=topology.shards,
            assignment=_ranges(topology),
            kinds=[
                pb.Kind(
                    name=kind.name,
                    allow_self=kind.allow_self,
                    max_out_degree=kind.max_out_degree,
                    events=kind.events,
                )
                for kind in topology.kinds.values()
            ],
        )

    async def list_shards(self, request: pb.ListShardsRequest, deadline: float) -> pb.ListShardsResponse:
        """Every shard; one that is down is shown as not serving, without its figures."""
        async with deadline_at(deadline):
            shards = await asyncio.gather(*(self._shard(shard) for shard in self._cluster.shards.values()))
        return pb.ListShardsResponse(shards=shards)

    async def _shard(self, shard: Shard) -> pb.Shard:
        told = pb.Shard(name=shard.name, serving=shard.up, slots=len(self._cluster.topology.slots_of(shard.name)))
        if not shard.up:
            return told
        try:
            halves, size, outbox_length, outbox_age_s = await shard.summary()
        except ShardUnavailableError:
            told.serving = False
            return told
        told.halves, told.bytes = halves, size
        told.outbox_length, told.outbox_age_s = outbox_length, outbox_age_s
        return told

    async def list_slots(self, request: pb.ListSlotsRequest, deadline: float) -> pb.ListSlotsResponse:
        """A page of slots, ascending, as their shards count them. Raises ShardUnavailableError when one of those is down."""
        topology = self._cluster.topology
        if request.shard and request.shard not in topology.shards:
            raise InvalidArgumentError("shard", f"must be one of {', '.join(topology.shards)}")
        scope = _SLOTS_SCOPE + request.shard.encode()
        key = self._cluster.token_key
        after = tokens.decode(request.page_token, scope, key).id if request.page_token else -1
        size = codec.page_size(request.page_size)
        candidates = [
            slot
            for slot, owner in enumerate(topology.owners)
            if slot > after and (not request.shard or owner == request.shard)
        ]
        page = candidates[:size]
        async with deadline_at(deadline):
            slots = await self._slots(topology, page)
        more = len(candidates) > size
        return pb.ListSlotsResponse(
            slots=slots, next_page_token=tokens.encode(Cursor(0, page[-1]), scope, key) if more else ""
        )

    async def _slots(self, topology: Topology, page: list[int]) -> list[pb.Slot]:
        by_shard: dict[str, list[int]] = {}
        for slot in page:
            by_shard.setdefault(topology.owners[slot], []).append(slot)
        found: dict[int, pb.Slot] = {}
        for name, slots in by_shard.items():
            for slot, owned, forward, reverse in await self._cluster.shards[name].sizes(slots):
                found[slot] = pb.Slot(slot=slot, shard=name, owned=owned, forward=forward, reverse=reverse)
        return [found.get(slot, pb.Slot(slot=slot, shard=topology.owners[slot])) for slot in page]


def _ranges(topology: Topology) -> list[pb.SlotRange]:
    """Runs of neighbouring slots on one shard."""
    ranges: list[pb.SlotRange] = []
    for slot, shard in enumerate(topology.owners):
        if ranges and ranges[-1].shard == shard:
            ranges[-1].last = slot
        else:
            ranges.append(pb.SlotRange(first=slot, last=slot, shard=shard))
    return ranges
