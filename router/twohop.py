"""Questions two and three steps away: whom to suggest, and how far one account is from another. Bounded: of lists that are too long the
newest part is looked at, and the answer says so."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from graphd.edge import Direction, Key, State
from graphd.setops import Ids, descending, without
from graphd.storage.cluster import Cluster
from graphd.topology import Kind
from router.expressions import ListIds, Node, SetOperation
from router.reads import ListOf, Reader, all_of
from router.setreads import SetReader

SUGGEST_LISTS: Final = 200
"""Of the accounts followed, so many of the newest are asked whom they follow."""

SUGGEST_ROWS: Final = 500
"""And of each of them so many of the newest."""

SUGGEST_CHECKED: Final = 500
"""Candidates looked at in one round, for what stands between them and the account."""

DISTANCE_LISTS: Final = 1_000
DISTANCE_ROWS: Final = 500


class Suggestion(NamedTuple):
    """An account, and how many of those looked at follow it."""

    account_id: int
    common_degree: int


class TwoHop:
    """Reads in rounds: one for each step away, however many lists there are in it."""

    def __init__(self, cluster: Cluster, reader: Reader, sets: SetReader) -> None:
        self._cluster, self._reader, self._sets = cluster, reader, sets

    async def suggest(self, account_id: int, kind: Kind, k: int, deadline: float) -> tuple[list[Suggestion], bool]:
        """The k accounts that most of those followed follow, of equals the higher id first: without the account itself, whom it follows or
        has asked to follow, and without blocks either way. And whether only a part was looked at."""
        followed, is_cut = await self._following([account_id], kind, SUGGEST_LISTS, deadline)
        lists = followed[0]
        found, is_cut_too = await self._following(lists.tolist(), kind, SUGGEST_ROWS, deadline)
        if not found:
            return [], is_cut
        candidates, counts = np.unique(np.concatenate(found), return_counts=True)
        order = np.lexsort((candidates, counts))[::-1]
        suggestions: list[Suggestion] = []
        for at in range(0, len(order), SUGGEST_CHECKED):
            chosen = order[at : at + SUGGEST_CHECKED]
            some = [
                Suggestion(account, count)
                for account, count in zip(candidates[chosen].tolist(), counts[chosen].tolist(), strict=True)
                if account != account_id
            ]
            suggestions += await self._allowed(account_id, kind, some, deadline)
            if len(suggestions) >= k:
                break
        return suggestions[:k], is_cut or is_cut_too

    async def _allowed(self, account_id: int, kind: Kind, some: list[Suggestion], deadline: float) -> list[Suggestion]:
        if not some:
            return []
        out = [Key(kind.number, account_id, one.account_id) for one in some]
        back = [Key(kind.number, one.account_id, account_id) for one in some]
        versions = await self._reader.edges([*out, *back], deadline)
        taken = {State.ACTIVE, State.PENDING, State.BLOCKED}
        return [
            one
            for one, mine, theirs in zip(some, versions[: len(some)], versions[len(some) :], strict=True)
            if (mine is None or mine.state not in taken) and (theirs is None or theirs.state != State.BLOCKED)
        ]

    async def distance(self, account_id: int, other_id: int, kind: Kind, deadline: float) -> int | None:
        """0 for the account itself, 1, 2 or 3 along ACTIVE edges; None where it is farther, or where no way was found among the newest part
        of lists that are too long."""
        if account_id == other_id:
            return 0
        version = (await self._reader.edges([Key(kind.number, account_id, other_id)], deadline))[0]
        if version is not None and version.state == State.ACTIVE:
            return 1
        following = ListIds(Direction.FORWARD, account_id, kind, State.ACTIVE)
        followers = ListIds(Direction.REVERSE, other_id, kind, State.ACTIVE)
        between = Node(SetOperation.INTERSECT, (following, followers))
        if (await self._sets.degree(between, 1, deadline)).degree:
            return 2
        first, _ = await self._following([account_id], kind, DISTANCE_LISTS, deadline)
        lists = first[0].tolist()
        evaluator = await self._sets.evaluator(followers, deadline)
        seen: Ids = descending([])
        for at in range(0, len(lists), SUGGEST_LISTS):
            found, _ = await self._following(lists[at : at + SUGGEST_LISTS], kind, DISTANCE_ROWS, deadline)
            fresh = without(descending(np.concatenate(found)), seen) if found else seen[:0]
            if len(await evaluator.held(fresh, followers)):
                return 3
            seen = np.concatenate([seen, fresh])
        return None

    async def _following(self, accounts: list[int], kind: Kind, most: int, deadline: float) -> tuple[list[Ids], bool]:
        """Whom each account follows, the newest `most` of each in any order, and whether any list is longer. All lists are asked for at
        once, so they go out in few flushes."""
        pages = await all_of(
            [
                self._reader.rows(
                    ListOf(Direction.FORWARD, account, kind, State.ACTIVE, False), None, most + 1, deadline
                )
                for account in accounts
            ]
        )
        columns = [page.columns[0] for page in pages]
        return [ids[:most] for ids in columns], any(len(ids) > most for ids in columns)
