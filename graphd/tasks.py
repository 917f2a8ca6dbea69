"""Ending tasks for sure: a cancellation can be lost on the way to whom it is meant for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

CANCEL_AGAIN_S: Final = 0.5


def ends_here() -> None:
    """Raise CancelledError if the running task is being cancelled. A loop or a long wait asks it, because a cancellation can be lost on the
    way: what a pool or a driver does on being cancelled may fail, or succeed at that very moment, and that then takes its place."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def end_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks until all have ended; again and again, for the same reason. Their errors stay with them."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=CANCEL_AGAIN_S)
