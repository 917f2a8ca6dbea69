"""WatchEdges: every change of an edge, in order per source, at least once.

Ids of events rise in the order of the changes of one edge, but are drawn before their transaction commits: a reader who went by ids
alone would pass over those that commit late. So nobody reads beyond a *horizon*: the last id drawn at some moment, once every transaction
that was under way at that moment has ended (DESIGN.md section 6 tells what else was tried). One horizon serves all who watch a shard.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Final, NamedTuple

import structlog

from graphd import cursor as tokens
from graphd.errors import DrainingError, GraphdError, OutOfRangeError
from graphd.storage.cluster import Cluster
from graphd.storage.events import Event, Events
from graphd.tasks import ends_here

log = structlog.get_logger()

POLL_S: Final = 0.05
SETTLE_S: Final = 0.01
RETRY_S: Final = 0.25
READ_IDS: Final = 2_000
"""Ids looked at in one read: what a watcher holds in memory at most."""

START_OVER: Final = (
    "is older than what is kept: watch without a token, and replay that over a `graphd export` taken after"
)


class Seen(NamedTuple):
    """An event, and the token to go on after it."""

    event: Event
    token: str


class _Horizon:
    """Up to where the events of one shard may be read; kept while somebody watches."""

    def __init__(self, shard: str, events: Events, changed: asyncio.Condition) -> None:
        self.events = events
        self.safe = 0
        self._shard, self._changed = shard, changed
        self._watchers = 0
        self._task: asyncio.Task[None] | None = None

    def watch(self) -> None:
        """One more watches."""
        self._watchers += 1
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"horizon-{self._shard}")

    def leave(self) -> None:
        """One less does."""
        self._watchers -= 1
        if not self._watchers and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        # Not for ever: its cancellation may be lost on the way, and another may have taken its place.
        while self._task is asyncio.current_task():
            try:
                await self._advance()
            except GraphdError as error:
                log.debug("horizon.waits", shard=self._shard, error=type(error).__name__)
                await asyncio.sleep(RETRY_S)
            except Exception as error:
                # A bug; without this those who watch would wait for ever and nobody would know.
                log.error("horizon.failed", shard=self._shard, error=type(error).__name__, exc_info=error)
                await asyncio.sleep(RETRY_S)
            await asyncio.sleep(POLL_S)

    async def _advance(self) -> None:
        last = await self.events.last()
        if last <= self.safe:
            return
        mark = await self.events.mark()
        # Nobody tells when another's transaction ends.
        while await self.events.oldest_running() < mark:  # noqa: ASYNC110
            await asyncio.sleep(SETTLE_S)
        self.safe = last
        async with self._changed:
            self._changed.notify_all()


class Watcher:
    """Serves those who watch."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._changed = asyncio.Condition()
        self._horizons: dict[str, _Horizon] = {}
        self._is_closing = False

    async def close(self) -> None:
        """End all streams: they would never end by themselves."""
        self._is_closing = True
        async with self._changed:
            self._changed.notify_all()

    async def begin(self, scope: bytes, token: str) -> dict[str, int]:
        """Where to go on in each shard: after a token, or from now on. Raises InvalidArgumentError for a token of another question,
        OutOfRangeError for one that is too old, and ShardUnavailableError."""
        shards = self._cluster.shards
        if not token:
            names = list(shards)
            found = await asyncio.gather(*(self._horizon(name).events.last() for name in names))
            return dict(zip(names, found, strict=True))
        known = {shard.identity.incarnation: name for name, shard in shards.items()}
        after = tokens.decode_marks(token, scope, self._cluster.token_key)
        if after.keys() - known.keys():
            # A shard was rebuilt: its ids began anew.
            raise OutOfRangeError("resume_token", START_OVER)
        # A shard that was added later was empty when the token was made.
        return {name: after.get(incarnation, 0) for incarnation, name in known.items()}

    def token(self, after: dict[str, int], scope: bytes) -> str:
        """The token that goes on after these ids."""
        marks = {self._cluster.shards[name].identity.incarnation: at for name, at in after.items()}
        return tokens.encode_marks(marks, scope, self._cluster.token_key)

    async def events(
        self, after: dict[str, int], kinds: Sequence[int], slots: Sequence[int], scope: bytes
    ) -> AsyncGenerator[Seen, None]:
        """Events after `after`, without end; nothing is read ahead of the caller but one range of ids of one shard. A shard that is away is
        waited for. Raises OutOfRangeError when what comes next is not kept any more."""
        horizons = {name: self._horizon(name) for name in after}
        for horizon in horizons.values():
            horizon.watch()
        try:
            while True:
                ends_here()
                if self._is_closing:
                    raise DrainingError
                moved = False
                for name, horizon in horizons.items():
                    if horizon.safe <= after[name]:
                        continue
                    upto = min(horizon.safe, after[name] + READ_IDS)
                    try:
                        found, floor = await horizon.events.read(after[name], upto, kinds, slots)
                    except GraphdError as error:
                        log.debug("watch.waits", shard=name, error=type(error).__name__)
                        continue
                    if floor > after[name]:
                        raise OutOfRangeError("resume_token", START_OVER)
                    moved = True
                    for event in found:
                        if self._is_closing:
                            raise DrainingError
                        after[name] = event.id
                        yield Seen(event, self.token(after, scope))
                    after[name] = upto
                if not moved:
                    await self._pause(horizons, after)
        finally:
            for horizon in horizons.values():
                horizon.leave()

    async def _pause(self, horizons: dict[str, _Horizon], after: dict[str, int]) -> None:
        """Until a horizon has moved; a little at the least, for a shard whose horizon is known and which does not answer."""
        if any(horizon.safe > after[name] for name, horizon in horizons.items()):
            await asyncio.sleep(RETRY_S)
            return
        async with self._changed:
            await self._changed.wait_for(
                lambda: self._is_closing or any(horizon.safe > after[name] for name, horizon in horizons.items())
            )

    def _horizon(self, name: str) -> _Horizon:
        horizon = self._horizons.get(name)
        if horizon is None:
            events = Events(self._cluster.shards[name])
            horizon = self._horizons[name] = _Horizon(name, events, self._changed)
        return horizon
