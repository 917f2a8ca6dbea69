"""Set expressions over lists of ids: what they are, and how a window of one is made of windows of its parts.

Two questions are asked of an expression: which of its ids lie next below some id (`window`), and which of some ids it holds (`held`).
An intersection is driven by its smallest part, merged with those of about its size and narrowed by the others; a union merges the windows
of all its parts; a difference is driven by its first part and takes away what the others hold. So every answer is exact, and no more than
a window of each list is ever in memory. Degrees choose the plan, and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from graphd.edge import Direction, State
from graphd.limits import MAX_ID, SET_MEMORY_IDS, SET_READS_AT_ONCE, SET_WINDOW_MIN_IDS
from graphd.placement import slot_of
from graphd.setops import (
    FETCH_FACTOR,
    Ids,
    Part,
    Window,
    alongside,
    as_deep,
    below,
    common,
    fetches,
    joined,
    met,
    without,
)
from graphd.storage.shard import Shard
from graphd.topology import Kind
from router.reads import NOT_OWNED, Reader, _NotOwned, all_of


@dataclass(frozen=True, slots=True)
class ListIds:
    """One account's list as an operand."""

    direction: Direction
    account_id: int
    kind: Kind
    state: State


Operand = ListIds | Ids
"""A list, or explicit ids (descending, different)."""


class SetOperation(Enum):
    """How a node combines its parts."""

    INTERSECT = "intersect"
    UNION = "union"
    DIFFERENCE = "difference"


@dataclass(frozen=True, slots=True)
class Node:
    """Two or more expressions, combined."""

    operation: SetOperation
    parts: tuple[Expression, ...]


Expression = ListIds | Ids | Node


def leaves(expression: Expression) -> Iterator[Operand]:
    """Every operand in an expression, as often as it stands there."""
    if isinstance(expression, Node):
        for part in expression.parts:
            yield from leaves(part)
    else:
        yield expression


def lists_of(expression: Expression) -> set[ListIds]:
    """The lists in an expression."""
    return {one for one in leaves(expression) if isinstance(one, ListIds)}


class Evaluator:
    """Answers the two questions about one expression, whose lists have these degrees."""

    def __init__(self, reader: Reader, degrees: Mapping[ListIds, int], deadline: float) -> None:
        self._reader, self._degrees, self._deadline = reader, degrees, deadline
        self._most = max(SET_WINDOW_MIN_IDS, SET_MEMORY_IDS // max(1, len(degrees)))
        self._gate = asyncio.Semaphore(SET_READS_AT_ONCE)

    def size(self, expression: Expression) -> int:
        """How many ids an expression holds at the most, if the degrees are right."""
        if isinstance(expression, ListIds):
            return self._degrees[expression]
        if not isinstance(expression, Node):
            return len(expression)
        sizes = [self.size(part) for part in expression.parts]
        match expression.operation:
            case SetOperation.INTERSECT:
                return min(sizes)
            case SetOperation.UNION:
                return sum(sizes)
            case SetOperation.DIFFERENCE:
                return sizes[0]

    async def window(self, expression: Expression, window: Window) -> Part:
        """The next ids below `window.before`: those of about `window.count` ids of each list that is read."""
        if not isinstance(expression, Node):
            count = min(window.count, self._most)
            ids = await self._read(expression, Window(window.before, count))
            return Part(ids, int(ids[-1]) if len(ids) == count else 0)
        match expression.operation:
            case SetOperation.INTERSECT:
                return await self._intersection(expression.parts, window)
            case SetOperation.UNION:
                return joined(await all_of([self.window(part, window) for part in expression.parts]))
            case SetOperation.DIFFERENCE:
                first, *others = expression.parts
                part = await self.window(first, window)
                return Part(await self._rest(part.ids, others, self._share(first, window)), part.lowest)

    async def _intersection(self, parts: Sequence[Expression], window: Window) -> Part:
        parts = self._cheapest_first(parts)
        sizes = [self.size(part) for part in parts]
        # Explicit ids are at hand: to ask what they hold costs nothing.
        beside = [at for at in alongside(sizes) if isinstance(parts[at], ListIds | Node)]
        deep = [Window(window.before, as_deep(window.count, sizes[0], sizes[at])) for at in beside]
        together = [(parts[0], window), *((parts[at], wide) for at, wide in zip(beside, deep, strict=True))]
        part = met(await all_of([self.window(one, wide) for one, wide in together]))
        others = [parts[at] for at in range(1, len(parts)) if at not in beside]
        return Part(await self._narrowed(part.ids, others, self._share(parts[0], window)), part.lowest)

    def _share(self, driver: Expression, window: Window) -> float:
        """Which part of the driver a window is, about."""
        return min(1.0, window.count / max(1, self.size(driver)))

    async def held(self, ids: Ids, expression: Expression, share: float = 1.0) -> Ids:
        """Those of `ids` (descending) that the expression holds. `share`: which part of a list lies in their range, about."""
        if not len(ids):
            return ids
        if isinstance(expression, ListIds):
            return await self._narrow(ids, expression, share)
        if not isinstance(expression, Node):
            return common(ids, expression)
        match expression.operation:
            case SetOperation.INTERSECT:
                return await self._narrowed(ids, self._cheapest_first(expression.parts), share)
            case SetOperation.UNION:
                return without(ids, await self._rest(ids, expression.parts, share))
            case SetOperation.DIFFERENCE:
                first, *others = expression.parts
                return await self._rest(await self.held(ids, first, share), others, share)

    def _cheapest_first(self, parts: Sequence[Expression]) -> list[Expression]:
        """Smallest first, and of equals one whose ids are at hand."""
        return sorted(parts, key=lambda part: (self.size(part), isinstance(part, ListIds | Node)))

    async def _narrowed(self, ids: Ids, parts: Sequence[Expression], share: float) -> Ids:
        """Those of `ids` that all parts hold."""
        for part in parts:
            ids = await self.held(ids, part, share)
        return ids

    async def _rest(self, ids: Ids, parts: Sequence[Expression], share: float) -> Ids:
        """Those of `ids` that no part holds."""
        for part in self._cheapest_first(parts):
            ids = without(ids, await self.held(ids, part, share))
        return ids

    # -- lists -------------------------------------------------------------------------------------------------------

    async def _read(self, operand: Operand, window: Window, lowest: int = 0) -> Ids:
        """Ids of an operand below `window.before` and not below `lowest`, `window.count` at most."""
        if not isinstance(operand, ListIds):
            return below(operand, window.before if window.before <= MAX_ID else None, window.count)
        slot = slot_of(operand.account_id, self._reader.cluster.topology.slots)
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

        async with self._gate:
            return await self._reader.at_slot(slot, ask, self._deadline)

    async def _narrow(self, ids: Ids, operand: ListIds, share: float) -> Ids:
        """Those of `ids` that a list holds too."""
        parts: list[Ids] = []
        left = ids
        is_fetched = fetches(len(left), self._degrees[operand], share)
        # Degree and share may be wrong: what is fetched at a time is bounded, and as soon as it does not pay the rest is probed.
        while is_fetched and len(left):
            window = Window(int(left[0]) + 1, min(self._most, FETCH_FACTOR * len(left) + SET_WINDOW_MIN_IDS))
            found = await self._read(operand, window, int(left[-1]))
            lowest = int(found[-1]) if len(found) == window.count else 0
            covered = len(left) - int(np.searchsorted(left[::-1], lowest))
            parts.append(common(left[:covered], found))
            left = left[covered:]
            is_fetched = FETCH_FACTOR * covered >= len(found) // 2
        if len(left):
            parts.append(common(left, await self._probe(left, operand)))
        return np.concatenate(parts) if parts else ids[:0]

    async def _probe(self, ids: Ids, operand: ListIds) -> Ids:
        slot = slot_of(operand.account_id, self._reader.cluster.topology.slots)

        async def ask(shard: Shard) -> Ids | _NotOwned:
            held = await shard.probe(
                operand.direction.table, operand.account_id, operand.kind.number, slot, operand.state, ids
            )
            return NOT_OWNED if held is None else held

        async with self._gate:
            return await self._reader.at_slot(slot, ask, self._deadline)
