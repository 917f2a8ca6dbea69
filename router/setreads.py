"""Intersections, carried out: windows of the smallest operand, narrowed by the others, until a page is full or the time is up."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from graphd import cursor as tokens
from graphd.cursor import Cursor
from graphd.edge import Direction, State
from graphd.limits import MAX_ID, SET_BUDGET_S
from graphd.placement import slot_of
from graphd.setops import Ids, Size, Window, below, common, fetches, order_of_operands
from graphd.storage.cluster import Cluster
from graphd.storage.shard import Shard
from graphd.topology import Kind
from router.reads import NOT_OWNED, Reader, _NotOwned

DEADLINE_SHARE: Final = 0.8
"""A page is returned short after this share of the caller's time, so that it still reaches him."""


@dataclass(frozen=True, slots=True)
class ListIds:
    """One account's list as an operand."""

    direction: Direction
    account_id: int
    kind: Kind
    state: State


Operand = ListIds | Ids
"""A list, or explicit ids (descending, different)."""


class SetPage(NamedTuple):
    """Ids in descending order; `partial`: the time budget ended first, and the token goes on from there."""

    ids: list[int]
    next_token: str
    partial: bool


class SetReader:
    """Carries out set operations over the shards."""

    def __init__(self, cluster: Cluster, reader: Reader, budget_s: float = SET_BUDGET_S) -> None:
        self._cluster, self._reader, self._budget_s = cluster, reader, budget_s

    async def intersect(
        self, operands: Sequence[Operand], scope: bytes, page_size: int, token: str, deadline: float
    ) -> SetPage:
        """One page of the ids that all operands hold. Raises InvalidArgumentError for a token of other operands."""
        loop = asyncio.get_running_loop()
        until = loop.time() + min(self._budget_s, DEADLINE_SHARE * (deadline - loop.time()))
        key = self._cluster.token_key
        before = tokens.decode(token, scope, key).id if token else MAX_ID + 1
        window = Window.first(page_size, before)
        order = order_of_operands(await self._sizes(operands, deadline))
        driver, others = order[0], order[1:]
        found: list[int] = []
        while True:
            ids = await self._window(operands[driver.at], window, deadline)
            exhausted = len(ids) < window.count
            lowest = 0 if exhausted else int(ids[-1])
            for other in others:
                if not len(ids):
                    break
                ids = await self._narrow(ids, operands[other.at], other.ids, deadline)
            found.extend(ids.tolist())
            if len(found) > page_size:
                page = found[:page_size]
                return SetPage(page, tokens.encode(Cursor(0, page[-1]), scope, key), False)
            if exhausted:
                return SetPage(found, "", False)
            window = window.next(lowest)
            if loop.time() > until:
                return SetPage(found, tokens.encode(Cursor(0, window.before), scope, key), True)

    async def _sizes(self, operands: Sequence[Operand], deadline: float) -> list[Size]:
        """How large each operand is: exact degrees, one look-up a kind."""
        wanted: dict[Kind, list[int]] = {}
        for operand in operands:
            if isinstance(operand, ListIds):
                wanted.setdefault(operand.kind, []).append(operand.account_id)
        known: dict[tuple[int, int, int, int], int] = {}
        for kind, account_ids in wanted.items():
            for account_id, degrees in zip(
                account_ids, await self._reader.degrees(account_ids, kind, deadline), strict=True
            ):
                for direction, state, degree in degrees.by_state:
                    known[kind.number, account_id, direction, state] = degree
        return [
            Size(
                at,
                known.get((operand.kind.number, operand.account_id, operand.direction, operand.state), 0)
                if isinstance(operand, ListIds)
                else len(operand),
                not isinstance(operand, ListIds),
            )
            for at, operand in enumerate(operands)
        ]

    async def _window(self, operand: Operand, window: Window, deadline: float, lowest: int = 0) -> Ids:
        """Ids of an operand below `window.before` and not below `lowest`, `window.count` at most."""
        if not isinstance(operand, ListIds):
            return below(operand, window.before if window.before <= MAX_ID else None, window.count)
        slot = slot_of(operand.account_id, self._cluster.topology.slots)
        # MAX_ID itself is an id: the top is above it, which a bigint cannot say, so `before` is handed over as an inclusive bound.

        async def ask(shard: Shard) -> Ids | _NotOwned:
            ids = await shard.window(
                operand.direction.table,
                operand.account_id,
                operand.kind.number,
                slot,
                operand.state,
                window.before - 1,
                lowest,
                window.count,
            )
            return NOT_OWNED if ids is None else ids

        return await self._reader.at_slot(slot, ask, deadline)

    async def _narrow(self, ids: Ids, operand: Operand, degree: int, deadline: float) -> Ids:
        """Those of `ids` that the operand holds too."""
        if not isinstance(operand, ListIds):
            return common(ids, operand)
        if fetches(len(ids), degree):
            # The degree may be wrong (drift): what is read is bounded by the range of ids, and what is cut off is read on.
            return await self._narrow_by_range(ids, operand, degree, deadline)
        slot = slot_of(operand.account_id, self._cluster.topology.slots)

        async def ask(shard: Shard) -> Ids | _NotOwned:
            held = await shard.probe(
                operand.direction.table, operand.account_id, operand.kind.number, slot, operand.state, ids
            )
            return NOT_OWNED if held is None else held

        return common(ids, await self._reader.at_slot(slot, ask, deadline))

    async def _narrow_by_range(self, ids: Ids, operand: ListIds, degree: int, deadline: float) -> Ids:
        window = Window(int(ids[0]) + 1, max(degree, len(ids)) + 1)
        lowest = int(ids[-1])
        parts: list[Ids] = []
        while True:
            held = await self._window(operand, window, deadline, lowest)
            parts.append(held)
            if len(held) < window.count:
                return common(ids, np.concatenate(parts))
            window = Window(int(held[-1]), window.count)
