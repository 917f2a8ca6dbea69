"""Watching: every change of an edge, through passing failures."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any

import grpc
import structlog

from graphd.client import codec
from graphd.client.calls import Patience
from graphd.client.failures import Call, failure_of
from graphd.client.values import Change
from graphd.limits import RESUME_METADATA
from graphd.v1 import graph_pb2 as pb

log = structlog.get_logger()


async def watch(
    begin: Callable[[pb.WatchEdgesRequest], Any],
    request: pb.WatchEdgesRequest,
    target: str,
    patience: Callable[[], Patience],
) -> AsyncGenerator[Change, None]:
    """Changes after `request.resume_token`, without end. When the stream breaks for a passing reason it is begun again after the last
    change seen. Raises GraphdError for any other, and when no router takes it within the patience of one call."""
    waiting = patience()
    while True:
        call = begin(request)
        try:
            metadata = dict(await call.initial_metadata())
            request.resume_token = request.resume_token or str(metadata.get(RESUME_METADATA, ""))
            waiting = patience()
            async for answer in call:
                request.resume_token = answer.resume_token
                yield codec.change(answer)
        except grpc.aio.AioRpcError as status:
            failure = failure_of(status, Call("WatchEdges", target, writes=False))
            if not failure.repeated or not await waiting.pause(failure.retry_after_s):
                raise failure.error from status
            log.debug("watch.again", error=type(failure.error).__name__)
        finally:
            call.cancel()
