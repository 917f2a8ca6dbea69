"""`graphd watch`: what happens to edges, as JSON lines."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated

import typer

from graphd.cli.common import (
    ConfigOption,
    DataOption,
    client_of,
    examples,
    load_config,
    print_json_line,
    run,
    spoken_errors,
)
from graphd.cli.graph import edge_json

if TYPE_CHECKING:
    from graphd.client import Change


def watch(
    kind: Annotated[
        list[str] | None, typer.Option("--kind", help="Only changes of this kind; may be given again.")
    ] = None,
    slot: Annotated[
        list[int] | None, typer.Option("--slot", help="Only sources in this slot; may be given again.")
    ] = None,
    resume_token: Annotated[
        str, typer.Option("--resume-token", metavar="TOKEN", help="Go on after an earlier line.")
    ] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="End after so many; 0 goes on for ever.")] = 0,
    config: ConfigOption = None,
    data: DataOption = None,
) -> None:
    """Print every change of an edge, a JSON line each, from now on or after a token, until interrupted. Each source's changes come in their
    order, and each at least once."""
    with spoken_errors():
        settings = load_config(config, data).router

        async def work() -> None:
            async with client_of(settings) as client:
                await _print(client.watch(kinds=kind or (), slots=slot or (), resume_token=resume_token), limit)

        run(work())


async def _print(changes: "AsyncGenerator[Change, None]", limit: int) -> None:
    count = 0
    async with aclosing(changes):
        async for change in changes:
            previous = change.previous_state
            print_json_line(
                {
                    **edge_json(change.edge),
                    "previous_state": previous.name if previous is not None else None,
                    "resume_token": change.resume_token,
                }
            )
            count += 1
            if count == limit:
                return


def add_to(app: typer.Typer) -> None:
    """This command."""
    app.command(epilog=examples("graphd watch", "graphd watch --kind follow --resume-token TOKEN"))(watch)
