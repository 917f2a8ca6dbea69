"""Which items of a batch are sent again: a decision about values, without IO."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from graphd.client.values import Write, WriteResult
from graphd.operations import Outcome

PASSING: Final = frozenset({"UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"})
"""Reasons of FAILED items that may not hold for long."""


def to_repeat(writes: Sequence[Write], results: Sequence[WriteResult | None]) -> list[int]:
    """Indices of the items to send again, in order.

    Writes of one edge apply in the order given. So a live write stays FAILED once a later one of the same edge was carried out:
    sent again it would come after it. Given writes are joined by merge, which knows no order.
    """
    chosen: list[int] = []
    overtaken: dict[tuple[str, int, int], bool] = {}
    for index in reversed(range(len(writes))):
        write, result = writes[index], results[index]
        key = (write.kind or "follow", write.source_id, write.destination_id)
        live = write.position is None
        if result is not None and result.outcome is Outcome.FAILED and result.reason in PASSING:
            # overtaken[key]: whether any later write carried out was live. A given one still may not be passed by a live one.
            if key not in overtaken or not (live or overtaken[key]):
                chosen.append(index)
        elif result is not None and result.outcome is not Outcome.FAILED:
            overtaken[key] = overtaken.get(key, False) or live
    return chosen[::-1]
