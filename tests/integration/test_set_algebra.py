"""Set algebra, suggestions and distance against Python's sets, on a small random graph in several states, on two shards."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import grpc
import pytest
import pytest_asyncio
from grpc import aio

from graphd.v1 import graph_pb2 as pb
from tests.calls import follow, refused, unfollow, write_all
from tests.routers import GraphStub

ACCOUNTS = range(1, 61)
EDGES = 900
LARGE, LARGE_IDS = 5_000, range(100_000, 108_000)
SEED = 20_261_201

Key = tuple[str, int]
"""(followers_of or following_of, account)."""


@dataclass(slots=True)
class Model:
    """ACTIVE lists newest first, and who has blocked whom."""

    lists: dict[Key, list[int]] = field(default_factory=lambda: defaultdict(list))
    blocked: set[tuple[int, int]] = field(default_factory=set)

    def ids(self, key: Key) -> set[int]:
        return set(self.lists[key])


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def model(graph: GraphStub) -> Model:
    chance = random.Random(SEED)
    pairs = [(a, b) for a in ACCOUNTS for b in ACCOUNTS if a != b]
    edges = chance.sample(pairs, EDGES)
    since = 1_700_000_000_000_000
    # Some since the same moment, so that ids break ties.
    writes = [follow(a, b, since + at // 3, backfill=True) for at, (a, b) in enumerate(edges)]
    writes += [follow(fan, LARGE, since + fan, backfill=True) for fan in LARGE_IDS]
    await write_all([graph], writes)
    gone = set(edges[::9])
    await write_all([graph], [unfollow(a, b) for a, b in gone])
    found = Model(blocked=set(edges[4::30]) - gone)
    await write_all(
        [graph],
        [pb.Write(operation=pb.OPERATION_BLOCK, source_id=a, destination_id=b) for a, b in found.blocked],
    )
    gone |= found.blocked | {(b, a) for a, b in found.blocked}
    kept = [(since + at // 3, a, b) for at, (a, b) in enumerate(edges) if (a, b) not in gone]
    for _, a, b in kept:
        found.lists["following_of", a].append(b)
        found.lists["followers_of", b].append(a)
    moments = {(a, b): moment for moment, a, b in kept}
    for (which, account), members in found.lists.items():

        def order(other: int, which: str = which, account: int = account) -> tuple[int, int]:
            return moments[(account, other) if which == "following_of" else (other, account)], other

        members.sort(key=order, reverse=True)
    found.lists["followers_of", LARGE] = list(reversed(LARGE_IDS))
    return found


def operand(key: Key) -> pb.Operand:
    return pb.Operand(**{key[0]: pb.ListOperand(account_id=key[1])})  # type: ignore[arg-type]


def explicit(ids: set[int]) -> pb.Operand:
    return pb.Operand(ids=pb.IdList(ids=list(ids)))


def drawn(chance: random.Random, model: Model, depth: int) -> tuple[pb.Expression, set[int]]:
    """A random expression, and what it holds."""
    if depth == 1 or chance.random() < 0.2:
        if chance.random() < 0.2:
            ids = set(chance.sample([*ACCOUNTS, *LARGE_IDS[:40]], chance.randrange(20)))
            return pb.Expression(operand=explicit(ids)), ids
        key = (chance.choice(["followers_of", "following_of"]), chance.choice([*ACCOUNTS, LARGE, 99_999]))
        return pb.Expression(operand=operand(key)), model.ids(key)
    parts = [drawn(chance, model, depth - 1) for _ in range(chance.randint(2, 3))]
    several = pb.ExpressionList(expressions=[part for part, _ in parts])
    sets = [ids for _, ids in parts]
    match chance.randrange(3):
        case 0:
            return pb.Expression(intersect=several), set.intersection(*sets)
        case 1:
            return pb.Expression(union=several), set.union(*sets)
        case _:
            return pb.Expression(difference=several), sets[0].difference(*sets[1:])


async def walk(call: Callable[[str], Awaitable[Any]], size: int) -> list[int]:
    """All pages; each is full unless it is the last or partial."""
    found: list[int] = []
    token = ""
    while True:
        page = await call(token)
        found += page.ids
        token = page.next_page_token
        assert page.partial or len(page.ids) == size or not token
        if not token:
            assert not page.partial
            return found


def select(graph: GraphStub, wanted: pb.Expression, size: int, order: int = 0) -> Callable[[str], Awaitable[Any]]:
    return lambda token: graph.Select(
        pb.SelectRequest(expression=wanted, page_size=size, page_token=token, order=order)  # type: ignore[arg-type]
    )


async def test_random_expressions(graph: GraphStub, model: Model, is_long: bool) -> None:
    chance = random.Random(SEED)
    for _ in range(2_000 if is_long else 150):
        wanted, expected = drawn(chance, model, 4)
        sizes = [1_000, 10] if len(expected) < 500 else [1_000]
        for size in sizes + ([1] if len(expected) < 20 else []):
            assert await walk(select(graph, wanted, size), size) == sorted(expected, reverse=True)


def drawn_recent(chance: random.Random, model: Model, key: Key, depth: int) -> tuple[pb.Expression, set[int]]:
    """An expression whose answers are all in one list, which is its first operand."""
    if depth == 1:
        return pb.Expression(operand=operand(key)), model.ids(key)
    first, ids = drawn_recent(chance, model, key, depth - 1)
    second, others = drawn(chance, model, depth - 1)
    several = pb.ExpressionList(expressions=[first, second])
    if chance.random() < 0.5:
        return pb.Expression(intersect=several), ids & others
    return pb.Expression(difference=several), ids - others


async def test_in_the_order_of_the_first_list(graph: GraphStub, model: Model) -> None:
    chance = random.Random(SEED)
    keys = [key for key in model.lists if key[1] != LARGE]
    for number in range(60):
        key = ("followers_of", LARGE) if number % 10 == 0 else chance.choice(keys)
        wanted, ids = drawn_recent(chance, model, key, 3)
        expected = [one for one in model.lists[key] if one in ids]
        for size in (1_000, 7) if len(expected) < 100 else (1_000,):
            assert await walk(select(graph, wanted, size, pb.SET_ORDER_RECENCY), size) == expected


def page_of(call: Any, message: Any, operands: list[pb.Operand], size: int, token: str) -> Awaitable[Any]:
    """One page of a set operation."""
    answer: Awaitable[Any] = call(message(operands=operands, page_size=size, page_token=token))
    return answer


async def test_the_single_operations(graph: GraphStub, model: Model) -> None:
    a, b, c = (("followers_of", account) for account in (7, 8, 9))
    operands = [operand(a), operand(b), operand(c)]
    calls: list[tuple[Any, Any, set[int]]] = [
        (graph.Intersect, pb.IntersectRequest, model.ids(a) & model.ids(b) & model.ids(c)),
        (graph.Union, pb.UnionRequest, model.ids(a) | model.ids(b) | model.ids(c)),
        (graph.Difference, pb.DifferenceRequest, model.ids(a) - model.ids(b) - model.ids(c)),
    ]
    for call, message, expected in calls:
        for size in (1_000, 3):
            pages = partial(page_of, call, message, operands, size)
            found = await walk(pages, size)
            assert found == sorted(expected, reverse=True)
    recent = await walk(
        lambda token: graph.Difference(
            pb.DifferenceRequest(operands=operands, page_size=2, page_token=token, order=pb.SET_ORDER_RECENCY)
        ),
        2,
    )
    assert recent == [one for one in model.lists[a] if one not in model.ids(b) | model.ids(c)]
    request = pb.UnionRequest(operands=operands, order=pb.SET_ORDER_RECENCY)
    await refused(graph.Union(request), grpc.StatusCode.INVALID_ARGUMENT)


async def test_a_difference_whose_first_ids_are_all_taken_away(graph: GraphStub) -> None:
    operands = [explicit(set(range(1, 10_001))), explicit(set(range(2, 10_000)))]
    answer = await graph.Difference(pb.DifferenceRequest(operands=operands))
    assert (list(answer.ids), answer.next_page_token) == ([10_000, 1], "")
    # The first 50,000, by ids and by a list.
    operands = [explicit(set(range(60_000))), explicit(set(range(10_000, 60_000)))]
    found = await walk(
        lambda token: graph.Difference(pb.DifferenceRequest(operands=operands, page_size=1_000, page_token=token)),
        1_000,
    )
    assert found == list(range(9_999, -1, -1))
    # A list whose upper part is all taken away.
    operands = [operand(("followers_of", LARGE)), explicit(set(LARGE_IDS[10:]))]
    found = await walk(
        lambda token: graph.Difference(pb.DifferenceRequest(operands=operands, page_size=4, page_token=token)), 4
    )
    assert found == sorted(LARGE_IDS[:10], reverse=True)


async def test_tokens_serve_their_own_question(graph: GraphStub, model: Model) -> None:
    operands = [operand(("followers_of", LARGE)), operand(("followers_of", 7))]
    token = (await graph.Union(pb.UnionRequest(operands=operands, page_size=1))).next_page_token
    others: list[Any] = [
        graph.Difference(pb.DifferenceRequest(operands=operands, page_token=token)),
        graph.Union(pb.UnionRequest(operands=operands[::-1], page_token=token)),
        graph.Intersect(pb.IntersectRequest(operands=operands, page_token=token)),
        graph.Difference(pb.DifferenceRequest(operands=operands, page_token=token, order=pb.SET_ORDER_RECENCY)),
    ]
    for call in others:
        await refused(call, grpc.StatusCode.INVALID_ARGUMENT)
    page = await graph.Union(pb.UnionRequest(operands=operands, page_size=10, page_token=token))
    assert len(page.ids) == 10


async def test_common_degree(graph: GraphStub, model: Model) -> None:
    chance = random.Random(SEED)
    keys = list(model.lists)
    for _ in range(40):
        some = chance.sample(keys, chance.randint(2, 4))
        expected = len(set.intersection(*(model.ids(key) for key in some)))
        for limit in (0, 1, expected, expected + 1):
            request = pb.GetCommonDegreeRequest(operands=[operand(key) for key in some], limit=limit)
            answer = await graph.GetCommonDegree(request)
            assert (answer.degree, answer.exact) == (min(expected, limit or expected), True)
    whole = pb.GetCommonDegreeRequest(operands=[operand(("followers_of", LARGE))] * 2)
    assert (await graph.GetCommonDegree(whole)).degree == len(LARGE_IDS)
    await refused(
        graph.GetCommonDegree(pb.GetCommonDegreeRequest(operands=whole.operands, limit=-1)),
        grpc.StatusCode.INVALID_ARGUMENT,
    )


def suggestions(model: Model, account: int) -> Iterator[tuple[int, int]]:
    """Everybody worth suggesting, best first."""
    following = model.ids(("following_of", account))
    counts = Counter(other for one in following for other in model.ids(("following_of", one)))
    for other, count in sorted(counts.items(), key=lambda item: (item[1], item[0]), reverse=True):
        if other != account and other not in following and not {(account, other), (other, account)} & model.blocked:
            yield other, count


async def test_suggestions(graph: GraphStub, model: Model) -> None:
    for account in ACCOUNTS:
        expected = list(suggestions(model, account))
        for k in (0, 1, 100):
            answer = await graph.Suggest(pb.SuggestRequest(account_id=account, k=k))
            assert [(one.account_id, one.common_degree) for one in answer.suggestions] == expected[: k or 10]
            assert not answer.sampled
    assert list((await graph.Suggest(pb.SuggestRequest(account_id=99_999))).suggestions) == []
    for bad in (pb.SuggestRequest(account_id=1, k=-1), pb.SuggestRequest(account_id=1, k=101), pb.SuggestRequest(k=1)):
        await refused(graph.Suggest(bad), grpc.StatusCode.INVALID_ARGUMENT)


async def test_a_part_that_was_looked_at_is_called_one(graph: GraphStub) -> None:
    await write_all([graph], [follow(70_000, other) for other in range(71_000, 71_201)])
    assert (await graph.Suggest(pb.SuggestRequest(account_id=70_000))).sampled


def distance(model: Model, account: int, other: int) -> int | None:
    reached, steps = {account}, 0
    while other not in reached:
        reached |= {third for one in reached for third in model.ids(("following_of", one))}
        steps += 1
        if steps > 3:
            return None
    return steps


async def test_distance(graph: GraphStub, model: Model) -> None:
    await write_all([graph], [follow(LARGE_IDS[0], 61), follow(61, 62), follow(62, 63), follow(63, 64)])
    model.lists["following_of", LARGE_IDS[0]] = [LARGE, 61]
    model.lists |= {("following_of", one): [one + 1] for one in (61, 62, 63)}
    pairs = [(a, b) for a in range(1, 61, 7) for b in range(1, 61, 5)]
    pairs += [
        (LARGE_IDS[0], 63),
        (LARGE_IDS[0], 64),
        (LARGE_IDS[0], 62),
        (62, LARGE_IDS[0]),
        (1, 62),
        (99_999, 1),
        (5, 5),
    ]
    found = set()
    for account, other in pairs:
        answer = await graph.Distance(pb.DistanceRequest(account_id=account, other_id=other))
        expected = distance(model, account, other)
        assert (answer.distance, answer.more) == (expected or 0, expected is None), (account, other)
        found.add(expected)
    assert found >= {0, 1, 2, 3, None}
    with pytest.raises(aio.AioRpcError, match="other_id"):
        await graph.Distance(pb.DistanceRequest(account_id=1))
