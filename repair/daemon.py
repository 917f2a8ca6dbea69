"""The repair daemon: for each shard a relay, the expiry of receipts and events, the purge of tombstones; and what is told about them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterable
from typing import Final

import structlog
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from graphd.config import Config
from graphd.errors import GraphdError
from graphd.limits import PURGE_HORIZON_US, RECEIPT_KEEP_S
from graphd.observe import Observer, split_listen
from graphd.storage.cluster import Cluster
from graphd.storage.events import Events
from graphd.storage.items import Namespace
from graphd.storage.outbox import Backlog, Outbox
from graphd.storage.shard import Shard, ShardSettings
from graphd.tasks import end_all, ends_here
from repair.purge import Purger
from repair.relay import Relay

log = structlog.get_logger()

BACKLOG_EVERY_S: Final = 2.0
BACKLOG_SHARE: Final = 0.05
"""Counting a large backlog takes this part of a shard's time at the most."""

SWEEP_EVERY_S: Final = 60.0
SWEEP_ROWS: Final = 5_000
SWEEP_PAUSE_S: Final = 0.2
"""Receipts are forgotten some at a time, with pauses, so that nobody waits behind it."""


class RepairMetrics(Collector):
    """What the daemon has seen and done, by shard."""

    def __init__(self) -> None:
        self.backlogs: dict[str, Backlog] = {}
        self.swept: dict[str, int] = {}
        self.relays: dict[str, Relay] = {}
        self.purgers: dict[str, Purger] = {}
        self.cluster: Cluster | None = None

    def collect(self) -> Iterable[Metric]:
        """Everything, as metric families."""
        labels = ("shard",)
        length = GaugeMetricFamily("graphd_outbox_length", "Rows owed to other shards.", labels=labels)
        age = GaugeMetricFamily("graphd_outbox_age_seconds", "Age of the oldest row owed, in seconds.", labels=labels)
        parked = GaugeMetricFamily("graphd_outbox_parked", "Rows that can never apply, put aside.", labels=labels)
        for name, backlog in list(self.backlogs.items()):
            length.add_metric((name,), backlog.length)
            age.add_metric((name,), backlog.age_s)
            parked.add_metric((name,), backlog.parked)
        delivered = CounterMetricFamily("graphd_relay_delivered", "Versions the relay delivered.", labels=labels)
        put_off = CounterMetricFamily("graphd_relay_put_off", "Deliveries that failed and were put off.", labels=labels)
        for name, relay in self.relays.items():
            delivered.add_metric((name,), relay.stats.delivered)
            put_off.add_metric((name,), relay.stats.put_off)
        swept = CounterMetricFamily("graphd_receipts_swept", "Receipts forgotten.", labels=labels)
        for name, count in list(self.swept.items()):
            swept.add_metric((name,), count)
        purged = CounterMetricFamily("graphd_purged", "Halves of tombstones deleted.", labels=labels)
        for name in self.purgers:
            purged.add_metric((name,), sum(purger.purged[name] for purger in self.purgers.values()))
        up = GaugeMetricFamily("graphd_shard_up", "1 while repair reaches the shard.", labels=labels)
        if self.cluster is not None:
            for name, shard in self.cluster.shards.items():
                up.add_metric((name,), int(shard.up))
        yield from (length, age, parked, delivered, put_off, swept, purged, up)


class Daemon:
    """Runs until SIGTERM or SIGINT. Several may run at once."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._metrics = RepairMetrics()
        self._ready = False

    async def run(self) -> None:
        """Raises StartError or CatalogUnavailableError."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        settings = self._config.repair
        host, port = split_listen(settings.metrics_listen)
        observer = Observer(host, port, (self._metrics,), lambda: self._ready)
        cluster = await Cluster.open(self._config, ShardSettings(application="graphd-repair"))
        self._metrics.cluster = cluster
        tasks = [task for shard in cluster.shards.values() for task in self._tasks(cluster, shard)]
        self._ready = True
        log.info("repair.running", shards=len(cluster.shards))
        stopping = asyncio.create_task(stop.wait())
        try:
            # None of them ends by itself but by a bug: then the daemon ends too, loudly.
            done, _ = await asyncio.wait({stopping, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopping}:
                task.result()
        finally:
            self._ready = False
            await end_all((stopping, *tasks))
            await cluster.close()
            observer.close()
            log.info("repair.stopped")

    def _tasks(self, cluster: Cluster, shard: Shard) -> list[asyncio.Task[object]]:
        relay = self._metrics.relays[shard.name] = Relay(cluster, shard, self._config.repair.relay_poll_s)
        rows_per_s = self._config.repair.purge_rows_per_s
        purger = self._metrics.purgers[shard.name] = Purger(cluster, shard, rows_per_s)
        return [
            asyncio.create_task(relay.run(), name=f"relay-{shard.name}"),
            asyncio.create_task(self._measure(shard), name=f"backlog-{shard.name}"),
            asyncio.create_task(self._sweep(shard), name=f"sweep-{shard.name}"),
            asyncio.create_task(self._forget(shard), name=f"forget-{shard.name}"),
            asyncio.create_task(purger.run(), name=f"purge-{shard.name}"),
        ]

    async def _measure(self, shard: Shard) -> None:
        outbox = Outbox(shard)
        loop = asyncio.get_running_loop()
        while True:
            ends_here()
            began = loop.time()
            try:
                self._metrics.backlogs[shard.name] = await outbox.backlog()
            except GraphdError as error:
                # What was measured last is not true any more.
                self._metrics.backlogs.pop(shard.name, None)
                log.debug("backlog.unknown", shard=shard.name, error=type(error).__name__)
            await asyncio.sleep(max(BACKLOG_EVERY_S, (loop.time() - began) / BACKLOG_SHARE))

    async def _forget(self, shard: Shard) -> None:
        events = Events(shard)
        while True:
            ends_here()
            try:
                emptied = await events.forget(self._config.repair.events_keep_days * 86_400)
            except GraphdError as error:
                log.debug("forget.waits", shard=shard.name, error=type(error).__name__)
            else:
                if emptied:
                    log.info("events.forgotten", shard=shard.name, partitions=emptied)
            await asyncio.sleep(SWEEP_EVERY_S)

    async def _sweep(self, shard: Shard) -> None:
        outbox = Outbox(shard)
        while True:
            ends_here()
            pause_s = SWEEP_EVERY_S
            try:
                swept = await outbox.sweep_receipts(SWEEP_ROWS, Namespace.CALLERS, RECEIPT_KEEP_S)
                internal = await outbox.sweep_receipts(SWEEP_ROWS, Namespace.INTERNAL, PURGE_HORIZON_US / 1_000_000)
            except GraphdError as error:
                log.debug("sweep.waits", shard=shard.name, error=type(error).__name__)
            else:
                self._metrics.swept[shard.name] = self._metrics.swept.get(shard.name, 0) + swept + internal
                if SWEEP_ROWS in (swept, internal):
                    pause_s = SWEEP_PAUSE_S
            await asyncio.sleep(pause_s)
