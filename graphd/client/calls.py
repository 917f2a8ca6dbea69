"""One channel, and calls on it that are repeated as long as that helps and harms nobody.

Deadlines are handed to gRPC as `timeout=` of each attempt, never by a service config, under which they fire early (grpc issue 40633).
Pauses are exponential with full jitter (Brooker, "Exponential Backoff And Jitter", 2015), and all repetitions of a client draw on
one budget, a share of its calls (as Finagle's RetryBudget has it): where everything fails, the load rises by a tenth and not by
the number of attempts that fit into a deadline.
"""

from __future__ import annotations

import asyncio
import math
import random
import socket
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar

import grpc
import structlog
from google.protobuf.message import Message

from graphd.client.failures import Call, RouterUnavailableError, failure_of
from graphd.errors import DeadlineError
from graphd.limits import DEFAULT_DEADLINE_S

log = structlog.get_logger()

Request = TypeVar("Request", contravariant=True)
Response = TypeVar("Response", covariant=True)
_Req = TypeVar("_Req", bound=Message)
_Res = TypeVar("_Res")

ATTEMPT_TIMEOUT_S: Final = 3.0
"""A call that has heard nothing for so long tries another connection."""

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 1.0
"""So that what comes back after an outage is used within a second."""

_OPTIONS: Final[tuple[tuple[str, Any], ...]] = (
    # Paired with the router, which allows a ping every 10 s: more would be answered with GOAWAY too_many_pings.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # A router that starts again is found within a second, not within gRPC's two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # A connection of its own, or several clients of a process would all sit on one worker.
    ("grpc.use_local_subchannel_pool", 1),
    # All addresses at once: a router that drains is left for the others without a failed call.
    ("grpc.service_config", '{"loadBalancingConfig": [{"round_robin": {}}]}'),
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.enable_http_proxy", 0),
)


class Method(Protocol[Request, Response]):
    """A unary method of a stub."""

    def __call__(
        self, request: Request, *, timeout: float | None = None, wait_for_ready: bool | None = None
    ) -> Awaitable[Response]: ...


class RetryBudget:
    """How many repetitions a client may make: `reserve` and a `share` of its calls, both over the last `window_s` or so.

    Old calls and repetitions fade with that time constant. Time is an argument, in seconds of any clock that does not step.
    """

    __slots__ = ("_calls", "_last_s", "_repeats", "reserve", "share", "window_s")

    def __init__(self, share: float = 0.1, reserve: int = 32, window_s: float = 10.0) -> None:
        self.share, self.reserve, self.window_s = share, reserve, window_s
        self._calls = self._repeats = 0.0
        self._last_s = -math.inf

    def count(self, now_s: float) -> None:
        """A call begins."""
        self._fade(now_s)
        self._calls += 1

    def take(self, now_s: float) -> bool:
        """Whether there may be one more repetition."""
        self._fade(now_s)
        if self._repeats + 1 > self.reserve + self.share * self._calls:
            return False
        self._repeats += 1
        return True

    def _fade(self, now_s: float) -> None:
        factor = math.exp(min(0.0, self._last_s - now_s) / self.window_s)
        self._calls *= factor
        self._repeats *= factor
        self._last_s = max(self._last_s, now_s)


class Patience:
    """What one logical call has left: its time, and its say in the budget."""

    def __init__(self, deadline_s: float, attempt_timeout_s: float, budget: RetryBudget) -> None:
        if not deadline_s > 0:
            raise ValueError("deadline_s must be above 0")
        self._clock = asyncio.get_running_loop().time
        self._end_s = self._clock() + deadline_s
        self._attempt_timeout_s, self._budget = attempt_timeout_s, budget
        self._pauses = 0
        budget.count(self._clock())

    def timeout_s(self, *, connected: bool) -> float:
        """For the next attempt. Waiting for a connection loads nobody, so it may take all the time there is."""
        left_s = max(0.001, self._end_s - self._clock())
        return min(self._attempt_timeout_s, left_s) if connected else left_s

    async def pause(self, at_least_s: float = 0.0) -> bool:
        """Wait before another attempt. False, at once, when time or budget do not allow for one."""
        ceiling_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**self._pauses)
        delay_s = at_least_s + random.random() * ceiling_s  # noqa: S311 - it spreads callers, and guards nothing
        if self._clock() + delay_s >= self._end_s or not self._budget.take(self._clock()):
            return False
        self._pauses += 1
        await asyncio.sleep(delay_s)
        return True


class Connection(ABC):
    """What Client and AdminClient share: a channel to the routers, opened in the event loop that uses it.

    `target` is host:port, any other target of gRPC (a name with several addresses is spread over all of them), or a list of
    host:port. `deadline_s` bounds a call with all its repetitions, and may be given to each call; `attempt_timeout_s` bounds one
    attempt. `server_name` is the name in the routers' certificate where it is not the host's. Every call raises leaves of
    GraphdError: what the router said, or RouterUnavailableError.
    """

    def __init__(
        self,
        target: str | Sequence[str],
        *,
        credentials: grpc.ChannelCredentials | None = None,
        server_name: str | None = None,
        deadline_s: float = DEFAULT_DEADLINE_S,
        attempt_timeout_s: float = ATTEMPT_TIMEOUT_S,
        budget: RetryBudget | None = None,
    ) -> None:
        self._targets = (target,) if isinstance(target, str) else tuple(target)
        if not self._targets:
            raise ValueError("target: must name at least one router")
        self._credentials, self._server_name = credentials, server_name
        self._deadline_s, self._attempt_timeout_s = deadline_s, attempt_timeout_s
        self._budget = budget or RetryBudget()
        self._channel: grpc.aio.Channel | None = None

    @property
    def target(self) -> str:
        """The addresses, for people."""
        return ", ".join(self._targets)

    async def __aenter__(self) -> Self:
        options = list(_OPTIONS)
        if self._server_name is not None:
            options.append(("grpc.ssl_target_name_override", self._server_name))
        target = self._targets[0] if len(self._targets) == 1 else await _joined(self._targets)
        if self._credentials is None:
            self._channel = grpc.aio.insecure_channel(target, options=options)
        else:
            self._channel = grpc.aio.secure_channel(target, self._credentials, options=options)
        self._bind(self._channel)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the connections; calls under way are cancelled."""
        if self._channel is not None:
            await self._channel.close()
            self._channel = None

    @abstractmethod
    def _bind(self, channel: grpc.aio.Channel) -> None:
        """Make the stub."""

    async def wait_ready(self, timeout_s: float = DEFAULT_DEADLINE_S) -> None:
        """Return as soon as a router is connected. Calls do this by themselves. Raises RouterUnavailableError."""
        assert self._channel is not None, "the client is not open"
        try:
            async with asyncio.timeout(timeout_s):
                await self._channel.channel_ready()
        except TimeoutError:
            raise RouterUnavailableError(self.target) from None

    def _patience(self, deadline_s: float | None) -> Patience:
        """For one logical call; None is the client's deadline."""
        return Patience(self._deadline_s if deadline_s is None else deadline_s, self._attempt_timeout_s, self._budget)

    async def _unary(
        self, method: Method[_Req, _Res], request: _Req, deadline_s: float | None, *, writes: bool = False
    ) -> _Res:
        """Call, and repeat while it fails for a passing reason. Raises GraphdError."""
        return await self._patient(method, request, self._patience(deadline_s), writes=writes)

    async def _patient(
        self, method: Method[_Req, _Res], request: _Req, patience: Patience, *, writes: bool = False
    ) -> _Res:
        """As `_unary`, as part of a call that has more to do."""
        call = Call(request.DESCRIPTOR.name.removesuffix("Request"), self.target, writes)
        while True:
            try:
                timeout_s = patience.timeout_s(connected=self._is_connected())
                return await method(request, timeout=timeout_s, wait_for_ready=True)
            except grpc.aio.AioRpcError as status:
                failure = failure_of(status, call)
                if failure.repeated and await patience.pause(failure.retry_after_s):
                    continue
                if isinstance(failure.error, DeadlineError) and not self._is_connected():
                    raise RouterUnavailableError(self.target, kept=failure.error.kept) from status
                raise failure.error from status

    def _is_connected(self) -> bool:
        channel = self._channel
        return channel is not None and channel.get_state() is grpc.ChannelConnectivity.READY


async def _joined(targets: Sequence[str]) -> str:
    """Several host:port as one target of gRPC, which takes no names there and addresses of one family only.

    Names are resolved once. A name that is not found is left out, unless all are.
    """
    loop = asyncio.get_running_loop()
    found: dict[tuple[str, int], None] = {}
    for target in targets:
        host, _, port = target.rpartition(":")
        if not host or not port.isdecimal():
            raise ValueError(f"target: {target!r} is not host:port")
        try:
            infos = await loop.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            log.warning("client.unknown_host", target=target, error=error.strerror)
            continue
        found |= dict.fromkeys((str(address[0]), int(port)) for *_, address in infos)
    if not found:
        raise RouterUnavailableError(", ".join(targets))
    if all(":" not in host for host, _ in found):
        return "ipv4:" + ",".join(f"{host}:{port}" for host, port in found)
    return "ipv6:" + ",".join(f"[{host if ':' in host else '::ffff:' + host}]:{port}" for host, port in found)
