"""Whether the databases of a configuration are those of one cluster and can serve: the checks of a start, all of them, to be shown.

No finding holds a conninfo, a host or a user.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import psycopg
from psycopg import AsyncConnection
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import TupleRow

from graphd.config import Config
from graphd.errors import GraphdError
from graphd.storage.catalog import Catalog, CatalogView
from graphd.storage.connect import check_server, check_shard, connect
from graphd.storage.schema import check_schema
from graphd.storage.words import NO_CONNINFO, words


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with one database; an empty `problem`: nothing."""

    database: str
    problem: str = ""


async def check_databases(config: Config) -> list[Finding]:
    """The catalog first, then every shard that the configuration or the catalog names."""
    view, catalog = await _check_catalog(config)
    known = view.topology.shards if view is not None else ()
    named = sorted(config.shards)
    missing = [
        Finding(name, "the catalog has this shard, but [shards] does not: add its conninfo")
        for name in known
        if name not in config.shards
    ]
    return [catalog, *await asyncio.gather(*(_check_one(config, view, name) for name in named)), *missing]


def conninfo_problems(config: Config) -> dict[str, str]:
    """What can be said of conninfos without connecting, by the database's name."""
    conninfos = {"catalog": config.catalog_conninfo()} | {name: config.shard_conninfo(name) for name in config.shards}
    return {name: NO_CONNINFO for name, conninfo in conninfos.items() if not _is_conninfo(conninfo)}


def _is_conninfo(text: str) -> bool:
    try:
        conninfo_to_dict(text)
    except psycopg.ProgrammingError:
        return False
    return True


def slots_problem(config: Config, view: CatalogView) -> str:
    """Whether the configuration names another number of slots than the cluster has; one that names none is content."""
    if "slots" not in config.model_fields_set or config.slots == view.topology.slots:
        return ""
    return f"slots: the cluster was created with {view.topology.slots}, which never changes"


async def _check_catalog(config: Config) -> tuple[CatalogView | None, Finding]:
    try:
        connection = await connect(config.catalog_conninfo(), "graphd config check")
        try:
            await check_server(connection, "catalog", 0)
            await check_schema(connection, "catalog")
        finally:
            await connection.close()
        view = await Catalog(config.catalog_conninfo()).load()
        return view, Finding("catalog", slots_problem(config, view))
    except (psycopg.Error, OSError, TimeoutError, GraphdError) as error:
        return None, Finding("catalog", words(error))


async def _check_one(config: Config, view: CatalogView | None, name: str) -> Finding:
    if view is not None and name not in view.topology.shards:
        return Finding(name, "[shards] has this shard, but the catalog does not: it is not of this cluster")
    try:
        connection = await connect(config.shard_conninfo(name), "graphd config check")
        try:
            await _check_shard(connection, view, name)
        finally:
            await connection.close()
    except (psycopg.Error, OSError, TimeoutError, GraphdError) as error:
        return Finding(name, words(error))
    return Finding(name)


async def _check_shard(connection: AsyncConnection[TupleRow], view: CatalogView | None, name: str) -> None:
    await check_server(connection, name, view.topology.slots if view is not None else 0)
    await check_schema(connection, "shard")
    if view is not None:
        await check_shard(connection, view.identities[name])
