"""GraphService: decode, call, encode. Every call goes through one wrapper, which counts it, bounds it and maps its errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from math import inf
from time import perf_counter
from typing import Any, Final

import grpc
import structlog
from google.protobuf.message import DecodeError, Message
from grpc import aio

from graphd.clock import now_us
from graphd.cursor import watch_scope
from graphd.edge import Direction, State, Version
from graphd.errors import (
    CatalogUnavailableError,
    GraphdError,
    InvalidArgumentError,
    NotFoundError,
    NotOfferedError,
    RefusedError,
)
from graphd.limits import DEADLINE_MARGIN_S, MAX_DEADLINE_S, RESUME_METADATA
from graphd.operations import Operation, Outcome
from graphd.storage.cluster import Cluster
from graphd.topology import Kind, UnknownKindError
from graphd.v1 import graph_pb2 as pb
from router import codec, lifecycle, streams, wire
from router.admission import Admission
from router.expressions import Expression, SetOperation
from router.metrics import RouterMetrics
from router.reads import ListOf, Reader
from router.setreads import SetPage, SetReader
from router.status import Status, status_of
from router.twohop import TwoHop
from router.values import Result, Write
from router.watch import Watcher
from router.writes import Writer

log = structlog.get_logger()

Call = Callable[[Any, float], Awaitable[Any]]
"""(request, deadline on the event loop's clock) -> response, or its wire bytes."""

StreamCall = Callable[[Any, float, aio.ServicerContext[Any, Any]], AsyncGenerator[Any, None]]
"""(request, deadline on the event loop's clock; infinite where the caller set none, context) -> responses."""

_NO_MESSAGE: Final = Status(grpc.StatusCode.INTERNAL, "internal error")
_REFUSALS: Final = {
    "ACCOUNT_ARCHIVED": "the source or the destination is suspended; restore it first",
    "BLOCKED": "the destination has blocked the source",
    "NOT_PENDING": "there is no pending request to answer",
    "NOT_BLOCKED": "the edge is not blocked",
    "LIMIT_REACHED": "the source has as many edges of this kind as it may have",
}


def serialize(response: Any) -> bytes:
    """Pages come as bytes already."""
    data: bytes = response if isinstance(response, bytes) else response.SerializeToString()
    return data


def _deserializer(request_type: type[Message]) -> Callable[[bytes], Message | None]:
    """None for bytes that are no such message: gRPC would answer its own UNKNOWN, with the exception's text."""
    parse = request_type.FromString

    def deserialize(data: bytes) -> Message | None:
        try:
            return parse(data)
        except DecodeError:
            return None

    return deserialize


class Wrapper:
    """What every unary call has around it."""

    def __init__(self, admission: Admission, metrics: RouterMetrics, default_deadline_s: float) -> None:
        self._admission, self._metrics, self._default_s = admission, metrics, default_deadline_s

    def unary(self, name: str, call: Call, request_type: type[Message]) -> grpc.RpcMethodHandler[Any, Any]:
        """A handler for one method."""
        record = self._metrics.method(name)
        admission, default_s = self._admission, self._default_s

        async def behavior(request: Any, context: aio.ServicerContext[Any, Any]) -> Any:
            began = perf_counter()
            admission.begin()
            code = "OK"
            try:
                if request is None:
                    raise InvalidArgumentError("request", "must be a message of this method, its strings in UTF-8")
                remaining_s = context.time_remaining()
                budget_s = default_s if remaining_s is None else min(remaining_s - DEADLINE_MARGIN_S, MAX_DEADLINE_S)
                return await call(request, asyncio.get_running_loop().time() + budget_s)
            except GraphdError as error:
                status = status_of(error)
                code = status.code.name
                if status.code is grpc.StatusCode.INTERNAL:
                    log.error("call.failed", method=name, error=type(error).__name__, detail=str(error))
            except asyncio.CancelledError:
                code = "CANCELLED"
                raise
            except Exception as error:
                # A bug: the caller gets no text of it, the log gets all.
                status = _NO_MESSAGE
                code = "INTERNAL"
                log.error("call.failed", method=name, error=type(error).__name__, exc_info=error)
            finally:
                admission.end()
                record.observe(code, perf_counter() - began)
            return await context.abort(status.code, status.message, status.metadata)

        return grpc.unary_unary_rpc_method_handler(
            behavior, request_deserializer=_deserializer(request_type), response_serializer=serialize
        )

    def stream(self, name: str, call: StreamCall, request_type: type[Message]) -> grpc.RpcMethodHandler[Any, Any]:
        """A handler for a method that streams its answers. Each is written before the next is asked for, so that a slow caller holds back
        his own stream and nobody's memory. It lasts as long as the caller's deadline allows, for ever where he set none."""
        record = self._metrics.method(name)

        async def behavior(request: Any, context: aio.ServicerContext[Any, Any]) -> None:
            began = perf_counter()
            self._admission.streams += 1
            code = "OK"
            try:
                if request is None:
                    raise InvalidArgumentError("request", "must be a message of this method, its strings in UTF-8")
                remaining_s = context.time_remaining()
                budget_s = inf if remaining_s is None else remaining_s - DEADLINE_MARGIN_S
                async with aclosing(call(request, asyncio.get_running_loop().time() + budget_s, context)) as answers:
                    async for answer in answers:
                        await context.write(answer)
                return
            except aio.InternalError:
                # What cannot be written has nobody who reads it: the caller went while it was on its way.
                code = "CANCELLED"
                return
            except GraphdError as error:
                status = status_of(error)
                code = status.code.name
                if status.code is grpc.StatusCode.INTERNAL:
                    log.error("call.failed", method=name, error=type(error).__name__, detail=str(error))
            except asyncio.CancelledError:
                code = "CANCELLED"
                raise
            except Exception as error:
                status = _NO_MESSAGE
                code = "INTERNAL"
                log.error("call.failed", method=name, error=type(error).__name__, exc_info=error)
            finally:
                self._admission.streams -= 1
                record.observe(code, perf_counter() - began)
            await context.abort(status.code, status.message, status.metadata)

        return grpc.unary_stream_rpc_method_handler(
            behavior, request_deserializer=_deserializer(request_type), response_serializer=serialize
        )

    def not_offered(self, name: str, method: Any) -> grpc.RpcMethodHandler[Any, Any]:
        """A handler for a method of the contract that a later release brings, whatever its arity."""
        record = self._metrics.method(name)
        status = status_of(NotOfferedError(name))

        async def unary(request: Any, context: aio.ServicerContext[Any, Any]) -> Any:
            record.observe(status.code.name, 0.0)
            await context.abort(status.code, status.message, status.metadata)

        async def stream(request: Any, context: aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
            record.observe(status.code.name, 0.0)
            if context.cancelled():
                # Never answered: it makes this a generator, which gRPC wants a stream's handler to be.
                yield None
            await context.abort(status.code, status.message, status.metadata)

        if method.client_streaming:
            return grpc.stream_stream_rpc_method_handler(stream)
        if method.server_streaming:
            return grpc.unary_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(unary)


class GraphService:
    """The callers' calls."""

    def __init__(
        self,
        cluster: Cluster,
        writer: Writer,
        reader: Reader,
        sets: SetReader,
        watcher: Watcher,
        lives: lifecycle.Lifecycle,
        checker: codec.Checker,
        admission: Admission,
        metrics: RouterMetrics,
    ) -> None:
        self._watcher, self._lifecycle = watcher, lives
        self._two_hop = TwoHop(cluster, reader, sets)
        self._cluster, self._writer, self._reader, self._sets = cluster, writer, reader, sets
        self._checker, self._admission, self._metrics = checker, admission, metrics

    def handler(self, wrapper: Wrapper) -> grpc.GenericRpcHandler:
        """All methods of the contract; those not offered say so."""
        offered: dict[str, Call] = {
            "Follow": self.follow,
            "Unfollow": self.unfollow,
            "RequestFollow": self.request_follow,
            "AcceptFollow": self.accept_follow,
            "RejectFollow": self.reject_follow,
            "Block": self.block,
            "Unblock": self.unblock,
            "BatchWrite": self.batch_write,
            "GetEdge": self.get_edge,
            "BatchGetEdges": self.batch_get_edges,
            "ListFollowers": self.list_followers,
            "ListFollowing": self.list_following,
            "GetDegrees": self.get_degrees,
            "BatchGetDegrees": self.batch_get_degrees,
            "Intersect": self.intersect,
            "Union": self.union,
            "Difference": self.difference,
            "Select": self.select,
            "GetCommonDegree": self.get_common_degree,
            "Suggest": self.suggest,
            "Distance": self.distance,
        }
        streamed: dict[str, StreamCall] = {
            "StreamFollowers": self.stream_followers,
            "StreamFollowing": self.stream_following,
            "WatchEdges": self.watch_edges,
            "ArchiveAccount": self.archive_account,
            "RestoreAccount": self.restore_account,
            "RemoveAccount": self.remove_account,
        }
        service = pb.DESCRIPTOR.services_by_name["GraphService"]
        return handler_of(service, {name: self._knowing(call) for name, call in offered.items()}, wrapper, streamed)

    # -- kinds declared a moment ago -----------------------------------------------------------------------------------

    def _knowing(self, call: Call) -> Call:
        """A call that names a kind which is not known here, in whatever place, looks once whether it was declared a moment ago. Kinds are
        looked at before anything is done, so the call can simply be made again."""

        async def knowing(request: Any, deadline: float) -> Any:
            try:
                return await call(request, deadline)
            except UnknownKindError:
                if not await self._learn(deadline):
                    raise
                return await call(request, deadline)

        return knowing

    async def _learn(self, deadline: float) -> bool:
        with self._admission.aside():
            return await self._cluster.learn_kinds(deadline)

    async def _kind(self, name: str, deadline: float, field: str = "kind") -> Kind:
        """The same for streams, which cannot be made again."""
        try:
            return self._cluster.topology.kind(name, field)
        except UnknownKindError:
            # Streams are none of the calls in flight, so there is nothing to set aside.
            if not await self._cluster.learn_kinds(deadline):
                raise
            return self._cluster.topology.kind(name, field)

    async def _kind_name(self, number: int, deadline: float) -> str:
        """The name of the kind of an event. Raises CatalogUnavailableError while it cannot be learnt: nothing may be passed over."""
        kind = self._cluster.topology.kind_by_number(number)
        if kind is None:
            await self._cluster.learn_kinds(deadline)
            kind = self._cluster.topology.kind_by_number(number)
        if kind is None:
            raise CatalogUnavailableError(f"the next event is of kind {number}, which this router has not heard of yet")
        return kind.name

    # -- writes --------------------------------------------------------------------------------------------------------

    async def follow(self, request: pb.FollowRequest, deadline: float) -> pb.FollowResponse:
        """Follow."""
        return pb.FollowResponse(result=await self._write(request, Operation.FOLLOW, deadline))

    async def unfollow(self, request: pb.UnfollowRequest, deadline: float) -> pb.UnfollowResponse:
        """Unfollow."""
        return pb.UnfollowResponse(result=await self._write(request, Operation.UNFOLLOW, deadline))

    async def request_follow(self, request: pb.RequestFollowRequest, deadline: float) -> pb.RequestFollowResponse:
        """Ask to follow an account that approves its followers."""
        return pb.RequestFollowResponse(result=await self._write(request, Operation.REQUEST, deadline))

    async def accept_follow(self, request: pb.AcceptFollowRequest, deadline: float) -> pb.AcceptFollowResponse:
        """Grant what was asked."""
        return pb.AcceptFollowResponse(result=await self._write(request, Operation.ACCEPT, deadline))

    async def reject_follow(self, request: pb.RejectFollowRequest, deadline: float) -> pb.RejectFollowResponse:
        """Decline what was asked."""
        return pb.RejectFollowResponse(result=await self._write(request, Operation.REJECT, deadline))

    async def block(self, request: pb.BlockRequest, deadline: float) -> pb.BlockResponse:
        """Keep an account from following; also ends the follow the other way."""
        write = self._checker.block(request, Operation.BLOCK, self._cluster.topology, now_us())
        return pb.BlockResponse(result=await self._carry_out(write, deadline))

    async def unblock(self, request: pb.UnblockRequest, deadline: float) -> pb.UnblockResponse:
        """Let an account follow again."""
        write = self._checker.block(request, Operation.UNBLOCK, self._cluster.topology, now_us())
        return pb.UnblockResponse(result=await self._carry_out(write, deadline))

    async def _write(self, request: codec.HasWrite, operation: Operation, deadline: float) -> pb.WriteResult:
        return await self._carry_out(
            self._checker.write(request, operation, self._cluster.topology, now_us()), deadline
        )

    async def _carry_out(self, write: Write, deadline: float) -> pb.WriteResult:
        [result] = await self._writer.write((write,), deadline)
        self._count(result)
        if isinstance(result, GraphdError):
            raise result
        if result.outcome is Outcome.REFUSED:
            raise RefusedError(result.reason, _REFUSALS.get(result.reason, "the stored state does not allow it"))
        return codec.write_result(write, result)

    async def batch_write(self, request: pb.BatchWriteRequest, deadline: float) -> bytes:
        """Each item for itself."""
        checked = self._checker.batch(request.writes, self._cluster.topology, now_us())
        if any(isinstance(write, UnknownKindError) for write in checked) and await self._learn(deadline):
            checked = self._checker.batch(request.writes, self._cluster.topology, now_us())
        writes = [write for write in checked if not isinstance(write, GraphdError)]
        results = iter(await self._writer.write(writes, deadline) if writes else ())
        settled = [write if isinstance(write, GraphdError) else next(results) for write in checked]
        for result in settled:
            self._count(result)
        return codec.batch_bytes(request.writes, checked, settled)

    def _count(self, result: Result) -> None:
        outcomes = self._metrics.outcomes
        if isinstance(result, GraphdError):
            outcomes["FAILED"] = outcomes.get("FAILED", 0) + 1
            return
        name = result.outcome.name
        outcomes[name] = outcomes.get(name, 0) + 1
        self._metrics.reverse_pending += result.reverse_pending

    # -- reads ---------------------------------------------------------------------------------------------------------

    async def get_edge(self, request: pb.GetEdgeRequest, deadline: float) -> pb.GetEdgeResponse:
        """One edge."""
        if request.verify:
            raise NotOfferedError("verify")
        topology = self._cluster.topology
        key = codec.edge_key(request, topology)
        version = await self._reader.edge(key, deadline)
        if version is None:
            raise NotFoundError("no such edge was ever written")
        return pb.GetEdgeResponse(
            edge=codec.edge(key.source_id, key.destination_id, topology.kind(request.kind).name, version)
        )

    async def batch_get_edges(
        self, request: pb.BatchGetEdgesRequest, deadline: float
    ) -> pb.BatchGetEdgesResponse | bytes:
        """Many edges."""
        codec.batch_size("edges", len(request.edges))
        topology = self._cluster.topology
        keys = [codec.edge_key(asked, topology, f"edges[{i}].") for i, asked in enumerate(request.edges)]
        versions = await self._reader.edges(keys, deadline)
        kinds = {key.kind for key in keys}
        if len(kinds) == 1:
            return wire.edge_results(keys, versions, topology.kind(request.edges[0].kind).name)
        result = pb.BatchGetEdgesResponse.Result
        return pb.BatchGetEdgesResponse(
            results=[
                result(
                    found=True,
                    edge=codec.edge(key.source_id, key.destination_id, topology.kind(asked.kind).name, version),
                )
                if version is not None
                else result()
                for key, asked, version in zip(keys, request.edges, versions, strict=True)
            ]
        )

    async def list_followers(self, request: pb.ListFollowersRequest, deadline: float) -> bytes:
        """A page of those who follow the account."""
        return await self._list(request, Direction.REVERSE, deadline)

    async def list_following(self, request: pb.ListFollowingRequest, deadline: float) -> bytes:
        """A page of those whom the account follows."""
        return await self._list(request, Direction.FORWARD, deadline)

    async def _list(
        self, request: pb.ListFollowersRequest | pb.ListFollowingRequest, direction: Direction, deadline: float
    ) -> bytes:
        wanted = codec.list_of(request, direction, self._cluster.topology)
        page = await self._reader.page(wanted, codec.page_size(request.page_size), request.page_token, deadline)
        return codec.page_bytes(wanted, request.view, page)

    async def stream_followers(
        self, request: pb.StreamFollowersRequest, deadline: float, context: aio.ServicerContext[Any, Any]
    ) -> AsyncGenerator[pb.StreamFollowersResponse, None]:
        """All who follow the account, newest first, in chunks."""
        async with aclosing(self._chunks(request, Direction.REVERSE, deadline)) as chunks:
            async for ids, token in chunks:
                yield pb.StreamFollowersResponse(ids=ids, page_token=token)

    async def stream_following(
        self, request: pb.StreamFollowingRequest, deadline: float, context: aio.ServicerContext[Any, Any]
    ) -> AsyncGenerator[pb.StreamFollowingResponse, None]:
        """All whom the account follows, newest first, in chunks."""
        async with aclosing(self._chunks(request, Direction.FORWARD, deadline)) as chunks:
            async for ids, token in chunks:
                yield pb.StreamFollowingResponse(ids=ids, page_token=token)

    async def _chunks(
        self, request: pb.StreamFollowersRequest | pb.StreamFollowingRequest, direction: Direction, deadline: float
    ) -> AsyncGenerator[streams.Chunk, None]:
        wanted = ListOf(
            direction, codec.account_id(request), await self._kind(request.kind, deadline), State.ACTIVE, False
        )
        found = streams.chunks(self._reader, wanted, codec.chunk_size(request.chunk_size), request.page_token, deadline)
        async with aclosing(found) as read:
            async for chunk in read:
                yield chunk

    async def get_degrees(self, request: pb.GetDegreesRequest, deadline: float) -> pb.GetDegreesResponse:
        """Degrees of one account."""
        account_id = codec.account_id(request)
        [degrees] = await self._reader.degrees((account_id,), self._cluster.topology.kind(request.kind), deadline)
        return pb.GetDegreesResponse(
            followers=degrees.active(Direction.REVERSE),
            following=degrees.active(Direction.FORWARD),
            by_state=codec.by_state(degrees),
        )

    async def batch_get_degrees(
        self, request: pb.BatchGetDegreesRequest, deadline: float
    ) -> pb.BatchGetDegreesResponse:
        """Degrees of many accounts."""
        accounts = codec.account_ids(request.account_ids)
        found = await self._reader.degrees(accounts, self._cluster.topology.kind(request.kind), deadline)
        return pb.BatchGetDegreesResponse(
            results=[codec.degrees_message(account, degrees) for account, degrees in zip(accounts, found, strict=True)]
        )

    # -- accounts ------------------------------------------------------------------------------------------------------

    async def archive_account(
        self, request: pb.ArchiveAccountRequest, deadline: float, context: aio.ServicerContext[Any, Any]
    ) -> AsyncGenerator[pb.ArchiveAccountResponse, None]:
        """Suspend an account; its ACTIVE edges are archived."""
        async with aclosing(self._change(lifecycle.ARCHIVE, request, deadline)) as walk:
            async for done, total in walk:
                yield pb.ArchiveAccountResponse(done=done, total=total)

    async def restore_account(
        self, request: pb.RestoreAccountRequest, deadline: float, context: aio.ServicerContext[Any, Any]
    ) -> AsyncGenerator[pb.RestoreAccountResponse, None]:
        """End a suspension; the edges that it archived come back at their old places."""
        async with aclosing(self._change(lifecycle.RESTORE, request, deadline)) as walk:
            async for done, total in walk:
                yield pb.RestoreAccountResponse(done=done, total=total)

    async def remove_account(
        self, request: pb.RemoveAccountRequest, deadline: float, context: aio.ServicerContext[Any, Any]
    ) -> AsyncGenerator[pb.RemoveAccountResponse, None]:
        """Suspend an account and remove its edges, all but the BLOCKED ones."""
        async with aclosing(self._change(lifecycle.REMOVE, request, deadline)) as walk:
            async for done, total in walk:
                yield pb.RemoveAccountResponse(done=done, total=total)

    async def _change(
        self,
        change: lifecycle.Change,
        request: pb.ArchiveAccountRequest | pb.RestoreAccountRequest | pb.RemoveAccountRequest,
        deadline: float,
    ) -> AsyncGenerator[lifecycle.Progress, None]:
        account_id = codec.account_id(request)
        if request.kind:
            kinds = [await self._kind(request.kind, deadline)]
        else:
            kinds = sorted(self._cluster.topology.kinds.values(), key=lambda kind: kind.number)
        async with aclosing(self._lifecycle.change(change, account_id, kinds, deadline)) as walk:
            async for progress in walk:
                yield progress

    # -- changes -------------------------------------------------------------------------------------------------------

    async def watch_edges(
        self, request: pb.WatchEdgesRequest, deadline: float, context: aio.ServicerContext[Any, Any]
    ) -> AsyncGenerator[pb.WatchEdgesResponse, None]:
        """Changes from a token on, or from now on. Where it begins is told in the initial metadata, so that who has not seen an event yet
        can go on all the same."""
        kinds = sorted(
            {(await self._kind(name, deadline, f"kinds[{i}]")).number for i, name in enumerate(request.kinds)}
        )
        slots = codec.slots(request.slots, self._cluster.topology)
        scope = watch_scope(kinds, slots)
        after = await self._watcher.begin(scope, request.resume_token)
        await context.send_initial_metadata(((RESUME_METADATA, self._watcher.token(after, scope)),))
        async with aclosing(self._watcher.events(after, kinds, slots, scope)) as events:
            async for event, token in events:
                yield pb.WatchEdgesResponse(
                    edge=codec.edge(
                        event.source_id,
                        event.destination_id,
                        await self._kind_name(event.kind, deadline),
                        Version(event.position, event.state, event.since),
                    ),
                    previous_state=event.previous_state,  # type: ignore[arg-type]
                    resume_token=token,
                )

    async def intersect(self, request: pb.IntersectRequest, deadline: float) -> pb.IntersectResponse:
        """Ids that all operands hold."""
        page = await self._combine(request, SetOperation.INTERSECT, deadline)
        return pb.IntersectResponse(ids=page.ids, next_page_token=page.next_token, partial=page.partial)

    async def union(self, request: pb.UnionRequest, deadline: float) -> pb.UnionResponse:
        """Ids that any operand holds."""
        page = await self._combine(request, SetOperation.UNION, deadline)
        return pb.UnionResponse(ids=page.ids, next_page_token=page.next_token, partial=page.partial)

    async def difference(self, request: pb.DifferenceRequest, deadline: float) -> pb.DifferenceResponse:
        """Ids that the first operand holds and no other does."""
        page = await self._combine(request, SetOperation.DIFFERENCE, deadline)
        return pb.DifferenceResponse(ids=page.ids, next_page_token=page.next_token, partial=page.partial)

    async def _combine(self, request: codec.HasOperands, operation: SetOperation, deadline: float) -> SetPage:
        wanted = codec.combined(operation, request.operands, self._cluster.topology)
        scope = codec.set_scope(request, operation.value.encode(), request.operands)
        return await self._select(request, wanted, "operands", scope, deadline)

    async def select(self, request: pb.SelectRequest, deadline: float) -> pb.SelectResponse:
        """Ids that an expression holds."""
        wanted = codec.expression(request, self._cluster.topology)
        scope = codec.set_scope(request, b"select", (request.expression,))
        page = await self._select(request, wanted, "expression", scope, deadline)
        return pb.SelectResponse(ids=page.ids, next_page_token=page.next_token, partial=page.partial)

    async def _select(
        self, request: codec.HasSetPage, wanted: Expression, field: str, scope: bytes, deadline: float
    ) -> SetPage:
        first = codec.recency(request.order, wanted, field)
        size = codec.page_size(request.page_size)
        if first is None:
            return await self._sets.select(wanted, scope, size, request.page_token, deadline)
        return await self._sets.recent(first, wanted, scope, size, request.page_token, deadline)

    async def get_common_degree(
        self, request: pb.GetCommonDegreeRequest, deadline: float
    ) -> pb.GetCommonDegreeResponse:
        """How many ids all operands hold."""
        wanted = codec.combined(SetOperation.INTERSECT, request.operands, self._cluster.topology)
        return codec.common_degree(await self._sets.degree(wanted, codec.common_limit(request.limit), deadline))

    async def suggest(self, request: pb.SuggestRequest, deadline: float) -> pb.SuggestResponse:
        """Whom to follow."""
        kind = self._cluster.topology.kind(request.kind)
        found, sampled = await self._two_hop.suggest(
            codec.account_id(request), kind, codec.suggestions_wanted(request.k), deadline
        )
        return pb.SuggestResponse(
            suggestions=[
                pb.SuggestResponse.Suggestion(account_id=one.account_id, common_degree=one.common_degree)
                for one in found
            ],
            sampled=sampled,
        )

    async def distance(self, request: pb.DistanceRequest, deadline: float) -> pb.DistanceResponse:
        """How many follows lead from one account to another."""
        kind = self._cluster.topology.kind(request.kind)
        found = await self._two_hop.distance(codec.account_id(request), codec.other_id(request), kind, deadline)
        return pb.DistanceResponse(distance=found or 0, more=found is None)


def handler_of(
    service: Any, offered: dict[str, Call], wrapper: Wrapper, streams: Mapping[str, StreamCall] | None = None
) -> grpc.GenericRpcHandler:
    """The generic handler of a service: what is offered, and UNIMPLEMENTED with a sentence for the rest."""
    streams = streams or {}
    strangers = (offered.keys() | streams.keys()) - {method.name for method in service.methods}
    assert not strangers, f"not in the contract: {strangers}"

    def handler(method: Any) -> grpc.RpcMethodHandler[Any, Any]:
        if method.name in offered:
            return wrapper.unary(method.name, offered[method.name], _request_type(method))
        if method.name in streams:
            return wrapper.stream(method.name, streams[method.name], _request_type(method))
        return wrapper.not_offered(method.name, method)

    return grpc.method_handlers_generic_handler(
        service.full_name, {method.name: handler(method) for method in service.methods}
    )


def _request_type(method: Any) -> type[Message]:
    message: type[Message] = method.input_type._concrete_class
    return message
