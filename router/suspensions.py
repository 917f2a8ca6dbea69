"""Which accounts are known to be suspended, so that what would lead to them can be refused at once.

Every shard is asked for what is new, every other second. What is not known here yet is settled by the reverse half, and what is known
is confirmed before anything is refused for it: so being late costs a write that is archived a moment later, and never a wrong answer.
About 70 bytes are kept for each suspended account.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from graphd.errors import GraphdError
from graphd.storage.cluster import Cluster
from graphd.storage.suspensions import News, Suspensions
from graphd.tasks import end_all, ends_here

log = structlog.get_logger()

POLL_S: Final = 2.0
"""A question costs as much as a few calls."""

OVERLAP_US: Final = 30_000_000
"""Generations are drawn before they are committed: what is younger than this is asked for again."""

ROWS: Final = 10_000
_KIND_BITS: Final = 15


class KnownSuspensions:
    """A set of (account, kind), kept up to date by a task for each shard. Single-threaded: one per event loop."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: set[int] = set()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Ask the shards, from now on."""
        self._tasks = [
            asyncio.create_task(self._follow(Suspensions(shard), name)) for name, shard in self._cluster.shards.items()
        ]

    async def close(self) -> None:
        """Stop asking."""
        await end_all(self._tasks)

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, key: tuple[int, int]) -> bool:
        """Whether (account, kind) is suspended, as far as is known here."""
        account_id, kind = key
        return bool(self._known) and (account_id << _KIND_BITS | kind) in self._known

    def learn(self, account_id: int, kind: int, *, suspended: bool) -> None:
        """It is so now."""
        if suspended:
            self._known.add(account_id << _KIND_BITS | kind)
        else:
            self._known.discard(account_id << _KIND_BITS | kind)

    async def _follow(self, suspensions: Suspensions, shard: str) -> None:
        after, told = -1, frozenset[News]()
        while True:
            ends_here()
            more = False
            try:
                now_us, news = await suspensions.news(after, ROWS)
            except GraphdError as error:
                log.debug("suspensions.waits", shard=shard, error=type(error).__name__)
            else:
                more = len(news) == ROWS
                for one in news:
                    # What was told before may have been found out of date meanwhile.
                    if one not in told:
                        self.learn(one.account_id, one.kind, suspended=one.suspended)
                told = frozenset(one for one in news if one.generation > now_us - OVERLAP_US)
                last = news[-1].generation if news else after
                after = last if more else max(after, min(last, now_us - OVERLAP_US))
            if not more:
                await asyncio.sleep(POLL_S)
