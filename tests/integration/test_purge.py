"""What purge deletes and what it leaves: on two shards of real Postgres, with rows aged by hand."""

from __future__ import annotations

import asyncio
import gzip
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from graphd.clock import now_us
from graphd.edge import State
from graphd.errors import ShardUnavailableError
from graphd.importer import job
from graphd.limits import PURGE_AFTER_US, PURGE_HORIZON_US
from graphd.placement import slot_of
from graphd.storage import purge as halves
from graphd.storage.cluster import Cluster
from graphd.storage.purge import START, Purged, Tombstone, Tombstones
from graphd.storage.shard import Shard, ShardSettings
from graphd.v1 import graph_pb2 as pb
from repair import purge as purging
from repair.daemon import RepairMetrics
from repair.purge import Purger
from tests.calls import follow, refused, unfollow, write_all
from tests.databases import Databases, audit, edges
from tests.routers import GraphStub
from tests.waiting import eventually

DAY_US = 24 * 3600 * 1_000_000
AGE_US = PURGE_AFTER_US + DAY_US
PEOPLE = range(1, 13)
PAIRS = [(a, b) for a in PEOPLE for b in PEOPLE if a != b]


@pytest.fixture(autouse=True)
def clean(databases: Databases) -> Iterator[None]:
    """No edges, and the last backfill long ago."""
    databases.clear()
    databases.do("UPDATE backfilled SET at = 0; UPDATE purge_place SET direction = 1, owner_id = -1")
    yield
    databases.clear()


@pytest_asyncio.fixture(loop_scope="session")
async def cluster(databases: Databases) -> AsyncIterator[Cluster]:
    found = await Cluster.open(databases.config, ShardSettings(application="test purge"))
    try:
        await eventually(lambda: all(shard.up for shard in found.shards.values()), what="the shards are up")
        yield found
    finally:
        await found.close()


def age(databases: Databases, by_us: int = AGE_US, where: str = "true") -> None:
    """Make rows older, in both halves; `where` sees source and destination."""
    for table, source, destination in (("forward", "owner_id", "neighbor_id"), ("reverse", "neighbor_id", "owner_id")):
        condition = where.replace("source", source).replace("destination", destination)
        databases.do(
            f"UPDATE {table} SET position = greatest(position - %(by)s, 0), since = since - %(by)s WHERE {condition}",
            {"by": by_us},
        )


def rows(databases: Databases) -> int:
    """Halves of every sort, those that are absent to reads too."""
    return len(databases.all_rows("SELECT FROM forward UNION ALL SELECT FROM reverse"))


async def walk(cluster: Cluster, shard: str, rows_per_s: int = 100_000) -> Purger:
    """One walk of a shard from where it left off, as the daemon does it, without its pauses."""
    purger = Purger(cluster, cluster.shards[shard], rows_per_s)
    await purger.step()
    while purger.walking:
        await purger.step()
    return purger


async def purge(cluster: Cluster, rows_per_s: int = 100_000) -> int:
    """A walk of every shard, one after the other; how many halves were deleted."""
    return sum([(await walk(cluster, name, rows_per_s)).purged.total() for name in cluster.shards])


async def remove(graph: GraphStub, pairs: list[tuple[int, int]]) -> None:
    """Edges followed and unfollowed."""
    await write_all([graph], [follow(a, b) for a, b in pairs])
    await write_all([graph], [unfollow(a, b) for a, b in pairs])


async def settled(databases: Databases) -> None:
    """Wait until nothing is owed."""
    await eventually(lambda: not databases.all_rows("SELECT FROM outbox"), what="nothing is owed")


def across(databases: Databases) -> tuple[int, int]:
    """An account of the first shard and one of the second."""
    owners = databases.view.topology.owners
    first, second = (next(a for a in PEOPLE if owners[slot_of(a, databases.slots)] == name) for name in databases.names)
    return first, second


async def test_what_both_halves_hold_goes_and_the_rest_stays(
    graph: GraphStub, databases: Databases, cluster: Cluster
) -> None:
    old, young = PAIRS[:60], PAIRS[60:80]
    active, blocked = PAIRS[80:100], PAIRS[100:110]
    await remove(graph, old + young)
    await write_all([graph], [follow(a, b) for a, b in active])
    for a, b in blocked:
        await graph.Block(pb.BlockRequest(blocker_id=b, blocked_id=a), timeout=10)
    await settled(databases)
    # Blocks remove the edge the other way, and some of these pairs lie across each other: what is there counts.
    young_now = " OR ".join(f"(source, destination) = ({a}, {b})" for a, b in young)
    age(databases, where=f"NOT ({young_now})")
    age(databases, by_us=PURGE_HORIZON_US, where=young_now)
    before = edges(databases)
    stay = {key: v for key, v in before.items() if v[1] != State.REMOVED or key[:2] in young}
    gone = len(before) - len(stay)
    assert gone >= len(old) // 2
    assert {State(v[1]) for v in stay.values()} == {State.ACTIVE, State.BLOCKED, State.REMOVED}
    assert await purge(cluster) == 2 * gone
    assert edges(databases) == stay
    audit(databases)
    assert await purge(cluster) == 0
    answer = await graph.GetDegrees(pb.GetDegreesRequest(account_id=1), timeout=10)
    removed = {d.direction: d.degree for d in answer.by_state if d.state == pb.STATE_REMOVED}
    assert removed.get(pb.DIRECTION_FORWARD, 0) == sum(key[0] == 1 and v[1] == State.REMOVED for key, v in stay.items())


async def test_in_small_batches_and_from_where_it_left_off(
    graph: GraphStub, databases: Databases, cluster: Cluster
) -> None:
    await remove(graph, PAIRS)
    await settled(databases)
    age(databases)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(purging, "KEEP_PLACE_EVERY_S", 0.0)
        stopped = Purger(cluster, cluster.shards["s1"], 7)
        for _ in range(4):
            await stopped.step()
    [(direction, owner_id)] = databases.rows("s1", "SELECT direction, owner_id FROM purge_place")
    assert (direction, owner_id) > (1, -1)
    purged = stopped.purged.total()
    assert 0 < purged < 2 * len(PAIRS)
    assert purged + await purge(cluster, rows_per_s=7) == 2 * len(PAIRS)
    assert rows(databases) == 0
    audit(databases)
    assert databases.rows("s1", "SELECT direction, owner_id FROM purge_place") == [(1, -1)]


async def test_rows_that_a_refused_operation_left(graph: GraphStub, databases: Databases, cluster: Cluster) -> None:
    for a, b in PAIRS[:30]:
        await refused(
            graph.AcceptFollow(pb.AcceptFollowRequest(source_id=a, destination_id=b), timeout=10),
            grpc.StatusCode.FAILED_PRECONDITION,
        )
    assert (rows(databases), edges(databases)) == (30, {})
    assert await purge(cluster) == 0
    age(databases)
    assert await purge(cluster) == 30
    assert rows(databases) == 0
    audit(databases)


async def test_a_half_without_the_other_goes_too(graph: GraphStub, databases: Databases, cluster: Cluster) -> None:
    await remove(graph, PAIRS[:40])
    await settled(databases)
    age(databases)
    databases.do("DELETE FROM reverse WHERE neighbor_id % 3 = 0; DELETE FROM degrees WHERE direction = 2")
    databases.do("DELETE FROM forward WHERE owner_id % 3 = 1; DELETE FROM degrees WHERE direction = 1")
    for direction, table in enumerate(("forward", "reverse"), 1):
        databases.do(
            "INSERT INTO degrees (owner_id, direction, kind, state, slot, degree)"
            f" SELECT owner_id, {direction}, kind, state, slot, count(*) FROM {table} GROUP BY owner_id, kind, state, slot"
        )
    await purge(cluster)
    assert rows(databases) == 0
    audit(databases)


@pytest.mark.parametrize(
    "differs",
    [
        "UPDATE reverse SET position = position - 1 WHERE neighbor_id = {a}",
        "UPDATE reverse SET since = since - 1 WHERE neighbor_id = {a}",
        "UPDATE reverse SET state = 1 WHERE neighbor_id = {a}",
        "UPDATE forward SET state = 1 WHERE owner_id = {a}",
        "UPDATE forward SET position = position + 1 WHERE owner_id = {a}",
    ],
)
async def test_what_the_halves_do_not_agree_upon_stays(
    graph: GraphStub, databases: Databases, cluster: Cluster, differs: str
) -> None:
    a, b = across(databases)
    await remove(graph, [(a, b), (b, a)])
    await settled(databases)
    age(databases)
    databases.do(differs.format(a=a))
    assert await purge(cluster) == 2
    found = (edges(databases, "forward"), edges(databases, "reverse"))
    assert [list(half) for half in found] == [[(a, b, 1)], [(a, b, 1)]]


async def test_what_is_still_owed_stays(graph: GraphStub, databases: Databases, cluster: Cluster) -> None:
    # Written a little within the horizon, and owed for long since: the relay will want to read the forward half.
    a, b = across(databases)
    await remove(graph, [(a, b)])
    await settled(databases)
    age(databases)
    databases.do("DELETE FROM reverse; DELETE FROM degrees WHERE direction = 2")
    with databases.connect(databases.names[0]) as connection:
        connection.execute(
            "INSERT INTO outbox (id, source_id, destination_id, due, slot, peer_slot, kind)"
            " VALUES (uuidv7(-interval '40 minutes'), %s, %s, now() + interval '1 day', %s, %s, 1)",
            (a, b, slot_of(a, databases.slots), slot_of(b, databases.slots)),
        )
    assert await purge(cluster) == 0
    databases.do("UPDATE outbox SET parked = true")
    assert await purge(cluster) == 1
    databases.do("DELETE FROM outbox")
    audit(databases)


async def test_a_follow_between_the_read_and_the_delete(
    graph: GraphStub, databases: Databases, cluster: Cluster
) -> None:
    # Through the moments that matter: before the forward half is looked at, before the reverse half goes, before the forward half goes.
    a, b = across(databases)
    real_standing, real_reverse, real_delete = halves._standing, halves._purge_reverse, halves._delete

    async def again() -> None:
        await graph.Follow(pb.FollowRequest(source_id=a, destination_id=b), timeout=10)

    async def after_walk(*arguments: object) -> object:
        await again()
        return await real_standing(*arguments)  # type: ignore[arg-type]

    async def before_reverse(*arguments: object) -> object:
        await again()
        return await real_reverse(*arguments)  # type: ignore[arg-type]

    async def before_forward(*arguments: object) -> object:
        if arguments[1] == 1:
            await again()
        return await real_delete(*arguments)  # type: ignore[arg-type]

    moments: list[tuple[str, Callable[..., Awaitable[object]]]] = [
        ("_standing", after_walk), ("_purge_reverse", before_reverse), ("_delete", before_forward)
    ]  # fmt: skip
    for name, interfere in moments:
        databases.clear()
        await remove(graph, [(a, b)])
        await settled(databases)
        age(databases)
        [found] = (await Tombstones(cluster.shards[databases.names[0]]).walk(START, 10, databases.slots)).found
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(halves, name, interfere)
            purged = await halves.purge(*_pair(cluster, found), [found])
        assert (purged.forward, purged.left) == (0, 1), name
        await settled(databases)
        assert [version[1] for version in edges(databases).values()] == [State.ACTIVE], name
        audit(databases)


def _pair(cluster: Cluster, stone: Tombstone) -> tuple[Shard, Shard]:
    return cluster.shard_of(stone.slot), cluster.shard_of(stone.peer_slot)


async def test_a_row_somebody_holds_is_not_waited_for(graph: GraphStub, databases: Databases, cluster: Cluster) -> None:
    a, b = across(databases)
    await remove(graph, [(a, b)])
    await settled(databases)
    age(databases)
    [stone] = (await Tombstones(cluster.shards[databases.names[0]]).walk(START, 10, databases.slots)).found
    for shard, table, purged in zip(databases.names[::-1], ("reverse", "forward"), ((0, 0, 1), (0, 1, 1)), strict=True):
        with databases.connect(shard) as connection, connection.transaction():
            connection.execute(f"SELECT FROM {table} FOR UPDATE".encode())
            # Waiting would end in an error.
            assert await halves.purge(*_pair(cluster, stone), [stone]) == purged
    assert await purge(cluster) == 1
    assert rows(databases) == 0
    audit(databases)


async def test_what_is_told_about_it(graph: GraphStub, databases: Databases, cluster: Cluster) -> None:
    a, b = across(databases)
    await remove(graph, [(a, b)])
    await settled(databases)
    age(databases)
    metrics = RepairMetrics()
    with capture_logs() as logs:
        metrics.purgers = {name: await walk(cluster, name) for name in databases.names}
    found = {
        (sample.name, sample.labels["shard"]): sample.value for family in metrics.collect() for sample in family.samples
    }
    assert [found["graphd_purged_total", name] for name in databases.names] == [1, 1]
    assert logs == [
        {"event": "purge.walked", "log_level": "info", "shard": "s1", "rows": 1, "purged": 2, "left": 0},
    ]


async def test_stopped_between_the_halves(graph: GraphStub, databases: Databases, cluster: Cluster) -> None:
    a, b = across(databases)
    await remove(graph, [(a, b)])
    await settled(databases)
    age(databases)
    [found] = (await Tombstones(cluster.shards[databases.names[0]]).walk(START, 10, databases.slots)).found

    real = halves._purge_reverse

    async def fail(*arguments: object) -> None:
        await real(*arguments)  # type: ignore[arg-type]
        raise ConnectionError("the process dies here")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(halves, "_purge_reverse", fail)
        with pytest.raises(ConnectionError):
            await halves.purge(*_pair(cluster, found), [found])
    assert (len(edges(databases)), edges(databases, "reverse")) == (1, {})
    # What is left still beats what is older, and a new follow gets its reverse half.
    [stale] = await write_all([graph], [follow(a, b, 1, backfill=True)])
    assert stale.outcome == pb.OUTCOME_STALE
    databases.do("UPDATE backfilled SET at = 0")
    assert await purge(cluster) == 1
    assert rows(databases) == 0
    audit(databases)


async def test_two_at_once(graph: GraphStub, databases: Databases, cluster: Cluster) -> None:
    await remove(graph, PAIRS)
    await settled(databases)
    age(databases)
    purgers = await asyncio.gather(*(walk(cluster, name, 20) for name in databases.names for _ in range(2)))
    # What one had its hands on the other has left alone.
    assert sum(purger.purged.total() for purger in purgers) + await purge(cluster) == 2 * len(PAIRS)
    assert rows(databases) == 0
    audit(databases)


async def test_while_others_write(graph: GraphStub, databases: Databases, cluster: Cluster) -> None:
    # With a horizon of half a second: what is purged is followed and unfollowed again all the time.
    pairs = [(a, b) for a in range(1, 41) for b in range(1, 41) if a != b]
    stop, rng = asyncio.Event(), random.Random(1)

    async def toggle(mine: list[tuple[int, int]]) -> None:
        while not stop.is_set():
            await remove(graph, rng.sample(mine, 12))

    purged = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(halves, "PURGE_AFTER_US", 500_000)
        patch.setattr(halves, "PURGE_DEBT_S", 0.0)
        writers = [asyncio.create_task(toggle(pairs[at::2])) for at in (0, 1)]
        try:
            async with asyncio.timeout(20):
                while purged < 2_000:
                    purgers = await asyncio.gather(*(walk(cluster, name, 100) for name in databases.names))
                    purged += sum(purger.purged.total() for purger in purgers)
        finally:
            stop.set()
            await asyncio.gather(*writers)
    await settled(databases)
    audit(databases)


async def test_a_slot_owned_elsewhere_is_left_alone(graph: GraphStub, databases: Databases, cluster: Cluster) -> None:
    a, b = across(databases)
    await remove(graph, [(a, b), (b, a)])
    await settled(databases)
    age(databases)
    [stone] = (await Tombstones(cluster.shards[databases.names[0]]).walk(START, 10, databases.slots)).found
    for shard, account in zip(databases.names, (a, b), strict=True):
        with databases.connect(shard) as connection:
            slot = slot_of(account, databases.slots)
            # After the walk found it, and before it looks.
            connection.execute("UPDATE slots SET owned = false WHERE slot = %s", (slot,))
            try:
                assert await halves.purge(*_pair(cluster, stone), [stone]) == Purged(0, 0, 1)
                assert await purge(cluster) == 0
            finally:
                connection.execute("UPDATE slots SET owned = true WHERE slot = %s", (slot,))
    assert rows(databases) == 4
    assert await purge(cluster) == 4


async def test_it_waits_for_whoever_takes_a_slot_away(graph: GraphStub, databases: Databases, cluster: Cluster) -> None:
    a, b = across(databases)
    await remove(graph, [(a, b)])
    await settled(databases)
    age(databases)
    [stone] = (await Tombstones(cluster.shards[databases.names[0]]).walk(START, 10, databases.slots)).found
    slot = slot_of(b, databases.slots)
    with databases.connect(databases.names[1]) as connection:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (slot,))
            task = asyncio.create_task(halves.purge(*_pair(cluster, stone), [stone]))
            waiting = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = %(slot)s"
            await eventually(lambda: databases.rows(databases.names[1], waiting, {"slot": slot}), what="it waits")
            connection.execute("UPDATE slots SET owned = false WHERE slot = %s", (slot,))
        try:
            assert await task == Purged(0, 0, 1)
        finally:
            connection.execute("UPDATE slots SET owned = true WHERE slot = %s", (slot,))
    assert rows(databases) == 2


async def unreachable(*_: object) -> None:
    raise ShardUnavailableError("s2")


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [(Shard, "up", property(lambda shard: shard.name != "s2")), (halves, "_purge_reverse", unreachable)],
    ids=["known to be away", "found to be away"],
)
async def test_a_shard_that_is_away_is_left_for_the_next_walk(
    graph: GraphStub, databases: Databases, cluster: Cluster, owner: object, name: str, value: object
) -> None:
    await remove(graph, PAIRS[:40])
    await settled(databases)
    age(databases)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, value)
        purger = await walk(cluster, "s1")
    assert purger.left > 0
    assert not purger.purged["s2"]
    await purge(cluster)
    assert rows(databases) == 0
    audit(databases)


async def test_nothing_under_the_horizon_comes_back(graph: GraphStub, databases: Databases, cluster: Cluster) -> None:
    a, b = across(databases)
    await remove(graph, [(a, b)])
    await settled(databases)
    age(databases)
    [(position, _, _)] = edges(databases).values()
    assert await purge(cluster) == 2
    for older in (1, position - 1, position, now_us() - PURGE_AFTER_US, now_us() - PURGE_HORIZON_US - 1):
        await refused(
            graph.Follow(pb.FollowRequest(source_id=a, destination_id=b, position=older), timeout=10),
            grpc.StatusCode.OUT_OF_RANGE,
        )
    await refused(
        graph.GetEdge(pb.GetEdgeRequest(source_id=a, destination_id=b), timeout=10), grpc.StatusCode.NOT_FOUND
    )
    # The oldest that is taken is younger than any tombstone that may go.
    young = now_us() - PURGE_HORIZON_US + 60_000_000
    await graph.Follow(pb.FollowRequest(source_id=a, destination_id=b, position=young), timeout=10)
    assert young > position + PURGE_AFTER_US - PURGE_HORIZON_US


async def backfill_by_write(graph: GraphStub, databases: Databases, folder: Path) -> None:
    await write_all([graph], [follow(500 + n, 600 + n, 5, backfill=True) for n in range(20)])


async def backfill_by_import(graph: GraphStub, databases: Databases, folder: Path) -> None:
    path = folder / "edges.txt.gz"
    path.write_bytes(gzip.compress(b"".join(b"%d %d\n" % (500 + n, 600 + n) for n in range(20))))
    with path.open("rb") as file:
        await job.run(databases.config, file, job.Request(position=5))


@pytest.mark.parametrize("backfill", [backfill_by_write, backfill_by_import])
async def test_after_a_backfill_purge_waits_a_horizon(
    graph: GraphStub,
    databases: Databases,
    cluster: Cluster,
    tmp_path: Path,
    backfill: Callable[[GraphStub, Databases, Path], Awaitable[None]],
) -> None:
    await remove(graph, PAIRS[:40])
    await settled(databases)
    age(databases, where="position > 1000")
    await backfill(graph, databases, tmp_path)
    await settled(databases)
    found = [at for (at,) in databases.all_rows("SELECT at FROM backfilled")]
    assert all(abs(at - now_us()) < DAY_US for at in found)
    assert await purge(cluster) == 0
    # Also where only the shard of the other half has been marked, or was marked after the walk had begun.
    for marked, other in (databases.names, databases.names[::-1]):
        databases.do("UPDATE backfilled SET at = 0")
        with databases.connect(marked) as connection:
            connection.execute("UPDATE backfilled SET at = %s", (now_us() - PURGE_AFTER_US + 60_000_000,))
        walked = await Tombstones(cluster.shards[other]).walk(START, 1_000, databases.slots)
        elsewhere = [stone for stone in walked.found if cluster.shard_of(stone.peer_slot).name == marked]
        home, peer = cluster.shards[other], cluster.shards[marked]
        assert await halves.purge(home, peer, elsewhere) == Purged(0, 0, len(elsewhere))
        assert len(elsewhere) > 0
    databases.do("UPDATE backfilled SET at = %(at)s", {"at": now_us() - PURGE_AFTER_US})
    await purge(cluster)
    assert {version[1] for version in edges(databases).values()} == {State.ACTIVE}
    audit(databases)


async def test_a_given_write_within_the_horizon_marks_nothing(graph: GraphStub, databases: Databases) -> None:
    await write_all([graph], [follow(a, b, now_us() - DAY_US, backfill=True) for a, b in PAIRS])
    assert databases.all_rows("SELECT at FROM backfilled") == [(0,), (0,)]


async def test_an_import_waits_for_purges_under_way(
    graph: GraphStub, databases: Databases, cluster: Cluster, tmp_path: Path
) -> None:
    # The import brings the very edges that are purged, older than their tombstones, and writes each half on its own: were one half gone
    # and the other not when it comes, they would differ afterwards.
    await remove(graph, PAIRS)
    await settled(databases)
    age(databases)
    path = tmp_path / "edges.txt"
    path.write_bytes(b"".join(b"%d %d\n" % pair for pair in PAIRS))
    real, begun = halves._purge_reverse, asyncio.Event()
    imports: list[asyncio.Task[job.Summary]] = []
    waiting = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND mode = 'ExclusiveLock'"

    async def import_it() -> job.Summary:
        with path.open("rb") as file:
            return await job.run(databases.config, file, job.Request(position=5))

    async def between(peer: Shard, stones: list[Tombstone]) -> object:
        answer = await real(peer, stones)
        if not imports:
            imports.append(asyncio.create_task(import_it()))
            await eventually(lambda: databases.all_rows(waiting), timeout_s=1.5, what="the import waits")
            begun.set()
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(halves, "_purge_reverse", between)
        await asyncio.gather(*(walk(cluster, name, 20) for name in databases.names))
    assert begun.is_set()
    await imports[0]
    audit(databases)
