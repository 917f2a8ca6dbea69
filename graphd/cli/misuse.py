"""A command line that the parser refuses, told in one line: what is wrong, and where the help is."""

import sys
from typing import Any, Final

import typer

USAGE_ERROR: Final[type[Exception]] = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "UsageError")
"""The parser's error. It belongs to click, of which typer has a copy of its own or not, according to its release."""


def tell(fault: Any) -> None:
    """Prints the line on stderr; for a group of commands without a command, its help as it is."""
    message: str = fault.format_message()
    if fault.ctx is None:
        print(f"graphd: {_one_line(message)}", file=sys.stderr)
    elif message == fault.ctx.get_help():
        print(message, file=sys.stderr)
    else:
        command, text = fault.ctx.command_path, _one_line(message)
        print(f"{command}: {text}{' See' if text.endswith('?') else '; see'} {command} --help", file=sys.stderr)


def _one_line(message: str) -> str:
    """The message without the words of pydantic, which typer takes to convert arguments."""
    message = message.replace("Value error, ", "", 1).replace("Input should be", "must be", 1)
    return " ".join(message.split()).rstrip(".")
