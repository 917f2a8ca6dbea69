"""`graphd kind`: the families of edges, kept in the catalog and used at once by routers that run."""

from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphd.cli.common import (
    ConfigOption,
    DataOption,
    JsonOption,
    MisuseError,
    examples,
    load_config,
    print_json,
    print_table,
    run,
    spoken_errors,
)

if TYPE_CHECKING:
    from pathlib import Path

    from graphd.storage.catalog import Catalog, KindChange
    from graphd.topology import Kind

kind_app = typer.Typer(help="Declare kinds of edges, and list them.", no_args_is_help=True, rich_markup_mode=None)


class YesNo(StrEnum):
    """For options that are told either way."""

    YES = "yes"
    NO = "no"


Name = Annotated[str, typer.Argument(metavar="NAME", help="Lower-case letters, digits, _ or -; 1 to 32 characters.")]
MostOption = Annotated[
    int | None,
    typer.Option(
        "--max-out-degree", metavar="N", min=0, help="How many ACTIVE edges a source may have; 0 is any number."
    ),
]
SelfOption = Annotated[YesNo | None, typer.Option("--allow-self", help="Whether an account may be at both ends.")]
EventsOption = Annotated[YesNo | None, typer.Option("--events", help="Whether changes are told to those who watch.")]


@kind_app.command(
    epilog=examples("graphd kind add favourite --max-out-degree 30 --allow-self=no", "graphd kind add mute --events=no")
)
def add(
    name: Name,
    max_out_degree: MostOption = None,
    allow_self: SelfOption = None,
    events: EventsOption = None,
    config: ConfigOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Declare a kind, which routers that run take at once.

    Without options: any number of edges, none to oneself, changes are told. The same again changes nothing; a kind that is there with other
    settings is changed with `graphd kind set`. Its name and number are for ever: rows hold the number.
    """
    with spoken_errors():
        from graphd.topology import Kind

        wanted = _with(Kind(0, name), max_out_degree, allow_self, events)
        _show(run(_catalog(config, data).add_kind(wanted)), as_json)


@kind_app.command(
    "set", epilog=examples("graphd kind set favourite --max-out-degree 50", "graphd kind set mute --events=no")
)
def set_(
    name: Name,
    max_out_degree: MostOption = None,
    allow_self: SelfOption = None,
    events: EventsOption = None,
    config: ConfigOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change what a kind allows; what is not named stays.

    Edges that are there already stay, however many there are. Routers hear of it within moments; one that cannot reach the catalog goes on
    with what it knows.
    """
    with spoken_errors():
        if max_out_degree is None and allow_self is None and events is None:
            raise MisuseError("kind set: say what to change: --max-out-degree, --allow-self or --events")

        def changed(kind: "Kind") -> "Kind":
            return _with(kind, max_out_degree, allow_self, events)

        _show(run(_catalog(config, data).set_kind(name, changed)), as_json)


@kind_app.command("list", epilog=examples("graphd kind list", "graphd kind list --json"))
def list_(config: ConfigOption = None, data: DataOption = None, as_json: JsonOption = False) -> None:
    """List the kinds there are, by number."""
    with spoken_errors():
        view = run(_catalog(config, data).load())
        kinds = sorted(view.topology.kinds.values(), key=lambda kind: kind.number)
    if as_json:
        print_json([kind_json(kind) for kind in kinds])
        return
    print_table(
        ("kind", "number", "self-loops", "at most", "events"),
        [
            (
                kind.name,
                kind.number,
                "allowed" if kind.allow_self else "refused",
                kind.max_out_degree or "any number",
                "told" if kind.events else "not told",
            )
            for kind in kinds
        ],
    )


def kind_json(kind: "Kind") -> dict[str, Any]:
    """For scripts."""
    return {
        "name": kind.name,
        "number": kind.number,
        "allow_self": kind.allow_self,
        "max_out_degree": kind.max_out_degree,
        "events": kind.events,
    }


def _with(kind: "Kind", max_out_degree: int | None, allow_self: YesNo | None, events: YesNo | None) -> "Kind":
    return replace(
        kind,
        max_out_degree=kind.max_out_degree if max_out_degree is None else max_out_degree,
        allow_self=kind.allow_self if allow_self is None else allow_self is YesNo.YES,
        events=kind.events if events is None else events is YesNo.YES,
    )


def _catalog(config: "Path | None", data: "Path | None") -> "Catalog":
    from graphd.storage.catalog import Catalog

    return Catalog(load_config(config, data).catalog_conninfo())


def _show(change: "KindChange", as_json: bool) -> None:
    kind, outcome = change.kind, "APPLIED" if change.applied else "UNCHANGED"
    if as_json:
        print_json({**kind_json(kind), "outcome": outcome})
        return
    most = f"at most {kind.max_out_degree} each" if kind.max_out_degree else "any number each"
    selves = "self-loops allowed" if kind.allow_self else "no self-loops"
    print(f"{kind.name}: {most}, {selves}, changes {'told' if kind.events else 'not told'}  ({outcome.lower()})")


def add_to(app: typer.Typer) -> None:
    """This group."""
    app.add_typer(kind_app, name="kind")
