"""The rows of long lists: set operations, streams, and an account that is archived meanwhile. Measured when named, on their own cluster."""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
import shutil
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import psycopg

from graphd.placement import slot_of
from graphd.process import loop_factory
from graphd.v1 import graph_pb2 as pb
from tests.bench.data import WrongAnswerError, check_result
from tests.bench.figures import Bound, Row, Target, percentile
from tests.bench.load import Load, run_window
from tests.bench.setting import TIMEOUT_S, Setting, cluster, connect

if TYPE_CHECKING:
    from graphd.v1.graph_pb2_grpc import GraphServiceAsyncStub  # generated for type checkers only

SLOTS = 64
ROUNDS = 25
SPARSE, IN_COMMON = 100_000, 150
LONG = 1_000_000
SHORT = 100
FANS = 200_000
SATURATED = 0.4
OTHERS_A_SECOND, ITS_OWN_A_SECOND = 500, 50

COLUMNS = "owner_id, neighbor_id, position, since, slot, kind, state, operation"
JOIN = """
SELECT neighbor_id FROM joined AS a JOIN joined AS b USING (kind, state, neighbor_id)
WHERE a.owner_id = %(first)s AND b.owner_id = %(second)s AND kind = 1 AND state = 1
ORDER BY neighbor_id DESC
"""
"""Without LIMIT, which makes the planner choose a nested loop six times as slow."""

CURSOR = """
SELECT neighbor_id FROM reverse WHERE owner_id = %s AND kind = 1 AND state = 1 AND slot = %s ORDER BY since DESC, neighbor_id DESC
"""


@dataclass(frozen=True, slots=True)
class Lists:
    """The cluster, and the accounts whose lists are long."""

    setting: Setting
    stub: GraphServiceAsyncStub
    windows: int
    seconds: float

    def account(self, shard: int, number: int) -> int:
        """The `number`th account of a shard, from 0 on."""
        names = list(self.setting.conninfo)
        half = SLOTS // len(names)
        on = (account for account in itertools.count(1) if slot_of(account, SLOTS) // half == shard)
        return next(itertools.islice(on, number, None))

    def connect(self, shard: int) -> psycopg.Connection[Any]:
        return psycopg.connect(list(self.setting.conninfo.values())[shard], autocommit=True)

    def fill(self, shard: int, account: int, ids: Sequence[int], table: str = "reverse") -> None:
        """Followers in the order in which they came, reverse halves alone: set operations read no others."""
        slot = slot_of(account, SLOTS)
        with self.connect(shard) as connection, connection.cursor() as cursor:
            with cursor.copy(f"COPY {table} ({COLUMNS}) FROM STDIN".encode()) as copy:
                for since, one in enumerate(ids, 1):
                    copy.write_row((account, one, since, since, slot, 1, 1, 0))
            cursor.execute(
                "INSERT INTO degrees (owner_id, direction, kind, state, slot, degree) VALUES (%s, 2, 1, 1, %s, %s)"
                " ON CONFLICT DO NOTHING",
                (account, slot, len(ids)),
            )
            cursor.execute(f"VACUUM ANALYZE {table}".encode())

    def memory_mb(self) -> float:
        return self.setting.meter.rss_mb("router")


Measure = Callable[[Lists, Sequence[Target]], Awaitable[list[Row]]]


def followers_of(account: int) -> pb.Operand:
    return pb.Operand(followers_of=pb.ListOperand(account_id=account))


async def _timed(call: Callable[[], Awaitable[None]]) -> float:
    began = time.perf_counter()
    await call()
    return time.perf_counter() - began


async def _times(
    target: Target, ours: Callable[[], Awaitable[None]], floor: Callable[[], Awaitable[None]], rounds: int = ROUNDS
) -> Row:
    """How many times as long ours takes as the floor: the median of the ratios of neighbours."""
    for call in (ours, floor):
        await call()
    both = [(await _timed(ours), await _timed(floor)) for _ in range(rounds)]
    ratios = [mine / other for mine, other in both]
    mine, other = (1000 * median(pair[side] for pair in both) for side in (0, 1))
    return Row(target, median(ratios), ratios, note=f"{mine:.1f} ms against {other:.1f} ms")


async def sparse(lists: Lists, targets: Sequence[Target]) -> list[Row]:
    """Two lists on two shards with little in common, against the join of the same rows on one server."""
    chance = random.Random(1)
    ids = chance.sample(range(10_000_000), 2 * SPARSE - IN_COMMON)
    members = ids[:SPARSE], ids[SPARSE - IN_COMMON :]
    accounts = lists.account(0, 0), lists.account(1, 0)

    def prepare() -> None:
        with lists.connect(0) as connection:
            connection.execute("CREATE TABLE joined (LIKE reverse INCLUDING ALL)")
        for shard, account in enumerate(accounts):
            came = chance.sample(members[shard], SPARSE)
            lists.fill(shard, account, came)
            lists.fill(0, account, came, "joined")

    await asyncio.to_thread(prepare)
    expected = sorted(set(members[0]) & set(members[1]), reverse=True)
    operands = [followers_of(account) for account in accounts]
    conninfo = next(iter(lists.setting.conninfo.values()))
    async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as connection:

        async def join() -> None:
            cursor = await connection.execute(JOIN, {"first": accounts[0], "second": accounts[1]})
            if [one for (one,) in await cursor.fetchall()] != expected:
                raise WrongAnswerError("the join")

        async def page() -> None:
            answer = await lists.stub.Intersect(
                pb.IntersectRequest(operands=operands, page_size=100), timeout=TIMEOUT_S
            )
            if list(answer.ids) != expected[:100]:
                raise WrongAnswerError("the first page of an Intersect")

        async def degree() -> None:
            answer = await lists.stub.GetCommonDegree(pb.GetCommonDegreeRequest(operands=operands), timeout=TIMEOUT_S)
            if (answer.degree, answer.exact) != (IN_COMMON, True):
                raise WrongAnswerError("a GetCommonDegree")

        calls = {INTERSECT: page, COMMON_DEGREE: degree}
        return [await _times(target, calls[target], join) for target in targets]


async def million(lists: Lists, targets: Sequence[Target]) -> list[Row]:
    """A list of a million with a short one, with another of a million that has nothing in common with it, and streamed."""
    first, second, few = lists.account(0, 1), lists.account(1, 1), lists.account(0, 2)

    def prepare() -> None:
        lists.fill(0, few, random.Random(2).sample(range(0, 2 * LONG, 2), SHORT))
        # Odd and even: both must be read to their ends.
        lists.fill(0, first, range(0, 2 * LONG, 2))
        lists.fill(1, second, range(1, 2 * LONG, 2))

    await asyncio.to_thread(prepare)
    rows: list[Row] = []
    if SHORT_INTERSECT in targets:
        operands = [followers_of(first), followers_of(few)]

        async def intersect() -> None:
            answer = await lists.stub.Intersect(pb.IntersectRequest(operands=operands), timeout=TIMEOUT_S)
            if len(answer.ids) != SHORT:
                raise WrongAnswerError("an Intersect with a short list")

        async def page() -> None:
            answer = await lists.stub.ListFollowers(pb.ListFollowersRequest(account_id=first), timeout=TIMEOUT_S)
            if len(answer.edges) != 100:
                raise WrongAnswerError("a page")

        rows.append(await _times(SHORT_INTERSECT, intersect, page, 8 * ROUNDS))
    if DISJOINT in targets or SET_MEMORY in targets:
        slowest_s, pages, peak_mb = await _disjoint(lists, first, second)
        note = f"{pages} pages until the end, each with a budget of 0.5 s"
        found = {DISJOINT: Row(DISJOINT, slowest_s, note=note), SET_MEMORY: Row(SET_MEMORY, peak_mb)}
        rows += [found[target] for target in (DISJOINT, SET_MEMORY) if target in targets]
    if STREAM in targets:
        rows.append(await _stream(lists, first))
    return rows


async def _disjoint(lists: Lists, first: int, second: int) -> tuple[float, int, float]:
    """(slowest page in seconds, pages, the router's peak)."""
    slowest_s, pages, peak_mb = 0.0, 0, 0.0
    request = pb.IntersectRequest(operands=[followers_of(first), followers_of(second)])
    while pages == 0 or request.page_token:
        began = time.perf_counter()
        answer = await lists.stub.Intersect(request, timeout=TIMEOUT_S)
        slowest_s, pages = max(slowest_s, time.perf_counter() - began), pages + 1
        peak_mb = max(peak_mb, lists.memory_mb())
        if answer.ids or answer.partial != bool(answer.next_page_token):
            raise WrongAnswerError("an Intersect of what has nothing in common")
        request.page_token = answer.next_page_token
    return slowest_s, pages, peak_mb


async def _stream(lists: Lists, account: int) -> Row:
    """Rows a second of StreamFollowers, against a server-side cursor of psycopg on the same list."""
    conninfo, slot = next(iter(lists.setting.conninfo.values())), slot_of(account, SLOTS)
    before_mb, peak_mb = lists.memory_mb(), 0.0

    async def ours() -> None:
        nonlocal peak_mb
        seen = 0
        async for chunk in lists.stub.StreamFollowers(pb.StreamFollowersRequest(account_id=account), timeout=120):
            seen += len(chunk.ids)
            if seen % 100_000 == 0:
                peak_mb = max(peak_mb, lists.memory_mb())
        if seen != LONG:
            raise WrongAnswerError(f"a stream of {seen:,}")

    async def cursor() -> None:
        seen = 0
        async with await psycopg.AsyncConnection.connect(conninfo) as connection, connection.cursor("list") as named:
            named.itersize = 10_000
            await named.execute(CURSOR, (account, slot))
            async for _ in named:
                seen += 1
        if seen != LONG:
            raise WrongAnswerError(f"a cursor of {seen:,}")

    pairs = [(await _timed(ours), await _timed(cursor)) for _ in range(lists.windows)]
    ratios = [other / mine for mine, other in pairs]
    rate = LONG / median(mine for mine, _ in pairs)
    note = f"{rate:,.0f} ids a second; the router's memory {before_mb:.0f} MB before, {peak_mb:.0f} MB at the most"
    return Row(STREAM, median(ratios), ratios, note=note)


# -- archive -----------------------------------------------------------------------------------------------------------


async def archive(lists: Lists, targets: Sequence[Target]) -> list[Row]:
    """p99 of follows among others, in an open loop, while an account of 200,000 followers is archived or restored and followed too, against
    the same without it, in turns."""
    star = lists.account(0, 3)
    fans = itertools.count(50_000_000)
    ids = list(itertools.islice(fans, FANS))
    for at in range(0, FANS, 500):
        writes = [
            pb.Write(operation=pb.OPERATION_FOLLOW, source_id=fan, destination_id=star) for fan in ids[at : at + 500]
        ]
        await lists.stub.BatchWrite(pb.BatchWriteRequest(writes=writes), timeout=TIMEOUT_S)
    await asyncio.to_thread(lists.setting.settle)
    chance = random.Random(3)

    async def follow() -> None:
        request = pb.FollowRequest(source_id=chance.getrandbits(62), destination_id=chance.getrandbits(62))
        check_result((await lists.stub.Follow(request, timeout=TIMEOUT_S)).result)

    saturation = (await run_window(Load(follow), min(5.0, lists.seconds), lists.setting.meter)).rate
    rate = max(float(OTHERS_A_SECOND), SATURATED * saturation)
    ratios: list[float] = []
    p99s: list[tuple[float, float]] = []
    walker = _Walker(lists, star)
    for number in range(lists.windows):
        quiet_first = number % 2 == 0
        p99_ms: dict[bool, float] = {}
        for walking in (False, True) if quiet_first else (True, False):
            if walking:
                async with walker.walking():
                    p99_ms[walking] = await _open_loop(lists, rate, follow, star, fans)
            else:
                p99_ms[walking] = await _open_loop(lists, rate, follow, star, fans)
        p99s.append((p99_ms[False], p99_ms[True]))
        ratios.append(p99_ms[True] / p99_ms[False])
    quiet_ms, busy_ms = (median(pair[side] for pair in p99s) for side in (0, 1))
    note = (
        f"{rate:,.0f} follows a second on others ({rate / saturation:.0%} of {saturation:,.0f}) and {ITS_OWN_A_SECOND} on it: p99 "
        f"{busy_ms:.1f} ms against {quiet_ms:.1f} ms; {walker.changed:,} edges changed, {walker.rate:,.0f} a second"
    )
    return [Row(target, median(ratios), ratios, note=note) for target in targets]


class _Walker:
    """Archives and restores the account, turn and turn about, while it is asked to."""

    def __init__(self, lists: Lists, star: int) -> None:
        self._lists, self._star = lists, star
        self._archived = False
        self.changed = 0
        self.seconds = 0.0

    @property
    def rate(self) -> float:
        return self.changed / self.seconds if self.seconds else 0.0

    @asynccontextmanager
    async def walking(self) -> AsyncGenerator[None, None]:
        task = asyncio.ensure_future(self._walk())
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - began
            if task.done():
                task.result()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _walk(self) -> None:
        while True:
            stub, account = self._lists.stub, self._star
            walk: Any = (
                stub.RestoreAccount(pb.RestoreAccountRequest(account_id=account))
                if self._archived
                else stub.ArchiveAccount(pb.ArchiveAccountRequest(account_id=account))
            )
            done = 0
            try:
                async for told in walk:
                    self.changed += told.done - done
                    done = told.done
            finally:
                walk.cancel()
            self._archived = not self._archived


async def _open_loop(
    lists: Lists, rate: float, follow: Callable[[], Awaitable[None]], star: int, fans: itertools.count[int]
) -> float:
    """p99 in milliseconds, counted from when each call should have begun."""
    loop = asyncio.get_running_loop()
    first, latencies_s = loop.time() + 0.5, list[float]()

    async def one(due: float) -> None:
        await follow()
        latencies_s.append(loop.time() - due)

    async def others(group: asyncio.TaskGroup) -> None:
        for number in range(int(rate * lists.seconds)):
            due = first + number / rate
            if (pause := due - loop.time()) > 0:
                await asyncio.sleep(pause)
            group.create_task(one(due))

    async def its_own() -> None:
        for number in range(int(ITS_OWN_A_SECOND * lists.seconds)):
            await asyncio.sleep(max(0.0, first + number / ITS_OWN_A_SECOND - loop.time()))
            # Refused while it is archived.
            write = pb.Write(operation=pb.OPERATION_FOLLOW, source_id=next(fans), destination_id=star)
            await lists.stub.BatchWrite(pb.BatchWriteRequest(writes=[write]), timeout=TIMEOUT_S)

    async with asyncio.TaskGroup() as group:
        group.create_task(others(group))
        group.create_task(its_own())
    return 1000 * percentile(latencies_s, 0.99)


INTERSECT = Target(
    "intersect", "Intersect of 100,000 and 100,000 on two shards, against a join on one", Bound.AT_MOST, 2.5
)
COMMON_DEGREE = Target("common-degree", "GetCommonDegree of the same, against the join", Bound.AT_MOST, 2.5)
SHORT_INTERSECT = Target(
    "intersect-short", "Intersect of 1 M and 100, against a page of ListFollowers", Bound.AT_MOST, 5
)
DISJOINT = Target(
    "intersect-disjoint", "slowest page of an Intersect of 1 M and 1 M that are disjoint", Bound.AT_MOST, 1, "s"
)
SET_MEMORY = Target("intersect-memory", "memory of the router meanwhile", Bound.AT_MOST, 250, "MB")
STREAM = Target("stream", "StreamFollowers of 1 M, against a server-side cursor", Bound.AT_LEAST, 0.5)
ARCHIVE = Target(
    "archive", "p99 of follows while 200,000 edges are archived, against the same in peace", Bound.AT_MOST, 1.5
)

GROUPS: dict[tuple[Target, ...], Measure] = {
    (INTERSECT, COMMON_DEGREE): sparse,
    (SHORT_INTERSECT, DISJOINT, SET_MEMORY, STREAM): million,
    (ARCHIVE,): archive,
}
TARGETS = tuple(itertools.chain(*GROUPS))


async def _measure(setting: Setting, names: Sequence[str], windows: int, seconds: float) -> list[Row]:
    rows: list[Row] = []
    async with connect(setting.router) as stub:
        lists = Lists(setting, stub, windows, seconds)
        for targets, group in GROUPS.items():
            wanted = [target for target in targets if target.name in names]
            if wanted:
                rows += await group(lists, wanted)
                gc.collect()
    return rows


def measure(names: Sequence[str], windows: int, seconds: float) -> list[Row]:
    """The rows of these names, on a cluster of their own."""
    folder = Path(tempfile.mkdtemp(prefix="graphd-bench-"))
    folder.chmod(0o755)  # the servers may run as another user
    try:
        with cluster(folder) as setting, asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(_measure(setting, names, windows, seconds))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
