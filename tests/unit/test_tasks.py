"""Tasks end, also those on which a cancellation is lost."""

from __future__ import annotations

import asyncio

import pytest

from graphd import tasks


async def loses(count: int) -> None:
    """Goes on as if nothing had been, so many times, and waits for long: as a loop does whose pool took the cancellation for nothing."""
    while True:
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            count -= 1
            if count < 0:
                raise


async def test_a_cancellation_that_is_lost_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "CANCEL_AGAIN_S", 0.01)
    running = [asyncio.ensure_future(loses(count)) for count in (0, 1, 3)]
    await asyncio.sleep(0)
    await tasks.end_all(running)
    assert all(task.cancelled() for task in running)


async def test_errors_stay_with_their_tasks() -> None:
    async def fails() -> None:
        raise ValueError

    failed = asyncio.ensure_future(fails())
    await asyncio.sleep(0)
    await tasks.end_all([failed])
    assert isinstance(failed.exception(), ValueError)
    await tasks.end_all([])


async def test_a_task_learns_that_a_cancellation_was_lost() -> None:
    async def goes_on() -> str:
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            tasks.ends_here()
        return "went on"

    tasks.ends_here()
    running = asyncio.ensure_future(goes_on())
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
