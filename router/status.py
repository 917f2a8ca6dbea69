"""From error class to gRPC status: one table, total over graphd/errors.py (held to it by a test).

Details are google.rpc messages (google/rpc/error_details.proto), packed into the trailing metadata that every gRPC library reads as
the rich status.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from graphd import errors

DOMAIN: Final = "graphd"
DETAILS_KEY: Final = "grpc-status-details-bin"

CODES: Final[dict[type[errors.GraphdError], grpc.StatusCode]] = {
    errors.InvalidArgumentError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.OutOfRangeError: grpc.StatusCode.OUT_OF_RANGE,
    errors.NotFoundError: grpc.StatusCode.NOT_FOUND,
    errors.RefusedError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.RequestIdReusedError: grpc.StatusCode.ABORTED,
    errors.SupersededError: grpc.StatusCode.ABORTED,
    errors.OverloadedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.ShardUnavailableError: grpc.StatusCode.UNAVAILABLE,
    errors.CatalogUnavailableError: grpc.StatusCode.UNAVAILABLE,
    errors.StalePlacementError: grpc.StatusCode.UNAVAILABLE,
    errors.DeadlineError: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.NotOfferedError: grpc.StatusCode.UNIMPLEMENTED,
    errors.DrainingError: grpc.StatusCode.UNAVAILABLE,
    errors.BadItemError: grpc.StatusCode.INTERNAL,
}
"""Errors at start-up (StartError and below) never reach a caller."""


@dataclass(frozen=True, slots=True)
class Status:
    """What a caller is told. `metadata` carries the details."""

    code: grpc.StatusCode
    message: str
    metadata: tuple[tuple[str, bytes], ...] = ()


def code_of(error: errors.GraphdError) -> grpc.StatusCode:
    """The status code of an error, or of what it is a sort of; a class that is not in the table is a bug, hence INTERNAL."""
    return next((CODES[sort] for sort in type(error).__mro__ if sort in CODES), grpc.StatusCode.INTERNAL)


def status_of(error: errors.GraphdError) -> Status:
    """The whole status of an error."""
    code = code_of(error)
    message = str(error) if code is not grpc.StatusCode.INTERNAL else "internal error"
    details = _details(error)
    if not details:
        return Status(code, message)
    rich = status_pb2.Status(code=code.value[0], message=message)
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        rich.details.append(packed)
    return Status(code, message, ((DETAILS_KEY, rich.SerializeToString()),))


def _info(reason: str, **metadata: str) -> error_details_pb2.ErrorInfo:
    return error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN, metadata=metadata)


def _details(error: errors.GraphdError) -> list[Message]:
    match error:
        case errors.InvalidArgumentError(field=field, rule=rule):
            violation = error_details_pb2.BadRequest.FieldViolation(field=field, description=rule)
            return [error_details_pb2.BadRequest(field_violations=[violation])]
        case errors.RefusedError(reason=reason):
            return [_info(reason)]
        case errors.RequestIdReusedError():
            return [_info("REQUEST_ID_REUSED")]
        case errors.SupersededError(change=change):
            return [_info("SUPERSEDED", change=change)]
        case errors.OverloadedError(retry_after_s=retry_after_s):
            delay = duration_pb2.Duration()
            delay.FromTimedelta(timedelta(seconds=retry_after_s))
            return [_info("OVERLOADED"), error_details_pb2.RetryInfo(retry_delay=delay)]
        case errors.ShardUnavailableError(shard=shard, kept=kept):
            return [_info("SHARD_UNAVAILABLE", shard=shard, kept=str(kept).lower())]
        case errors.CatalogUnavailableError():
            return [_info("CATALOG_UNAVAILABLE")]
        case errors.StalePlacementError(slot=slot):
            return [_info("STALE_PLACEMENT", slot=str(slot))]
        case errors.DrainingError():
            return [_info("DRAINING")]
        case errors.DeadlineError(kept=kept):
            return [_info("DEADLINE", kept=str(kept).lower())]
        case _:
            return []
