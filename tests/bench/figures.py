"""What was measured, against what it must be: pure values, their table and their JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from math import ceil
from statistics import median
from typing import Any

OTHERS = "others"
"""CPU time of programs that do not take part."""

DISTURBED_CORES = 0.15
"""From here on what others use shows in the ratios: they take it from two cores that are both busy."""


class Bound(Enum):
    AT_LEAST = "at least"
    AT_MOST = "at most"


@dataclass(frozen=True, slots=True)
class Target:
    """A row of the speed table: its name on the command line, what it says, and what it must be."""

    name: str
    what: str
    bound: Bound
    must_be: float
    unit: str = "x"

    def holds(self, value: float) -> bool:
        return value >= self.must_be if self.bound is Bound.AT_LEAST else value <= self.must_be


@dataclass(frozen=True, slots=True)
class Window:
    """One closed-loop measurement. `units` is what the calls carried (edges of a batch; else calls); `cpu_s` is CPU
    time by process, over the same time."""

    calls: int
    units: int
    seconds: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    cpu_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Units a second."""
        return self.units / self.seconds


@dataclass(frozen=True, slots=True)
class Side:
    """Several windows of one load, summed up. `cpu_us` is CPU time per unit and `cores` CPU time per second, by
    process."""

    rate: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    units: int
    cpu_us: Mapping[str, float]
    cores: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table as measured. `value` None: not measured, and `note` says why."""

    target: Target
    value: float | None
    values: Sequence[float] = ()
    ours: Side | None = None
    floor: Side | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        if self.value is None:
            return "not measured"
        return "pass" if self.target.holds(self.value) else "FAIL"


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that `share` (0 to 1) of the values do not exceed; NaN for none."""
    ordered = sorted(values)
    if not ordered:
        return float("nan")
    return ordered[max(0, ceil(share * len(ordered)) - 1)]


def side(windows: Sequence[Window]) -> Side:
    """The medians of the windows' rates and percentiles, and the CPU time of all of them per unit."""
    units = sum(window.units for window in windows)
    seconds = sum(window.seconds for window in windows)
    names = sorted({name for window in windows for name in window.cpu_s})
    cpu_s = {name: sum(window.cpu_s.get(name, 0.0) for window in windows) for name in names}
    return Side(
        rate=median(window.rate for window in windows),
        p50_ms=median(window.p50_ms for window in windows),
        p99_ms=median(window.p99_ms for window in windows),
        max_ms=max(window.max_ms for window in windows),
        units=units,
        cpu_us={name: 1e6 * total / units for name, total in cpu_s.items()},
        cores={name: total / seconds for name, total in cpu_s.items()},
    )


def compare(target: Target, pairs: Sequence[tuple[Window, Window]], note: str = "") -> Row:
    """The row of (floor, ours) windows taken next to each other: the median of their ratios, so that a machine that
    is slower for a while slows both halves of a pair and leaves the ratio."""
    ratios = [ours.rate / floor.rate for floor, ours in pairs]
    floors, others = side([floor for floor, _ in pairs]), side([ours for _, ours in pairs])
    return Row(target, median(ratios), ratios, ours=others, floor=floors, note=note)


def missing(target: Target, why: str) -> Row:
    return Row(target, None, note=why)


def table(rows: Sequence[Row]) -> str:
    """The verdicts: one line per row."""
    cells = [("what", "measured", "spread", "must be", "verdict")]
    for row in rows:
        target = row.target
        cells.append(
            (
                target.what,
                "-" if row.value is None else _figure(row.value, target.unit),
                "" if len(row.values) < 2 else f"{min(row.values):.2f} to {max(row.values):.2f}",
                f"{target.bound.value} {_figure(target.must_be, target.unit)}",
                row.verdict,
            )
        )
    notes = [f"{row.target.name}: {row.note}" for row in rows if row.note]
    return "\n".join([*_columns(cells, "lrrlr"), *notes])


def rates(rows: Sequence[Row]) -> str:
    """Absolute rates, latencies, and CPU time per unit of each process: not for quoting, but to see where time goes."""
    cells = [("row", "side", "per second", "p50 ms", "p99 ms", "max ms", "CPU us per unit")]
    for row in rows:
        for name, one in (("floor", row.floor), ("ours", row.ours)):
            if one is not None:
                cpu = ", ".join(f"{process} {cost:.0f}" for process, cost in one.cpu_us.items() if cost >= 0.5)
                figures = (f"{one.rate:,.0f}", f"{one.p50_ms:.2f}", f"{one.p99_ms:.2f}", f"{one.max_ms:.0f}")
                cells.append((row.target.name, name, *figures, cpu))
    return "\n".join(_columns(cells, "llrrrrl"))


def disturbance(rows: Sequence[Row]) -> str:
    """A warning when other programs took a part of the machine; else empty."""
    sides = [side for row in rows for side in (row.ours, row.floor) if side is not None]
    most = max((side.cores.get(OTHERS, 0.0) for side in sides), default=0.0)
    if most < DISTURBED_CORES:
        return ""
    return f"other programs took up to {most:.1f} cores meanwhile: measure again when the machine is quiet"


def as_json(rows: Sequence[Row], machine: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Everything, for a later comparison."""
    return {
        "machine": dict(machine),
        "settings": dict(settings),
        "rows": [
            {
                **asdict(row),
                "target": {**asdict(row.target), "bound": row.target.bound.value},
                "verdict": row.verdict,
            }
            for row in rows
        ],
    }


def _figure(value: float, unit: str) -> str:
    return f"{value:.2f} {unit}" if value < 100 else f"{value:,.0f} {unit}"


def _columns(cells: Sequence[tuple[str, ...]], alignment: str) -> list[str]:
    widths = [max(len(row[column]) for row in cells) for column in range(len(alignment))]
    lines = [
        "  ".join(
            cell.rjust(width) if side == "r" else cell.ljust(width)
            for cell, width, side in zip(row, widths, alignment, strict=True)
        ).rstrip()
        for row in cells
    ]
    return [lines[0], "-" * max(len(line) for line in lines), *lines[1:]]
