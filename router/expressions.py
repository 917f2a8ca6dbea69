"""Set expressions over lists of ids: what they are, and how a window of one is made of windows of its parts.

Two questions are asked of an expression: which of its ids lie next below some id (`window`), and which of some ids it holds (`held`).
An intersection is driven by its smallest part and narrowed by the others; a union merges the windows of all its parts as far down as every
one of them is complete; a difference is driven by its first part and takes away what the others hold. So every answer is exact, and no more
than a window of each part is ever in memory. Degrees choose the order, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np

from graphd.edge import Direction, State
from graphd.limits import MAX_ID
from graphd.placement import slot_of
from graphd.setops import Ids, Window, below, common, fetches, merged, without
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


def lists_of(expression: Expression) -> Iterator[ListIds]:
    """Every list in an expression, as often as it stands there."""
    if isinstance(expression, Node):
        for part in expression.parts:
            yield from lists_of(part)
    elif isinstance(expression, ListIds):
        yield expression


class Part(NamedTuple):
    """Ids of a window in descending order, complete down to `lowest`; 0: there are no more."""

    ids: Ids
    lowest: int


class Evaluator:
    """Answers the two questions about one expression, whose lists have these degrees."""

    def __init__(self, reader: Reader, degrees: Mapping[ListIds, int], deadline: float) -> None:
        self._reader, self._degrees, self._deadline = reader, degrees, deadline

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
            ids = await self._read(expression, window)
            return Part(ids, int(ids[-1]) if len(ids) == window.count else 0)
        match expression.operation:
            case SetOperation.INTERSECT:
                first, *others = self._cheapest_first(expression.parts)
                part = await self.window(first, window)
                return Part(await self._narrowed(part.ids, others), part.lowest)
            case SetOperation.UNION:
                parts = await all_of([self.window(part, window) for part in expression.parts])
                lowest = max(part.lowest for part in parts)
                ids = merged([part.ids for part in parts])
                return Part(ids[ids >= lowest], lowest)
            case SetOperation.DIFFERENCE:
                first, *others = expression.parts
                part = await self.window(first, window)
                return Part(await self._rest(part.ids, others), part.lowest)

    async def held(self, ids: Ids, expression: Expression) -> Ids:
        """Those of `ids` (descending) that the expression holds."""
        if not len(ids):
            return ids
        if isinstance(expression, ListIds):
            return await self._narrow(ids, expression)
        if not isinstance(expression, Node):
            return common(ids, expression)
        match expression.operation:
            case SetOperation.INTERSECT:
                return await self._narrowed(ids, self._cheapest_first(expression.parts))
            case SetOperation.UNION:
                return without(ids, await self._rest(ids, expression.parts))
            case SetOperation.DIFFERENCE:
                first, *others = expression.parts
                return await self._rest(await self.held(ids, first), others)

    def _cheapest_first(self, parts: Sequence[Expression]) -> list[Expression]:
        """Smallest first, and of equals one whose ids are at hand."""
        return sorted(parts, key=lambda part: (self.size(part), isinstance(part, ListIds | Node)))

    async def _narrowed(self, ids: Ids, parts: Sequence[Expression]) -> Ids:
        """Those of `ids` that all parts hold."""
        for part in parts:
            ids = await self.held(ids, part)
        return ids

    async def _rest(self, ids: Ids, parts: Sequence[Expression]) -> Ids:
        """Those of `ids` that no part holds."""
        for part in self._cheapest_first(parts):
            ids = without(ids, await self.held(ids, part))
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

        return await self._reader.at_slot(slot, ask, self._deadline)

    async def _narrow(self, ids: Ids, operand: ListIds) -> Ids:
        """Those of `ids` that a list holds too."""
        degree = self._degrees[operand]
        if fetches(len(ids), degree):
            # The degree may be wrong (drift): what is read is bounded by the range of ids, and what is cut off is read on.
            return await self._narrow_by_range(ids, operand, degree)
        slot = slot_of(operand.account_id, self._reader.cluster.topology.slots)

        async def ask(shard: Shard) -> Ids | _NotOwned:
            held = await shard.probe(
                operand.direction.table, operand.account_id, operand.kind.number, slot, operand.state, ids
            )
            return NOT_OWNED if held is None else held

        return common(ids, await self._reader.at_slot(slot, ask, self._deadline))

    async def _narrow_by_range(self, ids: Ids, operand: ListIds, degree: int) -> Ids:
        window = Window(int(ids[0]) + 1, max(degree, len(ids)) + 1)
        lowest = int(ids[-1])
        parts: list[Ids] = []
        while True:
            held = await self._read(operand, window, lowest)
            parts.append(held)
            if len(held) < window.count:
                return common(ids, np.concatenate(parts))
            window = Window(int(held[-1]), window.count)
