"""A page of a set operation that runs out of time is short, says so, and its token goes on from there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import numpy as np
import pytest
import pytest_asyncio

from graphd.cursor import set_scope
from graphd.edge import Direction, State
from graphd.setops import descending
from graphd.storage.cluster import Cluster
from graphd.storage.shard import ShardSettings
from router.admission import Admission
from router.expressions import ListIds, Node, Operand, SetOperation
from router.reads import Reader
from router.setreads import SetReader
from tests.databases import Databases

SCOPE = set_scope(b"intersect", b"test")
COUNT = 30_000


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster(databases: Databases) -> AsyncIterator[Cluster]:
    found = await Cluster.open(databases.config, ShardSettings(application="test"))
    try:
        yield found
    finally:
        await found.close()


@pytest.fixture(scope="module")
def lists(databases: Databases, cluster: Cluster) -> list[Operand]:
    """Followers of 1, 2 and 3: multiples of 2, 3 and 5, the degrees of 2 and 3 wrong in either direction (drift)."""
    kind = cluster.topology.kind("")
    for account, step in ((1, 2), (2, 3), (3, 5)):
        databases.do(
            "INSERT INTO reverse (owner_id, neighbor_id, position, since, slot, kind, state, operation)"
            " SELECT %(account)s, n, 1, n, s.slot, 1, 1, 0 FROM slots AS s, generate_series(0, %(top)s, %(step)s) AS n"
            " WHERE s.owned AND s.slot = hashint8extended(%(account)s::bigint, 0) & 63",
            {"account": account, "top": COUNT * step - 1, "step": step},
        )
        databases.do(
            "INSERT INTO degrees (owner_id, direction, kind, state, slot, degree) SELECT %(account)s, 2, 1, 1, s.slot, %(degree)s"
            " FROM slots AS s WHERE s.owned AND s.slot = hashint8extended(%(account)s::bigint, 0) & 63",
            {"account": account, "degree": {1: COUNT, 2: 7, 3: -3}[account]},
        )
    return [ListIds(Direction.REVERSE, account, kind, State.ACTIVE) for account in (1, 2, 3)]


async def pages(cluster: Cluster, operands: Sequence[Operand], size: int, budget_s: float) -> tuple[list[int], int]:
    """All ids, and how many pages were partial."""
    reader = SetReader(cluster, Reader(cluster, Admission(100), lambda account, kind: None), budget_s)
    found: list[int] = []
    token, partial = "", 0
    for _ in range(10_000):
        deadline = asyncio.get_running_loop().time() + 30
        page = await reader.select(Node(SetOperation.INTERSECT, tuple(operands)), SCOPE, size, token, deadline)
        found += page.ids
        partial += page.partial
        assert page.partial or len(page.ids) == size or not page.next_token
        token = page.next_token
        if not token:
            return found, partial
        assert not page.partial or page.next_token
    raise AssertionError("a walk ends")


@pytest.mark.parametrize("size", [300, 1_000])
@pytest.mark.parametrize("budget_s", [0.0, 10.0])
async def test_short_pages_miss_and_repeat_nothing(
    cluster: Cluster, lists: list[Operand], size: int, budget_s: float
) -> None:
    # A wrong degree is a wrong plan, and still the right answer.
    explicit = descending(np.arange(0, 200_000, 7, dtype=np.int64))
    tops = {id(lists[0]): 2, id(lists[1]): 3, id(lists[2]): 5}
    for operands in (lists[:2], lists[1:], lists, [lists[0], explicit], [lists[1], explicit, lists[2]]):
        sets = [
            set(range(0, COUNT * tops[id(operand)], tops[id(operand)]))
            if isinstance(operand, ListIds)
            else set(operand.tolist())
            for operand in operands
        ]
        found, partial = await pages(cluster, operands, size, budget_s)
        assert found == sorted(set.intersection(*sets), reverse=True)
        assert bool(partial) is (budget_s == 0.0)
