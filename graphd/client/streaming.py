"""Streams that go on by themselves: begun again after the last answer seen when they break for a passing reason."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeVar

import grpc
import structlog

from graphd.client import codec
from graphd.client.calls import Patience
from graphd.client.failures import Call, failure_of
from graphd.client.values import Change, Chunk, Progress
from graphd.limits import RESUME_METADATA
from graphd.v1 import graph_pb2 as pb

log = structlog.get_logger()

T = TypeVar("T")
Begin = Callable[[Any], Any]
"""Opens the stream of a request."""


async def _resumed(
    call: Call,
    begin: Begin,
    request: Any,
    began: Callable[[dict[str, Any]], None],
    advance: Callable[[Any], T],
    patience: Callable[[], Patience],
) -> AsyncGenerator[T, None]:
    """Every answer as `advance` makes it, which also puts the place after it into `request`. Raises GraphdError when the stream breaks for
    good, and when no router takes it within the patience of one call."""
    waiting = patience()
    while True:
        stream = begin(request)
        try:
            began(dict(await stream.initial_metadata()))
            async for answer in stream:
                waiting = patience()
                yield advance(answer)
            return
        except grpc.aio.AioRpcError as status:
            failure = failure_of(status, call)
            if not failure.repeated or not await waiting.pause(failure.retry_after_s):
                raise failure.error from status
            log.debug("stream.again", rpc=call.rpc, error=type(failure.error).__name__)
        finally:
            stream.cancel()


def watch(
    begin: Begin, request: pb.WatchEdgesRequest, target: str, patience: Callable[[], Patience]
) -> AsyncGenerator[Change, None]:
    """Changes after `request.resume_token`, without end."""

    def began(metadata: dict[str, Any]) -> None:
        request.resume_token = request.resume_token or str(metadata.get(RESUME_METADATA, ""))

    def advance(answer: pb.WatchEdgesResponse) -> Change:
        request.resume_token = answer.resume_token
        return codec.change(answer)

    return _resumed(Call("WatchEdges", target, writes=False), begin, request, began, advance, patience)


def chunks(
    begin: Begin,
    request: pb.StreamFollowersRequest | pb.StreamFollowingRequest,
    target: str,
    patience: Callable[[], Patience],
) -> AsyncGenerator[Chunk, None]:
    """Chunks after `request.page_token`, to the end of the list."""

    def advance(answer: pb.StreamFollowersResponse | pb.StreamFollowingResponse) -> Chunk:
        request.page_token = answer.page_token
        return Chunk(tuple(answer.ids), answer.page_token)

    rpc = request.DESCRIPTOR.name.removesuffix("Request")
    return _resumed(Call(rpc, target, writes=False), begin, request, lambda _: None, advance, patience)


def progress(
    begin: Begin,
    request: pb.ArchiveAccountRequest | pb.RestoreAccountRequest | pb.RemoveAccountRequest,
    target: str,
    patience: Callable[[], Patience],
) -> AsyncGenerator[Progress, None]:
    """Progress to the end. Begun again the call goes on where it broke, and counts what is left from nothing."""
    before = last = 0

    def began(_: dict[str, Any]) -> None:
        nonlocal before
        before = last

    def advance(
        answer: pb.ArchiveAccountResponse | pb.RestoreAccountResponse | pb.RemoveAccountResponse,
    ) -> Progress:
        nonlocal last
        last = before + answer.done
        return Progress(last, before + answer.total)

    rpc = request.DESCRIPTOR.name.removesuffix("Request")
    return _resumed(Call(rpc, target, writes=True), begin, request, began, advance, patience)
