"""A whole list in chunks, read in windows of many chunks.

A page of the lanes brings what a page shows; a stream needs ids alone. So its windows are answered from the index of the lists, without
a look at the table, and hold several chunks: 0.2 us a row at the shard, where pages of 1,000 take 0.7 us and a round trip each.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from math import inf
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from graphd import cursor as tokens
from graphd.cursor import Cursor
from graphd.edge import State
from graphd.errors import InvalidArgumentError
from graphd.limits import MAX_DEADLINE_S, MAX_ID
from graphd.placement import slot_of
from graphd.storage.shard import Shard
from router.reads import NOT_OWNED, ListOf, Reader, _NotOwned

WINDOW_ROWS: Final = 8_192
"""To which the windows of one stream grow: 130 KB, and the round trip is a tenth of what it costs to read them."""

FIRST_ROWS: Final = 1_024
"""Of the first window: most lists are shorter, and whoever looks at one chunk has it at once."""


class Chunk(NamedTuple):
    """Ids, and the token after them: empty after the last."""

    ids: list[int]
    token: str


class _Window(NamedTuple):
    """Rows of a list; `more` are to come after them."""

    ids: npt.NDArray[np.int64]
    sinces: npt.NDArray[np.int64]
    more: bool

    def after(self, rows: int) -> Cursor:
        return Cursor(self.sinces.item(rows - 1), self.ids.item(rows - 1))


async def chunks(
    reader: Reader, wanted: ListOf, size: int, token: str, deadline: float = inf
) -> AsyncGenerator[Chunk, None]:
    """All rows of an ACTIVE list after a token, newest first, `size` in each chunk but the last. `deadline` on the event loop's clock.

    The next window is read while the last half of one is on its way to the caller, and no sooner: one who does not read costs a window
    and a half of memory, and no place among the calls that wait for the shard. Raises InvalidArgumentError for a token of another list,
    DeadlineError."""
    assert wanted.state == State.ACTIVE
    assert not wanted.ascending
    scope, key = wanted.scope, reader.cluster.token_key
    cursor = tokens.decode(token, scope, key) if token else Cursor(MAX_ID, MAX_ID)
    if cursor.backward:
        raise InvalidArgumentError("page_token", "must lead on from a chunk or a page, not back")
    per_window = max(1, FIRST_ROWS // size)
    reading = asyncio.create_task(_read(reader, wanted, cursor, per_window * size, deadline))
    try:
        while True:
            window = await reading
            found = len(window.ids)
            half = found // 2
            ahead = False
            for start in range(0, max(1, found), size):
                end = min(start + size, found)
                if window.more and not ahead and end >= half:
                    ahead = True
                    per_window = max(per_window, min(2 * per_window, WINDOW_ROWS // size))
                    reading = asyncio.create_task(
                        _read(reader, wanted, window.after(found), per_window * size, deadline)
                    )
                goes_on = window.more or end < found
                yield Chunk(
                    window.ids[start:end].tolist(), tokens.encode(window.after(end), scope, key) if goes_on else ""
                )
            if not window.more:
                return
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def _read(reader: Reader, wanted: ListOf, after: Cursor, rows: int, deadline: float) -> _Window:
    """The next rows, `rows` of them unless the list ends. It takes a place among the shard's calls while it lasts, as a page does."""
    slot = slot_of(wanted.account_id, reader.cluster.topology.slots)

    async def ask(shard: Shard) -> _Window | _NotOwned:
        found = await shard.stretch(
            wanted.direction.table, wanted.account_id, wanted.kind.number, slot, after.since, after.id, rows + 1
        )
        if found is None:
            return NOT_OWNED
        ids, sinces = found
        return _Window(ids[:rows], sinces[:rows], len(ids) > rows)

    # A shard that does not answer must not hold a stream without a deadline for ever.
    return await reader.at_slot(slot, ask, min(deadline, asyncio.get_running_loop().time() + MAX_DEADLINE_S))
