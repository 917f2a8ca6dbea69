"""How the demo speaks: colours and a spinner on a terminal, plain lines elsewhere; and its checks, which decide the exit status."""

import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

from rich.console import Console

WIDTH = 100
INDENT = "   "
CALL_WIDTH = 46


class Screen:
    """Prints to standard output."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, markup=False, emoji=False)
        self._chapters = 0
        self.passed = 0
        self.failed: list[str] = []

    def chapter(self, title: str) -> None:
        """Begin the next part."""
        self._chapters += 1
        self._line()
        self._line(f"{self._chapters}  {title}", "bold cyan")

    def say(self, text: str) -> None:
        """A paragraph."""
        for line in textwrap.wrap(" ".join(text.split()), WIDTH - len(INDENT)):
            self._line(INDENT + line)

    def call(self, call: str, *answers: str, style: str = "green") -> None:
        """A call and what it answered, a line for each answer."""
        first, *others = answers or ("",)
        self._console.print(f"{INDENT}{call:<{CALL_WIDTH}} ", end="", soft_wrap=True)
        self._line(first, style)
        for answer in others:
            self._line(f"{INDENT}{'':<{CALL_WIDTH}} {answer}", style)

    def table(self, head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Aligned columns: numbers to the right and with thousands marked, words to the left."""
        cells = [[f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row] for row in rows]
        right = [bool(rows) and all(isinstance(row[i], int | float) for row in rows) for i in range(len(head))]
        widths = [max(len(line[i]) for line in [list(head), *cells]) for i in range(len(head))]
        for line, style in [(list(head), "dim"), *((line, "") for line in cells)]:
            columns = (f"{cell:>{w}}" if r else f"{cell:<{w}}" for cell, w, r in zip(line, widths, right, strict=True))
            self._line((INDENT + "  ".join(columns)).rstrip(), style)

    def lines(self, *lines: str) -> None:
        """As they are: commands to type, and the like."""
        for line in lines:
            self._line(INDENT + line)

    def gap(self) -> None:
        """An empty line."""
        self._line()

    def check(self, what: str, holds: bool) -> None:
        """State what must be so, and whether it is."""
        if holds:
            self.passed += 1
            self._line(f"{INDENT}[ok] {what}", "bold green")
        else:
            self.failed.append(what)
            self._line(f"{INDENT}[FAILED] {what}", "bold red")

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """While something takes its time: a spinner, where there is a terminal to show it on."""
        with self._console.status(what) if self._console.is_terminal else nullcontext():
            yield

    def _line(self, text: str = "", style: str = "") -> None:
        self._console.print(text, style=style or None, soft_wrap=True)
