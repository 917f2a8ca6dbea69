"""Every error graphd raises, in one tree.

A leaf says what happened, to which field or shard, and whether the same call may be tried again (`retryable`). The router maps
each leaf to one gRPC status (router/status.py, total by test); nothing below the router knows gRPC. No message holds SQL, a host
name, a password or a list of accounts.
"""

from __future__ import annotations

from typing import ClassVar


class GraphdError(Exception):
    """Root of the tree. `retryable`: the same call, unchanged, may succeed later."""

    retryable: ClassVar[bool] = False


class InvalidArgumentError(GraphdError):
    """A field breaks a rule whatever is stored."""

    def __init__(self, field: str, rule: str) -> None:
        super().__init__(f"{field}: {rule}")
        self.field = field
        self.rule = rule


class OutOfRangeError(InvalidArgumentError):
    """A field is well-formed, but outside what is taken now (a position ahead of the clock, or under the purge horizon)."""


class NotFoundError(GraphdError):
    """No row was ever written for the edge."""


class RefusedError(GraphdError):
    """The stored state does not allow the operation."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class RequestIdReusedError(GraphdError):
    """A request_id came again with other input."""

    def __init__(self) -> None:
        super().__init__("request_id: was used before by this account with other input; choose a new one")


class SupersededError(GraphdError):
    """Another change of the same account began while this one was under way."""

    def __init__(self, change: str) -> None:
        super().__init__(f"account_id: another call archives, restores or removes the account now; this {change} stops")
        self.change = change


class OverloadedError(GraphdError):
    """Work was shed before it began; nothing was written."""

    retryable = True

    def __init__(self, what: str, retry_after_s: float) -> None:
        super().__init__(f"{what}: too much work is waiting; try again later")
        self.retry_after_s = retry_after_s


class ShardUnavailableError(GraphdError):
    """The shard that must answer is down. `kept` tells whether a write may have been kept all the same."""

    retryable = True

    def __init__(self, shard: str, *, kept: bool = False, what: str = "is not reachable") -> None:
        tail = "; the write may have been kept: repeat it with the same request_id" if kept else ""
        super().__init__(f"shard {shard} {what}{tail}")
        self.shard = shard
        self.kept = kept


class CatalogUnavailableError(GraphdError):
    """The catalog is down and what was asked cannot be answered from memory."""

    retryable = True

    def __init__(self, what: str = "the catalog is not reachable") -> None:
        super().__init__(what)


class StalePlacementError(GraphdError):
    """The shard does not own the slot, and refreshing the topology did not lead to one that does in time."""

    retryable = True

    def __init__(self, slot: int) -> None:
        super().__init__(f"slot {slot} is being handed over; try again")
        self.slot = slot


class DeadlineError(GraphdError):
    """The caller's time ran out. `kept` as in ShardUnavailableError."""

    def __init__(self, *, kept: bool = False) -> None:
        tail = "; the write may have been kept: repeat it with the same request_id" if kept else ""
        super().__init__(f"the deadline passed{tail}")
        self.kept = kept


class NotOfferedError(GraphdError):
    """The call exists in the contract, but this release does not offer it."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is not offered by this release")


class DrainingError(GraphdError):
    """The router is ending, and ends the streams that would never end by themselves: go on at another one, with the last token."""

    retryable = True

    def __init__(self) -> None:
        super().__init__("the router is ending; go on at another one with the last resume_token")


class BadItemError(GraphdError):
    """The database refused one item for a reason no check foresaw: a bug, answered as INTERNAL."""

    def __init__(self, sqlstate: str) -> None:
        super().__init__(f"the store refused the item (sqlstate {sqlstate})")
        self.sqlstate = sqlstate


class StartError(GraphdError):
    """A process cannot start, and says what to change: the configuration, a server's settings, or its schema."""


class ConfigError(StartError):
    """The configuration is wrong."""


class SchemaError(StartError):
    """A database has a schema, a cluster or an incarnation that this process must not speak to."""


class ServerSettingsError(StartError):
    """A Postgres server is too old, or has a setting under which graphd would not be correct."""
