"""Whole accounts: archived, restored and removed, as both ends of their edges and their lists show it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import grpc
import pytest

from graphd.client import Client
from graphd.edge import State, Version
from graphd.operations import Operation
from graphd.v1 import graph_pb2 as pb
from tests.calls import declare_kind, follow, refused, unfollow, write_all
from tests.databases import Databases, audit, edges
from tests.routers import GraphStub, RouterProcess
from tests.simulation.check import settled

pytestmark = pytest.mark.usefixtures("emptied")

ADA, BO, CY, DEE = 1, 2, 3, 4
FANS = range(1_000, 1_700)
IDOLS = range(2_000, 2_230)

Change = type[pb.ArchiveAccountRequest] | type[pb.RestoreAccountRequest] | type[pb.RemoveAccountRequest]
ARCHIVE, RESTORE, REMOVE = pb.ArchiveAccountRequest, pb.RestoreAccountRequest, pb.RemoveAccountRequest


@pytest.fixture
def emptied(databases: Databases) -> None:
    databases.clear()


async def change(graph: GraphStub, request: Change, account: int, kind: str = "") -> list[tuple[int, int]]:
    """All of the progress."""
    method = getattr(graph, request.DESCRIPTOR.name.removesuffix("Request"))
    return [(told.done, told.total) async for told in method(request(account_id=account, kind=kind), timeout=60)]


async def listed(
    graph: GraphStub, account: int, *, following: bool, state: State = State.ACTIVE
) -> list[tuple[int, int]]:
    """(neighbor, since) of a list, newest first."""
    found: list[tuple[int, int]] = []
    token = ""
    while True:
        asked: dict[str, Any] = {"account_id": account, "state": state, "page_size": 1000, "page_token": token}
        page = (
            await graph.ListFollowing(pb.ListFollowingRequest(**asked))
            if following
            else await graph.ListFollowers(pb.ListFollowersRequest(**asked))
        )
        found += [(edge.destination_id if following else edge.source_id, edge.since) for edge in page.edges]
        token = page.next_page_token
        if not token:
            return found


async def degrees(graph: GraphStub, account: int) -> tuple[int, int]:
    """(followers, following) that are ACTIVE."""
    found = await graph.GetDegrees(pb.GetDegreesRequest(account_id=account))
    return found.followers, found.following


def versions(databases: Databases) -> dict[tuple[int, int, int], Version]:
    """By source, destination and kind."""
    return {key: Version(*version) for key, version in edges(databases).items()}


async def audited(databases: Databases) -> None:
    """Both halves and the degrees agree, and nobody owes anything: there is no relay here."""
    await settled(databases)
    audit(databases)


async def states(databases: Databases, pairs: Iterable[tuple[int, int]]) -> list[State]:
    """In both halves, which must agree."""
    await audited(databases)
    stored = versions(databases)
    return [State(stored[source, destination, 1].state) for source, destination in pairs]


def block(blocker: int, blocked: int) -> pb.Write:
    return pb.Write(operation=pb.OPERATION_BLOCK, source_id=blocked, destination_id=blocker)


async def test_archived_and_restored_to_the_very_same_lists(graph: GraphStub, databases: Databases) -> None:
    await write_all([graph], [follow(fan, ADA) for fan in FANS], size=50)
    await write_all([graph], [follow(ADA, idol) for idol in IDOLS], size=50)
    others = [(BO, CY), (FANS[0], CY), (BO, IDOLS[0])]
    await write_all([graph], [follow(*edge) for edge in others])
    kept = [
        pb.Write(operation=pb.OPERATION_REQUEST, source_id=BO, destination_id=ADA),
        pb.Write(operation=pb.OPERATION_REQUEST, source_id=ADA, destination_id=BO),
        pb.Write(operation=pb.OPERATION_BLOCK, source_id=CY, destination_id=ADA),
        pb.Write(operation=pb.OPERATION_BLOCK, source_id=ADA, destination_id=CY),
    ]
    await write_all([graph], kept, size=1, at_once=1)
    before = versions(databases)
    followers, following = await listed(graph, ADA, following=False), await listed(graph, ADA, following=True)
    all_of = len(FANS) + len(IDOLS)

    progress = await change(graph, ARCHIVE, ADA)
    assert progress[0] == (0, all_of)
    assert progress[-1] == (all_of, all_of)
    assert progress == sorted(progress)
    assert len(progress) >= 5
    await audited(databases)
    archived = versions(databases)
    assert {key for key, version in archived.items() if version.state != before[key].state} == {
        *((fan, ADA, 1) for fan in FANS),
        *((ADA, idol, 1) for idol in IDOLS),
    }
    assert await degrees(graph, ADA) == (0, 0)
    assert await degrees(graph, FANS[0]) == (0, 1)
    assert await degrees(graph, IDOLS[0]) == (1, 0)
    assert await listed(graph, ADA, following=False) == []
    assert await listed(graph, ADA, following=False, state=State.ARCHIVED_BY_DESTINATION) == followers
    assert await listed(graph, ADA, following=True, state=State.ARCHIVED_BY_SOURCE) == following
    # The same again finds nothing to do.
    assert await change(graph, ARCHIVE, ADA) == [(0, 0), (0, 0)]

    assert (await change(graph, RESTORE, ADA))[-1] == (all_of, all_of)
    await audited(databases)
    assert await listed(graph, ADA, following=False) == followers
    assert await listed(graph, ADA, following=True) == following
    after = versions(databases)
    assert {key: (version.state, version.since) for key, version in after.items()} == {
        key: (version.state, version.since) for key, version in before.items()
    }
    assert await degrees(graph, ADA) == (len(FANS), len(IDOLS))
    assert await change(graph, RESTORE, ADA) == [(0, 0), (0, 0)]
    assert databases.all_rows("SELECT * FROM archived_accounts") == []


async def test_what_is_refused_while_it_lasts(graph: GraphStub, databases: Databases) -> None:
    await write_all([graph], [follow(BO, ADA)])
    asked = pb.Write(operation=pb.OPERATION_REQUEST, source_id=CY, destination_id=ADA)
    await write_all([graph], [asked, pb.Write(operation=pb.OPERATION_REQUEST, source_id=ADA, destination_id=CY)])
    await write_all([graph], [block(ADA, DEE)])
    first = pb.FollowRequest(source_id=10, destination_id=ADA, request_id="before")
    told = (await graph.Follow(first)).result
    await change(graph, ARCHIVE, ADA)

    calls = [
        graph.Follow(pb.FollowRequest(source_id=ADA, destination_id=11)),
        graph.Follow(pb.FollowRequest(source_id=11, destination_id=ADA)),
        graph.Follow(pb.FollowRequest(source_id=BO, destination_id=ADA)),
        graph.RequestFollow(pb.RequestFollowRequest(source_id=11, destination_id=ADA)),
        graph.RequestFollow(pb.RequestFollowRequest(source_id=ADA, destination_id=11)),
        graph.AcceptFollow(pb.AcceptFollowRequest(source_id=CY, destination_id=ADA)),
        graph.AcceptFollow(pb.AcceptFollowRequest(source_id=ADA, destination_id=CY)),
    ]
    for call in calls:
        error = await refused(call, grpc.StatusCode.FAILED_PRECONDITION)
        assert "suspended" in (error.details() or "")
    # The edge's own reason comes first.
    error = await refused(
        graph.Follow(pb.FollowRequest(source_id=DEE, destination_id=ADA)), grpc.StatusCode.FAILED_PRECONDITION
    )
    assert "blocked" in (error.details() or "")
    await refused(
        graph.AcceptFollow(pb.AcceptFollowRequest(source_id=12, destination_id=ADA)),
        grpc.StatusCode.FAILED_PRECONDITION,
    )
    batch = await graph.BatchWrite(pb.BatchWriteRequest(writes=[follow(13, ADA), follow(13, BO), follow(ADA, 13)]))
    assert [(result.outcome, result.reason) for result in batch.results] == [
        (pb.OUTCOME_REFUSED, "ACCOUNT_ARCHIVED"),
        (pb.OUTCOME_APPLIED, ""),
        (pb.OUTCOME_REFUSED, "ACCOUNT_ARCHIVED"),
    ]
    # What was answered before is answered so again; what was refused too, also after the end of it.
    again = (await graph.Follow(first)).result
    assert (again.duplicate, again.outcome, again.edge.state) == (True, told.outcome, told.edge.state)
    late = pb.FollowRequest(source_id=14, destination_id=ADA, request_id="late")
    own = pb.FollowRequest(source_id=ADA, destination_id=14, request_id="own")
    for request in (late, own):
        await refused(graph.Follow(request), grpc.StatusCode.FAILED_PRECONDITION)

    # What ends an edge is allowed, and does not come back.
    await write_all([graph], [unfollow(BO, ADA), block(ADA, 10)])
    rejected = (await graph.RejectFollow(pb.RejectFollowRequest(source_id=CY, destination_id=ADA))).result
    assert rejected.edge.state == pb.STATE_REMOVED
    await change(graph, RESTORE, ADA)
    for request in (late, own):
        error = await refused(graph.Follow(request), grpc.StatusCode.FAILED_PRECONDITION)
        assert "suspended" in (error.details() or "")
    assert await states(databases, [(BO, ADA), (10, ADA), (CY, ADA), (ADA, CY)]) == [
        State.REMOVED,
        State.BLOCKED,
        State.REMOVED,
        State.PENDING,
    ]
    for request in (
        pb.FollowRequest(source_id=11, destination_id=ADA),
        pb.FollowRequest(source_id=ADA, destination_id=11),
    ):
        assert (await graph.Follow(request)).result.outcome == pb.OUTCOME_APPLIED


ORDERS = [
    order
    for order in itertools.permutations(["archive A", "archive B", "restore A", "restore B"])
    if order.index("archive A") < order.index("restore A") and order.index("archive B") < order.index("restore B")
]


@pytest.mark.parametrize("order", ORDERS, ids=", ".join)
async def test_both_ends_in_every_order(graph: GraphStub, databases: Databases, order: tuple[str, ...]) -> None:
    pairs = [(1, 2), (2, 1), (1, 3)]
    await write_all([graph], [follow(*pair) for pair in pairs])
    before = [versions(databases)[source, destination, 1].since for source, destination in pairs]
    archived: set[str] = set()
    for step in order:
        name, who = step.split()
        await change(graph, ARCHIVE if name == "archive" else RESTORE, 1 if who == "A" else 2)
        archived ^= {who}
        by_a, by_b = "A" in archived, "B" in archived
        expected = {
            (False, False): (State.ACTIVE, State.ACTIVE),
            (True, False): (State.ARCHIVED_BY_SOURCE, State.ARCHIVED_BY_DESTINATION),
            (False, True): (State.ARCHIVED_BY_DESTINATION, State.ARCHIVED_BY_SOURCE),
            (True, True): (State.ARCHIVED_BY_BOTH, State.ARCHIVED_BY_BOTH),
        }[by_a, by_b]
        assert await states(databases, pairs) == [*expected, State.ARCHIVED_BY_SOURCE if by_a else State.ACTIVE], step
    assert [versions(databases)[source, destination, 1].since for source, destination in pairs] == before


async def test_removed(graph: GraphStub, databases: Databases) -> None:
    await write_all([graph], [follow(fan, ADA) for fan in FANS] + [follow(ADA, idol) for idol in IDOLS])
    await write_all([graph], [block(ADA, CY), block(DEE, ADA)])
    await write_all([graph], [pb.Write(operation=pb.OPERATION_REQUEST, source_id=BO, destination_id=ADA)])
    await change(graph, ARCHIVE, IDOLS[0])
    all_of = len(FANS) + len(IDOLS) + 1
    assert (await change(graph, REMOVE, ADA))[-1] == (all_of, all_of)
    pairs = [*((fan, ADA) for fan in FANS), *((ADA, idol) for idol in IDOLS), (BO, ADA)]
    assert set(await states(databases, pairs)) == {State.REMOVED}
    assert await states(databases, [(CY, ADA), (ADA, DEE)]) == [State.BLOCKED, State.BLOCKED]
    await refused(graph.Follow(pb.FollowRequest(source_id=BO, destination_id=ADA)), grpc.StatusCode.FAILED_PRECONDITION)
    assert await change(graph, RESTORE, ADA) == [(0, 0), (0, 0)]
    await change(graph, RESTORE, IDOLS[0])
    assert set(await states(databases, pairs)) == {State.REMOVED}
    assert (await graph.Follow(pb.FollowRequest(source_id=BO, destination_id=ADA))).result.outcome == pb.OUTCOME_APPLIED


async def test_one_kind_alone(graph: GraphStub, databases: Databases) -> None:
    await declare_kind([graph], databases, "favourite", 2, allow_self=True)
    mine = [follow(ADA, BO), follow(ADA, BO, kind="favourite"), follow(BO, ADA, kind="favourite")]
    await write_all([graph], [*mine, follow(ADA, ADA, kind="favourite")])
    assert (await change(graph, ARCHIVE, ADA, "favourite"))[-1] == (4, 4)
    # Of an edge to oneself the reverse half has seen the source's mark before the destination's, and owes what the walk did.
    marks = databases.all_rows("DELETE FROM outbox WHERE operation > 7 RETURNING operation")
    assert marks == [(Operation.ARCHIVE_BY_DESTINATION,)]
    await audited(databases)
    assert {key: State(version.state) for key, version in versions(databases).items()} == {
        (ADA, BO, 1): State.ACTIVE,
        (ADA, BO, 2): State.ARCHIVED_BY_SOURCE,
        (BO, ADA, 2): State.ARCHIVED_BY_DESTINATION,
        (ADA, ADA, 2): State.ARCHIVED_BY_BOTH,
    }
    await write_all([graph], [follow(ADA, CY), follow(CY, ADA)])
    await refused(
        graph.Follow(pb.FollowRequest(source_id=CY, destination_id=ADA, kind="favourite")),
        grpc.StatusCode.FAILED_PRECONDITION,
    )
    # In all kinds, and back in all.
    await change(graph, ARCHIVE, ADA)
    assert {State(version.state) for version in versions(databases).values()} & {State.ACTIVE} == set()
    await change(graph, RESTORE, ADA)
    assert databases.all_rows("DELETE FROM outbox WHERE operation > 7 RETURNING operation") == [
        (Operation.RESTORE_BY_DESTINATION,)
    ]
    await audited(databases)
    assert {State(version.state) for version in versions(databases).values()} == {State.ACTIVE}


async def test_a_restore_does_not_go_over_a_kind_s_limit(graph: GraphStub, databases: Databases) -> None:
    await declare_kind([graph], databases, "top", 3, max_out_degree=3)
    await write_all([graph], [follow(ADA, other, kind="top") for other in (BO, CY, DEE)])
    await change(graph, ARCHIVE, BO)
    await write_all([graph], [follow(ADA, 5, kind="top")])
    # One of four has no room: it stays archived until there is, and the restore is done again.
    await change(graph, RESTORE, BO)
    found = await graph.GetDegrees(pb.GetDegreesRequest(account_id=ADA, kind="top"))
    assert found.following == 3
    edge = pb.GetEdgeRequest(source_id=ADA, destination_id=BO, kind="top")
    assert (await graph.GetEdge(edge)).edge.state == pb.STATE_ARCHIVED_BY_DESTINATION
    await write_all([graph], [unfollow(ADA, 5, kind="top")])
    await change(graph, RESTORE, BO)
    assert (await graph.GetEdge(edge)).edge.state == pb.STATE_ACTIVE
    databases.do("DELETE FROM outbox WHERE operation > 7")
    await audited(databases)


@pytest.mark.parametrize("request_type", [ARCHIVE, RESTORE, REMOVE])
async def test_bad_requests_name_the_field(graph: GraphStub, request_type: Change) -> None:
    method = getattr(graph, request_type.DESCRIPTOR.name.removesuffix("Request"))

    async def all_of(request: Any) -> list[Any]:
        return [told async for told in method(request, timeout=10)]

    await refused(all_of(request_type()), field="account_id")
    await refused(all_of(request_type(account_id=-1)), field="account_id")
    await refused(all_of(request_type(account_id=1, kind="none")), field="kind")


async def test_by_the_client(graph: GraphStub, router: RouterProcess, databases: Databases) -> None:
    await write_all([graph], [follow(fan, ADA) for fan in FANS])
    async with Client(router.target) as client:
        for walk in (client.archive_account(ADA), client.restore_account(ADA), client.remove_account(ADA)):
            progress = [told async for told in walk]
            assert (progress[0], progress[-1]) == ((0, len(FANS)), (len(FANS), len(FANS)))
    assert await states(databases, [(FANS[0], ADA)]) == [State.REMOVED]
    # An internal operation is none of a caller's.
    for operation in range(Operation.ARCHIVE_BY_SOURCE, Operation.RESTORE_BY_DESTINATION + 1):
        write = follow(1, 2)
        write.operation = operation  # type: ignore[assignment]
        batch = await graph.BatchWrite(pb.BatchWriteRequest(writes=[write]))
        assert (batch.results[0].outcome, batch.results[0].reason) == (pb.OUTCOME_REFUSED, "INVALID")
