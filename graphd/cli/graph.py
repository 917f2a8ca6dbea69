"""`graphd edge`, `graphd list`, `graphd degrees`: the graph itself, from the command line."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from graphd.cli.common import (
    ID_ARGUMENTS,
    ConfigOption,
    DataOption,
    JsonOption,
    KindOption,
    MisuseError,
    account,
    client_of,
    examples,
    load_config,
    moment,
    print_json,
    print_table,
    run,
    say,
    spoken_errors,
)

if TYPE_CHECKING:
    from graphd.client import Degrees, Edge, Listing, WriteResult
    from graphd.client.values import WriteOptions

edge_app = typer.Typer(help="Read or write one edge.", no_args_is_help=True, rich_markup_mode=None)
list_app = typer.Typer(
    help="List who follows an account, or whom it follows.", no_args_is_help=True, rich_markup_mode=None
)

Source = Annotated[str, typer.Argument(metavar="A", help="The account that follows.")]
Destination = Annotated[str, typer.Argument(metavar="B", help="The account that is followed.")]
Blocker = Annotated[str, typer.Argument(metavar="A", help="The account that blocks.")]
Blocked = Annotated[str, typer.Argument(metavar="B", help="The account that is blocked.")]
Account = Annotated[str, typer.Argument(metavar="A", help="The account.")]
PositionOption = Annotated[
    int | None,
    typer.Option("--position", min=0, help="Write at this position (microseconds since 1970), joined by merge."),
]
RequestIdOption = Annotated[
    str | None, typer.Option("--request-id", metavar="ID", help="By which a repetition is recognised for 24 hours.")
]
BackfillOption = Annotated[bool, typer.Option("--backfill", help="With --position: let it be older than 30 days.")]
LimitOption = Annotated[int, typer.Option("--limit", "-n", min=0, help="How many at most; 0 is all.")]
TokenOption = Annotated[str, typer.Option("--page-token", metavar="TOKEN", help="Go on where an earlier list ended.")]


class StateName(StrEnum):
    """States by name, for --state."""

    ACTIVE = "active"
    PENDING = "pending"
    ARCHIVED_BY_SOURCE = "archived_by_source"
    ARCHIVED_BY_DESTINATION = "archived_by_destination"
    ARCHIVED_BY_BOTH = "archived_by_both"
    REMOVED = "removed"
    BLOCKED = "blocked"


StateOption = Annotated[StateName, typer.Option("--state", case_sensitive=False, help="The state of the edges.")]
OldestOption = Annotated[bool, typer.Option("--oldest-first", help="Oldest first; without it newest first.")]


@edge_app.command(
    context_settings=ID_ARGUMENTS, epilog=examples("graphd edge get 7 9", "graphd edge get 7 9 --kind mute --json")
)
def get(
    a: Source,
    b: Destination,
    kind: KindOption = "follow",
    config: ConfigOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the edge A -> B: its state, since when, and its position. Exit status 1 if it was never written."""
    with spoken_errors():
        source_id, destination_id = account("A", a), account("B", b)
        settings = load_config(config, data).router

        async def work() -> "Edge":
            async with client_of(settings) as client:
                return await client.get_edge(source_id, destination_id, kind=kind)

        found = run(work())
    if as_json:
        print_json(edge_json(found))
    else:
        print(_edge_line(found))


@edge_app.command(
    context_settings=ID_ARGUMENTS,
    epilog=examples("graphd edge follow 7 9", "graphd edge follow 7 9 --request-id order-66 --json"),
)
def follow(
    a: Source,
    b: Destination,
    kind: KindOption = "follow",
    position: PositionOption = None,
    backfill: BackfillOption = False,
    request_id: RequestIdOption = None,
    config: ConfigOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make A follow B, and show what is stored now. Doing it twice changes nothing."""
    options: WriteOptions = {"kind": kind, "position": position, "backfill": backfill, "request_id": request_id}
    _write("follow", a, b, options, config, data, as_json)


@edge_app.command(context_settings=ID_ARGUMENTS, epilog=examples("graphd edge unfollow 7 9"))
def unfollow(
    a: Source,
    b: Destination,
    kind: KindOption = "follow",
    position: PositionOption = None,
    backfill: BackfillOption = False,
    request_id: RequestIdOption = None,
    config: ConfigOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make A no longer follow B, and show what is stored now."""
    options: WriteOptions = {"kind": kind, "position": position, "backfill": backfill, "request_id": request_id}
    _write("unfollow", a, b, options, config, data, as_json)


@edge_app.command(
    context_settings=ID_ARGUMENTS, epilog=examples("graphd edge block 9 7", "graphd edge block 9 7 --json")
)
def block(
    a: Blocker,
    b: Blocked,
    kind: KindOption = "follow",
    position: PositionOption = None,
    backfill: BackfillOption = False,
    request_id: RequestIdOption = None,
    config: ConfigOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make A block B: B cannot follow A, and A no longer follows B. Shows the edge B -> A."""
    options: WriteOptions = {"kind": kind, "position": position, "backfill": backfill, "request_id": request_id}
    _write("block", a, b, options, config, data, as_json)


@edge_app.command(context_settings=ID_ARGUMENTS, epilog=examples("graphd edge unblock 9 7"))
def unblock(
    a: Blocker,
    b: Blocked,
    kind: KindOption = "follow",
    position: PositionOption = None,
    backfill: BackfillOption = False,
    request_id: RequestIdOption = None,
    config: ConfigOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Lift the block of B by A, and show the edge B -> A. B does not follow A again by itself."""
    options: WriteOptions = {"kind": kind, "position": position, "backfill": backfill, "request_id": request_id}
    _write("unblock", a, b, options, config, data, as_json)


@list_app.command(
    context_settings=ID_ARGUMENTS,
    epilog=examples(
        "graphd list followers 9", "graphd list followers 9 --limit 0 --json", "graphd list followers 9 --state removed"
    ),
)
def followers(
    a: Account,
    kind: KindOption = "follow",
    state: StateOption = StateName.ACTIVE,
    oldest_first: OldestOption = False,
    limit: LimitOption = 100,
    page_token: TokenOption = "",
    config: ConfigOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """List who follows A. --json prints whole edges, and the token to go on with."""
    _list("followers", a, kind, state, oldest_first, limit, page_token, config, data, as_json)


@list_app.command(
    context_settings=ID_ARGUMENTS,
    epilog=examples("graphd list following 7", "graphd list following 7 --oldest-first -n 10"),
)
def following(
    a: Account,
    kind: KindOption = "follow",
    state: StateOption = StateName.ACTIVE,
    oldest_first: OldestOption = False,
    limit: LimitOption = 100,
    page_token: TokenOption = "",
    config: ConfigOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """List whom A follows. --json prints whole edges, and the token to go on with."""
    _list("following", a, kind, state, oldest_first, limit, page_token, config, data, as_json)


def degrees(
    a: Account,
    kind: KindOption = "follow",
    config: ConfigOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Count the followers of A and whom A follows, exactly, and the edges in every state."""
    with spoken_errors():
        account_id = account("A", a)
        settings = load_config(config, data).router

        async def work() -> "Degrees":
            async with client_of(settings) as client:
                return await client.get_degrees(account_id, kind=kind)

        found = run(work())
    if as_json:
        rows = [
            {"direction": direction.name, "state": state.name, "degree": degree}
            for (direction, state), degree in sorted(found.by_state.items())
        ]
        print_json(
            {
                "account_id": str(account_id),
                "kind": kind,
                "followers": found.followers,
                "following": found.following,
                "by_state": rows,
            }
        )
        return
    print(f"followers  {found.followers}")
    print(f"following  {found.following}")
    others = {key: degree for key, degree in sorted(found.by_state.items()) if key[1].name != "ACTIVE"}
    for (direction, state), degree in others.items():
        print(f"{state.name.lower()}, {'following' if direction.name == 'FORWARD' else 'followers'}  {degree}")


def add_to(app: typer.Typer) -> None:
    """These groups, and the command that stands alone."""
    app.add_typer(edge_app, name="edge")
    app.add_typer(list_app, name="list")
    app.command(context_settings=ID_ARGUMENTS, epilog=examples("graphd degrees 9", "graphd degrees 9 --json"))(degrees)


def _write(
    operation: Literal["follow", "unfollow", "block", "unblock"],
    a: str,
    b: str,
    options: "WriteOptions",
    config: Path | None,
    data: Path | None,
    as_json: bool,
) -> None:
    with spoken_errors():
        if options.get("backfill") and options.get("position") is None:
            raise MisuseError(f"edge {operation}: --backfill needs --position: what is written now is never too old")
        source_id, destination_id = account("A", a), account("B", b)
        settings = load_config(config, data).router

        async def work() -> "WriteResult":
            async with client_of(settings) as client:
                calls = {
                    "follow": client.follow,
                    "unfollow": client.unfollow,
                    "block": client.block,
                    "unblock": client.unblock,
                }
                return await calls[operation](source_id, destination_id, **options)

        result = run(work())
    if as_json:
        print_json(
            {
                "edge": edge_json(result.edge) if result.edge is not None else None,
                "outcome": result.outcome.name,
                "reason": result.reason,
                "duplicate": result.duplicate,
                "reverse_pending": result.reverse_pending,
            }
        )
        return
    remarks = [result.outcome.name.lower()]
    remarks += ["answered from its receipt"] if result.duplicate else []
    remarks += ["still to be delivered to the other shard"] if result.reverse_pending else []
    stored = _edge_line(result.edge) if result.edge is not None else f"{source_id} -> {destination_id}"
    print(f"{stored}  ({', '.join(remarks)})")


def _list(
    which: Literal["followers", "following"],
    a: str,
    kind: str,
    state: StateName,
    oldest_first: bool,
    limit: int,
    page_token: str,
    config: Path | None,
    data: Path | None,
    as_json: bool,
) -> None:
    with spoken_errors():
        account_id = account("A", a)
        settings = load_config(config, data).router

        async def work() -> "tuple[list[Edge], str]":
            async with client_of(settings) as client:
                from graphd.client import ListOrder
                from graphd.edge import State

                call = client.followers if which == "followers" else client.following
                order = ListOrder.OLDEST_FIRST if oldest_first else ListOrder.NEWEST_FIRST
                listing = call(account_id, kind=kind, state=State[state.name], order=order)
                return await _collect(listing, limit, page_token)

        edges, token = run(work())
    if as_json:
        print_json({"edges": [edge_json(edge) for edge in edges], "next_page_token": token})
        return
    print_table(
        (which[:-1] if which == "followers" else which, "since"),
        [(edge.source_id if which == "followers" else edge.destination_id, moment(edge.since)) for edge in edges],
    )
    if token:
        say(f"there are more: take --limit 0 for all, or go on with --page-token {token}")


async def _collect(listing: "Listing[Edge]", limit: int, page_token: str) -> "tuple[list[Edge], str]":
    """Up to `limit` edges (0: all), and the token of what follows."""
    from graphd.limits import MAX_PAGE_SIZE

    edges: list[Edge] = []
    while True:
        size = min(MAX_PAGE_SIZE, limit - len(edges)) if limit else MAX_PAGE_SIZE
        page = await listing.page(page_token, page_size=size)
        edges += page.items
        page_token = page.next_page_token
        if not page_token or (limit and len(edges) >= limit):
            return edges, page_token


def edge_json(edge: "Edge") -> dict[str, Any]:
    """For scripts: ids and positions as strings, as in proto JSON."""
    return {
        "source_id": str(edge.source_id),
        "destination_id": str(edge.destination_id),
        "kind": edge.kind,
        "state": edge.state.name,
        "position": str(edge.position),
        "since": str(edge.since),
    }


def _edge_line(edge: "Edge") -> str:
    since = moment(edge.since)
    return f"{edge.source_id} -> {edge.destination_id}  {edge.kind}  {edge.state.name}  since {since}  position {edge.position}"
