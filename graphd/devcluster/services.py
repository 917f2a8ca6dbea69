"""Router and repair as processes of their own: started, found by a later command, asked whether they serve, stopped."""

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from graphd.devcluster import processes

_LOG_KEPT_BYTES = 64 * 1024 * 1024
# What the folder's config.toml decides must not be overruled by the environment of whoever typed the command.
_OWN_VARIABLES = (
    "GRAPHD_CATALOG",
    "GRAPHD_SHARDS",
    "GRAPHD_SLOTS",
    "GRAPHD_ROUTER__LISTEN",
    "GRAPHD_ROUTER__ADMIN_LISTEN",
    "GRAPHD_ROUTER__METRICS_LISTEN",
    "GRAPHD_ROUTER__WORKERS",
    "GRAPHD_REPAIR__METRICS_LISTEN",
)


class ServiceError(RuntimeError):
    """A process did not come to serve; the text holds the end of its log."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process and the moment it was born, which tells it from a later one with the same id."""

    pid: int
    born: int | None

    def is_running(self) -> bool:
        return processes.is_running(self.pid) and processes.born(self.pid) == self.born

    def members(self) -> list[int]:
        """It and what it started, also when it itself is gone. Each of our processes leads a session of its own, and
        the system gives out no process id that is still some session's: under a stranger nothing of ours is left."""
        if processes.is_running(self.pid) and not self.is_running():
            return []
        return processes.session_members(self.pid)

    def children(self, argument: str) -> list[int]:
        """Those it started with this argument on their command line."""
        return [pid for pid in self.members() if pid != self.pid and argument in processes.command_line(pid)]

    def signal(self, number: signal.Signals, *, everybody: bool = False) -> None:
        for pid in self.members() if everybody else [self.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


@dataclass(frozen=True, slots=True)
class Service:
    """`python -m module arguments`, logging into a file; it serves when all the ports take connections and all the
    `readyz` ports answer GET /readyz with 200."""

    name: str
    module: str
    arguments: tuple[str, ...]
    log: Path
    ports: tuple[int, ...] = ()
    readyz: tuple[int, ...] = ()

    def spawn(self) -> Process:
        """Starts it in a session of its own, holding none of our stdin, stdout and stderr."""
        if self.log.exists() and self.log.stat().st_size > _LOG_KEPT_BYTES:
            self.log.replace(self.log.with_name(f"{self.log.name}.1"))
        with open(self.log, "ab") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", self.module, *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=_environment(),
                start_new_session=True,
            )
        _children.append(child)
        return Process(child.pid, processes.born(child.pid))

    def wait_serving(self, process: Process, timeout_s: float) -> None:
        """Raises ServiceError when it ended, or does not serve in time."""

        def settled() -> bool:
            reap()
            return not process.is_running() or self._serves()

        in_time = processes.wait_for(settled, timeout_s, poll_s=0.05)
        if not process.is_running():
            raise ServiceError(f"{self.name} ended while it started: {self.last_words()}")
        if not in_time:
            raise ServiceError(f"{self.name} does not serve after {timeout_s:g} s: {self.last_words()}")

    def stop(self, process: Process, timeout_s: float) -> None:
        """SIGTERM, on which it drains; SIGKILL for whoever is left when the time is over. Returns when all are gone."""
        if process.is_running():
            process.signal(signal.SIGTERM)
        elif process.members():
            process.signal(signal.SIGTERM, everybody=True)
        if not processes.wait_for(lambda: _none_left(process), timeout_s):
            process.signal(signal.SIGKILL, everybody=True)
            if not processes.wait_for(lambda: _none_left(process), 10.0):
                raise ServiceError(f"{self.name} (process {process.pid}) does not stop")

    def last_words(self) -> str:
        try:
            with open(self.log, "rb") as log:
                log.seek(max(0, self.log.stat().st_size - 4_000))
                lines = log.read().decode(errors="replace").splitlines()
        except FileNotFoundError:
            lines = []
        return f"{' / '.join(lines[-3:]) or 'it wrote no log'} (more in {self.log})"

    def _serves(self) -> bool:
        return all(_connects(port) for port in self.ports) and all(_is_ready(port) for port in self.readyz)


_children: list[subprocess.Popen[bytes]] = []


def reap() -> None:
    """Collects those of our children that have ended, so that they do not stay behind as zombies."""
    _children[:] = [child for child in _children if child.poll() is None]


def _none_left(process: Process) -> bool:
    reap()
    return not process.members()


def _connects(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return True
    except OSError:
        return False


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2.0)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _environment() -> dict[str, str]:
    def is_own(name: str) -> bool:
        return name.upper().startswith(_OWN_VARIABLES) or name.upper() in ("GRAPHD_ROUTER", "GRAPHD_REPAIR")

    # Safe path: what lies in the working folder is no module of ours, nor of the workers that inherit this.
    kept = {name: value for name, value in os.environ.items() if not is_own(name)}
    return {**kept, "PYTHONSAFEPATH": "1"}
