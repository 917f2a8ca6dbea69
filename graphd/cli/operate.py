"""`graphd where`, `topology`, `config check`, `init`, `migrate`: where things are, and setting a cluster up."""

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphd.cli.common import (
    ID_ARGUMENTS,
    ConfigOption,
    DataOption,
    JsonOption,
    account,
    admin_of,
    examples,
    find_config,
    load_config,
    print_json,
    print_table,
    run,
    spoken_errors,
)

if TYPE_CHECKING:
    from graphd.client import ShardInfo, TopologyInfo
    from graphd.config import Config, RouterConfig

config_app = typer.Typer(help="The configuration of a cluster.", no_args_is_help=True, rich_markup_mode=None)

OfflineOption = Annotated[bool, typer.Option("--offline", help="Look at the file alone, and connect to no database.")]


def where(
    a: Annotated[str, typer.Argument(metavar="A", help="The account.")],
    b: Annotated[str | None, typer.Argument(metavar="B", help="Whom A follows.", show_default=False)] = None,
    config: ConfigOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tell the slot and the shard of A; with B, too, where the two halves of the edge A -> B live."""
    with spoken_errors():
        ids = [account("A", a)] + ([account("B", b)] if b is not None else [])
        settings = load_config(config, data).router
        topology = run(_topology(settings))
        from graphd.placement import slot_of

        slots = [slot_of(account_id, topology.slots) for account_id in ids]
    places = [{"slot": slot, "shard": topology.owners[slot]} for slot in slots]
    named = [{"account_id": str(account_id), **place} for account_id, place in zip(ids, places, strict=True)]
    if as_json:
        halves = {"other": named[1], "forward": places[0], "reverse": places[1]} if b is not None else {}
        print_json({**named[0], **halves})
        return
    rows = [(f"account {account_id}", slot, topology.owners[slot]) for account_id, slot in zip(ids, slots, strict=True)]
    if b is not None:
        rows += [
            (f"{half} half of {ids[0]} -> {ids[1]}", slot, topology.owners[slot])
            for half, slot in zip(("forward", "reverse"), slots, strict=True)
        ]
    print_table(("", "slot", "shard"), rows)


def topology(config: ConfigOption = None, data: DataOption = None, as_json: JsonOption = False) -> None:
    """Show the shards, which slots each holds, whether it serves and what it owes, and the kinds of edges.

    What a shard that does not serve holds and owes is unknown: a dash, in JSON null.
    """
    with spoken_errors():
        settings = load_config(config, data).router

        async def work() -> "tuple[TopologyInfo, list[ShardInfo]]":
            async with admin_of(settings) as admin:
                return await admin.get_topology(), await admin.list_shards()

        laid_out, shards = run(work())
    if as_json:
        print_json(_topology_json(laid_out, shards))
        return
    print(f"epoch {laid_out.epoch}, {laid_out.slots} slots")
    print()
    print_table(
        ("shard", "serving", "slots", "halves (about)", "bytes", "owed", "since (s)", "ranges"),
        [
            (
                shard.name,
                "yes" if shard.serving else "NO",
                shard.slots,
                *_figures(shard).values(),
                ", ".join(f"{first}-{last}" for first, last in _ranges(laid_out.owners, shard.name)),
            )
            for shard in shards
        ],
    )
    print()
    print_table(
        ("kind", "self-loops", "follows at most", "events"),
        [
            (
                kind.name,
                "allowed" if kind.allow_self else "refused",
                kind.max_out_degree or "any number",
                "told" if kind.events else "not told",
            )
            for kind in laid_out.kinds
        ],
    )


def init(config: ConfigOption = None, data: DataOption = None) -> None:
    """Create what is missing of a cluster on given Postgres servers: databases, schemas, catalog, slots. Safe to repeat."""
    with spoken_errors():
        settings = load_config(config, data)
        from graphd.storage import migrate as migrations

        view = run(migrations.init(settings, _tell))
    _tell(f"ready: {len(view.topology.shards)} shards, {view.topology.slots} slots")


def migrate(config: ConfigOption = None, data: DataOption = None) -> None:
    """Bring the databases of a cluster to the schema of this release. Safe to repeat."""
    with spoken_errors():
        settings = load_config(config, data)
        from graphd.storage import migrate as migrations

        run(migrations.upgrade(settings, _tell))


@config_app.command(
    epilog=examples("graphd config check --config graphd.toml", "graphd config check --config graphd.toml --offline")
)
def check(
    config: ConfigOption = None, data: DataOption = None, offline: OfflineOption = False, as_json: JsonOption = False
) -> None:
    """Show every problem of the configuration, and whether each database answers with the right schema and settings.

    Exit status 1 if there is a problem. Warnings are not problems.
    """
    with spoken_errors():
        path = find_config(config, data)
        from graphd.config import load, unknown_variables
        from graphd.errors import ConfigError

        warnings = [f"{name}: no key of the configuration has this name; misspelt?" for name in unknown_variables()]
        databases: dict[str, str] = {}
        problems: list[str] = []
        try:
            settings = load(path)
        except ConfigError as fault:
            problems = str(fault).removeprefix(f"{path}: ").split("; ")
        else:
            problems, more = _router_problems(settings.router)
            warnings += more
            databases = _conninfos(settings) if offline else run(_databases(settings))
    failed = bool(problems) or any(databases.values())
    if as_json:
        print_json(
            {
                "config": str(path),
                "problems": problems,
                "warnings": warnings,
                "databases": {name: problem or "ok" for name, problem in databases.items()},
                "ok": not failed,
            }
        )
    else:
        lines = [("warning", text) for text in warnings] + [("problem", text) for text in problems]
        lines += [(name, problem or "ok") for name, problem in databases.items()]
        print(f"{path}: {'not ready' if failed else 'ok'}")
        for label, text in lines:
            print(f"  {label}: {text}")
    if failed:
        raise typer.Exit(1)


def add_to(app: typer.Typer) -> None:
    """The commands that stand alone."""
    app.command(context_settings=ID_ARGUMENTS, epilog=examples("graphd where 7", "graphd where 7 9 --json"))(where)
    app.command(epilog=examples("graphd topology", "graphd topology --json --data /tmp/try"))(topology)
    app.command(epilog=examples("graphd init --config graphd.toml"))(init)
    app.command(epilog=examples("graphd migrate --config graphd.toml"))(migrate)
    app.add_typer(config_app, name="config")


def _tell(line: str) -> None:
    print(line, flush=True)


async def _topology(settings: "RouterConfig") -> "TopologyInfo":
    async with admin_of(settings) as admin:
        return await admin.get_topology()


async def _databases(settings: "Config") -> dict[str, str]:
    from graphd.storage.checkup import check_databases

    return {finding.database: finding.problem for finding in await check_databases(settings)}


def _conninfos(settings: "Config") -> dict[str, str]:
    from graphd.storage.checkup import conninfo_problems

    return conninfo_problems(settings)


def _router_problems(router: "RouterConfig") -> tuple[list[str], list[str]]:
    """What one key alone does not show: problems and warnings."""
    problems, warnings = [], []
    if (router.tls_certificate is None) != (router.tls_key is None):
        problems.append("router.tls_certificate, router.tls_key: give both or neither")
    if router.tls_client_ca is not None and router.tls_certificate is None:
        problems.append("router.tls_client_ca: needs tls_certificate and tls_key too")
    for key in ("tls_certificate", "tls_key", "tls_client_ca"):
        path = getattr(router, key)
        if path is not None and not os.access(path, os.R_OK):
            problems.append(f"router.{key}: cannot read {path}")
    listens = {key: getattr(router, key) for key in ("listen", "admin_listen", "metrics_listen")}
    for key, listen in listens.items():
        host, _, port = listen.rpartition(":")
        twins = [other for other, value in listens.items() if value == listen and other > key and port != "0"]
        problems += [f"router.{key}, router.{other}: both are {listen}" for other in twins]
        loopback = host.strip("[]").startswith("127.") or host.strip("[]") in {"localhost", "::1"}
        if not loopback and router.tls_certificate is None and key != "metrics_listen":
            warnings.append(f"router.{key}: {listen} is open to other machines, without TLS")
    return problems, warnings


def _ranges(owners: tuple[str, ...], shard: str) -> list[tuple[int, int]]:
    """Runs of neighbouring slots that the shard holds, both ends included."""
    ranges: list[tuple[int, int]] = []
    for slot, owner in enumerate(owners):
        if owner != shard:
            continue
        if ranges and ranges[-1][1] == slot - 1:
            ranges[-1] = (ranges[-1][0], slot)
        else:
            ranges.append((slot, slot))
    return ranges


def _figures(shard: "ShardInfo") -> dict[str, float | None]:
    """What only a shard that serves can tell."""
    figures: dict[str, float | None] = {
        "halves": shard.halves,
        "bytes": shard.bytes,
        "outbox_length": shard.outbox_length,
        "outbox_age_s": round(shard.outbox_age_s, 1),
    }
    return figures if shard.serving else dict.fromkeys(figures)


def _topology_json(laid_out: "TopologyInfo", shards: "list[ShardInfo]") -> dict[str, Any]:
    return {
        "epoch": laid_out.epoch,
        "slots": laid_out.slots,
        "shards": [
            {
                "name": shard.name,
                "serving": shard.serving,
                "slots": shard.slots,
                **_figures(shard),
            }
            for shard in shards
        ],
        "assignment": [
            {"first": first, "last": last, "shard": shard}
            for shard in laid_out.shards
            for first, last in _ranges(laid_out.owners, shard)
        ],
        "kinds": [
            {
                "name": kind.name,
                "allow_self": kind.allow_self,
                "max_out_degree": kind.max_out_degree,
                "events": kind.events,
            }
            for kind in laid_out.kinds
        ],
    }
