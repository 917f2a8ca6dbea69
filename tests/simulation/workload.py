"""The workload: callers who follow and unfollow, and a ledger of what they were told.

Every source belongs to one caller, who goes on to the next write only when the one before was acknowledged, repeating it with the same
request id. So the state each edge must end in is known, whatever happened on the way.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc
from grpc import aio

from graphd.v1 import graph_pb2 as pb
from tests.routers import GraphStub, RouterProcess, graph_stub

Edge = tuple[int, int]
Version = tuple[int, int, int]

RETRIED = frozenset(
    {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED}
)
FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 0.3
GIVE_UP_S = 60.0

CHANNEL_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 400),
    ("grpc.use_local_subchannel_pool", 1),
)


@dataclass(frozen=True, slots=True)
class Failure:
    """An attempt that failed. `router`: the index of the router that was asked."""

    edge: Edge
    router: int
    code: grpc.StatusCode
    details: str


@dataclass(slots=True)
class Ledger:
    """What the callers were told."""

    acknowledged: dict[Edge, Version] = field(default_factory=dict)
    """The newest version acknowledged of each edge."""
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    def keep(self, edge: Edge, result: pb.WriteResult) -> None:
        """An answer arrived."""
        version = (result.edge.position, int(result.edge.state), result.edge.since)
        self.acknowledged[edge] = max(version, self.acknowledged.get(edge, version))
        self.outcomes[pb.Outcome.Name(result.outcome)] += 1
        self.outcomes["duplicate"] += result.duplicate
        self.outcomes["pending"] += result.reverse_pending

    @property
    def writes(self) -> int:
        """Writes that were acknowledged."""
        return sum(count for name, count in self.outcomes.items() if name.startswith("OUTCOME_"))

    def codes(self) -> dict[str, int]:
        """How many attempts failed, by status code."""
        return dict(Counter(failure.code.name for failure in self.failures))


class Caller:
    """One client: one write after the other, from its own sources to anybody."""

    def __init__(
        self,
        stubs: Sequence[GraphStub],
        home: int,
        sources: Sequence[int],
        destinations: Sequence[int],
        ledger: Ledger,
        seed: int,
    ) -> None:
        self._stubs, self._at = stubs, home % len(stubs)
        self._sources, self._destinations = sources, destinations
        self._ledger = ledger
        self._random = random.Random(seed)

    async def run(self, stop: asyncio.Event, timeout_s: float = 5.0) -> None:
        """Write until told to stop; what was begun is finished."""
        while not stop.is_set():
            source, destination = self._random.choice(self._sources), self._random.choice(self._destinations)
            await self.write((source, destination), self._random.random() < 0.65, timeout_s)

    async def write(self, edge: Edge, follow: bool, timeout_s: float = 5.0) -> pb.WriteResult:
        """One write, repeated until it is acknowledged."""
        source_id, destination_id = edge
        request_id = f"{self._random.getrandbits(96):024x}"
        give_up = asyncio.get_running_loop().time() + GIVE_UP_S
        pause_s = FIRST_PAUSE_S
        while True:
            stub, at = self._stubs[self._at], self._at
            try:
                if follow:
                    result = (
                        await stub.Follow(
                            pb.FollowRequest(source_id=source_id, destination_id=destination_id, request_id=request_id),
                            timeout=timeout_s,
                        )
                    ).result
                else:
                    result = (
                        await stub.Unfollow(
                            pb.UnfollowRequest(
                                source_id=source_id, destination_id=destination_id, request_id=request_id
                            ),
                            timeout=timeout_s,
                        )
                    ).result
            except aio.AioRpcError as error:
                self._ledger.failures.append(Failure(edge, at, error.code(), error.details() or ""))
                if error.code() not in RETRIED or asyncio.get_running_loop().time() > give_up:
                    raise
                self._at = (self._at + 1) % len(self._stubs)
                await asyncio.sleep(pause_s * self._random.uniform(0.5, 1.0))
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                continue
            self._ledger.keep(edge, result)
            return result


@asynccontextmanager
async def connections(routers: Sequence[RouterProcess], count: int = 1) -> AsyncIterator[list[list[GraphStub]]]:
    """`count` sets of stubs, each with a connection of its own to every router."""
    channels = [
        [aio.insecure_channel(router.target, options=CHANNEL_OPTIONS) for router in routers] for _ in range(count)
    ]
    try:
        yield [[graph_stub(channel) for channel in row] for row in channels]
    finally:
        for row in channels:
            for channel in row:
                await channel.close()


@asynccontextmanager
async def writing(callers: Sequence[Caller], timeout_s: float = 5.0) -> AsyncIterator[None]:
    """Callers at work while the body runs; afterwards each finishes what it had begun. Their failures are raised."""
    stop = asyncio.Event()
    tasks = [asyncio.create_task(caller.run(stop, timeout_s)) for caller in callers]
    try:
        yield
        for task in tasks:
            if task.done():
                task.result()
    except BaseException:
        for task in tasks:
            task.cancel()
        raise
    finally:
        stop.set()
        await asyncio.wait(tasks)
    for task in tasks:
        task.result()
