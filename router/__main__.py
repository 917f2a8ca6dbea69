"""`graphd-router --config FILE`: the serving process."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from graphd import __version__
from graphd.config import Config
from graphd.process import run_process

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
    always = {"process": "router"} | ({} if options.worker is None else {"worker": options.worker})
    return run_process(
        "graphd-router", options.config, always, lambda config: serve(config, options.config, options.worker)
    )


if __name__ == "__main__":
    sys.exit(main())
