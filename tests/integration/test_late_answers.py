"""Writes whose caller has gone, whose shard takes no writes, or which are asked again: nothing is leaked, nothing is claimed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from graphd.clock import HybridClock, now_us
from graphd.edge import Key, State
from graphd.errors import DeadlineError, ShardUnavailableError
from graphd.operations import Operation, Outcome
from graphd.placement import slot_of
from graphd.storage.cluster import Cluster
from graphd.storage.items import Counter, CountersRead
from graphd.storage.shard import ShardSettings
from repair.relay import Relay
from router.admission import Admission
from router.values import Write, WriteOutcome
from router.writes import Writer
from tests.databases import Databases, edges
from tests.lanework import Op, open_shards
from tests.waiting import eventually

SLOW = """
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.3); RETURN NULL; END $$;
CREATE TRIGGER slow BEFORE INSERT ON forward FOR EACH STATEMENT EXECUTE FUNCTION slow();
"""


@pytest_asyncio.fixture(loop_scope="session")
async def writer(databases: Databases) -> AsyncIterator[Writer]:
    cluster = await Cluster.open(databases.config, ShardSettings(application="late"))
    found = Writer(cluster, HybridClock(), Admission(10), reverse_wait_s=5.0)
    try:
        await eventually(lambda: all(shard.up for shard in cluster.shards.values()), 10, "the lanes are connected")
        yield found
    finally:
        await found.close()
        await cluster.close()


def account(databases: Databases, shard: str, nth: int) -> int:
    """The nth account from 1,000 on that lives on a shard."""
    owners = databases.view.topology.owners
    found = [i for i in range(1_000, 1_400) if owners[slot_of(i, databases.slots)] == shard]
    return found[nth]


def follow(writer: Writer, source: int, destination: int, request_id: str | None = None) -> Write:
    return Write(Operation.FOLLOW, source, destination, writer.cluster.topology.kind(""), request_id=request_id)


async def write(writer: Writer, one: Write, within_s: float = 20.0) -> WriteOutcome | Exception:
    [result] = await writer.write((one,), asyncio.get_running_loop().time() + within_s)
    return result


async def test_calls_past_their_deadline_give_their_places_back(databases: Databases, writer: Writer) -> None:
    with databases.connect("s1") as connection:
        connection.execute(SLOW)
        try:
            # Three times as many as there are places, each sent, none answered in time.
            for at in range(0, 30, 5):
                late = [follow(writer, account(databases, "s1", at + i), account(databases, "s2", 0)) for i in range(5)]
                results = await asyncio.gather(*(write(writer, one, 0.1) for one in late))
                assert all(isinstance(result, DeadlineError) for result in results)
        finally:
            connection.execute("DROP TRIGGER slow ON forward; DROP FUNCTION slow()")
    settled = await write(writer, follow(writer, account(databases, "s1", 90), account(databases, "s2", 0)))
    assert isinstance(settled, WriteOutcome)
    assert not settled.reverse_pending
    assert not any(writer.admission.waiting().values())


async def test_a_batch_that_was_given_up_is_never_run_after_what_came_later(databases: Databases) -> None:
    cluster = await Cluster.open(databases.config, ShardSettings(application="stopped", lane_timeout_s=1.0))
    writer = Writer(cluster, HybridClock(), Admission(10), reverse_wait_s=5.0)
    source, destination = account(databases, "s1", 110), account(databases, "s1", 111)
    unfollow = Write(Operation.UNFOLLOW, source, destination, cluster.topology.kind(""))
    with databases.connect("s1") as connection:
        await eventually(lambda: all(shard.up for shard in cluster.shards.values()), 10, "the lanes are connected")
        assert isinstance(await write(writer, follow(writer, source, destination)), WriteOutcome)
        query = "SELECT pid FROM pg_stat_activity WHERE application_name = 'stopped write'"
        [(pid,)] = connection.execute(query).fetchall()
        os.kill(pid, signal.SIGSTOP)
        try:
            lost = await write(writer, follow(writer, source, destination))
            assert isinstance(lost, ShardUnavailableError)
            assert lost.kept
            settled = await write(writer, unfollow)
            assert isinstance(settled, WriteOutcome)
            assert settled.outcome is Outcome.APPLIED
        finally:
            os.kill(pid, signal.SIGCONT)
        await eventually(
            lambda: (pid,) not in connection.execute(query).fetchall(), 10, "the old server process is gone"
        )
        stored = connection.execute(
            "SELECT position, state, since FROM forward WHERE owner_id = %s AND neighbor_id = %s", (source, destination)
        ).fetchall()
    assert stored == [settled.version]
    await writer.close()
    await cluster.close()


async def test_a_duplicate_says_whether_the_reverse_half_is_there(databases: Databases, writer: Writer) -> None:
    one = follow(writer, account(databases, "s1", 100), account(databases, "s2", 1), "r1")
    async with read_only(databases, writer, "s2"):
        first, again = await write(writer, one), await write(writer, one)
    last = await write(writer, one)
    assert isinstance(first, WriteOutcome)
    assert isinstance(again, WriteOutcome)
    assert isinstance(last, WriteOutcome)
    assert {first.outcome, again.outcome, last.outcome} == {Outcome.APPLIED}
    assert {first.version, again.version, last.version} == {first.version}
    assert [each.duplicate for each in (first, again, last)] == [False, True, True]
    assert [each.reverse_pending for each in (first, again, last)] == [True, True, False]


async def test_a_shard_that_takes_no_writes_is_down_for_writes_alone(databases: Databases, writer: Writer) -> None:
    source, other = account(databases, "s2", 5), account(databases, "s1", 5)
    relay = Relay(writer.cluster, writer.cluster.shards["s2"], 0.01)
    async with read_only(databases, writer, "s2"):
        assert isinstance(await write(writer, follow(writer, source, other)), ShardUnavailableError)
        running = asyncio.create_task(relay.run())
        try:
            # The relay meets the same, and goes on.
            with pytest.raises(ShardUnavailableError):
                await relay.once()
            assert not running.done()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    assert isinstance(await write(writer, follow(writer, source, other)), WriteOutcome)


@asynccontextmanager
async def read_only(databases: Databases, writer: Writer, shard: str) -> AsyncIterator[None]:
    """The shard takes no writes inside, as after a failover to a standby."""
    with databases.connect(shard) as connection:
        try:
            await _set_read_only(connection, writer, shard, True)
            yield
        finally:
            await _set_read_only(connection, writer, shard, False)


async def _set_read_only(connection: psycopg.Connection[Any], writer: Writer, shard: str, wanted: bool) -> None:
    connection.execute("SET default_transaction_read_only = off")
    if wanted:
        connection.execute("ALTER SYSTEM SET default_transaction_read_only = on")
    else:
        connection.execute("ALTER SYSTEM RESET default_transaction_read_only")
    connection.execute("SELECT pg_reload_conf()")

    async def heard() -> bool:
        """Whether the lane's session has read the configuration: a probe of its own, on an edge nobody else uses."""
        owners = writer.cluster.topology.owners
        probe = next(i for i in range(9_000, 9_400) if owners[slot_of(i, len(owners))] == shard)
        return isinstance(await write(writer, follow(writer, probe, probe + 1)), ShardUnavailableError) is wanted

    await eventually(heard, 10, "the setting is in force")


async def block_alone(databases: Databases, write_: Write) -> None:
    """A Block's own statement and nothing after it: what a router leaves that dies between the commit and the payment."""
    async with open_shards(databases) as shards:
        key = Key(write_.kind.number, write_.source_id, write_.destination_id)
        await shards.carry(shards.home(key.source_id), [Op(Operation.BLOCK, key, now_us(), receipt=write_.receipt())])
        assert len(shards.counters) == 1


def debts(databases: Databases) -> int:
    return sum(count for (count,) in databases.all_rows("SELECT count(*) FROM outbox WHERE operation <> 0"))


def state_of(databases: Databases, source: int, destination: int) -> State:
    return State(edges(databases)[source, destination, 1][1])


@pytest.mark.parametrize("request_id", ["again", None])
@pytest.mark.parametrize("blocker_shard", ["s1", "s2"])
async def test_a_repeated_block_pays_what_the_first_still_owes(
    databases: Databases, writer: Writer, request_id: str | None, blocker_shard: str
) -> None:
    # Without it the relay would end a follow that was acknowledged after the Block.
    databases.clear()
    ada, bo = account(databases, "s1", 0), account(databases, blocker_shard, 1)
    kind = writer.cluster.topology.kind("")
    await write(writer, follow(writer, bo, ada))
    block = Write(Operation.BLOCK, ada, bo, kind, request_id=request_id)
    await block_alone(databases, block)
    assert (debts(databases), state_of(databases, bo, ada)) == (1, State.ACTIVE)
    told = await write(writer, block)
    assert isinstance(told, WriteOutcome)
    assert told.outcome is (Outcome.APPLIED if request_id else Outcome.UNCHANGED)
    assert (told.duplicate, told.reverse_pending) == (request_id is not None, False)
    assert state_of(databases, bo, ada) is State.REMOVED
    await eventually(lambda: debts(databases) == 0, what="the debt is struck")
    again = await write(writer, follow(writer, bo, ada))
    assert isinstance(again, WriteOutcome)
    assert again.outcome is Outcome.APPLIED


async def test_a_repeated_block_that_was_lifted_meanwhile_ends_nothing(databases: Databases, writer: Writer) -> None:
    databases.clear()
    ada, bo = account(databases, "s1", 0), account(databases, "s2", 1)
    block = Write(Operation.BLOCK, ada, bo, writer.cluster.topology.kind(""), request_id="late")
    await block_alone(databases, block)
    # Lifted by a replay, which pays nothing.
    position = now_us() + 1_000_000
    await write(writer, Write(Operation.UNBLOCK, ada, bo, block.kind, position))
    await write(writer, follow(writer, bo, ada))
    told = await write(writer, block)
    assert isinstance(told, WriteOutcome)
    assert told.duplicate
    await eventually(lambda: debts(databases) == 0, what="the debt is given up")
    assert state_of(databases, bo, ada) is State.ACTIVE


async def test_a_block_between_an_unblock_s_look_and_the_unblock(
    databases: Databases, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    databases.clear()
    ada, bo = account(databases, "s1", 0), account(databases, "s2", 1)
    await write(writer, follow(writer, bo, ada))
    unblock = Write(Operation.UNBLOCK, ada, bo, writer.cluster.topology.kind(""))
    block = Write(Operation.BLOCK, ada, bo, unblock.kind)
    shard = writer.cluster.shards["s1"]
    look = shard.counters

    def looks_too_early(read: CountersRead) -> asyncio.Future[tuple[bool, list[Counter]]]:
        monkeypatch.setattr(shard, "counters", look)
        found = look(read)

        async def then_block() -> tuple[bool, list[Counter]]:
            answer = await found
            await block_alone(databases, block)
            return answer

        return asyncio.ensure_future(then_block())

    monkeypatch.setattr(shard, "counters", looks_too_early)
    told = await write(writer, unblock)
    assert isinstance(told, WriteOutcome)
    assert (told.outcome, told.reverse_pending) == (Outcome.APPLIED, False)
    # Paid before the answer: whatever the Block's own router still does with it is a repetition.
    assert state_of(databases, bo, ada) is State.REMOVED
    await eventually(lambda: debts(databases) == 0, what="the debt is struck")
