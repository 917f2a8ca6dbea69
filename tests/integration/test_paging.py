"""Pages neither skip nor repeat: ties, both orders, forward and backward, and while others write."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
import pytest_asyncio

from graphd.clock import now_us
from graphd.v1 import graph_pb2 as pb
from tests.calls import declare_kind, follow, ids_of, refused, unfollow, walk, write_all
from tests.databases import Databases
from tests.routers import GraphStub

CY, DEE, ELI = 1_000_001, 1_000_002, 1_000_003
MANY = 10_000
SEED = 20_251_130
ORDERS = [pb.LIST_ORDER_NEWEST_FIRST, pb.LIST_ORDER_OLDEST_FIRST]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def tied(graphs: list[GraphStub]) -> list[int]:
    """Followers of CY, all since the same microsecond; in the order in which a list must hold them, newest first."""
    accounts = random.Random(SEED).sample(range(900_000), MANY)
    position = now_us() - 1_000_000
    await write_all(graphs, [follow(account, CY, position) for account in accounts])
    return sorted(accounts, reverse=True)


def expected_in(order: pb.ListOrder.ValueType, newest_first: list[int]) -> list[int]:
    return newest_first if order == pb.LIST_ORDER_NEWEST_FIRST else newest_first[::-1]


async def there_and_back(
    graphs: list[GraphStub], account: int, size: int, order: pb.ListOrder.ValueType, expected: list[int]
) -> None:
    """Walk a list to its end and back to its beginning."""
    pages = await walk(graphs, account, size, order)
    assert ids_of(pages) == expected
    assert len(pages) == max(1, -(-len(expected) // size))
    assert all(len(page.ids) == size for page in pages[:-1])
    assert pages[0].previous_page_token == ""
    if len(pages) == 1:
        return
    back = await walk(graphs, account, size, order, token=pages[-1].previous_page_token, backward=True)
    assert [list(page.ids) for page in reversed(back)] == [list(page.ids) for page in pages[:-1]]
    # The first page, reached from behind, leads forward again.
    asked = pb.ListFollowersRequest(account_id=account, page_size=size, order=order, view=pb.VIEW_IDS)
    asked.page_token = back[-1].next_page_token
    second = await graphs[0].ListFollowers(asked)
    assert [*back[-1].ids, *second.ids] == expected[: 2 * size]


@pytest.mark.timeout(240)
async def test_ties(graphs: list[GraphStub], tied: list[int], is_long: bool) -> None:
    await asyncio.gather(
        *(
            there_and_back(graphs, CY, size, order, expected_in(order, tied))
            for order in ORDERS
            # Pages of one, some 20,000 of them there and back, in the long form.
            for size in (1 if is_long else 11, 99, 1_000)
        )
    )


@pytest.mark.parametrize("count", [0, 1, 2, 3, 1_001])
async def test_every_length_and_limit(graphs: list[GraphStub], count: int) -> None:
    account = 2_000_000 + count
    position = now_us() - 10_000_000
    # Some follow at the same moment and some at another; a token that lost microseconds would loop or skip here.
    edges = [(source, position + source // 3) for source in range(count)]
    random.Random(SEED).shuffle(edges)
    await write_all(graphs, [follow(source, account, at) for source, at in edges])
    newest_first = [source for source, _ in sorted(edges, key=lambda edge: (edge[1], edge[0]), reverse=True)]
    await asyncio.gather(
        *(
            there_and_back(graphs, account, size, order, expected_in(order, newest_first))
            for order in ORDERS
            for size in (1, 2, 7, 100, 1_000)
        )
    )
    full = await graphs[0].ListFollowers(pb.ListFollowersRequest(account_id=account, page_size=1_000))
    assert [(edge.source_id, edge.since) for edge in full.edges] == [
        (source, position + source // 3) for source in newest_first[:1_000]
    ]


@pytest.mark.parametrize("order", ORDERS)
async def test_while_others_follow_and_leave(graphs: list[GraphStub], order: pb.ListOrder.ValueType) -> None:
    account = DEE + 10 * int(order)
    position = now_us() - 5_000_000
    standing = range(0, 20_000, 5)
    leaving = range(1, 20_000, 20)
    await write_all(graphs, [follow(source, account, position) for source in (*standing, *leaving)])
    # Newcomers fall between those that are there: half since the same moment, half since now.
    others = [follow(source, account, position if source % 2 else None) for source in range(2, 20_000, 20)]
    others += [unfollow(source, account) for source in leaving]
    random.Random(SEED).shuffle(others)
    begun = asyncio.Event()

    async def disturb() -> None:
        begun.set()
        await write_all(graphs[:1], others, size=5, at_once=1)

    disturbing = asyncio.create_task(disturb())
    await begun.wait()
    walks = 0
    while not disturbing.done() or not walks:
        pages = await walk(graphs, account, 99, order)
        back = await walk(graphs, account, 99, order, token=pages[-1].previous_page_token, backward=True)
        for seen in (Counter(ids_of(pages)), Counter(ids_of(back)) + Counter(ids_of(pages[-1:]))):
            assert [source for source in standing if seen[source] != 1] == []
        walks += 1
    await disturbing
    assert walks > 1, "the list was walked while it changed"
    final = set(ids_of(await walk(graphs, account, 1_000, order)))
    assert final == {*standing, *range(2, 20_000, 20)}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("ids", [range(10), [*range(8), 2**63 - 2, 2**63 - 1]], ids=["small", "extreme"])
async def test_a_page_that_has_become_empty_leads_back(
    graphs: list[GraphStub], order: pb.ListOrder.ValueType, ids: list[int]
) -> None:
    account = 8_000_000 + 10 * order + max(ids) % 7
    position = now_us() - 1_000_000
    # The ids at the ends of the range are those the way back begins at.
    await write_all(graphs, [follow(source, account, position) for source in ids])
    listed = expected_in(order, sorted(ids, reverse=True))
    asked = pb.ListFollowersRequest(account_id=account, order=order, page_size=1, view=pb.VIEW_IDS)
    for kept in (1, 9):
        asked.page_token = ""
        for _ in range(kept):
            page = await graphs[0].ListFollowers(asked)
            asked.page_token = page.next_page_token
        await write_all(graphs, [unfollow(source, account) for source in listed[kept:]])
        empty = await graphs[0].ListFollowers(asked)
        assert (list(empty.ids), empty.next_page_token) == ([], "")
        back = await walk(graphs, account, 1, order, token=empty.previous_page_token, backward=True)
        assert ids_of(back) == listed[:kept][::-1]
        # And from a first page that has become empty, on again.
        await write_all(graphs, [follow(source, account, now_us()) for source in listed])
        again = await graphs[0].ListFollowers(pb.ListFollowersRequest(account_id=account, order=order, page_size=3))
        assert len(again.edges) == 3
        await write_all(graphs, [unfollow(source, account) for source in listed])
        await write_all(graphs, [follow(source, account) for source in listed])
        listed = ids_of(await walk(graphs, account, 100, order))


# -- tokens ---------------------------------------------------------------------------------------------------------------


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def token(graphs: list[GraphStub]) -> str:
    """A token of the second page of ELI's followers; ELI follows them too."""
    await write_all(graphs, [write for source in range(20) for write in (follow(source, ELI), follow(ELI, source))])
    page = await graphs[0].ListFollowers(pb.ListFollowersRequest(account_id=ELI, page_size=5))
    return page.next_page_token


async def test_a_token_serves_other_page_sizes_views_and_routers(graphs: list[GraphStub], token: str) -> None:
    for graph in graphs:
        for size, view in ((1, pb.VIEW_IDS), (7, pb.VIEW_FULL), (0, pb.VIEW_UNSPECIFIED)):
            request = pb.ListFollowersRequest(account_id=ELI, page_size=size, view=view, page_token=token)
            page = await graph.ListFollowers(request)
            assert (page.ids[0] if view == pb.VIEW_IDS else page.edges[0].source_id) == 14


async def test_a_token_serves_nothing_else(graphs: list[GraphStub], token: str) -> None:
    asked = pb.ListFollowersRequest
    for request in (
        asked(account_id=DEE, page_token=token),
        asked(account_id=ELI, page_token=token, state=pb.STATE_REMOVED),
        asked(account_id=ELI, page_token=token, order=pb.LIST_ORDER_OLDEST_FIRST),
    ):
        await refused(graphs[0].ListFollowers(request), field="page_token")
    await refused(
        graphs[0].ListFollowing(pb.ListFollowingRequest(account_id=ELI, page_token=token)), field="page_token"
    )
    operands = [pb.Operand(followers_of=pb.ListOperand(account_id=ELI))] * 2
    await refused(graphs[0].Intersect(pb.IntersectRequest(operands=operands, page_token=token)), field="page_token")


async def test_a_token_of_another_kind(graphs: list[GraphStub], databases: Databases, token: str) -> None:
    await declare_kind(graphs, databases, "mute", 2)
    request = pb.ListFollowersRequest(account_id=ELI, kind="mute", page_token=token)
    await refused(graphs[0].ListFollowers(request), field="page_token")
    same = pb.ListFollowersRequest(account_id=ELI, kind="follow", page_token=token)
    assert len((await graphs[0].ListFollowers(same)).edges) == 15


async def test_a_token_with_any_one_bit_changed(graphs: list[GraphStub], token: str) -> None:
    changed = [
        token[:at] + chr(ord(token[at]) ^ 1 << bit) + token[at + 1 :] for at in range(len(token)) for bit in range(8)
    ]
    await asyncio.gather(
        *(
            refused(
                graphs[0].ListFollowers(pb.ListFollowersRequest(account_id=ELI, page_token=other)), field="page_token"
            )
            for other in changed
        )
    )


async def test_invented_tokens(graphs: list[GraphStub], token: str) -> None:
    for other in ("-1", "0", "x", token[:-1], token[1:], token + "A", token + "=", "A" * 44, "A" * 100_000, str(2**70)):
        for call in (
            graphs[0].ListFollowers(pb.ListFollowersRequest(account_id=ELI, page_token=other)),
            graphs[0].ListFollowing(pb.ListFollowingRequest(account_id=ELI, page_token=other)),
        ):
            await refused(call, field="page_token")
