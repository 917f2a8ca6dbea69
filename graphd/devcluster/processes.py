"""What the launcher asks the operating system about processes and ports it may not be the parent of.

A process id alone is no identity: after a crash or a reboot the same number may belong to somebody else. So a process
is known by its id and the moment it was born, and a postmaster by the folder it works in.
"""

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path

_PROC = Path("/proc")
_FIRST_PORT = 15_000
_EPHEMERAL_PORT = 32_768
_handed_out: set[int] = set()
_handing_out = threading.Lock()


def wait_for(condition: Callable[[], bool], timeout_s: float, poll_s: float = 0.02) -> bool:
    """True as soon as the condition holds, False when the time is over."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(poll_s)
    return True


def is_running(pid: int) -> bool:
    """Whether the process exists and is more than a zombie."""
    if _has_proc():
        return _stat_fields(pid)[:1] not in ([], ["Z"], ["X"])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def born(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None where the system does not tell, or it is gone."""
    fields = _stat_fields(pid)
    return int(fields[19]) if len(fields) > 19 else None


def working_folder(pid: int) -> Path | None:
    try:
        return Path(os.readlink(_PROC / str(pid) / "cwd"))
    except OSError:
        return None


def processes_in(folder: Path) -> list[int]:
    """The running processes that work in this folder: for a data folder, its postmaster and backends, orphans too."""
    if not _has_proc():
        return []
    folder = folder.resolve()
    pids = (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal())
    return sorted(pid for pid in pids if working_folder(pid) == folder and is_running(pid))


def session_members(leader: int) -> list[int]:
    """The running processes of the session that this process began, itself included; they may outlive it."""
    if not _has_proc():
        return [leader] if is_running(leader) else []
    pids = (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal())
    return sorted(pid for pid in pids if _stat_fields(pid)[3:4] == [str(leader)] and is_running(pid))


def command_line(pid: int) -> list[str]:
    """The arguments the process was started with; empty where the system does not tell."""
    try:
        return (_PROC / str(pid) / "cmdline").read_text(errors="replace").split("\0")[:-1]
    except OSError:
        return []


def can_tell_folders() -> bool:
    """Whether `processes_in` and `working_folder` know anything on this system."""
    return _has_proc()


def free_port(count: int = 1, *, avoid: Collection[int] = ()) -> int:
    """The first of `count` consecutive ports nobody listens on, none of them ever handed out twice by this process.

    They lie below the range the system takes for outgoing connections. In that range a server that is down for a moment
    may find its port taken by somebody's connection, and a client that retries may even be connected to itself.
    """
    ceiling = max(_ephemeral_floor(), _FIRST_PORT + 1_000) - count
    for _ in range(10_000):
        first = _FIRST_PORT + secrets.randbelow(ceiling - _FIRST_PORT)
        ports = set(range(first, first + count))
        with _handing_out:
            if ports.isdisjoint(_handed_out) and ports.isdisjoint(avoid) and all(map(port_is_free, ports)):
                _handed_out.update(ports)
                return first
    raise OSError(f"no {count} free ports in a row between {_FIRST_PORT} and {ceiling}")


def port_is_free(port: int, host: str = "127.0.0.1") -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def _has_proc() -> bool:
    return (_PROC / "self" / "stat").exists()


def _stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the command, which may itself hold spaces and brackets: state comes first."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _ephemeral_floor() -> int:
    try:
        return int((_PROC / "sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        return _EPHEMERAL_PORT
