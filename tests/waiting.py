"""Waiting for a condition with a deadline, so that no test sleeps and hopes."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any

POLL_S = 0.02


def wait_for(condition: Callable[[], Any], timeout_s: float = 10.0, what: str = "the condition") -> None:
    """Return when the condition is true; fail with `what` when the time is over."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s:g} s"
        time.sleep(POLL_S)


async def eventually(
    condition: Callable[[], Any | Awaitable[Any]], timeout_s: float = 10.0, what: str = "the condition"
) -> None:
    """The same on an event loop; the condition may be awaitable."""
    deadline = time.monotonic() + timeout_s
    while True:
        answer = condition()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s:g} s"
        await asyncio.sleep(POLL_S)
