"""Real messages as a toggle stream: shuffled, doubled and through three routers at once, it ends as in its own order."""

from __future__ import annotations

import gzip
import random
from collections import Counter
from pathlib import Path

from graphd.edge import Version
from graphd.operations import Operation, decide_given
from graphd.v1 import graph_pb2 as pb
from tests.calls import follow, unfollow, write_all
from tests.databases import Databases, edges, problems
from tests.routers import GraphStub
from tests.waiting import eventually

SEED = 20_251_130


def stream(file: Path) -> list[tuple[Operation, int, int, int]]:
    """(operation, source, destination, position): the n-th contact of a pair follows if n is odd, and unfollows if it is even."""
    contacts: Counter[tuple[int, int]] = Counter()
    found = []
    with gzip.open(file, "rt") as lines:
        for line in lines:
            source, destination, second = (int(word) for word in line.split())
            contacts[source, destination] += 1
            odd = contacts[source, destination] % 2
            operation = Operation.FOLLOW if odd else Operation.UNFOLLOW
            found.append((operation, source, destination, second * 1_000_000))
    return found


async def test_college_messages(graphs: list[GraphStub], databases: Databases, test_data: Path) -> None:
    ordered = stream(test_data / "college-msg.txt.gz")
    assert len(ordered) == 59_835
    expected: dict[tuple[int, int], Version | None] = {}
    for operation, source, destination, position in ordered:
        stored = expected.get((source, destination))
        expected[source, destination] = decide_given(operation, stored, position).version
    chance = random.Random(SEED)
    delivered = ordered + [item for item in ordered if chance.random() < 0.3]
    chance.shuffle(delivered)
    writes = [
        (follow if operation is Operation.FOLLOW else unfollow)(source, destination, position, backfill=True)
        for operation, source, destination, position in delivered
    ]
    results = await write_all(graphs, writes, size=500)
    outcomes = Counter(result.outcome for result in results)
    assert outcomes[pb.OUTCOME_STALE] > 0
    assert outcomes[pb.OUTCOME_UNCHANGED] > 0
    await eventually(lambda: not problems(databases), 60, "halves, degrees and outbox agree")
    stored_edges = {(source, destination): version for (source, destination, _), version in edges(databases).items()}
    assert len(stored_edges) == 20_296
    assert stored_edges == expected
    await check_by_calls(graphs, expected, chance)


async def check_by_calls(
    graphs: list[GraphStub], expected: dict[tuple[int, int], Version | None], chance: random.Random
) -> None:
    """The same through the API, for some of the pairs and for every account's degrees."""
    pairs = chance.sample(sorted(expected), 1_000)
    keys = [pb.EdgeKey(source_id=source, destination_id=destination) for source, destination in pairs]
    found = await graphs[0].BatchGetEdges(pb.BatchGetEdgesRequest(edges=keys))
    for pair, result in zip(pairs, found.results, strict=True):
        assert (result.edge.position, result.edge.state, result.edge.since) == expected[pair]
    active = [pair for pair, version in expected.items() if version is not None and version.state == pb.STATE_ACTIVE]
    following, followers = Counter(source for source, _ in active), Counter(destination for _, destination in active)
    accounts = sorted({account for pair in expected for account in pair})
    for first in range(0, len(accounts), 1_000):
        part = accounts[first : first + 1_000]
        degrees = await graphs[1].BatchGetDegrees(pb.BatchGetDegreesRequest(account_ids=part))
        assert [(d.account_id, d.followers, d.following) for d in degrees.results] == [
            (account, followers[account], following[account]) for account in part
        ]
