"""The graph that is measured on: random 63-bit accounts, written through the router's own BatchWrite."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphd.v1 import graph_pb2 as pb
from tests.bench.setting import TIMEOUT_S

if TYPE_CHECKING:
    from graphd.v1.graph_pb2_grpc import GraphServiceAsyncStub  # generated for type checkers only

Edge = tuple[int, int]
DONE = (pb.OUTCOME_APPLIED, pb.OUTCOME_UNCHANGED)
LIST_LENGTH = 150
"""Followers of an account whose first page of 100 is read: there is a next page, as with most pages that are read."""


@dataclass(frozen=True, slots=True)
class Sizes:
    accounts: int = 300_000
    edges: int = 300_000
    lists: int = 500
    celebrity_followers: int = 200_000
    deep_page: int = 1_000


QUICK = Sizes(accounts=30_000, edges=20_000, lists=100, celebrity_followers=20_000, deep_page=100)


class Graph:
    """Accounts by the seed. `edges`, `list_accounts` and `cy` (the celebrity) have edges once they are written."""

    def __init__(self, sizes: Sizes, seed: int) -> None:
        self.sizes = sizes
        self.random = random.Random(seed)
        self.accounts = self._fresh(sizes.accounts)
        self.edges = [self._pair() for _ in range(sizes.edges)]
        self.list_accounts = self._fresh(sizes.lists)
        [self.cy] = self._fresh(1)

    def list_edges(self) -> Iterator[Edge]:
        """LIST_LENGTH followers for each of the list accounts."""
        for account in self.list_accounts:
            yield from ((source, account) for source in self.random.sample(self.accounts, LIST_LENGTH))

    def celebrity_edges(self) -> Iterator[Edge]:
        """All who follow cy. Each is somebody else."""
        return ((source, self.cy) for source in self._fresh(self.sizes.celebrity_followers))

    def new_edges(self) -> Iterator[Edge]:
        """Endless pairs of accounts; hardly one of them is there already."""
        return iter(self._pair, None)

    def new_followers(self, destination: int) -> Iterator[Edge]:
        """Endless followers of one account, each somebody else."""
        return ((self.random.getrandbits(63), destination) for _ in itertools.count())

    def _fresh(self, count: int) -> list[int]:
        found = {self.random.getrandbits(63) for _ in range(count)}
        assert len(found) == count, "63 bits are wide enough"
        return sorted(found)

    def _pair(self) -> Edge:
        source, destination = self.random.choice(self.accounts), self.random.choice(self.accounts)
        return (source, destination) if source != destination else self._pair()


def follow_batch(edges: Iterable[Edge]) -> pb.BatchWriteRequest:
    return pb.BatchWriteRequest(
        writes=[
            pb.Write(operation=pb.OPERATION_FOLLOW, source_id=source, destination_id=destination)
            for source, destination in edges
        ]
    )


async def write(stub: GraphServiceAsyncStub, edges: Iterable[Edge], *, batch: int = 1_000, in_flight: int = 4) -> int:
    """Writes the edges in batches, both halves durable; how many. The first failure is raised."""
    batches = _batched(edges, batch)
    done = 0

    async def worker() -> None:
        nonlocal done
        for part in batches:
            answer = await stub.BatchWrite(follow_batch(part), timeout=TIMEOUT_S)
            check_batch(answer, len(part))
            done += len(part)

    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(worker())
    return done


def check_batch(answer: pb.BatchWriteResponse, count: int) -> None:
    if len(answer.results) != count:
        raise WrongAnswerError(f"{len(answer.results)} results for {count} writes")
    for result in answer.results:
        check_result(result)


def check_result(result: pb.WriteResult) -> None:
    """Done, with both halves durable."""
    if result.outcome not in DONE or result.reverse_pending:
        outcome, pending = pb.Outcome.Name(result.outcome), result.reverse_pending
        raise WrongAnswerError(f"a Follow was {outcome} {result.reason} with reverse_pending {pending}")


class WrongAnswerError(RuntimeError):
    """An answer is not what was asked for: its speed says nothing."""


def _batched(edges: Iterable[Edge], size: int) -> Iterator[tuple[Edge, ...]]:
    iterator = iter(edges)
    while part := tuple(itertools.islice(iterator, size)):
        yield part
