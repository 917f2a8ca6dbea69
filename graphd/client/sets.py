"""Set algebra and what is built on it, for callers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from graphd.client import codec
from graphd.client.calls import Connection
from graphd.client.listing import Listing
from graphd.client.values import Expression, Operand, Page, SetOrder, Suggestions
from graphd.limits import MAX_PAGE_SIZE
from graphd.v1 import graph_pb2 as pb

if TYPE_CHECKING:
    from graphd.v1.graph_pb2_grpc import GraphServiceAsyncStub  # generated for type checkers only


class SetCalls(Connection):
    """The calls of GraphService that combine lists."""

    _stub: GraphServiceAsyncStub

    def intersect(
        self,
        *operands: Operand,
        order: SetOrder = SetOrder.BY_ID,
        page_size: int = MAX_PAGE_SIZE,
        deadline_s: float | None = None,
    ) -> Listing[int]:
        """The ids that all of 2..16 operands hold, descending, or in the order of the first operand's list."""
        return self._combined(self._stub.Intersect, pb.IntersectRequest, operands, order, page_size, deadline_s)

    def union(
        self, *operands: Operand, page_size: int = MAX_PAGE_SIZE, deadline_s: float | None = None
    ) -> Listing[int]:
        """The ids that any of 2..16 operands holds, descending."""
        return self._combined(self._stub.Union, pb.UnionRequest, operands, SetOrder.BY_ID, page_size, deadline_s)

    def difference(
        self,
        *operands: Operand,
        order: SetOrder = SetOrder.BY_ID,
        page_size: int = MAX_PAGE_SIZE,
        deadline_s: float | None = None,
    ) -> Listing[int]:
        """The ids that the first of 2..16 operands holds and no other does; ordered as `intersect`."""
        return self._combined(self._stub.Difference, pb.DifferenceRequest, operands, order, page_size, deadline_s)

    def select(
        self,
        expression: Expression,
        *,
        order: SetOrder = SetOrder.BY_ID,
        page_size: int = MAX_PAGE_SIZE,
        deadline_s: float | None = None,
    ) -> Listing[int]:
        """The ids that an expression of AllOf, AnyOf and Without, nested to depth 8, holds; ordered as `intersect`."""

        async def fetch(page_token: str, size: int) -> Page[int]:
            request = pb.SelectRequest(
                expression=codec.expression("expression", expression),
                order=pb.SetOrder.ValueType(order),
                page_size=size,
                page_token=page_token,
            )
            answer = await self._unary(self._stub.Select, request, deadline_s)
            return Page(tuple(answer.ids), answer.next_page_token, partial=answer.partial)

        return Listing(fetch, page_size)

    async def common_degree(
        self, *operands: Operand, limit: int = 0, deadline_s: float | None = None
    ) -> tuple[int, bool]:
        """How many ids all of 2..16 operands hold, `limit` at most (0: no limit); and whether that is exact, as reaching `limit` is."""
        request = pb.GetCommonDegreeRequest(
            operands=[codec.operand(f"operands[{i}]", value) for i, value in enumerate(operands)], limit=limit
        )
        answer = await self._unary(self._stub.GetCommonDegree, request, deadline_s)
        return answer.degree, answer.exact

    async def suggest(
        self, account_id: int, *, k: int = 0, kind: str = "", deadline_s: float | None = None
    ) -> Suggestions:
        """The k (0: 10) accounts that most of those followed follow, without those followed and without blocks either way."""
        request = pb.SuggestRequest(account_id=codec.account("account_id", account_id), k=k, kind=kind)
        answer = await self._unary(self._stub.Suggest, request, deadline_s)
        return Suggestions(tuple((one.account_id, one.common_degree) for one in answer.suggestions), answer.sampled)

    async def distance(
        self, account_id: int, other_id: int, *, kind: str = "", deadline_s: float | None = None
    ) -> int | None:
        """0 to 3 follows lead from the one account to the other; None where it takes more, or where none was found among the newest part of
        lists that are too long."""
        request = pb.DistanceRequest(
            account_id=codec.account("account_id", account_id), other_id=codec.account("other_id", other_id), kind=kind
        )
        answer = await self._unary(self._stub.Distance, request, deadline_s)
        return None if answer.more else answer.distance

    def _combined(
        self,
        method: Any,
        message: Callable[..., Any],
        operands: tuple[Operand, ...],
        order: SetOrder,
        page_size: int,
        deadline_s: float | None,
    ) -> Listing[int]:
        async def fetch(page_token: str, size: int) -> Page[int]:
            request = message(
                operands=[codec.operand(f"operands[{i}]", value) for i, value in enumerate(operands)],
                order=pb.SetOrder.ValueType(order),
                page_size=size,
                page_token=page_token,
            )
            answer = await self._unary(method, request, deadline_s)
            return Page(tuple(answer.ids), answer.next_page_token, partial=answer.partial)

        return Listing(fetch, page_size)
