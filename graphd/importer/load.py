"""From sorted rows to the shards: forward halves first, then reverse halves, each shard by a worker of its own.

A chunk is a transaction on one shard. Merge makes it safe to repeat, so an import that was interrupted is run again from the start and
ends as if it had never been. Until then edges of chunks that were not reached have a forward half alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from graphd.config import Config
from graphd.edge import Direction
from graphd.errors import StalePlacementError
from graphd.importer.runs import SortedRuns
from graphd.placement import slots_of
from graphd.storage.bulk import BulkShard, Chunk
from graphd.storage.catalog import Catalog, CatalogView
from graphd.topology import Kind, Topology

CHUNK_ROWS: Final = 16_384
"""Rows of one transaction: about 50 ms, so that whoever waits for a slot or a row does not wait long."""

QUEUED_CHUNKS: Final = 2
"""Chunks ready for each shard: it never waits for the sorting, and memory stays bounded."""

STALE_WAIT_S: Final = 30.0
"""How long a slot may be owned by nobody: moving one takes a fraction of it."""

_STALE_PAUSE_S: Final = 0.1

Ints = npt.NDArray[np.int64]


@dataclass(slots=True)
class Totals:
    """What became of the halves of one direction."""

    added: int = 0
    updated: int = 0
    unchanged: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(self.added + other.added, self.updated + other.updated, self.unchanged + other.unchanged)


class Loader:
    """Loads edges into a cluster. Use as an async context manager."""

    def __init__(self, config: Config, catalog: Catalog, view: CatalogView) -> None:
        self._config, self._catalog = config, catalog
        self._topology: Topology = view.topology
        self._identities = view.identities
        self._shards: dict[str, BulkShard] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Loader:
        try:
            for name in self._topology.shards:
                await self._open(name)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def load(
        self,
        direction: Direction,
        kind: Kind,
        rows: SortedRuns,
        position: int = 0,
        told: Callable[[int], None] = lambda n: None,
    ) -> Totals:
        """Load all rows as halves of one direction and kind. Those without a whole version are ACTIVE at `position`, to which their own is
        added if they have one. `told` hears of rows done.

        Raises ShardUnavailableError, StalePlacementError, CatalogUnavailableError, OSError."""
        totals = Totals()
        queues: dict[str, asyncio.Queue[Chunk | None]] = {name: asyncio.Queue(QUEUED_CHUNKS) for name in self._shards}
        try:
            async with asyncio.TaskGroup() as group:
                for queue in queues.values():
                    group.create_task(self._work(queue, totals, told))
                chunks = _chunks(direction, kind.number, rows, position, self._topology)
                while (item := await asyncio.to_thread(next, chunks, None)) is not None:
                    shard, chunk = item
                    await queues[shard].put(chunk)
                for queue in queues.values():
                    await queue.put(None)
        except BaseExceptionGroup as failures:
            # One shard's failure ends the import; others that failed with it say nothing more.
            raise failures.exceptions[0] from failures
        return totals

    async def over_limit(self, kind: Kind) -> int:
        """How many accounts now have more edges than the kind allows to live writes."""
        if not kind.max_out_degree:
            return 0
        return sum([await shard.over_limit(kind.number, kind.max_out_degree) for shard in self._shards.values()])

    async def _work(self, queue: asyncio.Queue[Chunk | None], totals: Totals, told: Callable[[int], None]) -> None:
        while (chunk := await queue.get()) is not None:
            await self._place(chunk, totals)
            told(len(chunk))

    async def _place(self, chunk: Chunk, totals: Totals) -> None:
        """Load a chunk wherever its slots are owned; where they were handed over meanwhile, ask the catalog and try again."""
        give_up = time.monotonic() + STALE_WAIT_S
        waiting = [chunk]
        while True:
            parts = [item for chunk in waiting for item in _by_shard(chunk, self._topology)]
            left = [await self._load_at(shard, part, totals) for shard, part in parts]
            waiting = [part for part in left if len(part)]
            if not waiting:
                return
            if time.monotonic() > give_up:
                raise StalePlacementError(int(waiting[0].slot[0]))
            await asyncio.sleep(_STALE_PAUSE_S)
            await self._refresh()

    async def _load_at(self, shard: str, chunk: Chunk, totals: Totals) -> Chunk:
        loaded = await self._shards[shard].load(chunk)
        totals.added += loaded.added
        totals.updated += loaded.updated
        totals.unchanged += loaded.unchanged
        return loaded.left

    async def _refresh(self) -> None:
        view = await self._catalog.load()
        if view.topology.epoch > self._topology.epoch:
            self._identities = view.identities
            for name in view.topology.shards:
                if name not in self._shards:
                    await self._open(name)
            self._topology = view.topology

    async def _open(self, name: str) -> None:
        shard = await BulkShard.open(
            name,
            self._config.shard_conninfo(name),
            self._identities[name],
            self._topology.slots,
        )
        self._shards[name] = shard
        self._stack.push_async_callback(shard.close)


def _by_shard(chunk: Chunk, topology: Topology) -> Iterator[tuple[str, Chunk]]:
    """The chunk divided among the shards that the topology names."""
    at = _shard_of_slot(topology)[chunk.slot]
    for number in np.unique(at).tolist():
        mask = at == number
        yield topology.shards[number], chunk if mask.all() else chunk.where(mask)


def _shard_of_slot(topology: Topology) -> Ints:
    numbers = {name: number for number, name in enumerate(topology.shards)}
    return np.array([numbers[owner] for owner in topology.owners], dtype=np.int64)


def _chunks(
    direction: Direction, kind: int, rows: SortedRuns, position: int, topology: Topology
) -> Iterator[tuple[str, Chunk]]:
    """Chunks for each shard in key order, of CHUNK_ROWS or a little less at the end."""
    waiting: dict[str, Chunk] = {}
    for piece in rows.read():
        for shard, part in _by_shard(_chunk(direction, kind, piece, position, topology.slots), topology):
            joined = waiting.pop(shard).then(part) if shard in waiting else part
            done = 0
            while len(joined) - done >= CHUNK_ROWS:
                yield shard, joined.where(slice(done, done + CHUNK_ROWS))
                done += CHUNK_ROWS
            if done < len(joined):
                waiting[shard] = joined.where(slice(done, len(joined)))
    yield from waiting.items()


def _chunk(direction: Direction, kind: int, piece: Ints, position: int, slots: int) -> Chunk:
    """Rows of SortedRuns, in one of its three widths."""
    owner_id, neighbor_id, *version = (np.ascontiguousarray(column) for column in piece.T)
    slot = slots_of(owner_id, slots)
    if len(version) < 3:
        given = np.maximum(version[0] + position, 1) if version else np.full(len(piece), position)
        return Chunk.active(direction, kind, owner_id, neighbor_id, given, slot)
    positions, state, since = version
    return Chunk(direction, kind, owner_id, neighbor_id, positions, state.astype(np.int16), since, slot)
