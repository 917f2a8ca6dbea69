"""The shards of a cluster and the topology that leads to them, as one process sees them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import psycopg
import structlog

from graphd.config import Config
from graphd.errors import ConfigError
from graphd.storage.catalog import Catalog, CatalogView, CatalogWatch
from graphd.storage.connect import check_server, connect
from graphd.storage.schema import check_schema
from graphd.storage.shard import Shard, ShardSettings
from graphd.topology import Topology

log = structlog.get_logger()

LEARN_KINDS_S: Final = 1.0
"""How long a call that names an unknown kind waits for a catalog that does not answer."""


class Cluster:
    """Opens a Shard for each shard of the catalog, and keeps the topology fresh.

    Raises CatalogUnavailableError, SchemaError or ConfigError when it is opened; a shard that is down is no error.
    """

    def __init__(
        self,
        config: Config,
        catalog: Catalog,
        view: CatalogView,
        settings: ShardSettings,
        in_flight: Callable[[], float],
    ) -> None:
        self._config = config
        self._settings, self._in_flight = settings, in_flight
        self.watch = CatalogWatch(catalog, view, poll_s=config.router.topology_poll_s)
        self.shards: Mapping[str, Shard] = {
            name: Shard(view.identities[name], config.shard_conninfo(name), settings, in_flight)
            for name in view.topology.shards
        }
        self.watch.changed = self._changed

    @classmethod
    async def open(
        cls, config: Config, settings: ShardSettings, in_flight: Callable[[], float] = lambda: 0.0
    ) -> Cluster:
        """Load the catalog, check schemas and servers, connect."""
        catalog = Catalog(config.catalog_conninfo())
        view = await catalog.load()
        strangers = sorted(set(config.shards) - set(view.topology.shards))
        if strangers:
            raise ConfigError(f"[shards] {', '.join(strangers)}: not of this cluster")
        cluster = cls(config, catalog, view, settings, in_flight)
        await asyncio.gather(*(cluster._check(name) for name in cluster.shards))
        for shard in cluster.shards.values():
            shard.start()
        cluster.watch.start()
        return cluster

    async def close(self) -> None:
        """Send what waits, then disconnect."""
        await self.watch.close()
        await asyncio.gather(*(shard.close() for shard in self.shards.values()))

    @property
    def topology(self) -> Topology:
        """The newest known."""
        return self.watch.view.topology

    @property
    def token_key(self) -> bytes:
        """Secret of the page tokens."""
        return self.watch.view.token_key

    def shard_of(self, slot: int) -> Shard:
        """The shard that holds a slot, by the newest topology known."""
        return self.shards[self.watch.view.topology.owners[slot]]

    async def learn_kinds(self, deadline: float) -> bool:
        """Look whether a kind was declared that is not known here; answers whether anything is new. With the catalog down, nothing is."""
        return await self.watch.look(min(deadline, asyncio.get_running_loop().time() + LEARN_KINDS_S))

    async def reread(self) -> bool:
        """Read the catalog by a reading that begins after the call; False when it is down."""
        return await self.watch.reread()

    async def refresh(self) -> bool:
        """Read the catalog now; False when it is down."""
        return await self.watch.refresh()

    async def _check(self, name: str) -> None:
        """Raise StartError for a server this release must not use; one that is away is checked by its lanes later."""
        try:
            connection = await connect(self._config.shard_conninfo(name), self._settings.application)
        except (psycopg.Error, OSError, TimeoutError) as error:
            # The lanes will meet it too, and report the shard as down.
            log.warning("shard.away_at_start", shard=name, error=type(error).__name__)
            return
        try:
            await check_server(connection, name, self.topology.slots, self._settings.connections)
            await check_schema(connection, "shard")
        finally:
            await connection.close()

    def _changed(self, view: CatalogView) -> None:
        for name in view.topology.shards:
            if name not in self.shards:
                log.error("topology.unknown_shard", shard=name, hint="add its conninfo to [shards] and restart")
