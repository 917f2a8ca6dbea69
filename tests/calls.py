"""Calls that many tests make: many writes at once, and walks through lists."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import psycopg
import pytest
from grpc import aio

from graphd.v1 import graph_pb2 as pb
from router import service
from tests.databases import Databases
from tests.routers import GraphStub, fields
from tests.waiting import eventually

BATCH = 1_000


def follow(source: int, destination: int, position: int | None = None, **more: Any) -> pb.Write:
    """A FOLLOW of a batch; a given one where `position` is named."""
    return pb.Write(
        operation=pb.OPERATION_FOLLOW, source_id=source, destination_id=destination, position=position, **more
    )


def unfollow(source: int, destination: int, position: int | None = None, **more: Any) -> pb.Write:
    """An UNFOLLOW of a batch."""
    return pb.Write(
        operation=pb.OPERATION_UNFOLLOW, source_id=source, destination_id=destination, position=position, **more
    )


async def write_all(
    graphs: Sequence[GraphStub], writes: Iterable[pb.Write], size: int = BATCH, at_once: int = 2
) -> list[pb.WriteResult]:
    """All writes in batches, `at_once` through each router at a time; the results in order. Fails unless each was carried out."""
    batches = _batches(writes, size)
    answers: list[list[pb.WriteResult]] = [[] for _ in batches]
    turns = iter(enumerate(batches))

    async def work(graph: GraphStub) -> None:
        for at, batch in turns:
            response = await graph.BatchWrite(pb.BatchWriteRequest(writes=batch), timeout=30)
            answers[at] = list(response.results)

    await asyncio.gather(*(work(graph) for graph in graphs for _ in range(at_once)))
    results = [result for answer in answers for result in answer]
    bad = [result for result in results if result.outcome in (pb.OUTCOME_FAILED, pb.OUTCOME_REFUSED)]
    assert not bad, f"{len(bad)} of {len(results)} writes failed, the first: {bad[0]}"
    return results


def _batches(writes: Iterable[pb.Write], size: int) -> list[list[pb.Write]]:
    left = iter(writes)
    return list(iter(lambda: list(itertools.islice(left, size)), []))


async def walk(
    graphs: Sequence[GraphStub],
    account: int,
    page_size: int,
    order: pb.ListOrder.ValueType = pb.LIST_ORDER_NEWEST_FIRST,
    *,
    following: bool = False,
    token: str = "",
    backward: bool = False,
) -> list[pb.ListFollowersResponse | pb.ListFollowingResponse]:
    """The pages of a list to its end, each asked of the next router in turn. `backward`: by previous_page_token, from `token`."""
    pages: list[pb.ListFollowersResponse | pb.ListFollowingResponse] = []
    for graph in itertools.cycle(graphs):
        asked: dict[str, Any] = {
            "account_id": account, "page_size": page_size, "order": order, "page_token": token, "view": pb.VIEW_IDS
        }  # fmt: skip
        if following:
            pages.append(await graph.ListFollowing(pb.ListFollowingRequest(**asked), timeout=30))
        else:
            pages.append(await graph.ListFollowers(pb.ListFollowersRequest(**asked), timeout=30))
        token = pages[-1].previous_page_token if backward else pages[-1].next_page_token
        if not token:
            return pages
        assert len(pages) < 100_000, "a walk ends"
    raise AssertionError("there is no router")


def ids_of(pages: Iterable[pb.ListFollowersResponse | pb.ListFollowingResponse]) -> list[int]:
    """The ids of pages, one page after the other."""
    return [id_ for page in pages for id_ in page.ids]


async def refused(
    call: Any, code: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT, field: str | None = None
) -> aio.AioRpcError:
    """The error of a call that must fail with this code (and name this field)."""
    with pytest.raises(aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is code, caught.value
    if field is not None:
        assert fields(caught.value) == [field]
    return caught.value


async def declare_kind(
    graphs: Sequence[GraphStub],
    databases: Databases,
    name: str,
    number: int,
    *,
    allow_self: bool = False,
    max_out_degree: int = 0,
) -> None:
    """Declare a kind in the catalog, and wait until every router knows it."""
    with psycopg.connect(databases.catalog, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO kinds (number, name, allow_self, max_out_degree) VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING",
            (number, name, allow_self, max_out_degree),
        )

    async def known(graph: GraphStub) -> bool:
        try:
            await graph.GetDegrees(pb.GetDegreesRequest(account_id=1, kind=name))
        except aio.AioRpcError:
            return False
        return True

    for graph in graphs:
        await eventually(partial(known, graph), what=f"kind {name} is known")


def declare_in_silence(databases: Databases, name: str) -> None:
    """Declare a kind without the notification by which routers hear of it."""
    with psycopg.connect(databases.catalog) as connection:
        connection.execute("ALTER TABLE kinds DISABLE TRIGGER kinds_epoch")
        connection.execute(
            "INSERT INTO kinds (number, name) SELECT last_kind + 1, %s FROM cluster ON CONFLICT (name) DO NOTHING",
            (name,),
        )
        connection.execute("UPDATE cluster SET epoch = epoch + 1")
        connection.execute("ALTER TABLE kinds ENABLE TRIGGER kinds_epoch")


def offered() -> set[str]:
    """The calls of GraphService that the router's source says it offers."""
    source = Path(service.__file__).read_text("utf-8")
    return set(re.findall(r'^ +"(\w+)": self\.\w+,$', source, re.MULTILINE))
