"""The graph of the demo: a file, or a made-up one in which a few are followed by many, the same at every run."""

import io
import time
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from graphd.cli.demo.screen import Screen
from graphd.config import Config
from graphd.errors import GraphdError
from graphd.importer import job
from graphd.importer.job import Request, Summary

SEED = 7
ACCOUNTS = 10_000
FIRST_ACCOUNT = 1_001
FOLLOWS_EACH = 8
MOST_FOLLOWS = 1_000
POPULARITY = 0.85
"""The k-th most popular account is followed with a probability in proportion to k ** -POPULARITY."""


def power_law() -> npt.NDArray[np.int64]:
    """Rows of (source, destination), distinct and without self-loops, in the order of the sources."""
    random = np.random.default_rng(SEED)
    out_degrees = np.minimum(MOST_FOLLOWS, np.ceil(FOLLOWS_EACH * (random.pareto(2.0, ACCOUNTS) + 0.3))).astype(
        np.int64
    )
    popularity = np.arange(1, ACCOUNTS + 1) ** -POPULARITY
    ranked = random.permutation(ACCOUNTS)
    sources = np.repeat(np.arange(ACCOUNTS), out_degrees)
    destinations = ranked[random.choice(ACCOUNTS, len(sources), p=popularity / popularity.sum())]
    pairs = np.column_stack((sources, destinations))[sources != destinations]
    return np.unique(pairs, axis=0) + FIRST_ACCOUNT


async def load(screen: Screen, config: Config, file: Path | None) -> None:
    """Import the graph into the cluster, and check the figures. Raises GraphdError."""
    made_up = power_law() if file is None else None
    if made_up is not None:
        screen.say(
            f"{len(made_up):,} follows among {ACCOUNTS:,} made-up accounts, few of them followed by many (a power law, seed {SEED}), "
            "go in as `graphd import` would take them from a file."
        )
        lines = "".join(f"{source} {destination}\n" for source, destination in made_up.tolist())
        opened: BinaryIO = io.BytesIO(lines.encode())
    else:
        assert file is not None
        screen.say(f"The follows of {file} go in by `graphd import`.")
        opened = file.open("rb")
    began = time.perf_counter()
    with closing(opened), screen.working("importing"):
        summary = await _imported(config, opened)
    took_s = time.perf_counter() - began
    screen.call("import", _told(summary), f"{took_s:.1f} s, {summary.read / took_s:,.0f} lines a second")
    accounted = (
        summary.added + summary.updated + summary.unchanged + summary.self_loops + summary.duplicates + summary.refused
    )
    screen.check("every line is accounted for", accounted == summary.read)
    if made_up is not None:
        screen.check(f"all {len(made_up):,} follows were added", summary.added == len(made_up))


async def _imported(config: Config, opened: BinaryIO) -> Summary:
    try:
        return await job.run(config, opened, Request())
    except OSError as fault:
        raise GraphdError(f"the import failed: {fault.strerror or type(fault).__name__}") from fault


def _told(summary: Summary) -> str:
    parts = {
        "added": summary.added,
        "self-loops": summary.self_loops,
        "duplicates": summary.duplicates,
        "refused": summary.refused,
    }
    return f"{summary.read:,} lines read: " + ", ".join(f"{count:,} {name}" for name, count in parts.items())
