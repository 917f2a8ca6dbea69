"""`graphd-repair run --config FILE`: the daemon that delivers what shards owe each other, and forgets what has been kept long enough."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from graphd import __version__
from graphd.process import ArgumentParser, run_process
from repair.daemon import Daemon

EXAMPLES = """examples:
  graphd-repair run --config graphd.toml

exit status: 0 stopped by a signal, 1 failed, 2 misuse or a wrong configuration"""


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = ArgumentParser(
        prog="graphd-repair",
        description="Keep the two halves of every edge in agreement.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"graphd {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser(
        "run",
        help="the daemon: the relay, the expiry of receipts and events, the purge",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument("--config", type=Path, required=True, metavar="FILE", help="the TOML configuration")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; answers the exit status."""
    options = arguments(sys.argv[1:] if argv is None else argv)

    return run_process("graphd-repair", options.config, {"process": "repair"}, lambda config: Daemon(config).run())


if __name__ == "__main__":
    sys.exit(main())
