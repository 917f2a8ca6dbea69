"""What the commands share: how they find their cluster, read ids, print, and end.

Exit statuses: 0 done, 1 it could not be done, 2 misuse. Whatever goes wrong is one line on stderr.
"""

import json
import os
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    import grpc

    from graphd.client import AdminClient, Client
    from graphd.config import Config, RouterConfig

T = TypeVar("T")

MAX_ID = 2**63 - 1
WAIT_FOR_ROUTER_S = 2.0
REPETITIONS = 4
"""Over about a second. That is enough for a hiccup, and somebody who waits at a terminal hears soon of a shard that is down."""

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="The cluster's configuration. Default: --data, else $GRAPHD_CONFIG."),
]
DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="The folder of a dev cluster. Default: $GRAPHD_DATA, else ~/.local/share/graphd/dev.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON; ids and positions are strings in it.")]
KindOption = Annotated[str, typer.Option("--kind", metavar="KIND", help="The family of edges.")]

ID_ARGUMENTS = {"ignore_unknown_options": True}
"""Context settings of commands that take ids: `-7` is then refused as an id and not looked for among the options."""


class MisuseError(Exception):
    """The command line makes no sense; the text is one clear line."""


def examples(*commands: str) -> str:
    """The end of a command's help; the mark \\b keeps the lines as they are."""
    return "\b\nExamples:\n" + "\n".join(f"  {command}" for command in commands)


def say(text: str) -> None:
    """One line on stderr."""
    print("graphd: " + " ".join(text.split()), file=sys.stderr, flush=True)


@contextmanager
def spoken_errors() -> Iterator[None]:
    """Turns the errors that graphd foresees into a line and an exit status."""
    from graphd.devcluster.plan import DevClusterError
    from graphd.errors import ConfigError, GraphdError, InvalidArgumentError

    try:
        yield
    except (MisuseError, ConfigError, InvalidArgumentError) as fault:
        say(str(fault))
        raise typer.Exit(2) from None
    except (GraphdError, DevClusterError) as fault:
        say(str(fault))
        raise typer.Exit(1) from None


def account(name: str, text: str) -> int:
    """The account id that an argument spells: decimal digits and nothing else. Raises MisuseError."""
    if not text.isascii() or not text.isdecimal() or (text[0] == "0" and text != "0") or int(text[:20]) > MAX_ID:
        raise MisuseError(f"{name} {text!r}: must be an account id, a whole number from 0 to {MAX_ID}")
    return int(text)


def find_config(config: Path | None, data: Path | None) -> Path:
    """`--config`, else that of the dev cluster in `--data`, else $GRAPHD_CONFIG, else that of the default dev cluster.

    Raises DevClusterError where a dev cluster is meant and there is none.
    """
    from graphd.devcluster.folder import Folder, default_data
    from graphd.devcluster.plan import DevClusterError

    named = os.environ.get("GRAPHD_CONFIG")
    if config is not None:
        return config
    if data is None and named:
        return Path(named)
    folder = Folder(data or default_data())
    if not folder.config.exists():
        raise DevClusterError(
            f"there is no dev cluster in {folder.path}: start one with `graphd dev up`, or name a cluster with --config"
        )
    return folder.config


def load_config(config: Path | None, data: Path | None) -> "Config":
    """The configuration of the cluster that is meant. Raises ConfigError, DevClusterError."""
    from graphd.config import load

    return load(find_config(config, data))


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's calls to their end."""
    import asyncio

    return asyncio.run(work)


def quiet_grpc() -> None:
    """gRPC's own log lines would stand between ours. To be called before grpc is imported."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


@asynccontextmanager
async def client_of(settings: "RouterConfig") -> AsyncIterator["Client"]:
    """Callers' API, connected."""
    quiet_grpc()
    from graphd.client import Client, RetryBudget

    budget = RetryBudget(share=0.0, reserve=REPETITIONS)
    async with Client(reachable(settings.listen), credentials=_credentials(settings), budget=budget) as client:
        await client.wait_ready(WAIT_FOR_ROUTER_S)
        yield client


@asynccontextmanager
async def admin_of(settings: "RouterConfig") -> AsyncIterator["AdminClient"]:
    """Operators' API, connected."""
    quiet_grpc()
    from graphd.client import AdminClient

    async with AdminClient(reachable(settings.admin_listen), credentials=_credentials(settings)) as client:
        await client.wait_ready(WAIT_FOR_ROUTER_S)
        yield client


def reachable(listen: str) -> str:
    """Where to connect for what listens there: all interfaces include loopback."""
    host, _, port = listen.rpartition(":")
    return {"0.0.0.0": "127.0.0.1", "[::]": "[::1]", "::": "[::1]"}.get(host, host) + ":" + port  # noqa: S104


def _credentials(settings: "RouterConfig") -> "grpc.ChannelCredentials | None":
    """Trust the certificate that the configuration itself names, with whatever chain stands beside it."""
    if settings.tls_certificate is None:
        return None
    import grpc

    from graphd.errors import StartError

    if settings.tls_client_ca is not None:
        raise StartError("the routers ask for a client certificate, which this command cannot show")
    try:
        return grpc.ssl_channel_credentials(settings.tls_certificate.read_bytes())
    except OSError as error:
        raise StartError(f"[router] tls_certificate: cannot be read: {error.strerror}") from error


def print_json(value: object) -> None:
    """For scripts."""
    print(json.dumps(value, indent=2))


def print_json_line(value: object) -> None:
    """For scripts that read a stream: a line at a time, at once."""
    print(json.dumps(value), flush=True)


def print_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Aligned columns: numbers to the right, words to the left; None is an unknown number."""
    lines = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    widths = [max(len(line[i]) for line in [list(head), *lines]) for i in range(len(head))]
    right = [bool(rows) and all(isinstance(row[i], int | float | None) for row in rows) for i in range(len(head))]
    for line in [list(head), *lines]:
        cells = (f"{cell:>{w}}" if r else f"{cell:<{w}}" for cell, w, r in zip(line, widths, right, strict=True))
        print("  ".join(cells).rstrip())


def moment(position_us: int) -> str:
    """A position as a moment in UTC, where it is one."""
    from datetime import UTC, datetime, timedelta

    try:
        when = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=position_us)
    except OverflowError:
        return str(position_us)
    return when.strftime("%Y-%m-%d %H:%M:%S.%fZ")
