"""Intersect against Python's sets: the plan may change what it costs, never what it is."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence

import grpc
import pytest
import pytest_asyncio
from google.rpc import error_details_pb2
from grpc import aio

from graphd.clock import now_us
from graphd.v1 import graph_pb2 as pb
from tests.calls import follow, refused, write_all
from tests.routers import GraphStub, detail

SEED = 20_251_130
LARGEST = 2**63 - 1
SIZES = [0, 1, 2, 10, 100, 1_500, 6_000]
"""Of the lists. The largest is longer than a window, so that plans fetch, probe and go round."""

Held = dict[tuple[str, int], set[int]]


def followers_of(account: int, state: pb.State.ValueType = pb.STATE_UNSPECIFIED) -> pb.Operand:
    return pb.Operand(followers_of=pb.ListOperand(account_id=account, state=state))


def following_of(account: int) -> pb.Operand:
    return pb.Operand(following_of=pb.ListOperand(account_id=account))


def ids(values: list[int]) -> pb.Operand:
    return pb.Operand(ids=pb.IdList(ids=values))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def held(graph: GraphStub) -> Held:
    """Lists of followers and of following, drawn from few enough ids that they overlap, and from the ends of the range."""
    chance = random.Random(SEED)
    pool = [0, LARGEST, LARGEST - 1, *range(10_000, 18_000)]
    writes = []
    found: Held = {}
    for at, size in enumerate(SIZES * 2):
        for name, account in (("followers", 1_000 + at), ("following", 2_000 + at)):
            members = chance.sample(pool, size)
            found[name, account] = set(members)
            writes += [follow(m, account) if name == "followers" else follow(account, m) for m in members]
    await write_all([graph], writes)
    return found


async def intersect_all(graph: GraphStub, wanted: Sequence[list[pb.Operand]], size: int) -> list[list[int]]:
    """All pages of many intersections, some at a time."""
    gate = asyncio.Semaphore(16)

    async def one(operands: list[pb.Operand]) -> list[int]:
        async with gate:
            return await intersect(graph, operands, size)

    return list(await asyncio.gather(*(one(operands) for operands in wanted)))


async def intersect(graph: GraphStub, operands: list[pb.Operand], size: int) -> list[int]:
    """All pages of an intersection."""
    found: list[int] = []
    token = ""
    for page in itertools.count():
        assert page <= 10_000, "a walk ends"
        request = pb.IntersectRequest(operands=operands, page_size=size, page_token=token)
        answer = await graph.Intersect(request, timeout=30)
        found += answer.ids
        token = answer.next_page_token
        if not token:
            assert not answer.partial
            return found
        assert answer.partial or len(answer.ids) == size, "a page is full unless it is the last"
    raise AssertionError("unreachable")


def drawn(chance: random.Random, held: Held) -> tuple[list[pb.Operand], set[int]]:
    """2 to 16 random operands, and what they have in common."""
    operands, sets = [], []
    for _ in range(chance.choice([2, 2, 2, 3, 3, 5, 16])):
        if chance.random() < 0.3:
            pool = sorted(set().union(*chance.sample(list(held.values()), 3))) or [5]
            values = chance.choices(pool, k=chance.choice([1, 50, 3_000]))
            operands.append(ids(values))
            sets.append(set(values))
        else:
            # Mostly long lists, or nothing would be common.
            long = [key for key, members in held.items() if len(members) >= 1_500]
            name, account = chance.choice(long if chance.random() < 0.85 else list(held))
            operands.append(followers_of(account) if name == "followers" else following_of(account))
            sets.append(held[name, account])
    return operands, set.intersection(*sets)


@pytest.mark.parametrize("size", [1, 10, 1_000])
async def test_random_operands(graph: GraphStub, held: Held, size: int) -> None:
    chance = random.Random(SEED + size)
    wanted: list[tuple[list[pb.Operand], list[int]]] = []
    while len(wanted) < 120:
        operands, common = drawn(chance, held)
        # Small pages of long answers would say nothing new for their time.
        if len(common) <= 100 * size:
            wanted.append((operands, sorted(common, reverse=True)))
    assert sum(bool(common) for _, common in wanted) > 30
    answers = await intersect_all(graph, [operands for operands, _ in wanted], size)
    assert answers == [common for _, common in wanted]


async def test_every_pair_of_lists(graph: GraphStub, held: Held) -> None:
    pairs = list(itertools.combinations(sorted(held), 2))
    operand = {key: followers_of(key[1]) if key[0] == "followers" else following_of(key[1]) for key in held}
    answers = await intersect_all(graph, [[operand[a], operand[b]] for a, b in pairs], 1_000)
    assert answers == [sorted(held[a] & held[b], reverse=True) for a, b in pairs]


async def test_equal_operands(graph: GraphStub, held: Held) -> None:
    for (name, account), members in held.items():
        operand = followers_of(account) if name == "followers" else following_of(account)
        assert await intersect(graph, [operand] * 2, 1_000) == sorted(members, reverse=True)
        assert await intersect(graph, [operand] * 16, 1_000) == sorted(members, reverse=True)


async def test_empty_and_disjoint(graph: GraphStub) -> None:
    await write_all([graph], [follow(source, 70) for source in range(1_000, 1_300)])
    await write_all([graph], [follow(source, 71) for source in range(2_000, 2_300)])
    for operands in (
        [followers_of(70), followers_of(71)],
        [followers_of(70), followers_of(72)],
        [followers_of(72), followers_of(73)],
        [followers_of(70), ids([])],
        [ids([]), ids([])],
        [ids([1]), ids([2])],
        [followers_of(70), ids(list(range(2_000, 2_300)))],
        [followers_of(70), followers_of(70, pb.STATE_REMOVED)],
    ):
        answer = await graph.Intersect(pb.IntersectRequest(operands=operands))
        assert (list(answer.ids), answer.next_page_token, answer.partial) == ([], "", False)


async def test_ids_unsorted_and_with_doubles(graph: GraphStub) -> None:
    values = [5, 3, 3, LARGEST, 0, 5, 0, 9]
    answer = await graph.Intersect(pb.IntersectRequest(operands=[ids(values), ids([*range(10), LARGEST] * 3)]))
    assert list(answer.ids) == [LARGEST, 9, 5, 3, 0]


async def test_other_states(graph: GraphStub) -> None:
    gone = [pb.Write(operation=pb.OPERATION_UNFOLLOW, source_id=source, destination_id=880) for source in range(50)]
    await write_all([graph], [*(follow(source, 880) for source in range(100)), *gone])
    assert await intersect(graph, [followers_of(880), ids(list(range(200)))], 7) == list(range(99, 49, -1))
    removed = [followers_of(880, pb.STATE_REMOVED), ids(list(range(200)))]
    assert await intersect(graph, removed, 7) == list(range(49, -1, -1))


async def test_pages_are_stable_while_others_arrive(graph: GraphStub) -> None:
    # F037: what does not change is seen exactly once, whatever arrives above, below and between.
    members = list(range(100_000, 102_500))
    await write_all([graph], [follow(source, account) for source in members for account in (90, 91)])
    found: list[int] = []
    token, arriving = "", iter(range(90_000, 110_000, 7))
    while True:
        request = pb.IntersectRequest(operands=[followers_of(90), followers_of(91)], page_size=100, page_token=token)
        answer = await graph.Intersect(request)
        found += answer.ids
        token = answer.next_page_token
        if not token:
            break
        newcomers = [source for source in itertools.islice(arriving, 20) if source not in set(members)]
        if newcomers:
            await write_all([graph], [follow(source, account) for source in newcomers for account in (90, 91)])
    assert found == sorted(set(found), reverse=True)
    assert [source for source in found if 100_000 <= source < 102_500] == members[::-1]


async def test_tokens_are_bound_to_the_operands(graph: GraphStub, held: Held) -> None:
    a, b, c = followers_of(1_006), following_of(2_006), followers_of(1_013)
    first = await graph.Intersect(pb.IntersectRequest(operands=[a, b], page_size=10))
    token = first.next_page_token
    assert token
    for operands in ([b, a], [a, c], [a, b, c], [a, a], [a, followers_of(2_006)], [a, ids([1])]):
        await refused(graph.Intersect(pb.IntersectRequest(operands=operands, page_token=token)), field="page_token")
    for at in range(len(token)):
        changed = token[:at] + chr(ord(token[at]) ^ 1) + token[at + 1 :]
        await refused(graph.Intersect(pb.IntersectRequest(operands=[a, b], page_token=changed)), field="page_token")
    listed = await graph.ListFollowers(pb.ListFollowersRequest(account_id=1_006, page_size=10))
    await refused(
        graph.Intersect(pb.IntersectRequest(operands=[a, b], page_token=listed.next_page_token)), field="page_token"
    )
    again = await graph.Intersect(pb.IntersectRequest(operands=[a, b], page_token=token, page_size=3))
    assert len(again.ids) == 3
    assert again.ids[0] < first.ids[-1]


async def test_a_small_list_meets_a_large_one_at_its_own_price(graph: GraphStub, held: Held) -> None:
    # F044: the cost goes by the smaller list. Time says little on a busy machine, so the bound is wide.
    before = now_us()
    for _ in range(20):
        assert await intersect(graph, [followers_of(1_006), following_of(2_003)], 100) == sorted(
            held["followers", 1_006] & held["following", 2_003], reverse=True
        )
    assert now_us() - before < 4_000_000


async def test_too_many_at_once(graph: GraphStub, held: Held) -> None:
    request = pb.IntersectRequest(operands=[followers_of(1_012), following_of(2_012)], page_size=1_000)
    expected = sorted(held["followers", 1_012] & held["following", 2_012], reverse=True)[:1_000]
    served = 0
    for answer in await asyncio.gather(
        *(graph.Intersect(request, timeout=30) for _ in range(400)), return_exceptions=True
    ):
        if isinstance(answer, aio.AioRpcError):
            # Shed, and told when to come back; the shard is well, so it is not UNAVAILABLE.
            assert answer.code() is grpc.StatusCode.RESOURCE_EXHAUSTED, answer
            assert detail(answer, error_details_pb2.RetryInfo) is not None
        else:
            assert not isinstance(answer, BaseException)
            served += 1
            assert answer.partial or list(answer.ids) == expected
    assert served > 0
