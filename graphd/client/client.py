"""GraphService for callers."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import grpc

from graphd.client import codec
from graphd.client.batch import to_repeat
from graphd.client.calls import Method
from graphd.client.listing import Listing
from graphd.client.sets import SetCalls
from graphd.client.streaming import chunks, progress, watch
from graphd.client.values import (
    Change,
    Chunk,
    Degrees,
    Edge,
    EdgeKey,
    ListOptions,
    Neighbor,
    Page,
    Progress,
    Write,
    WriteOptions,
    WriteResult,
)
from graphd.errors import GraphdError, InvalidArgumentError
from graphd.limits import MAX_BATCH, MAX_PAGE_SIZE
from graphd.v1 import graph_pb2 as pb
from graphd.v1.graph_pb2_grpc import GraphServiceStub

if TYPE_CHECKING:
    from graphd.v1.graph_pb2_grpc import GraphServiceAsyncStub  # generated for type checkers only


class Client(SetCalls):
    """Calls of GraphService."""

    def _bind(self, channel: grpc.aio.Channel) -> None:
        self._stub: GraphServiceAsyncStub = GraphServiceStub(channel)

    async def follow(self, source_id: int, destination_id: int, **options: Unpack[WriteOptions]) -> WriteResult:
        """Make the edge ACTIVE. Raises RefusedError when the stored state does not allow it."""
        return await self._write(self._stub.Follow, pb.FollowRequest, source_id, destination_id, options)

    async def unfollow(self, source_id: int, destination_id: int, **options: Unpack[WriteOptions]) -> WriteResult:
        """Make the edge REMOVED. Raises RefusedError when the stored state does not allow it."""
        return await self._write(self._stub.Unfollow, pb.UnfollowRequest, source_id, destination_id, options)

    async def request_follow(self, source_id: int, destination_id: int, **options: Unpack[WriteOptions]) -> WriteResult:
        """Ask to follow: the edge is PENDING until it is accepted or rejected. Raises RefusedError."""
        return await self._write(self._stub.RequestFollow, pb.RequestFollowRequest, source_id, destination_id, options)

    async def accept_follow(self, source_id: int, destination_id: int, **options: Unpack[WriteOptions]) -> WriteResult:
        """Make a PENDING edge ACTIVE; `source_id` is who asked. Raises RefusedError when nobody did."""
        return await self._write(self._stub.AcceptFollow, pb.AcceptFollowRequest, source_id, destination_id, options)

    async def reject_follow(self, source_id: int, destination_id: int, **options: Unpack[WriteOptions]) -> WriteResult:
        """Make a PENDING edge REMOVED; `source_id` is who asked. Raises RefusedError when nobody did."""
        return await self._write(self._stub.RejectFollow, pb.RejectFollowRequest, source_id, destination_id, options)

    async def block(self, blocker_id: int, blocked_id: int, **options: Unpack[WriteOptions]) -> WriteResult:
        """Make the edge blocked -> blocker BLOCKED, so that no follow of the blocked side passes, and end the blocker's own follow."""
        request = codec.block_request(pb.BlockRequest, blocker_id, blocked_id, _request_id(options), options)
        answer = await self._unary(self._stub.Block, request, options.get("deadline_s"), writes=True)
        return codec.write_result(answer.result)

    async def unblock(self, blocker_id: int, blocked_id: int, **options: Unpack[WriteOptions]) -> WriteResult:
        """Make the edge blocked -> blocker REMOVED. Raises RefusedError when it is not BLOCKED."""
        request = codec.block_request(pb.UnblockRequest, blocker_id, blocked_id, _request_id(options), options)
        answer = await self._unary(self._stub.Unblock, request, options.get("deadline_s"), writes=True)
        return codec.write_result(answer.result)

    async def batch_write(self, writes: Sequence[Write], *, deadline_s: float | None = None) -> list[WriteResult]:
        """1..1000 writes; a result for each, in the same order.

        Items that failed for a passing reason are sent again while there is time, each under its own request id; what is still
        FAILED then stands in the result with its reason.
        """
        _check_batch("writes", writes)
        wires = [
            codec.write(
                i,
                write,
                _new_id()
                if write.request_id is None
                else codec.request_id(f"writes[{i}].request_id", write.request_id),
            )
            for i, write in enumerate(writes)
        ]
        patience = self._patience(deadline_s)
        results: dict[int, WriteResult] = {}
        waiting = list(range(len(wires)))
        while True:
            request = pb.BatchWriteRequest(writes=[wires[i] for i in waiting])
            try:
                answer = await self._patient(self._stub.BatchWrite, request, patience, writes=True)
            except GraphdError:
                if not results:
                    raise
                # The results of the first round are known, and tell what failed.
                break
            results |= zip(waiting, map(codec.write_result, answer.results), strict=True)
            waiting = to_repeat(writes, [results[i] for i in range(len(writes))])
            if not waiting or not await patience.pause():
                break
        return [results[i] for i in range(len(writes))]

    async def get_edge(
        self,
        source_id: int,
        destination_id: int,
        *,
        kind: str = "",
        verify: bool = False,
        deadline_s: float | None = None,
    ) -> Edge:
        """One edge, in whatever state. Raises NotFoundError when it was never written."""
        request = pb.GetEdgeRequest(
            source_id=codec.account("source_id", source_id),
            destination_id=codec.account("destination_id", destination_id),
            kind=kind,
            verify=verify,
        )
        answer = await self._unary(self._stub.GetEdge, request, deadline_s)
        return codec.edge(answer.edge)

    async def batch_get_edges(self, edges: Sequence[EdgeKey], *, deadline_s: float | None = None) -> list[Edge | None]:
        """1..1000 edges in the order asked; None for one never written."""
        _check_batch("edges", edges)
        request = pb.BatchGetEdgesRequest(edges=[codec.edge_key(i, key) for i, key in enumerate(edges)])
        answer = await self._unary(self._stub.BatchGetEdges, request, deadline_s)
        return [codec.edge(result.edge) if result.found else None for result in answer.results]

    def followers(self, account_id: int, **options: Unpack[ListOptions]) -> Listing[Edge]:
        """The edges that arrive at an account."""
        return self._full(self._stub.ListFollowers, pb.ListFollowersRequest, account_id, options)

    def following(self, account_id: int, **options: Unpack[ListOptions]) -> Listing[Edge]:
        """The edges that leave an account."""
        return self._full(self._stub.ListFollowing, pb.ListFollowingRequest, account_id, options)

    def follower_ids(self, account_id: int, **options: Unpack[ListOptions]) -> Listing[Neighbor]:
        """Who follows an account and since when: a third of the bytes of `followers`."""
        return self._ids(self._stub.ListFollowers, pb.ListFollowersRequest, account_id, options)

    def following_ids(self, account_id: int, **options: Unpack[ListOptions]) -> Listing[Neighbor]:
        """Whom an account follows and since when."""
        return self._ids(self._stub.ListFollowing, pb.ListFollowingRequest, account_id, options)

    async def get_degrees(self, account_id: int, *, kind: str = "", deadline_s: float | None = None) -> Degrees:
        """Exact counts; zeros for an account that nobody has named yet."""
        request = pb.GetDegreesRequest(account_id=codec.account("account_id", account_id), kind=kind)
        answer = await self._unary(self._stub.GetDegrees, request, deadline_s)
        return codec.degrees(account_id, answer)

    async def batch_get_degrees(
        self, account_ids: Sequence[int], *, kind: str = "", deadline_s: float | None = None
    ) -> list[Degrees]:
        """Counts of 1..1000 accounts, in the order asked."""
        _check_batch("account_ids", account_ids)
        request = pb.BatchGetDegreesRequest(account_ids=codec.accounts("account_ids", account_ids), kind=kind)
        answer = await self._unary(self._stub.BatchGetDegrees, request, deadline_s)
        return [codec.degrees(account_id, row) for account_id, row in zip(account_ids, answer.results, strict=True)]

    def stream_followers(
        self, account_id: int, *, kind: str = "", chunk_size: int = 0, page_token: str = ""
    ) -> AsyncGenerator[Chunk, None]:
        """All who follow an account, newest first, in chunks of 1000 at most: for fan-out. Goes on by itself after a passing failure."""
        request = pb.StreamFollowersRequest(
            account_id=codec.account("account_id", account_id), kind=kind, chunk_size=chunk_size, page_token=page_token
        )
        return chunks(self._opener(self._stub.StreamFollowers), request, self.target, lambda: self._patience(None))

    def stream_following(
        self, account_id: int, *, kind: str = "", chunk_size: int = 0, page_token: str = ""
    ) -> AsyncGenerator[Chunk, None]:
        """All whom an account follows, as `stream_followers`."""
        request = pb.StreamFollowingRequest(
            account_id=codec.account("account_id", account_id), kind=kind, chunk_size=chunk_size, page_token=page_token
        )
        return chunks(self._opener(self._stub.StreamFollowing), request, self.target, lambda: self._patience(None))

    def _opener(self, method: Any) -> Callable[[Any], Any]:
        return lambda request: method(request, wait_for_ready=True)

    def watch(
        self, *, kinds: Sequence[str] = (), slots: Sequence[int] = (), resume_token: str = ""
    ) -> AsyncGenerator[Change, None]:
        """Every change of an edge whose source lies in one of these slots (none: all), without end: after a token, or from now on. In order
        for each source, at least once. Raises OutOfRangeError for a token older than what is kept."""
        request = pb.WatchEdgesRequest(kinds=kinds, slots=slots, resume_token=resume_token)
        return watch(self._opener(self._stub.WatchEdges), request, self.target, lambda: self._patience(None))

    def archive_account(self, account_id: int, *, kind: str = "") -> AsyncGenerator[Progress, None]:
        """Suspend an account, in one kind or in all: its ACTIVE edges are archived, and new follows from or to it are refused while that
        lasts. It is done when the iteration ends, not before; it goes on by itself after a passing failure. Raises SupersededError when
        another change of the account began."""
        request = pb.ArchiveAccountRequest(account_id=codec.account("account_id", account_id), kind=kind)
        return progress(self._opener(self._stub.ArchiveAccount), request, self.target, lambda: self._patience(None))

    def restore_account(self, account_id: int, *, kind: str = "") -> AsyncGenerator[Progress, None]:
        """End a suspension: the edges it archived come back at their old places. As `archive_account`."""
        request = pb.RestoreAccountRequest(account_id=codec.account("account_id", account_id), kind=kind)
        return progress(self._opener(self._stub.RestoreAccount), request, self.target, lambda: self._patience(None))

    def remove_account(self, account_id: int, *, kind: str = "") -> AsyncGenerator[Progress, None]:
        """Suspend an account and remove its edges, all but the BLOCKED ones. As `archive_account`."""
        request = pb.RemoveAccountRequest(account_id=codec.account("account_id", account_id), kind=kind)
        return progress(self._opener(self._stub.RemoveAccount), request, self.target, lambda: self._patience(None))

    async def _write(
        self,
        method: Method[codec.SingleRequest, codec.SingleResponse],
        message: type[codec.SingleRequest],
        source_id: int,
        destination_id: int,
        options: WriteOptions,
    ) -> WriteResult:
        request = codec.single_request(message, source_id, destination_id, _request_id(options), options)
        answer = await self._unary(method, request, options.get("deadline_s"), writes=True)
        return codec.write_result(answer.result)

    def _full(
        self,
        method: Method[codec.ListRequest, codec.ListResponse],
        message: type[codec.ListRequest],
        account_id: int,
        options: ListOptions,
    ) -> Listing[Edge]:
        async def fetch(page_token: str, size: int) -> Page[Edge]:
            request = codec.list_request(message, account_id, options, page_token, size, pb.VIEW_FULL)
            return codec.edge_page(await self._unary(method, request, options.get("deadline_s")))

        return Listing(fetch, options.get("page_size", MAX_PAGE_SIZE))

    def _ids(
        self,
        method: Method[codec.ListRequest, codec.ListResponse],
        message: type[codec.ListRequest],
        account_id: int,
        options: ListOptions,
    ) -> Listing[Neighbor]:
        async def fetch(page_token: str, size: int) -> Page[Neighbor]:
            request = codec.list_request(message, account_id, options, page_token, size, pb.VIEW_IDS)
            return codec.neighbor_page(await self._unary(method, request, options.get("deadline_s")))

        return Listing(fetch, options.get("page_size", MAX_PAGE_SIZE))


def _request_id(options: WriteOptions) -> str:
    """The caller's, or one of our own: a retry must be recognised."""
    given = options.get("request_id")
    return _new_id() if given is None else codec.request_id("request_id", given)


def _new_id() -> str:
    return uuid.uuid4().hex


def _check_batch(field: str, items: Sequence[object]) -> None:
    # Refused here, since a batch beyond the size of a message would fail without our words.
    if not 1 <= len(items) <= MAX_BATCH:
        raise InvalidArgumentError(field, f"must hold 1 to {MAX_BATCH} items")
