"""Metrics of a router, for Prometheus. No label names an account.

Calls are recorded in plain lists and turned into metrics when they are asked for: a labelled counter and histogram of the client
library cost 37 us a call, a tenth of the whole call.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from graphd.storage.cluster import Cluster
from graphd.storage.lanes import Lane
from router.admission import Admission

BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class MethodMetrics:
    """Calls of one method: how many by code, and how long they took."""

    __slots__ = ("codes", "counts", "name", "seconds")

    def __init__(self, name: str) -> None:
        self.name = name
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.seconds = 0.0
        self.codes: dict[str, int] = {}

    def observe(self, code: str, seconds: float) -> None:
        """Record one call."""
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.seconds += seconds
        self.codes[code] = self.codes.get(code, 0) + 1


class RouterMetrics(Collector):
    """Collects what the parts of the router count."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._methods: dict[str, MethodMetrics] = {}
        self.cluster: Cluster | None = None
        self.outcomes: dict[str, int] = {}
        self.reverse_pending = 0
        self.negative_degrees = 0
        self.started_s = 0.0

    def method(self, name: str) -> MethodMetrics:
        """The record of a method; made once, before it serves."""
        return self._methods.setdefault(name, MethodMetrics(name))

    def collect(self) -> Iterable[Metric]:
        """Everything, as metric families."""
        yield from self._calls()
        yield from self._work()
        if self.cluster is not None:
            yield from self._shards(self.cluster)

    def _calls(self) -> Iterable[Metric]:
        calls = CounterMetricFamily(
            "graphd_calls", "Calls answered, by method and status code.", labels=("method", "code")
        )
        seconds = HistogramMetricFamily(
            "graphd_call_seconds", "Time from arrival to answer, in seconds.", labels=("method",)
        )
        for method in self._methods.values():
            for code, count in method.codes.items():
                calls.add_metric((method.name, code), count)
            total = 0
            buckets: list[tuple[str, float]] = []
            for bound, count in zip((*BUCKETS_S, float("inf")), method.counts, strict=True):
                total += count
                buckets.append((str(bound) if bound != float("inf") else "+Inf", total))
            if total:
                seconds.add_metric((method.name,), buckets, method.seconds)
        yield calls
        yield seconds

    def _work(self) -> Iterable[Metric]:
        outcomes = CounterMetricFamily("graphd_writes", "Writes carried out, by outcome.", labels=("outcome",))
        for outcome, count in self.outcomes.items():
            outcomes.add_metric((outcome,), count)
        yield outcomes
        yield CounterMetricFamily(
            "graphd_reverse_pending", "Writes answered before their reverse half was delivered.", self.reverse_pending
        )
        yield CounterMetricFamily(
            "graphd_negative_degrees", "Degrees read that were below zero: drift, for repair.", self.negative_degrees
        )
        yield GaugeMetricFamily("graphd_calls_in_flight", "Calls being served.", self._admission.in_flight)
        yield CounterMetricFamily("graphd_calls_shed", "Calls refused because too many wait.", self._admission.shed)
        yield GaugeMetricFamily("graphd_streams", "Streams being served.", self._admission.streams)
        waiting = GaugeMetricFamily("graphd_shard_calls", "Calls that need a shard now.", labels=("shard",))
        for shard, count in self._admission.waiting().items():
            waiting.add_metric((shard,), count)
        yield waiting

    def _shards(self, cluster: Cluster) -> Iterable[Metric]:
        yield GaugeMetricFamily("graphd_topology_epoch", "Epoch of the topology in use.", cluster.topology.epoch)
        yield GaugeMetricFamily("graphd_catalog_up", "1 while the catalog answers.", int(cluster.watch.up))
        labels = ("shard", "lane")
        up = GaugeMetricFamily("graphd_lane_up", "1 while the lane is connected.", labels=labels)
        waiting = GaugeMetricFamily("graphd_lane_waiting", "Items not yet sent.", labels=labels)
        batches = CounterMetricFamily("graphd_lane_batches", "Batches carried.", labels=labels)
        items = CounterMetricFamily("graphd_lane_items", "Items carried in batches.", labels=labels)
        seconds = CounterMetricFamily("graphd_lane_seconds", "Time batches took, in seconds.", labels=labels)
        failed = CounterMetricFamily("graphd_lane_failed_batches", "Batches refused or lost.", labels=labels)
        alone = CounterMetricFamily(
            "graphd_lane_alone", "Items run alone after their batch was refused.", labels=labels
        )
        unknown = CounterMetricFamily("graphd_lane_unknown", "Batches whose fate is not known.", labels=labels)
        connects = CounterMetricFamily("graphd_lane_connects", "Connections opened.", labels=labels)
        for shard in cluster.shards.values():
            lanes: tuple[tuple[str, Lane[object]], ...] = (("write", shard.writes), ("read", shard.reads))  # type: ignore[type-var, assignment]
            for name, lane in lanes:
                at = (shard.name, name)
                up.add_metric(at, int(lane.up))
                waiting.add_metric(at, lane.waiting)
                batches.add_metric(at, lane.stats.batches)
                items.add_metric(at, lane.stats.items)
                seconds.add_metric(at, lane.stats.seconds)
                failed.add_metric(at, lane.stats.failed_batches)
                alone.add_metric(at, lane.stats.alone)
                unknown.add_metric(at, lane.stats.unknown)
                connects.add_metric(at, lane.stats.connects)
        yield from (up, waiting, batches, items, seconds, failed, alone, unknown, connects)
