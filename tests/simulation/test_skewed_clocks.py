"""Two routers whose clocks are two seconds ahead and two behind: what was acknowledged last is what is read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from graphd.clock import HybridClock, now_us
from graphd.edge import Key, State
from graphd.errors import GraphdError
from graphd.operations import Operation, Outcome
from graphd.storage.cluster import Cluster
from graphd.storage.shard import ShardSettings
from router.admission import Admission
from router.reads import Reader
from router.values import Write
from router.writes import Writer
from tests.databases import audit, edges
from tests.simulation.check import settled
from tests.simulation.cluster import Site

SKEW_US = 2_000_000
TURNS = 1_000


def skewed(cluster: Cluster, by_us: int) -> Writer:
    """The write path of a router whose clock is wrong."""
    return Writer(cluster, HybridClock(lambda: now_us() + by_us), Admission(100), 1.0)


@pytest.mark.parametrize("destination_shard", ["s1", "s2"])
async def test_the_last_acknowledged_operation_is_read(site: Site, destination_shard: str) -> None:
    loop = asyncio.get_running_loop()
    ada = site.accounts("s1", 1)[0]
    bo = site.accounts(destination_shard, 1, first=10_000)[0]
    clusters: Sequence[Cluster] = [
        await Cluster.open(site.databases.config, ShardSettings(application="skewed")) for _ in range(2)
    ]
    try:
        writers = [skewed(cluster, by_us) for cluster, by_us in zip(clusters, (SKEW_US, -SKEW_US), strict=True)]
        reader = Reader(clusters[0], Admission(100), lambda account, kind: None)
        kind = clusters[0].topology.kind("")
        last = 0
        for turn in range(TURNS):
            # Each pair of operations goes through both, in changing order.
            writer = writers[(turn + turn // 4) % 2]
            operation = Operation.UNFOLLOW if turn % 2 else Operation.FOLLOW
            [result] = await writer.write((Write(operation, ada, bo, kind),), loop.time() + 10)
            assert not isinstance(result, GraphdError)
            assert result.outcome is Outcome.APPLIED
            assert result.version is not None
            assert result.version.position > last
            last = result.version.position
            version = await reader.edge(Key(kind.number, ada, bo), loop.time() + 10)
            assert version is not None
            assert version == result.version
            assert version.state == (State.REMOVED if turn % 2 else State.ACTIVE)
        for writer in writers:
            await writer.close()
    finally:
        for cluster in clusters:
            await cluster.close()
    with site.relay():
        await settled(site.databases)
    audit(site.databases)
    assert edges(site.databases, "reverse")[ada, bo, 1][1] == State.REMOVED
