"""Pages of many lists at once share flushes and are written together: each caller gets his own and nobody else's."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest_asyncio

from graphd.v1 import graph_pb2 as pb
from tests.calls import declare_kind, write_all
from tests.databases import Databases
from tests.routers import GraphStub

SEED = 20_261_201
ACCOUNTS = range(1, 41)
KINDS = ("follow", "mute", "kk")
OPERATIONS = (pb.OPERATION_FOLLOW, pb.OPERATION_FOLLOW, pb.OPERATION_REQUEST, pb.OPERATION_BLOCK, pb.OPERATION_UNFOLLOW)
STATES = (pb.STATE_ACTIVE, pb.STATE_PENDING, pb.STATE_BLOCKED, pb.STATE_REMOVED)
CALLERS, CALLS = 64, 25

Row = tuple[int, int, str, int, int, int]
"""(source, destination, kind, state, position, since)."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def rows(graph: GraphStub, databases: Databases) -> list[Row]:
    """Every edge, as SQL has it."""
    for number, kind in ((2, "mute"), (3, "kk")):
        await declare_kind([graph], databases, kind, number)
    chance = random.Random(SEED)
    since = 1_700_000_000_000_000
    await write_all(
        [graph],
        [
            pb.Write(
                operation=chance.choice(OPERATIONS),
                source_id=source,
                destination_id=destination,
                kind=kind,
                position=since + chance.randrange(400),
                backfill=True,
            )
            for source in ACCOUNTS
            for destination in ACCOUNTS
            for kind in KINDS
            if source != destination and chance.random() < 0.7
        ],
    )
    names = {1: "follow", 2: "mute", 3: "kk"}
    query = "SELECT owner_id, neighbor_id, kind, state, position, since FROM forward WHERE position > 0"
    return [
        (a, b, names[kind], state, position, moment)
        for a, b, kind, state, position, moment in databases.all_rows(query)
    ]


def expected(rows: list[Row], account: int, followers: bool, kind: str, state: int, oldest: bool) -> list[Row]:
    """A list in order."""
    mine, other = (1, 0) if followers else (0, 1)
    found = [row for row in rows if row[mine] == account and row[2] == kind and row[3] == state]
    return sorted(found, key=lambda row: (row[5], row[other]), reverse=not oldest)


async def caller(graph: GraphStub, rows: list[Row], chance: random.Random) -> int:
    """Pages of random lists, some way down each and back up again; answers how many edges were compared."""
    compared = 0
    for _ in range(CALLS):
        followers, oldest, ids_only = (chance.random() < 0.5 for _ in range(3))
        account, kind, state = chance.choice(ACCOUNTS), chance.choice(KINDS), chance.choice(STATES)
        size = chance.choice([1, 3, 10, 10, 100])
        call: Any = graph.ListFollowers if followers else graph.ListFollowing
        request: Any = (pb.ListFollowersRequest if followers else pb.ListFollowingRequest)(
            account_id=account,
            kind=kind,
            state=state,
            page_size=size,
            order=pb.LIST_ORDER_OLDEST_FIRST if oldest else pb.LIST_ORDER_NEWEST_FIRST,
            view=pb.VIEW_IDS if ids_only else pb.VIEW_FULL,
        )
        wanted = expected(rows, account, followers, kind, state, oldest)
        at = 0
        for step in (1, 1, -1, 1):
            page = await call(request)
            part = wanted[at : at + size]
            if ids_only:
                other = 0 if followers else 1
                assert list(zip(page.ids, page.since, strict=True)) == [(row[other], row[5]) for row in part]
            else:
                told = [(e.source_id, e.destination_id, e.kind, e.state, e.position, e.since) for e in page.edges]
                assert told == part
            compared += len(part)
            assert bool(page.next_page_token) == (at + size < len(wanted))
            token = page.next_page_token if step > 0 else page.previous_page_token
            if not token or at + step * size < 0:
                break
            at += step * size
            request.page_token = token
    return compared


async def test_each_caller_gets_his_own(graph: GraphStub, rows: list[Row]) -> None:
    chance = random.Random(SEED)
    callers = [caller(graph, rows, random.Random(chance.random())) for _ in range(CALLERS)]
    assert sum(await asyncio.gather(*callers)) > CALLERS * CALLS
