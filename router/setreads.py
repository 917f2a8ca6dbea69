"""Set operations, carried out page by page: windows of an expression, until a page is full or the time is up."""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

import numpy as np

from graphd import cursor as tokens
from graphd.cursor import Cursor
from graphd.limits import MAX_ID, SET_BUDGET_S, SET_WINDOW_MAX_IDS
from graphd.setops import Window, descending
from graphd.storage.cluster import Cluster
from graphd.topology import Kind
from router.expressions import Evaluator, Expression, ListIds, lists_of
from router.reads import ListOf, Reader

DEADLINE_SHARE: Final = 0.8
"""A page is returned short after this share of the caller's time, so that it still reaches him."""

LEAST_S: Final = 0.001
"""No window is taken to have cost less."""

RECENT_ROWS: Final = 1_000
"""Rows of the first operand's list that are looked at in one round, in its own order."""


class SetPage(NamedTuple):
    """Ids in the order asked for; `partial`: the time budget ended first, and the token goes on from there."""

    ids: list[int]
    next_token: str
    partial: bool


class CommonDegree(NamedTuple):
    """How many ids an expression holds; not `exact`: there are at least so many, and the time was up."""

    degree: int
    exact: bool


class SetReader:
    """Carries out set operations over the shards."""

    def __init__(self, cluster: Cluster, reader: Reader, budget_s: float = SET_BUDGET_S) -> None:
        self._cluster, self._reader, self._budget_s = cluster, reader, budget_s

    async def select(
        self, expression: Expression, scope: bytes, page_size: int, token: str, deadline: float
    ) -> SetPage:
        """One page of an expression in descending order of ids. Raises InvalidArgumentError for a token of another expression."""
        until = self._until(deadline)
        key = self._cluster.token_key
        before = tokens.decode(token, scope, key).id if token else MAX_ID + 1
        window = Window.first(page_size, before)
        evaluator = await self.evaluator(expression, deadline)
        found: list[int] = []
        time = asyncio.get_running_loop().time
        while True:
            began = time()
            part = await evaluator.window(expression, window)
            found.extend(part.ids.tolist())
            if len(found) > page_size:
                page = found[:page_size]
                return SetPage(page, tokens.encode(Cursor(0, page[-1]), scope, key), False)
            if not part.lowest:
                return SetPage(found, "", False)
            ended = time()
            haste = (until - ended) / max(ended - began, LEAST_S)
            window = window.next(part.lowest, len(part.ids), page_size + 1 - len(found), haste)
            if ended > until:
                return SetPage(found, tokens.encode(Cursor(0, window.before), scope, key), True)

    async def recent(
        self, first: ListIds, expression: Expression, scope: bytes, page_size: int, token: str, deadline: float
    ) -> SetPage:
        """The same in the order of the list `first`, newest first, of whose ids the expression holds some and no others."""
        until = self._until(deadline)
        key = self._cluster.token_key
        cursor = tokens.decode(token, scope, key) if token else None
        wanted = ListOf(first.direction, first.account_id, first.kind, first.state, False)
        evaluator = await self.evaluator(expression, deadline)
        found: list[Cursor] = []
        row_count = min(RECENT_ROWS, max(4 * page_size, 100))
        while True:
            columns = (await self._reader.rows(wanted, cursor, row_count, deadline)).columns
            neighbors, sinces, _ = columns
            held = await evaluator.held(descending(neighbors), expression)
            places = np.flatnonzero(np.isin(neighbors, held))
            found += [Cursor(sinces.item(at), neighbors.item(at)) for at in places]
            if len(found) > page_size:
                page = found[:page_size]
                return SetPage([one.id for one in page], tokens.encode(page[-1], scope, key), False)
            if len(neighbors) < row_count:
                return SetPage([one.id for one in found], "", False)
            cursor = Cursor(sinces.item(-1), neighbors.item(-1))
            row_count = RECENT_ROWS
            if asyncio.get_running_loop().time() > until:
                return SetPage([one.id for one in found], tokens.encode(cursor, scope, key), True)

    async def degree(self, expression: Expression, limit: int, deadline: float) -> CommonDegree:
        """How many ids an expression holds, `limit` at most (0: no limit), which is exact too."""
        until = asyncio.get_running_loop().time()
        until += DEADLINE_SHARE * (deadline - until)
        evaluator = await self.evaluator(expression, deadline)
        # Whoever asks for few finds them in the first windows; who asks for all is best served by large ones.
        window = Window.first(limit) if limit else Window(MAX_ID + 1, SET_WINDOW_MAX_IDS)
        count = 0
        while True:
            part = await evaluator.window(expression, window)
            count += len(part.ids)
            if limit and count >= limit:
                return CommonDegree(limit, True)
            if not part.lowest:
                return CommonDegree(count, True)
            window = window.next(part.lowest, len(part.ids), limit - count if limit else SET_WINDOW_MAX_IDS)
            if asyncio.get_running_loop().time() > until:
                return CommonDegree(count, False)

    async def evaluator(self, expression: Expression, deadline: float) -> Evaluator:
        """For one expression, with the exact degrees of its lists: one look-up a kind."""
        lists = lists_of(expression)
        wanted: dict[Kind, set[int]] = {}
        for one in lists:
            wanted.setdefault(one.kind, set()).add(one.account_id)
        known: dict[tuple[Kind, int, int, int], int] = {}
        for kind, accounts in wanted.items():
            account_ids = sorted(accounts)
            found = await self._reader.degrees(account_ids, kind, deadline)
            for account_id, degrees in zip(account_ids, found, strict=True):
                for direction, state, degree in degrees.by_state:
                    known[kind, account_id, direction, state] = degree
        degrees_of = {one: known.get((one.kind, one.account_id, one.direction, one.state), 0) for one in lists}
        return Evaluator(self._reader, degrees_of, deadline)

    def _until(self, deadline: float) -> float:
        now = asyncio.get_running_loop().time()
        return now + min(self._budget_s, DEADLINE_SHARE * (deadline - now))
