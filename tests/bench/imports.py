"""The rows of the import, which brings servers of its own: its speed against plain COPY, and its memory."""

from __future__ import annotations

from collections.abc import Sequence

from tests.bench import import_speed
from tests.bench.figures import Bound, Row, Target

IMPORT = Target("import", "import, against plain COPY of the same rows", Bound.AT_LEAST, 0.5)
MEMORY = Target("import-memory", "memory of the importer during 1 M edges", Bound.AT_MOST, 200, "MB")
TARGETS = (IMPORT, MEMORY)


def measure(names: Sequence[str], *, edges: int, rounds: int) -> list[Row]:
    """Both are of the same runs."""
    figures = import_speed.run(edges, rounds)
    seconds = figures["seconds"]
    note = (
        f"{edges:,} edges in {seconds['import']:.1f} s ({figures['rows_per_second']:,} a second, start included), COPY "
        f"{seconds['copy']:.1f} s, the same file again {seconds['import_again']:.1f} s; medians of {rounds}"
    )
    rows = (Row(IMPORT, figures["ratio"], note=note), Row(MEMORY, figures["peak_mb"], note=f"{edges:,} edges"))
    return [row for row in rows if row.target.name in names]
