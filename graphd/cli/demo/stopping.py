"""Ctrl-C, SIGTERM and a lost terminal end the demo wherever it is; cleaning up afterwards is not interrupted again."""

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StoppedError(KeyboardInterrupt):
    """A signal came."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Stopping:
    """While it is entered, the first signal raises StoppedError in what runs, and all later ones are ignored."""

    def __init__(self) -> None:
        self._number: int | None = None
        self._held = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None

    def __enter__(self) -> Self:
        # Under nohup a lost terminal is to be survived.
        numbers = [n for n in _SIGNALS if n != signal.SIGHUP or signal.getsignal(n) is not signal.SIG_IGN]
        self._before = {number: signal.signal(number, self._stop) for number in numbers}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """asyncio.run. A signal cancels the task: an exception raised right there could be lost in a callback of gRPC."""
        try:
            return asyncio.run(self._watched(work))
        except asyncio.CancelledError:
            if self._number is None:
                raise
            raise StoppedError(self._number) from None
        finally:
            self._task = None

    async def _watched(self, work: Coroutine[Any, Any, T]) -> T:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        return await work

    @contextmanager
    def held(self) -> Iterator[Callable[[], None]]:
        """In here a signal waits for the next call of what is given out, or for the end: processes that are being started are not
        left half known."""
        self._held = True
        try:
            yield self._raise
        finally:
            self._held = False
        self._raise()

    def over(self) -> None:
        """From here on signals are ignored: what is cleaned up now is cleaned up."""
        self._number = self._number or 0

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self._number is not None:
            return
        self._number = number
        if self._held:
            return
        if self._loop is not None and self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)
        else:
            raise StoppedError(number)

    def _raise(self) -> None:
        if self._number:
            raise StoppedError(self._number)
