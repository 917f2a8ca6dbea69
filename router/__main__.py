"""`graphd-router --config FILE`: the serving process."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from graphd import __version__
from graphd.config import MAX_WORKERS, Config
from graphd.process import ArgumentParser, run_process

EXAMPLES = """examples:
  graphd-router --config graphd.toml
  graphd-router --config graphd.toml --workers 4

exit status: 0 stopped by a signal, 1 cannot start, 2 misuse or a wrong configuration"""


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = ArgumentParser(
        prog="graphd-router",
        description="Serve the gRPC API of a graphd cluster.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the TOML configuration")
    parser.add_argument(
        "--workers",
        type=int,
        default=None,
        metavar="N",
        help="processes that share the port (default: [router] workers)",
    )
    parser.add_argument("--worker", type=int, default=None, metavar="N", help=argparse.SUPPRESS)
    parser.add_argument("--version", action="version", version=f"graphd {__version__}")
    options = parser.parse_args(argv)
    if options.workers is not None and not 1 <= options.workers <= MAX_WORKERS:
        parser.error(f"--workers must be 1 to {MAX_WORKERS}")
    return options


async def serve(config: Config, options: argparse.Namespace) -> None:
    """Run a single router, a supervisor of several, or one worker."""
    worker: int | None = options.worker
    workers: int = options.workers if options.workers is not None else config.router.workers
    if worker is None and workers > 1:
        from router.workers import Supervisor

        await Supervisor(options.config, workers, config.router.listen).run()
        return
    from router.server import Router

    await Router(config, worker=worker or 0, share_port=worker is not None).run()


def main(argv: Sequence[str] | None = None) -> int:
    """The command; answers the exit status."""
    options = arguments(sys.argv[1:] if argv is None else argv)
    always = {"process": "router"} | ({} if options.worker is None else {"worker": options.worker})
    return run_process("graphd-router", options.config, always, lambda config: serve(config, options))


if __name__ == "__main__":
    sys.exit(main())
