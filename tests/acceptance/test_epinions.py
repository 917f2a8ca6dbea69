"""A real trust network, imported and read back: every list, every degree, and what lists have in common, against the file itself."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from graphd.v1 import graph_pb2 as pb
from tests.calls import ids_of, walk
from tests.databases import Databases, audit, edges
from tests.importing import run_import, write_config
from tests.routers import GraphStub

SEED = 20_251_130
AT_ONCE = 32
HUB = 16_242

pytestmark = pytest.mark.timeout(280)


@dataclass(frozen=True, slots=True)
class Network:
    """The file, counted without any of our code."""

    followers: dict[int, set[int]]
    following: dict[int, set[int]]

    @property
    def accounts(self) -> list[int]:
        return sorted(self.followers.keys() | self.following.keys())

    def sample(self) -> list[int]:
        """200 accounts with the largest hub among them."""
        others = random.Random(SEED).sample([account for account in self.accounts if account != HUB], 199)
        return [HUB, *others]


@pytest.fixture(scope="module")
def network(test_data: Path) -> Network:
    followers: dict[int, set[int]] = defaultdict(set)
    following: dict[int, set[int]] = defaultdict(set)
    with gzip.open(test_data / "epinions-trust.txt.gz", "rt") as lines:
        for line in lines:
            source, destination = (int(word) for word in line.split())
            if source != destination:
                followers[destination].add(source)
                following[source].add(destination)
    assert max(followers, key=lambda account: len(followers[account])) == HUB
    return Network(dict(followers), dict(following))


@pytest.fixture(scope="module", autouse=True)
def _imported(databases: Databases, module_folder: Path, test_data: Path, network: Network) -> None:
    config = write_config(databases, module_folder)
    file = test_data / "epinions-trust.txt.gz"
    first = run_import(config, file)
    assert (first.status, first.counts()) == (
        0,
        {"read": 355_754, "added": 355_503, "self_loops": 224, "duplicates": 27, **_position(first.summary)},
    )
    again = run_import(config, file)
    assert again.status == 0
    assert again.counts() == {
        "read": 355_754, "unchanged": 355_503, "self_loops": 224, "duplicates": 27, **_position(first.summary)
    }  # fmt: skip


def _position(summary: dict[str, object]) -> dict[str, int]:
    """The position, which is the moment of the first import, if the summary tells it."""
    position = summary.get("position")
    return {"position": position} if isinstance(position, int) else {}


def test_both_halves_by_sql(databases: Databases, network: Network) -> None:
    audit(databases)
    stored = {(source, destination) for source, destination, _ in edges(databases)}
    assert stored == {(source, destination) for source, found in network.following.items() for destination in found}
    assert len(stored) == 355_503
    digests = []
    for table, source, destination in (("forward", "owner_id", "neighbor_id"), ("reverse", "neighbor_id", "owner_id")):
        query = f"SELECT count(*), sum(hash_record_extended(({source}, {destination}, kind, position, state, since), 0)) FROM {table}"
        digests.append(tuple(sum(column) for column in zip(*databases.all_rows(query), strict=True)))
    assert digests[0] == digests[1]


async def same_lists(graph: GraphStub, network: Network, accounts: Iterable[int], size: int) -> None:
    """Both lists of each account, walked page by page."""
    left = iter(accounts)

    async def work() -> None:
        for account in left:
            for following, members in ((False, network.followers), (True, network.following)):
                found = ids_of(await walk([graph], account, size, following=following))
                assert len(found) == len(set(found)), f"{account} repeats"
                assert set(found) == members.get(account, set()), account

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))


@pytest.mark.parametrize("size", [1, 7, 1_000])
async def test_lists_of_a_sample(graph: GraphStub, network: Network, size: int) -> None:
    await same_lists(graph, network, network.sample(), size)


async def test_lists_of_every_account(graph: GraphStub, network: Network) -> None:
    assert len(network.accounts) >= 18_000
    await same_lists(graph, network, network.accounts, 1_000)


async def test_degrees_of_every_account(graph: GraphStub, network: Network) -> None:
    accounts = network.accounts
    for first in range(0, len(accounts), 1_000):
        part = accounts[first : first + 1_000]
        answer = await graph.BatchGetDegrees(pb.BatchGetDegreesRequest(account_ids=part))
        assert [(found.account_id, found.followers, found.following) for found in answer.results] == [
            (account, len(network.followers.get(account, ())), len(network.following.get(account, ())))
            for account in part
        ]


Named = tuple[str, int]


async def common(graph: GraphStub, lists: Sequence[Named], gate: asyncio.Semaphore) -> list[int]:
    """The whole of an intersection."""
    operands = [
        pb.Operand(followers_of=pb.ListOperand(account_id=account))
        if name == "followers"
        else pb.Operand(following_of=pb.ListOperand(account_id=account))
        for name, account in lists
    ]
    found: list[int] = []
    token = ""
    async with gate:
        while True:
            request = pb.IntersectRequest(operands=operands, page_size=1_000, page_token=token)
            answer = await graph.Intersect(request, timeout=30)
            found += answer.ids
            token = answer.next_page_token
            if not token:
                return found


async def test_what_lists_have_in_common(graph: GraphStub, network: Network) -> None:
    chance = random.Random(SEED)
    held: dict[Named, set[int]] = {("followers", account): found for account, found in network.followers.items()}
    held |= {("following", account): found for account, found in network.following.items()}
    names = sorted(held)
    wanted: list[Sequence[Named]] = [chance.sample(names, 2) for _ in range(1_000)]
    for table in ("followers", "following"):
        hubs = sorted((name for name in names if name[0] == table), key=lambda name: -len(held[name]))[:10]
        wanted += [*itertools.combinations(hubs, 2), hubs, hubs[:3]]
    gate = asyncio.Semaphore(AT_ONCE)
    answers = await asyncio.gather(*(common(graph, lists, gate) for lists in wanted))
    for lists, found in zip(wanted, answers, strict=True):
        assert found == sorted(set.intersection(*(held[name] for name in lists)), reverse=True), lists
    assert sum(map(bool, answers)) > 100
