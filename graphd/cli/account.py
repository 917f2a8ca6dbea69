"""`graphd account`: archive (suspend), restore and remove whole accounts."""

import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graphd.cli.common import (
    ID_ARGUMENTS,
    ConfigOption,
    DataOption,
    JsonOption,
    account,
    client_of,
    examples,
    load_config,
    print_json,
    run,
    spoken_errors,
)

if TYPE_CHECKING:
    from graphd.client import Client, Progress

account_app = typer.Typer(
    help="Archive, restore or remove a whole account.", no_args_is_help=True, rich_markup_mode=None
)

Account = Annotated[str, typer.Argument(metavar="A", help="The account.")]
KindOption = Annotated[str, typer.Option("--kind", help="Only edges of this kind; without it all kinds.")]


@account_app.command(context_settings=ID_ARGUMENTS, epilog=examples("graphd account archive 7"))
def archive(
    a: Account,
    kind: KindOption = "",
    config: ConfigOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Suspend an account: its edges are archived, and new follows from or to it refused, until it is restored.

    Broken off, the same command goes on from there; so it does after the account's edges were archived already.
    """
    _change(a, config, data, as_json, lambda client, account_id: client.archive_account(account_id, kind=kind))


@account_app.command(context_settings=ID_ARGUMENTS, epilog=examples("graphd account restore 7"))
def restore(
    a: Account,
    kind: KindOption = "",
    config: ConfigOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """End the suspension of an account: the edges that it archived come back, at their old places in every list."""
    _change(a, config, data, as_json, lambda client, account_id: client.restore_account(account_id, kind=kind))


@account_app.command(context_settings=ID_ARGUMENTS, epilog=examples("graphd account remove 7"))
def remove(
    a: Account,
    kind: KindOption = "",
    config: ConfigOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Suspend an account and remove all its edges but the BLOCKED ones. Nothing brings them back; a restore only lets it follow again."""
    _change(a, config, data, as_json, lambda client, account_id: client.remove_account(account_id, kind=kind))


def _change(
    a: str,
    config: Path | None,
    data: Path | None,
    as_json: bool,
    begin: "Callable[[Client, int], AsyncGenerator[Progress, None]]",
) -> None:
    with spoken_errors():
        account_id = account("A", a)
        settings = load_config(config, data).router

        async def work() -> "Progress":
            async with client_of(settings) as client:
                return await _last(begin(client, account_id))

        done, total = run(work())
        if as_json:
            print_json({"done": done, "total": total})
        else:
            print(f"{done:,} of {total:,} edges changed")


async def _last(walk: "AsyncGenerator[Progress, None]") -> "Progress":
    """The last of the progress; the others on stderr where it is a terminal."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    async with aclosing(walk):
        with Bar(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
            task = bar.add_task("edges", total=None)
            last = await anext(walk)
            bar.update(task, completed=last.done, total=last.total)
            async for last in walk:
                bar.update(task, completed=last.done, total=last.total)
    return last


def add_to(app: typer.Typer) -> None:
    """These commands."""
    app.add_typer(account_app, name="account")
