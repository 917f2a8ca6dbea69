"""The table from error to status is total, and its details are what callers are promised."""

from __future__ import annotations

import inspect

import grpc
import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from graphd import errors
from router.status import CODES, DETAILS_KEY, code_of, status_of


def leaves(of: type[errors.GraphdError]) -> set[type[errors.GraphdError]]:
    """Classes that are raised: all but the root, and all below StartError left out."""
    found = set()
    for child in of.__subclasses__():
        if child.__module__ == errors.__name__ and not issubclass(child, errors.StartError):
            found |= {child} | leaves(child)
    return found


EXAMPLES: dict[errors.GraphdError, tuple[grpc.StatusCode, bool]] = {
    errors.InvalidArgumentError("source_id", "must be given"): (grpc.StatusCode.INVALID_ARGUMENT, False),
    errors.OutOfRangeError("position", "must be 1 or more"): (grpc.StatusCode.OUT_OF_RANGE, False),
    errors.NotFoundError("no such edge"): (grpc.StatusCode.NOT_FOUND, False),
    errors.RefusedError("BLOCKED", "blocked"): (grpc.StatusCode.FAILED_PRECONDITION, False),
    errors.RequestIdReusedError(): (grpc.StatusCode.ABORTED, False),
    errors.SupersededError("ArchiveAccount"): (grpc.StatusCode.ABORTED, False),
    errors.OverloadedError("shard s1", 0.25): (grpc.StatusCode.RESOURCE_EXHAUSTED, True),
    errors.ShardUnavailableError("s1", kept=True): (grpc.StatusCode.UNAVAILABLE, True),
    errors.CatalogUnavailableError(): (grpc.StatusCode.UNAVAILABLE, True),
    errors.StalePlacementError(3): (grpc.StatusCode.UNAVAILABLE, True),
    errors.DeadlineError(kept=True): (grpc.StatusCode.DEADLINE_EXCEEDED, False),
    errors.DrainingError(): (grpc.StatusCode.UNAVAILABLE, True),
    errors.NotOfferedError("Union"): (grpc.StatusCode.UNIMPLEMENTED, False),
    errors.BadItemError("22003"): (grpc.StatusCode.INTERNAL, False),
}


def details(error: errors.GraphdError) -> list[Message]:
    """The unpacked details of an error's status."""
    found: list[Message] = []
    for key, value in status_of(error).metadata:
        assert key == DETAILS_KEY
        rich = status_pb2.Status.FromString(value)
        assert rich.code == code_of(error).value[0]
        for packed in rich.details:
            for kind in (error_details_pb2.BadRequest, error_details_pb2.ErrorInfo, error_details_pb2.RetryInfo):
                message = kind()
                if packed.Unpack(message):
                    found.append(message)
    return found


def test_table_is_total() -> None:
    assert set(CODES) == leaves(errors.GraphdError)
    assert {type(error) for error in EXAMPLES} == set(CODES)
    assert inspect.isclass(errors.StartError)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_code_and_retryable(error: errors.GraphdError) -> None:
    code, retryable = EXAMPLES[error]
    assert status_of(error).code is code_of(error) is code
    assert error.retryable is retryable


def test_unknown_class_is_internal_and_says_nothing() -> None:
    class LocalError(errors.GraphdError):
        pass

    for error in (LocalError("SELECT secret"), errors.BadItemError("22003")):
        status = status_of(error)
        assert (status.code, status.message, status.metadata) == (grpc.StatusCode.INTERNAL, "internal error", ())


@pytest.mark.parametrize("kind", [errors.InvalidArgumentError, errors.OutOfRangeError])
def test_bad_request_names_the_field(kind: type[errors.InvalidArgumentError]) -> None:
    [found] = details(kind("writes[3].position", "must be 1 or more"))
    assert isinstance(found, error_details_pb2.BadRequest)
    [violation] = found.field_violations
    assert (violation.field, violation.description) == ("writes[3].position", "must be 1 or more")


@pytest.mark.parametrize(
    ("error", "reason", "metadata"),
    [
        (errors.RefusedError("NOT_PENDING", "x"), "NOT_PENDING", {}),
        (errors.RequestIdReusedError(), "REQUEST_ID_REUSED", {}),
        (errors.ShardUnavailableError("s1"), "SHARD_UNAVAILABLE", {"shard": "s1", "kept": "false"}),
        (errors.ShardUnavailableError("s1", kept=True), "SHARD_UNAVAILABLE", {"shard": "s1", "kept": "true"}),
        (errors.CatalogUnavailableError(), "CATALOG_UNAVAILABLE", {}),
        (errors.DrainingError(), "DRAINING", {}),
        (errors.StalePlacementError(3), "STALE_PLACEMENT", {"slot": "3"}),
        (errors.DeadlineError(kept=True), "DEADLINE", {"kept": "true"}),
    ],
)
def test_error_info(error: errors.GraphdError, reason: str, metadata: dict[str, str]) -> None:
    [found] = details(error)
    assert isinstance(found, error_details_pb2.ErrorInfo)
    assert (found.reason, found.domain, dict(found.metadata)) == (reason, "graphd", metadata)


@pytest.mark.parametrize("retry_after_s", [0.25, 1.0, 2.5])
def test_retry_info(retry_after_s: float) -> None:
    info, retry = details(errors.OverloadedError("shard s1", retry_after_s))
    assert isinstance(info, error_details_pb2.ErrorInfo)
    assert isinstance(retry, error_details_pb2.RetryInfo)
    assert retry.retry_delay.ToTimedelta().total_seconds() == retry_after_s
    # The parts are valid on the wire: nanos stay below a second.
    assert 0 <= retry.retry_delay.nanos < 1_000_000_000
