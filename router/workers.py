"""Several workers on one port: the supervisor holds the port, spawns the workers, and starts one again that died.

Workers are new processes, never forks: gRPC does not survive a fork. They share the port by SO_REUSEPORT, by which any process of the
same user could join in; so the supervisor first takes the port without it, to be sure that nobody else is there.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from pathlib import Path
from typing import Final

import structlog

from graphd.errors import StartError
from graphd.observe import split_listen

log = structlog.get_logger()

RESTART_FIRST_S: Final = 0.1
RESTART_MAX_S: Final = 5.0
STEADY_S: Final = 30.0
"""A worker that ran this long was well: the next restart is quick again."""


def reserve(listen: str) -> socket.socket:
    """A socket that holds the port without listening. Raises StartError when it is taken."""
    host, port = split_listen(listen)
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    try:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
        held = socket.socket(family, kind, protocol)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(address)
    except OSError as error:
        raise StartError(f"[router] listen: cannot listen on {listen}: {error.strerror}") from error
    return held


class Supervisor:
    """Runs `count` workers until SIGTERM or SIGINT."""

    def __init__(self, config: Path, count: int, listen: str, extra: tuple[str, ...] = ()) -> None:
        self._config, self._count, self._listen, self._extra = config, count, listen, extra
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Raises StartError when the port is taken."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        with reserve(self._listen):
            await asyncio.gather(*(self._keep(worker) for worker in range(self._count)))

    async def _keep(self, worker: int) -> None:
        """Run one worker; again when it dies."""
        pause_s = RESTART_FIRST_S
        loop = asyncio.get_running_loop()
        while not self._stopping.is_set():
            began = loop.time()
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "router", "--config", str(self._config), "--worker", str(worker), *self._extra,
                start_new_session=False,
            )  # fmt: skip
            log.info("worker.started", worker=worker, pid=process.pid)
            ended = asyncio.ensure_future(process.wait())
            stopping = asyncio.ensure_future(self._stopping.wait())
            await asyncio.wait((ended, stopping), return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if not ended.done():
                process.terminate()
                await ended
                return
            log.error("worker.died", worker=worker, status=ended.result())
            pause_s = RESTART_FIRST_S if loop.time() - began > STEADY_S else min(2 * pause_s, RESTART_MAX_S)
            await self._sleep(pause_s)

    async def _sleep(self, pause_s: float) -> None:
        try:
            async with asyncio.timeout(pause_s):
                await self._stopping.wait()
        except TimeoutError:
            return
