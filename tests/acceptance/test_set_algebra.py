"""Set algebra against Python's sets on real graphs, with archived, removed and blocked edges among the others."""

from __future__ import annotations

import asyncio
import gzip
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from graphd.v1 import graph_pb2 as pb
from tests.calls import unfollow, write_all
from tests.databases import Databases, audit, problems
from tests.importing import run_import, write_config
from tests.routers import GraphStub
from tests.waiting import eventually

SEED = 20_261_201
EXPRESSIONS = 2_000
DEPTH = 4
AT_ONCE = 8

Which = Literal["followers_of", "following_of"]
Edge = tuple[int, int]
States = dict[Edge, int]

ARCHIVE = """
UPDATE {table} AS h SET state = %(state)s
FROM unnest(%(owners)s::bigint[], %(neighbors)s::bigint[]) AS a (owner_id, neighbor_id)
WHERE h.owner_id = a.owner_id AND h.neighbor_id = a.neighbor_id AND h.kind = 1 AND h.state = 1
"""

RECOUNT = """
DELETE FROM degrees;
INSERT INTO degrees (owner_id, direction, kind, state, slot, degree)
SELECT owner_id, 1, kind, state, slot, count(*) FROM forward WHERE position > 0 GROUP BY 1, 3, 4, 5
UNION ALL SELECT owner_id, 2, kind, state, slot, count(*) FROM reverse WHERE position > 0 GROUP BY 1, 3, 4, 5
"""

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@dataclass(frozen=True, slots=True)
class Model:
    """Every list in every state."""

    lists: dict[tuple[Which, int, int], set[int]]

    @classmethod
    def of(cls, states: States) -> Model:
        lists: dict[tuple[Which, int, int], set[int]] = defaultdict(set)
        for (source, destination), state in states.items():
            lists["following_of", source, state].add(destination)
            lists["followers_of", destination, state].add(source)
        return cls(dict(lists))


def edges_of(file: Path) -> list[Edge]:
    """The file's edges, read without any of our code."""
    found: set[Edge] = set()
    with gzip.open(file, "rt") as lines:
        for line in lines:
            if not line.startswith("#"):
                source, destination = (int(word) for word in line.split())
                if source != destination:
                    found.add((source, destination))
    return sorted(found)


async def changed(graph: GraphStub, databases: Databases, edges: list[Edge]) -> States:
    """Remove, block and archive some edges of each kind; what every edge is then."""
    chance = random.Random(SEED)
    states: States = dict.fromkeys(edges, pb.STATE_ACTIVE)
    picked = chance.sample(edges, len(edges) // 4)
    removed, blocked, archived = (picked[at::3] for at in range(3))
    await write_all([graph], [unfollow(*edge) for edge in removed])
    states |= dict.fromkeys(removed, pb.STATE_REMOVED)
    await write_all(
        [graph], [pb.Write(operation=pb.OPERATION_BLOCK, source_id=a, destination_id=b) for a, b in blocked]
    )
    await eventually(lambda: not problems(databases), 60, "halves, degrees and outbox agree")
    states |= {(b, a): pb.STATE_REMOVED for a, b in blocked}
    states |= dict.fromkeys(blocked, pb.STATE_BLOCKED)
    by_state: dict[int, list[Edge]] = {}
    for at, edge in enumerate(archived):
        if states[edge] == pb.STATE_ACTIVE:
            by_state.setdefault(pb.STATE_ARCHIVED_BY_SOURCE + at % 3, []).append(edge)
    for state, some in by_state.items():
        sources, destinations = [a for a, _ in some], [b for _, b in some]
        for table, owners, neighbors in (("forward", sources, destinations), ("reverse", destinations, sources)):
            databases.do(ARCHIVE.format(table=table), {"state": state, "owners": owners, "neighbors": neighbors})
        states |= dict.fromkeys(some, state)
    for shard in databases.names:
        with databases.connect(shard) as connection:
            connection.execute(RECOUNT.encode())
    audit(databases)
    return states


class Drawer:
    """Draws random expressions together with what they hold."""

    def __init__(self, model: Model, seed: int) -> None:
        self._lists, self._chance = model.lists, random.Random(seed)
        self._keys = sorted(model.lists)
        self._active = [key for key in self._keys if key[2] == pb.STATE_ACTIVE]
        # Of lists drawn evenly nearly all are short, and have nothing in common.
        self._long = sorted(self._active, key=lambda key: -len(model.lists[key]))[:200]
        self._accounts = sorted({account for _, account, _ in self._keys})

    def expression(self, depth: int = DEPTH) -> tuple[pb.Expression, set[int]]:
        """An expression at most so deep."""
        chance = self._chance
        if depth == 1 or (depth < DEPTH and chance.random() < 0.25):
            return self._operand()
        parts = [self.expression(depth - 1) for _ in range(chance.choice([2, 2, 3]))]
        several = pb.ExpressionList(expressions=[part for part, _ in parts])
        sets = [ids for _, ids in parts]
        match chance.randrange(3):
            case 0:
                return pb.Expression(intersect=several), set.intersection(*sets)
            case 1:
                return pb.Expression(union=several), set.union(*sets)
            case _:
                return pb.Expression(difference=several), sets[0].difference(*sets[1:])

    def _operand(self) -> tuple[pb.Expression, set[int]]:
        chance = self._chance
        luck = chance.random()
        if luck < 0.1:
            ids = set(chance.sample(self._accounts, chance.choice([0, 1, 50, 500])))
            return pb.Expression(operand=pb.Operand(ids=pb.IdList(ids=list(ids)))), ids
        key = chance.choice(self._long if luck < 0.5 else self._active if luck < 0.8 else self._keys)
        which, account, state = key
        wanted = pb.ListOperand(account_id=account, state=state)  # type: ignore[arg-type]
        named = pb.Operand(followers_of=wanted) if which == "followers_of" else pb.Operand(following_of=wanted)
        return pb.Expression(operand=named), self._lists[key]


async def whole(graph: GraphStub, wanted: pb.Expression, size: int) -> list[int]:
    """All pages of a Select; each is full unless it is the last or partial."""
    found: list[int] = []
    token = ""
    while True:
        page = await graph.Select(pb.SelectRequest(expression=wanted, page_size=size, page_token=token), timeout=30)
        found += page.ids
        token = page.next_page_token
        assert page.partial or len(page.ids) == size or not token
        if not token:
            return found


async def check(graph: GraphStub, drawn: Sequence[tuple[pb.Expression, set[int]]]) -> None:
    left = iter(drawn)

    async def work() -> None:
        for wanted, expected in left:
            for size in (10, 1_000, 1) if len(expected) < 60 else (10, 1_000):
                assert await whole(graph, wanted, size) == sorted(expected, reverse=True), (size, wanted)

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))


@pytest.mark.parametrize("name", ["wiki-vote", "email-eu-core", "epinions-trust"])
async def test_random_expressions(
    databases: Databases, module_folder: Path, graph: GraphStub, test_data: Path, name: str
) -> None:
    databases.clear()
    file = test_data / f"{name}.txt.gz"
    edges = edges_of(file)
    outcome = run_import(write_config(databases, module_folder), file)
    assert (outcome.status, outcome.counts()["added"]) == (0, len(edges))
    drawer = Drawer(Model.of(await changed(graph, databases, edges)), SEED)
    drawn = [drawer.expression() for _ in range(EXPRESSIONS)]
    filled = sum(bool(expected) for _, expected in drawn)
    assert filled > EXPRESSIONS // 3
    await check(graph, drawn)
