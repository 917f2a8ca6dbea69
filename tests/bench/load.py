"""Closed-loop load: so many coroutines, each with one call in flight, for so many seconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.bench.figures import DISTURBED_CORES, OTHERS, Window, percentile
from tests.bench.meter import Meter

LEAD_IN_S = 0.25
"""Calls that begin in the first moments of a window do not count: queues and batches are not yet what they will be."""

Call = Callable[[], Awaitable[None]]
"""Makes one call and checks its answer; raises when anything is wrong with it."""


class StalledError(RuntimeError):
    """Nothing was carried in a whole window: the disk or the machine stood still, or the router did."""


@dataclass(frozen=True, slots=True)
class Load:
    """`units`: what one call carries."""

    call: Call
    in_flight: int = 64
    units: int = 1


async def run_window(load: Load, seconds: float, meter: Meter) -> Window:
    """Runs the load. One wrong or failed call ends it with that call's error."""
    latencies_s: list[float] = []
    call = load.call
    first = time.perf_counter() + LEAD_IN_S
    end = first + seconds

    async def worker() -> None:
        while (began := time.perf_counter()) < end:
            await call()
            ended = time.perf_counter()
            if began >= first and ended <= end:
                latencies_s.append(ended - began)

    async with asyncio.TaskGroup() as group:
        for _ in range(load.in_flight):
            group.create_task(worker())
        await asyncio.sleep(LEAD_IN_S)
        before = meter.cpu_s()
        await asyncio.sleep(max(0.0, end - time.perf_counter()))
        after = meter.cpu_s()
    if not latencies_s:
        raise StalledError(f"no call came and went within {seconds:g} s")
    return Window(
        calls=len(latencies_s),
        units=len(latencies_s) * load.units,
        seconds=seconds,
        p50_ms=1000 * percentile(latencies_s, 0.5),
        p99_ms=1000 * percentile(latencies_s, 0.99),
        max_ms=1000 * percentile(latencies_s, 1.0),
        cpu_s={name: after[name] - before[name] for name in after},
    )


async def alternate(
    floor: Load, ours: Load, *, windows: int, seconds: float, meter: Meter, patience_s: float = 0.0
) -> list[tuple[Window, Window]]:
    """(floor, ours) windows next to each other in time, after a short run of each that warms them up.

    Before each pair waits up to `patience_s` until the machine is quiet; with any patience a pair that other programs
    disturbed all the same is measured again, as often as there are windows."""
    for load in (floor, ours):
        await run_window(load, min(1.0, seconds), meter)
    pairs: list[tuple[Window, Window]] = []
    again = windows if patience_s else 0
    while len(pairs) < windows:
        await _quiet(meter, patience_s)
        # Every second pair the other way round, so that a drift of the machine favours neither.
        if len(pairs) % 2 == 0:
            of_floor = await run_window(floor, seconds, meter)
            pair = of_floor, await run_window(ours, seconds, meter)
        else:
            of_ours = await run_window(ours, seconds, meter)
            pair = await run_window(floor, seconds, meter), of_ours
        if again and any(window.cpu_s[OTHERS] / window.seconds >= DISTURBED_CORES for window in pair):
            again -= 1
        else:
            pairs.append(pair)
    return pairs


async def _quiet(meter: Meter, patience_s: float) -> None:
    end = time.perf_counter() + patience_s
    while time.perf_counter() < end:
        before, began = meter.cpu_s()[OTHERS], time.perf_counter()
        await asyncio.sleep(0.5)
        if (meter.cpu_s()[OTHERS] - before) / (time.perf_counter() - began) < DISTURBED_CORES:
            return
