"""A slot handed back and forth under load: no write lands where it was, no read answers empty, no call fails."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from grpc import aio

from graphd.operations import Outcome
from graphd.placement import slot_of
from graphd.storage.cluster import Cluster
from graphd.storage.items import Receipt
from graphd.storage.shard import ShardSettings
from graphd.v1 import graph_pb2 as pb
from tests.databases import PER_SLOT_TABLES
from tests.routers import GraphStub
from tests.simulation.calls import follow
from tests.simulation.check import check
from tests.simulation.cluster import SLOTS, Site
from tests.simulation.moves import Move
from tests.simulation.workload import Caller, Ledger, connections, writing

MOVES, LONG_MOVES = 6, 20
WRITERS = 12
FANS = 30


@dataclass(slots=True)
class Standing:
    """Reads of what always is there, over and over. `wrong`: answers that were not what they must be."""

    account: int
    fans: list[int]
    idols: list[int]
    reads: int = 0
    wrong: list[str] = field(default_factory=list)

    async def seed(self, stub: GraphStub) -> None:
        """Write it."""
        pairs = [(fan, self.account) for fan in self.fans] + [(self.account, idol) for idol in self.idols]
        writes = [pb.Write(operation=pb.OPERATION_FOLLOW, source_id=source, destination_id=to) for source, to in pairs]
        answer = await stub.BatchWrite(pb.BatchWriteRequest(writes=writes), timeout=10)
        assert all(result.outcome == pb.OUTCOME_APPLIED for result in answer.results)

    async def edge(self, stub: GraphStub) -> bool:
        request = pb.GetEdgeRequest(source_id=self.account, destination_id=self.idols[0])
        return (await stub.GetEdge(request, timeout=10)).edge.state == pb.STATE_ACTIVE

    async def edges(self, stub: GraphStub) -> bool:
        keys = [pb.EdgeKey(source_id=self.account, destination_id=idol) for idol in self.idols]
        keys += [pb.EdgeKey(source_id=fan, destination_id=self.account) for fan in self.fans]
        return all(
            found.found for found in (await stub.BatchGetEdges(pb.BatchGetEdgesRequest(edges=keys), timeout=10)).results
        )

    async def followers(self, stub: GraphStub) -> bool:
        request = pb.ListFollowersRequest(account_id=self.account, page_size=1000, view=pb.VIEW_IDS)
        return set((await stub.ListFollowers(request, timeout=10)).ids) >= set(self.fans)

    async def following(self, stub: GraphStub) -> bool:
        request = pb.ListFollowingRequest(account_id=self.account, page_size=1000, view=pb.VIEW_IDS)
        return sorted((await stub.ListFollowing(request, timeout=10)).ids) == sorted(self.idols)

    async def degrees(self, stub: GraphStub) -> bool:
        answer = await stub.GetDegrees(pb.GetDegreesRequest(account_id=self.account), timeout=10)
        return answer.following == len(self.idols) and answer.followers >= len(self.fans)

    async def common(self, stub: GraphStub) -> bool:
        operands = [
            pb.Operand(followers_of=pb.ListOperand(account_id=self.account)),
            pb.Operand(ids=pb.IdList(ids=self.fans)),
        ]
        answer = await stub.Intersect(pb.IntersectRequest(operands=operands, page_size=1000), timeout=10)
        return sorted(answer.ids) == sorted(self.fans)

    async def read(self, stub: GraphStub, ask: Callable[[GraphStub], Awaitable[bool]], stop: asyncio.Event) -> None:
        """One question, until told to stop."""
        while not stop.is_set():
            try:
                if not await ask(stub):
                    self.wrong.append(f"{ask.__name__}: something was missing")
            except aio.AioRpcError as error:
                self.wrong.append(f"{ask.__name__}: {error.code().name} {error.details()}")
            self.reads += 1
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def standing_reads(standing: Standing, stubs: Sequence[GraphStub]) -> AsyncIterator[None]:
    stop = asyncio.Event()
    questions = (
        standing.edge,
        standing.edges,
        standing.followers,
        standing.following,
        standing.degrees,
        standing.common,
    )
    tasks = [
        asyncio.create_task(standing.read(stubs[at % len(stubs)], question, stop))
        for at, question in enumerate(questions)
    ]
    try:
        yield
    finally:
        stop.set()
        await asyncio.gather(*tasks)


def setting(site: Site) -> tuple[int, Standing]:
    """An account of s1 whose slot moves, those who always follow it and whom it always follows."""
    account = site.accounts("s1", 1)[0]
    fans = [fan for name in site.databases.names for fan in site.accounts(name, FANS // 3, first=200_000)]
    idols = [idol for name in site.databases.names for idol in site.accounts(name, 5, first=300_000)]
    return account, Standing(account, fans, idols)


def writers(
    site: Site, chance: random.Random, account: int, stubs: Sequence[Sequence[GraphStub]], ledger: Ledger
) -> list[Caller]:
    """Half of them write from accounts of the moving slot, half follow accounts of it."""
    inside = accounts_of(slot_of(account, SLOTS), 6 * WRITERS, first=500_000)
    outside = [other for name in site.databases.names for other in site.accounts(name, 2 * WRITERS, first=700_000)]
    found = []
    for number in range(WRITERS):
        pool, destinations = (inside, outside[:20]) if number % 2 else (outside[20:], [account, *inside[:5]])
        mine = pool[10 + 4 * (number // 2) : 14 + 4 * (number // 2)]
        found.append(Caller(stubs[number % len(stubs)], number, mine, destinations, ledger, chance.getrandbits(32)))
    return found


def accounts_of(slot: int, count: int, first: int) -> list[int]:
    found: list[int] = []
    account = first
    while len(found) < count:
        if slot_of(account, SLOTS) == slot:
            found.append(account)
        account += 1
    return found


async def test_moves_back_and_forth(site: Site, chance: random.Random, is_long: bool) -> None:
    account, standing = setting(site)
    ledger = Ledger()
    move = Move.of(site, account, "s2")
    with site.routers(2) as routers, site.relay():
        async with connections(routers, 4) as stubs:
            await standing.seed(stubs[0][0])
            async with standing_reads(standing, stubs[0]), writing(writers(site, chance, account, stubs, ledger), 10):
                for _ in range(LONG_MOVES if is_long else MOVES):
                    await asyncio.sleep(0.4)
                    await asyncio.to_thread(move.run)
                    move = move.back()
                await asyncio.sleep(0.4)
            print(f"{ledger.outcomes}, {standing.reads} reads")
            assert not standing.wrong, f"{len(standing.wrong)} of {standing.reads}: {standing.wrong[:5]}"
            assert not ledger.failures, f"{len(ledger.failures)}: {ledger.failures[:3]}"
            assert ledger.writes > 200
            await check(site.databases, ledger)
    assert not any(move.rows(move.recipient)[table] for table in PER_SLOT_TABLES), "the old owner holds rows"


async def test_a_router_that_slept_through_a_move_writes_nothing_to_the_old_owner(
    site: Site, chance: random.Random
) -> None:
    account, standing = setting(site)
    ledger = Ledger()
    move = Move.of(site, account, "s2")
    with site.routers(2) as routers, site.relay():
        async with connections(routers, 4) as stubs:
            await standing.seed(stubs[0][0])
            for _ in range(2):
                sleeper = routers[1]
                async with writing(writers(site, chance, account, stubs, ledger), 10):
                    await asyncio.sleep(0.3)
                    sleeper.signal(signal.SIGSTOP)
                    try:
                        await asyncio.to_thread(move.run)
                    finally:
                        sleeper.signal(signal.SIGCONT)
                    # It still believes in the old owner, and is asked at once.
                    result = await follow(stubs[1][1], account, standing.idols[1], 10)
                    assert result.outcome == pb.OUTCOME_UNCHANGED
                    assert await standing.followers(stubs[1][1])
                    assert await standing.edges(stubs[1][1])
                    await asyncio.sleep(0.3)
                assert not any(move.rows(move.donor)[table] for table in PER_SLOT_TABLES), "the old owner holds rows"
                assert not ledger.failures, f"{len(ledger.failures)}: {ledger.failures[:3]}"
                move = move.back()
            await check(site.databases, ledger)


async def test_a_receipt_is_kept_only_where_its_slot_is_owned(site: Site) -> None:
    """A refused or stale write leaves a receipt of its own, after the row was read: the slot may have gone in between."""
    account = site.accounts("s1", 1)[0]
    slot = slot_of(account, SLOTS)
    cluster = await Cluster.open(site.databases.config, ShardSettings(application="test"))
    try:
        receipt = Receipt(account, "the-request-id", 7)
        assert not await cluster.shards["s2"].remember(slot, receipt, Outcome.REFUSED, None)
        assert site.databases.rows("s2", "SELECT count(*) FROM receipts") == [(0,)]
        assert await cluster.shards["s1"].remember(slot, receipt, Outcome.REFUSED, None)
    finally:
        await cluster.close()
