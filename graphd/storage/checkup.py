"""Whether the databases of a configuration are those of one cluster and can serve: the checks of a start, all of them, to be shown.

No finding holds a conninfo, a host or a user.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import psycopg
from psycopg import AsyncConnection
from psycopg.rows import TupleRow

from graphd.config import Config
from graphd.errors import GraphdError
from graphd.storage.catalog import Catalog, CatalogView
from graphd.storage.connect import check_server, check_shard, connect
from graphd.storage.schema import check_schema


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


async def _check_catalog(config: Config) -> tuple[CatalogView | None, Finding]:
    try:
        connection = await connect(config.catalog_conninfo(), "graphd config check")
        try:
            await check_server(connection, "catalog", 0)
            await check_schema(connection, "catalog")
        finally:
            await connection.close()
        return await Catalog(config.catalog_conninfo()).load(), Finding("catalog")
    except (psycopg.Error, OSError, TimeoutError, GraphdError) as error:
        return None, Finding("catalog", _words(error))


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
        return Finding(name, _words(error))
    return Finding(name)


async def _check_shard(connection: AsyncConnection[TupleRow], view: CatalogView | None, name: str) -> None:
    await check_server(connection, name, view.topology.slots if view is not None else 0)
    await check_schema(connection, "shard")
    if view is not None:
        await check_shard(connection, view.identities[name])


def _words(error: Exception) -> str:
    """A sentence in place of the driver's words, which name hosts and users."""
    if isinstance(error, GraphdError):
        return str(error)
    if isinstance(error, psycopg.OperationalError | OSError | TimeoutError):
        text = str(error)
        if "authentication" in text or "password" in text:
            return "the server refuses the user or the password of the conninfo"
        if "does not exist" in text:
            return "the server has no such database or user: check the conninfo, or run graphd init"
        return "does not answer: check its conninfo, and that the server runs"
    if isinstance(error, psycopg.ProgrammingError) and error.sqlstate is None:
        return "the conninfo is not one: write it as 'host=... dbname=...' or postgresql://..."
    state = error.sqlstate if isinstance(error, psycopg.Error) else None
    return f"the server refused a query (sqlstate {state})"
