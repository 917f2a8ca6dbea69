"""Bounds that must fit each other."""

from __future__ import annotations

from graphd import limits
from graphd.limits import DEADLINE_MARGIN_S, DEFAULT_DEADLINE_S, MAX_DEADLINE_S
from graphd.v1 import graph_pb2 as pb


def test_the_largest_answers_fit_a_message() -> None:
    edge = pb.Edge(
        source_id=limits.MAX_ID,
        destination_id=limits.MAX_ID,
        kind="k" * limits.MAX_KIND_CHARS,
        state=pb.STATE_BLOCKED,
        position=limits.MAX_ID,
        since=limits.MAX_ID,
    )
    page = pb.ListFollowersResponse(edges=[edge] * limits.MAX_PAGE_SIZE)
    assert page.ByteSize() < limits.MAX_MESSAGE_BYTES / 8
    result = pb.WriteResult(edge=edge, outcome=pb.OUTCOME_REFUSED, reason="ACCOUNT_ARCHIVED", duplicate=True)
    assert pb.BatchWriteResponse(results=[result] * limits.MAX_BATCH).ByteSize() < limits.MAX_MESSAGE_BYTES / 8


def test_the_largest_requests_fit_a_message() -> None:
    from router.server import MAX_REQUEST_BYTES

    operand = pb.Operand(ids=pb.IdList(ids=[limits.MAX_ID] * limits.MAX_OPERAND_IDS))
    request = pb.IntersectRequest(operands=[operand] * limits.MAX_OPERANDS)
    assert request.ByteSize() < MAX_REQUEST_BYTES


def test_orders_of_magnitude() -> None:
    assert limits.MAX_ID == 2**63 - 1
    assert limits.DEFAULT_PAGE_SIZE < limits.MAX_PAGE_SIZE
    assert limits.SET_WINDOW_MIN_IDS < limits.SET_WINDOW_MAX_IDS
    assert DEADLINE_MARGIN_S < DEFAULT_DEADLINE_S <= MAX_DEADLINE_S
    assert limits.MAX_SLOTS & (limits.MAX_SLOTS - 1) == 0
    assert limits.MAX_SLOTS <= 2**15
    # A page token that we make is far below what we refuse unread.
    assert limits.MAX_PAGE_TOKEN_CHARS >= 44
