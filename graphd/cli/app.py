"""The parser of `graphd`, put together from its groups of commands."""

from importlib.metadata import version
from typing import Annotated

import typer

from graphd.cli import account, demo, dev, export, graph, import_, kind, operate, watch

app = typer.Typer(
    name="graphd",
    help="A sharded social graph on Postgres: clusters to try, imports, and calls from the command line.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(dev.app, name="dev")
account.add_to(app)
demo.add_to(app)
export.add_to(app)
graph.add_to(app)
import_.add_to(app)
kind.add_to(app)
operate.add_to(app)
watch.add_to(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"graphd {version('graphd')}")
        raise typer.Exit


@app.callback()
def _root(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    pass
