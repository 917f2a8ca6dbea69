"""From gRPC status to error: the way back of router/status.py, total over the status codes.

The details lie in the trailing metadata `grpc-status-details-bin` (google.rpc.Status). A status without our details came from no
router of ours: from gRPC itself, or from a proxy on the way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from graphd import errors

_DETAILS_KEY: Final = "grpc-status-details-bin"
_DOMAIN: Final = "graphd"

_REPEATED: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        # A server that ends its calls as it goes; a call that we cancel ourselves raises CancelledError and never comes here.
        grpc.StatusCode.CANCELLED,
    }
)


class RouterUnavailableError(errors.GraphdError):
    """No router answers, or the connection to it broke. `kept` as in ShardUnavailableError."""

    retryable = True

    def __init__(self, target: str, *, kept: bool = False) -> None:
        tail = "; the write may have been kept: repeat it with the same request_id" if kept else ""
        super().__init__(f"no router answers at {target}{tail}")
        self.target = target
        self.kept = kept


class UnexpectedStatusError(errors.GraphdError):
    """A status that no rule of ours gives, such as INTERNAL: a bug, or something between us and the router. `code`: its name."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}" if message else code)
        self.code = code


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed attempt: what to raise if it was the last, whether to try again, and how long the router asks to wait."""

    error: errors.GraphdError
    repeated: bool
    retry_after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Call:
    """What is known of a call beforehand: the name of its RPC, where it goes, and whether it writes."""

    rpc: str
    target: str
    writes: bool


@dataclass(frozen=True, slots=True)
class _Details:
    field: str | None = None
    rule: str = ""
    reason: str = ""
    metadata: Mapping[str, str] | None = None
    retry_after_s: float | None = None


def failure_of(status: grpc.aio.AioRpcError, call: Call) -> Failure:
    """What a failed attempt means."""
    details = _details_of(status)
    overloaded = status.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and details.retry_after_s is not None
    repeated = status.code() in _REPEATED or overloaded
    return Failure(_error_of(status, details, call), repeated, details.retry_after_s or 0.0)


def _error_of(status: grpc.aio.AioRpcError, details: _Details, call: Call) -> errors.GraphdError:
    code, text = status.code(), status.details() or ""
    metadata = details.metadata or {}
    # Unless the router says otherwise: nobody knows what became of a write whose answer is lost.
    kept = metadata.get("kept", "true") == "true" and call.writes
    match code, details.reason:
        case grpc.StatusCode.INVALID_ARGUMENT, _ if details.field is not None:
            return errors.InvalidArgumentError(details.field, details.rule)
        case grpc.StatusCode.OUT_OF_RANGE, _ if details.field is not None:
            return errors.OutOfRangeError(details.field, details.rule)
        case grpc.StatusCode.NOT_FOUND, _:
            return errors.NotFoundError(text)
        case grpc.StatusCode.FAILED_PRECONDITION, reason if reason:
            return errors.RefusedError(reason, text)
        case grpc.StatusCode.ABORTED, "SUPERSEDED":
            return errors.SupersededError(metadata.get("change", call.rpc))
        case grpc.StatusCode.ABORTED, _:
            return errors.RequestIdReusedError()
        case grpc.StatusCode.RESOURCE_EXHAUSTED, _ if details.retry_after_s is not None:
            return errors.OverloadedError(text.partition(":")[0] or "the router", details.retry_after_s)
        case grpc.StatusCode.UNAVAILABLE, "SHARD_UNAVAILABLE":
            return errors.ShardUnavailableError(metadata.get("shard", "?"), kept=kept)
        case grpc.StatusCode.UNAVAILABLE, "CATALOG_UNAVAILABLE":
            return errors.CatalogUnavailableError(text)
        case grpc.StatusCode.UNAVAILABLE, "STALE_PLACEMENT" if metadata.get("slot", "").isdecimal():
            return errors.StalePlacementError(int(metadata["slot"]))
        case grpc.StatusCode.UNAVAILABLE, "DRAINING":
            return errors.DrainingError()
        case ((grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.CANCELLED), _):
            return RouterUnavailableError(call.target, kept=kept)
        case grpc.StatusCode.DEADLINE_EXCEEDED, _:
            return errors.DeadlineError(kept=kept)
        case grpc.StatusCode.UNIMPLEMENTED, _:
            what, ours, _ = text.partition(" is not offered")
            return errors.NotOfferedError(what if ours else call.rpc)
        case _:
            return UnexpectedStatusError(code.name, text)


def _details_of(status: grpc.aio.AioRpcError) -> _Details:
    packed = next((value for key, value in status.trailing_metadata() or () if key == _DETAILS_KEY), None)
    if not isinstance(packed, bytes):
        return _Details()
    try:
        rich = status_pb2.Status.FromString(packed)
        return _unpacked(rich)
    except DecodeError:
        # Not ours: the code and the text of the status still tell what there is to tell.
        return _Details()


def _unpacked(rich: status_pb2.Status) -> _Details:
    field, rule, reason, metadata, retry_after_s = None, "", "", None, None
    bad, info, retry = error_details_pb2.BadRequest(), error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    for detail in rich.details:
        if detail.Unpack(bad) and bad.field_violations:
            field, rule = bad.field_violations[0].field, bad.field_violations[0].description
        elif detail.Unpack(info) and info.domain == _DOMAIN:
            reason, metadata = info.reason, dict(info.metadata)
        elif detail.Unpack(retry):
            retry_after_s = max(0.0, retry.retry_delay.ToTimedelta().total_seconds())
    return _Details(field, rule, reason, metadata, retry_after_s)
