"""The purge: walks the halves of one shard, over and over, and deletes tombstones that have been kept long enough.

A tombstone stays one horizon and an hour (limits.PURGE_AFTER_US), counted from its position or from the last backfill of its shards,
whichever is later; then nothing that is accepted can be older than it, so it has nothing left to beat. It goes only when both halves hold
it or one has no row: what the halves do not agree upon is left to those who mend drift. graphd/storage/purge.py says how that is safe.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Final

import structlog

from graphd.edge import Direction
from graphd.errors import GraphdError
from graphd.storage.cluster import Cluster
from graphd.storage.purge import START, Place, Tombstone, Tombstones, purge
from graphd.storage.shard import Shard
from graphd.tasks import ends_here

log = structlog.get_logger()

BATCH_ROWS: Final = 1_000
"""Rows looked at in one go: some milliseconds, also when all of them are purged."""

REST_S: Final = 600.0
"""Between two walks, and before it is looked again whether the last backfill is long enough ago."""

WAIT_S: Final = 5.0
"""After a failure."""

KEEP_PLACE_EVERY_S: Final = 10.0
"""A daemon that died walks so much again."""


class Purger:
    """Purges what one shard's walk finds. Any number may run for the same shard. `purged`: halves deleted since it started, by the shard
    they lay on; `left`: edges that were old enough in this walk and yet stayed."""

    def __init__(self, cluster: Cluster, shard: Shard, rows_per_s: int) -> None:
        self._cluster, self._shard, self._rows_per_s = cluster, shard, rows_per_s
        self._tombstones = Tombstones(shard)
        self._place: Place | None = None
        self._kept_at = 0.0
        self._rows = self._before = 0
        self.purged: Counter[str] = Counter()
        self.left = 0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            ends_here()
            began = time.monotonic()
            try:
                pause_s = await self.step() - (time.monotonic() - began)
            except GraphdError as error:
                log.debug("purge.waits", shard=self._shard.name, error=type(error).__name__)
                pause_s = WAIT_S
            except Exception as error:
                # A bug met at this shard must not end what the daemon does for the others.
                log.error("purge.failed", shard=self._shard.name, error=type(error).__name__, exc_info=error)
                pause_s = WAIT_S
            await asyncio.sleep(max(0.0, pause_s))

    @property
    def walking(self) -> bool:
        """Whether a walk has begun and not ended."""
        return self._place is not None

    async def step(self) -> float:
        """Begin a walk, or go on with it by one batch; answers how long this should take in seconds. Raises ShardUnavailableError,
        OverloadedError."""
        if self._place is None:
            if not await self._tombstones.may_go():
                return REST_S
            self._place = await self._tombstones.place()
            self._rows, self._before, self.left = 0, self.purged.total(), 0
            return 0.0
        row_count = min(BATCH_ROWS, self._rows_per_s)
        walked = await self._tombstones.walk(self._place, row_count, self._cluster.topology.slots)
        await self._purge(walked.found)
        self._rows += walked.rows
        if walked.rows == row_count:
            self._place = walked.last
        elif self._place.direction is Direction.FORWARD:
            self._place = START._replace(direction=Direction.REVERSE)
        else:
            return await self._end()
        if time.monotonic() - self._kept_at > KEEP_PLACE_EVERY_S:
            await self._keep(self._place)
        return walked.rows / self._rows_per_s

    async def _end(self) -> float:
        await self._keep(START)
        self._place = None
        purged = self.purged.total() - self._before
        if purged or self.left:
            log.info("purge.walked", shard=self._shard.name, rows=self._rows, purged=purged, left=self.left)
        return REST_S

    async def _keep(self, place: Place) -> None:
        await self._tombstones.keep_place(place)
        self._kept_at = time.monotonic()

    async def _purge(self, found: list[Tombstone]) -> None:
        """Delete what may go of what was found, for each pair of shards on its own: what one cannot do now is left for the next walk."""
        groups: dict[tuple[Shard, Shard], list[Tombstone]] = {}
        for stone in found:
            pair = (self._cluster.shard_of(stone.slot), self._cluster.shard_of(stone.peer_slot))
            groups.setdefault(pair, []).append(stone)
        for (home, peer), stones in groups.items():
            ends_here()
            if not (home.up and peer.up):
                self.left += len(stones)
                continue
            try:
                purged = await purge(home, peer, stones)
            except GraphdError as error:
                log.debug(
                    "purge.put_off", shard=self._shard.name, home=home.name, peer=peer.name, error=type(error).__name__
                )
                self.left += len(stones)
                continue
            self.purged[home.name] += purged.forward
            self.purged[peer.name] += purged.reverse
            self.left += purged.left
