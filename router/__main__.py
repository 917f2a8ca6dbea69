"""`graphd-router --config FILE`: the serving process."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import structlog

from graphd import __version__, logs
from graphd.config import Config, load, unknown_variables
from graphd.errors import CatalogUnavailableError, ConfigError, StartError
from graphd.observe import loop_factory

EXAMPLES = """examples:
  graphd-router --config graphd.toml
  GRAPHD_ROUTER__WORKERS=4 graphd-router --config graphd.toml

exit status: 0 stopped by a signal, 1 cannot start, 2 misuse or a wrong configuration"""


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="graphd-router",
        description="Serve the gRPC API of a graphd cluster.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the TOML configuration")
    parser.add_argument("--worker", type=int, default=None, metavar="N", help=argparse.SUPPRESS)
    parser.add_argument("--version", action="version", version=f"graphd {__version__}")
    return parser.parse_args(argv)


async def serve(config: Config, path: Path, worker: int | None) -> None:
    """Run a single router, a supervisor of several, or one worker."""
    if worker is None and config.router.workers > 1:
        from router.workers import Supervisor

        await Supervisor(path, config.router.workers, config.router.listen).run()
        return
    from router.server import Router

    await Router(config, worker=worker or 0, share_port=worker is not None).run()


def main(argv: Sequence[str] | None = None) -> int:
    """The command; answers the exit status."""
    options = arguments(sys.argv[1:] if argv is None else argv)
    try:
        config = load(options.config)
    except ConfigError as error:
        print(f"graphd-router: {error}", file=sys.stderr)  # noqa: T201 - before there is a log
        return 2
    logs.configure(config.log, process="router", **({} if options.worker is None else {"worker": options.worker}))
    log = structlog.get_logger()
    for name in unknown_variables():
        log.warning("config.unknown_variable", name=name, hint="misspelt? no key of the configuration has this name")
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(serve(config, options.config, options.worker))
    except (StartError, CatalogUnavailableError) as error:
        print(f"graphd-router: {error}", file=sys.stderr)  # noqa: T201 - one clear line, whatever the log's format
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
