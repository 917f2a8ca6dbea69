"""Short forms of single calls, for tests of the network's faults."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from graphd.v1 import graph_pb2 as pb
from tests.routers import GraphStub, RouterProcess


async def follow(stub: GraphStub, source: int, destination: int, timeout_s: float = 5.0) -> pb.WriteResult:
    """Follow, live, without a request id."""
    request = pb.FollowRequest(source_id=source, destination_id=destination)
    return (await stub.Follow(request, timeout=timeout_s)).result


async def is_edge(stub: GraphStub, source: int, destination: int, timeout_s: float = 5.0) -> bool:
    """Whether an edge is ACTIVE; False when it was never written."""
    try:
        request = pb.GetEdgeRequest(source_id=source, destination_id=destination)
        return (await stub.GetEdge(request, timeout=timeout_s)).edge.state == pb.STATE_ACTIVE
    except aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.NOT_FOUND:
            return False
        raise


async def serves(stub: GraphStub, source: int, destination: int) -> bool:
    """Whether a write and a read of two accounts succeed, both halves included."""
    try:
        result = await follow(stub, source, destination, 2)
        return not result.reverse_pending and await is_edge(stub, source, destination, 2)
    except aio.AioRpcError:
        return False


class Steady:
    """Callers who go on all the time and note what went wrong, and how long the slowest call took."""

    def __init__(self) -> None:
        self.calls = 0
        self.failures: list[str] = []
        self.slowest_s = 0.0

    async def run(self, stub: GraphStub, pairs: Sequence[tuple[int, int]]) -> None:
        """Follow and read, in turns, until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            for source, destination in pairs:
                began = clock()
                try:
                    result = await follow(stub, source, destination)
                    if result.reverse_pending:
                        self.failures.append("reverse_pending")
                    if not await is_edge(stub, source, destination):
                        self.failures.append("an acknowledged edge was not found")
                except aio.AioRpcError as error:
                    self.failures.append(f"{error.code().name}: {error.details()}")
                self.calls += 2
                self.slowest_s = max(self.slowest_s, clock() - began)


@contextlib.asynccontextmanager
async def steady(stub: GraphStub, pairs: Sequence[tuple[int, int]], count: int = 4) -> AsyncIterator[Steady]:
    """Steady callers while the body runs."""
    found = Steady()
    tasks = [asyncio.create_task(found.run(stub, pairs)) for _ in range(count)]
    try:
        yield found
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def health_s(router: RouterProcess, service: str = "", rounds: int = 20) -> list[float]:
    """How long health checks took, in seconds, ascending; each must say SERVING."""
    clock = asyncio.get_running_loop().time
    found = []
    async with aio.insecure_channel(router.target) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        await channel.channel_ready()
        for _ in range(rounds):
            began = clock()
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=5)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            found.append(clock() - began)
            await asyncio.sleep(0.02)
    return sorted(found)
