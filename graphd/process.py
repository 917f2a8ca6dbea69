"""What every long-running process does first and last: configuration, logs, event loop, exit status."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import structlog

from graphd import logs
from graphd.config import Config, load, unknown_variables
from graphd.errors import CatalogUnavailableError, ConfigError, StartError


class ArgumentParser(argparse.ArgumentParser):
    """Misuse is one line, as with `graphd`, and exit status 2."""

    def error(self, message: str) -> NoReturn:
        """Print it and end."""
        self.exit(2, f"{self.prog}: {' '.join(message.split())}; see {self.prog} --help\n")


def run_process(
    name: str, config_path: Path, always: Mapping[str, Any], serve: Callable[[Config], Awaitable[None]]
) -> int:
    """Run `serve` until it ends. Answers 0, 1 when it cannot start, 2 when the configuration is wrong, each with one line."""
    try:
        config = load(config_path)
    except ConfigError as error:
        print(f"{name}: {error}", file=sys.stderr)  # noqa: T201 - before there is a log
        return 2
    logs.configure(config.log, **always)
    log = structlog.get_logger()
    for variable in unknown_variables():
        log.warning(
            "config.unknown_variable", name=variable, hint="misspelt? no key of the configuration has this name"
        )

    async def main() -> None:
        await serve(config)

    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(main())
    except ConfigError as error:
        print(f"{name}: {error}", file=sys.stderr)  # noqa: T201
        return 2
    except (StartError, CatalogUnavailableError) as error:
        print(f"{name}: {error}", file=sys.stderr)  # noqa: T201 - one clear line, whatever the log's format
        return 1
    return 0


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's event loop where it is installed (extra `fast`), else the standard one."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
