"""The tour in README.md is real: `python -m tests.readme` walks it on a new cluster and writes down what was answered.

Blocks marked `console` hold commands behind `$ `, blocks marked `pycon` Python behind `>>> ` and `... `, with `await` allowed anywhere.
All of them are one session, from the top of the file to its end. What changes from run to run (times, tokens, sizes) is masked when two
runs are compared.

The table of what follows what is made of the rules that the router itself goes by.

`python -m tests.readme --bench FILE` takes the table of speeds from what `python -m tests.bench` wrote.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import contextlib
import inspect
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from graphd.devcluster.cluster import DevCluster, Options
from graphd.edge import State
from graphd.operations import Operation, given_state, refusal_reason, state_after

README: Final = Path(__file__).resolve().parents[1] / "README.md"
PORT: Final = 7600
"""Where the reader's own router listens, and so what stands in the text."""

_BLOCK: Final = re.compile(r"^```(console|pycon)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FIGURES: Final = re.compile(r"(<!-- bench:begin -->\n).*?(<!-- bench:end -->)", re.DOTALL)
_TRANSITIONS: Final = re.compile(r"(<!-- transitions:begin -->\n).*?(<!-- transitions:end -->)", re.DOTALL)
_CHANGING: Final = (
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}Z"), "<moment>"),
    (re.compile(r"\b1[6-9]\d{14}\b"), "<position>"),
    (re.compile(r"'AQ[\w-]{10,}'"), "'<token>'"),
    # Estimated halves and bytes on disk.
    (re.compile(r"^(s\d +yes +\d+) +\d+ +\d+ ", re.MULTILINE), r"\1 <size> "),
)


@dataclass(frozen=True, slots=True)
class Step:
    """What is typed, with its prompts, and what was answered."""

    language: str
    typed: str
    answer: str

    @property
    def text(self) -> str:
        """As it stands in the file."""
        return self.typed + self.answer


def blocks(text: str) -> list[tuple[str, str]]:
    """(language, text) of all blocks of the tour."""
    return _BLOCK.findall(text)


def steps(language: str, block: str) -> list[Step]:
    """A block as steps."""
    prompts = ("$ ",) if language == "console" else (">>> ", "... ")
    found: list[Step] = []
    typed, answer = "", ""
    for line in block.splitlines(keepends=True):
        if line.startswith(prompts[0]):
            found += [Step(language, typed, answer)] if typed else []
            typed, answer = line, ""
        elif line.startswith(prompts) and not answer:
            typed += line
        else:
            answer += line
    return [*found, Step(language, typed, answer)] if typed else found


def masked(text: str) -> str:
    """Without what changes from run to run."""
    for pattern, word in _CHANGING:
        text = pattern.sub(word, text)
    return re.sub(r" +\n", "\n", text)


class Session:
    """Walks the tour before a cluster."""

    def __init__(self, cluster: DevCluster) -> None:
        self._router = cluster.status()["router"]
        self._environment = {**os.environ, "GRAPHD_DATA": str(cluster.folder.path)}
        self._environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._names: dict[str, Any] = {}

    async def walk(self, text: str) -> list[list[Step]]:
        """All blocks with the answers of now."""
        return [[await self._do(step) for step in steps(*block)] for block in blocks(text)]

    async def _do(self, step: Step) -> Step:
        code = "".join(line[4 if step.language == "pycon" else 2 :] for line in step.typed.splitlines(keepends=True))
        code = code.replace(f"127.0.0.1:{PORT}", self._router)
        answer = await self._python(code) if step.language == "pycon" else await asyncio.to_thread(self._command, code)
        # Empty lines between two steps belong to the layout, not to the answer.
        answer = answer.rstrip("\n") + "\n" if answer.strip() else ""
        return Step(step.language, step.typed, answer + ("\n" if f"\n{step.answer}".endswith("\n\n") else ""))

    def _command(self, line: str) -> str:
        done = subprocess.run(
            shlex.split(line, comments=True),
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        return done.stdout

    async def _python(self, code: str) -> str:
        compiled = compile(code, "<README>", "single", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            try:
                found = eval(compiled, self._names)
                if inspect.isawaitable(found):
                    await found
            except Exception as error:  # noqa: BLE001 - errors are part of the tour
                out.write("Traceback (most recent call last):\n  ...\n")
                out.write("".join(traceback.format_exception_only(error)))
        return out.getvalue()


@contextlib.contextmanager
def new_cluster() -> Iterator[DevCluster]:
    """A cluster as `graphd dev up` makes it, on free ports; deleted at the end."""
    with tempfile.TemporaryDirectory(prefix="graphd-readme-") as folder:
        Path(folder).chmod(0o755)
        cluster = DevCluster(Path(folder) / "cluster")
        try:
            cluster.up(Options(port=0))
            yield cluster
        finally:
            cluster.down(delete=True)


def rewritten(text: str, walked: list[list[Step]]) -> str:
    """The text with the answers in place."""
    answers = iter(walked)

    def block(match: re.Match[str]) -> str:
        return f"```{match[1]}\n{''.join(step.text for step in next(answers))}```"

    return _BLOCK.sub(block, text)


def speeds(figures: Mapping[str, Any]) -> str:
    """The figures of a bench as a table, and the machine that they are of."""
    machine, versions = figures["machine"], figures["machine"]["versions"]
    lines = [
        f"Measured on {machine['cores']} cores that client, router and two shards share (Python {machine['python']}, "
        f"PostgreSQL {machine['postgres']['server_version']}, grpcio {versions['grpcio']}); compare the ratios, not the rates:",
        "",
        "| what | measured | a second | half within |",
        "|---|---:|---:|---:|",
    ]
    for row in figures["rows"]:
        if row["value"] is None:  # not measured there
            continue
        unit, ours = row["target"]["unit"], row["ours"] or {}
        value = f"{row['value']:,.2f} x" if unit == "x" else f"{row['value']:,.0f} {unit}"
        rate = f"{ours['rate']:,.0f}" if ours.get("rate") else ""
        half = f"{ours['p50_ms']:,.1f} ms" if ours.get("p50_ms") else ""
        lines.append(f"| {row['target']['what']} | {value} | {rate} | {half} |")
    return "\n".join(lines) + "\n"


def with_transitions(text: str) -> str:
    """The file with the table of what follows what as it is now."""
    return _TRANSITIONS.sub(lambda match: match[1] + transitions() + match[2], text)


def transitions() -> str:
    """The table of what follows what, in Markdown: archived states in one column, for callers do not tell them apart."""
    columns: list[State | None] = [
        None,
        State.ACTIVE,
        State.PENDING,
        State.ARCHIVED_BY_SOURCE,
        State.REMOVED,
        State.BLOCKED,
    ]
    names = ["absent", "ACTIVE", "PENDING", "ARCHIVED_BY_...", "REMOVED", "BLOCKED"]
    lines = [f"| operation | {' | '.join(names)} | with a position |", f"|{'---|' * (len(names) + 2)}"]
    for operation in Operation:
        given = given_state(operation)
        if given is None:
            continue
        cells = [_cell(operation, state) for state in columns]
        lines.append(f"| {operation.name} | {' | '.join(cells)} | {given.name} |")
    return "\n".join(lines) + "\n"


def _cell(operation: Operation, stored: State | None) -> str:
    after = state_after(operation, stored)
    return after.name if after is not None else f"*{refusal_reason(operation, stored)}*"


def main() -> None:
    """Write the answers of a new cluster, or the figures of a bench, into the file."""
    parser = argparse.ArgumentParser(prog="python -m tests.readme", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--bench", type=Path, metavar="FILE", help="write the figures of this bench instead")
    bench: Path | None = parser.parse_args().bench
    text = with_transitions(README.read_text("utf-8"))
    if bench is not None:
        table = speeds(json.loads(bench.read_text("utf-8")))
        text = _FIGURES.sub(lambda match: match[1] + table + match[2], text)
    else:
        with new_cluster() as cluster:
            walked = asyncio.run(Session(cluster).walk(text))
        text = rewritten(text, walked)
    README.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
