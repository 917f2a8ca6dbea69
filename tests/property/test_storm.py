"""Three routers' write paths at once on a few hot edges: what each edge went through is a run of the table, one step after the other."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from graphd.clock import HybridClock, now_us
from graphd.edge import State, Version
from graphd.operations import Operation, Outcome, decide, decide_given, refusal_reason
from graphd.storage.cluster import Cluster
from graphd.storage.shard import ShardSettings
from router.admission import Admission
from router.values import Write, WriteOutcome
from router.writes import Writer
from tests.databases import Databases, edges, problems, suspend
from tests.waiting import eventually

WRITES = 6_000
AT_ONCE = 120
SEED = 20_251_130
FIRST_DESTINATION = 1_000
HOUR_US = 3_600_000_000

Done = tuple[Write, WriteOutcome]


@asynccontextmanager
async def writers(databases: Databases, skews_us: list[int]) -> AsyncIterator[list[Writer]]:
    """A write path for each skew, with lanes of its own and a clock that is wrong by so much."""
    async with AsyncExitStack() as stack:
        found = []
        for number, skew_us in enumerate(skews_us):
            cluster = await Cluster.open(
                databases.config, ShardSettings(application=f"storm {number}"), lambda: AT_ONCE
            )
            stack.push_async_callback(cluster.close)
            clock = HybridClock(lambda skew_us=skew_us: now_us() + skew_us)  # type: ignore[misc]
            writer = Writer(cluster, clock, Admission(10_000), reverse_wait_s=5.0)
            stack.push_async_callback(writer.close)
            found.append(writer)
        yield found


def drawn(chance: random.Random, writer: Writer, at: int) -> Write:
    """Any operation on an edge between 60 sources (a third of them suspended) and 3 destinations; some given, some with an id that others
    use too."""
    kind = writer.cluster.topology.kind("")
    operation = chance.choice(list(Operation))
    source, destination = chance.randrange(60), FIRST_DESTINATION + chance.randrange(3)
    given = operation <= Operation.UNBLOCK and chance.random() < 0.3
    # Within a few microseconds of each other, so that positions tie; and around what live writes reach.
    position = (
        chance.choice([BEGUN + chance.randrange(3), now_us() + chance.randrange(-1_000, 1_000)]) if given else None
    )
    request_id = f"r{at // 2}" if chance.random() < 0.2 else None
    return Write(operation, source, destination, kind, position, request_id)


BEGUN = now_us() - HOUR_US


async def storm(databases: Databases, seed: int) -> list[Done]:
    """The writes and their results."""
    chance = random.Random(seed)
    done: list[Done] = []
    left = iter(range(WRITES))
    # One of the routers is ahead, one behind: no skew loses a write.
    async with writers(databases, [0, 2_000_000, -2_000_000]) as found:

        async def work() -> None:
            for at in left:
                writer = chance.choice(found)
                write = drawn(chance, writer, at)
                size = chance.choice([1, 1, 1, 5])
                batch = [write, *(drawn(chance, writer, at) for _ in range(size - 1))]
                results = await writer.write(batch, asyncio.get_running_loop().time() + 60)
                for asked, result in zip(batch, results, strict=True):
                    if isinstance(result, WriteOutcome):
                        done.append((asked, result))
                    else:
                        assert type(result).__name__ == "RequestIdReusedError", result

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))

        def agrees() -> bool:
            # What reverse halves owe for marks that nothing explains is the relay's, of which there is none here.
            databases.do("DELETE FROM outbox WHERE operation > 7")
            return not problems(databases)

        await eventually(agrees, 30, "halves, degrees and outbox agree")
    return done


def is_suspended(source: int) -> bool:
    return source < 20


def follows(write: Write, before: Version | None, after: Version) -> bool:
    """Whether the operation leads from the one version to the other."""
    if write.position is not None:
        decision = decide_given(write.operation, before, write.position, suspended=is_suspended(write.source_id))
        return decision.version == after
    decision = decide(write.operation, before, stamp=after.position, suspended=is_suspended(write.source_id))
    return decision.outcome is not Outcome.REFUSED and decision.version == after


@pytest.mark.timeout(200)
@pytest.mark.parametrize("seed", [SEED, SEED + 1])
async def test_each_edge_is_a_run_of_the_table(databases: Databases, seed: int) -> None:
    databases.clear()
    suspend(databases, filter(is_suspended, range(60)), 1)
    done = await storm(databases, seed)
    written: dict[tuple[int, int], dict[Version, list[Write]]] = defaultdict(lambda: defaultdict(list))
    for write, result in done:
        assert not result.reverse_pending
        if result.outcome is Outcome.REFUSED:
            state = State(result.version.state) if result.version is not None else None
            assert result.reason == refusal_reason(write.operation, state, suspended=is_suspended(write.source_id))
        elif result.outcome is not Outcome.STALE and not result.duplicate:
            assert result.version is not None
            written[write.source_id, write.destination_id][result.version].append(write)
    stored = {key[:2]: Version(*version) for key, version in edges(databases).items()}
    # Each live Block also ended the edge the other way, where nothing else was written.
    ended = {pair: stored.pop(pair) for pair in list(stored) if pair[0] >= FIRST_DESTINATION}
    blocks = (
        w for w, r in done if w.operation is Operation.BLOCK and w.position is None and r.outcome is Outcome.APPLIED
    )
    assert ended.keys() == {(write.destination_id, write.source_id) for write in blocks}
    assert {version.state for version in ended.values()} == {State.REMOVED}
    assert stored.keys() == written.keys()
    for pair, versions in written.items():
        before: Version | None = None
        for version in sorted(versions):
            assert any(follows(write, before, version) for write in versions[version]), (pair, before, version)
            before = version
        # The last acknowledged version is the one that is stored: nothing was lost, and nothing came back.
        assert stored[pair] == before
    outcomes = {result.outcome for _, result in done}
    assert outcomes == {Outcome.APPLIED, Outcome.UNCHANGED, Outcome.STALE, Outcome.REFUSED}
    assert any(result.duplicate for _, result in done)
