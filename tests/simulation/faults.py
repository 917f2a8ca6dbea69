"""The faults: kills and restarts of real processes. All of them block: run them in a thread."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from graphd.devcluster.postgres import PostgresServer
from tests.routers import RouterProcess


@dataclass(frozen=True, slots=True)
class Outage:
    """When, counted from the start of the load in seconds, something is killed, and how long it stays down."""

    after_s: float
    down_s: float
    until_s: float
    """How long the load lasts."""


SHORT = Outage(after_s=1.0, down_s=1.5, until_s=6.0)
LONG = Outage(after_s=4.0, down_s=5.0, until_s=20.0)

Victim = PostgresServer | RouterProcess


def kill(victim: Victim) -> None:
    """SIGKILL: to a postmaster, whose backends are left to themselves, or to a router."""
    if isinstance(victim, PostgresServer):
        victim.kill(signal.SIGKILL)
    else:
        victim.signal(signal.SIGKILL)
        assert victim.process is not None
        victim.process.wait()


def revive(victim: Victim) -> None:
    """Start it again, and wait until it serves."""
    if isinstance(victim, PostgresServer):
        victim.start()
    else:
        victim.launch()
        victim.wait_ready()


def strike(victims: Sequence[Victim], outage: Outage, now_s: Callable[[], float] = time.monotonic) -> None:
    """The whole outage, from the start of the load to its end."""
    began = now_s()
    time.sleep(outage.after_s)
    for victim in victims:
        kill(victim)
    time.sleep(outage.down_s)
    for victim in victims:
        revive(victim)
    time.sleep(max(0.0, began + outage.until_s - now_s()))
