"""Creating and upgrading a cluster's databases: plain ordered SQL files, a version table in each database.

A migration runs in a transaction of its own under a lock, so two runs at once do no harm, and a run that was interrupted goes on where it
stopped. A process refuses to start on a schema it does not know.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import psycopg
from psycopg import AsyncConnection, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import TupleRow

from graphd.config import Config
from graphd.errors import ConfigError, SchemaError, StartError
from graphd.limits import MAX_SLOTS
from graphd.storage.catalog import Catalog, CatalogView
from graphd.storage.checkup import slots_problem
from graphd.storage.connect import Identity, check_server, check_shard, connect
from graphd.storage.queries import statement
from graphd.storage.schema import migrations, version_of
from graphd.storage.words import words
from graphd.topology import spread

T = TypeVar("T")

_LOCK: Final = 0x67726170
"""Advisory lock of migrations: "grap"."""

_VERSION_TABLE: Final = """
CREATE TABLE IF NOT EXISTS schema_version (
    version integer PRIMARY KEY, name text NOT NULL, applied timestamptz NOT NULL DEFAULT now()
)
"""


async def migrate(connection: AsyncConnection[TupleRow], database: str) -> list[str]:
    """Apply what is missing; answers the names applied. Raises SchemaError on a schema newer than this release."""
    applied: list[str] = []
    await connection.execute("SELECT pg_advisory_lock(%s)", (_LOCK,))
    try:
        await connection.execute(_VERSION_TABLE)
        version = await version_of(connection) or 0
        known = migrations(database)
        if version > len(known):
            raise SchemaError(f"the {database} database has schema {version}; this release knows up to {len(known)}")
        for migration in known[version:]:
            async with connection.transaction():
                await connection.execute(migration.text)
                await connection.execute(
                    "INSERT INTO schema_version (version, name) VALUES (%s, %s)", (migration.version, migration.name)
                )
            applied.append(f"{migration.version:04d}_{migration.name}")
    finally:
        await connection.execute("SELECT pg_advisory_unlock(%s)", (_LOCK,))
    return applied


async def ensure_database(conninfo: str) -> bool:
    """Create the database a conninfo names if its server has none of that name; answers whether it did."""
    try:
        connection = await connect(conninfo, "graphd init")
    except psycopg.OperationalError as error:
        name = str(conninfo_to_dict(conninfo).get("dbname") or "")
        if not name or f'database "{name}" does not exist' not in str(error):
            raise
    else:
        await connection.close()
        return False
    server = await connect(make_conninfo(conninfo, dbname="postgres"), "graphd init")
    try:
        await server.execute(
            sql.SQL("CREATE DATABASE {} ENCODING 'UTF8' TEMPLATE template0").format(sql.Identifier(name))
        )
    except (psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation):
        return False
    finally:
        await server.close()
    return True


Told = Callable[[str], None]


async def init(config: Config, tell: Told = lambda line: None) -> CatalogView:
    """Create what is missing of a cluster: databases, schemas, catalog, slots. Repeating it changes nothing.

    Raises ConfigError when the configuration contradicts the cluster that exists, StartError when a server cannot serve.
    """
    if not 1 <= config.slots <= MAX_SLOTS:
        raise ConfigError("slots: out of range")
    await _reaching("catalog", ensure_database(config.catalog_conninfo()))
    existing = await _existing(config, tell)
    if existing is not None:
        _compare(config, existing)
        if problem := slots_problem(config, existing):
            raise ConfigError(problem)
    # Only a configuration that does not contradict the cluster there is comes near its shards.
    for name in config.shards:
        await _reaching(name, ensure_database(config.shard_conninfo(name)))
    await _upgrade_shards(config, existing, tell)
    await _found(config)
    view = await Catalog(config.catalog_conninfo()).load()
    _compare(config, view)
    for name in view.topology.shards:
        await _reaching(name, _identify(config.shard_conninfo(name), view, name))
        tell(f"{name}: {len(view.topology.slots_of(name))} slots")
    return view


async def upgrade(config: Config, tell: Told = lambda line: None) -> None:
    """Apply the migrations that are missing, on the catalog and on every shard. Raises StartError."""
    existing = await _existing(config, tell)
    if existing is not None:
        _compare(config, existing)
    await _upgrade_shards(config, existing, tell)


async def _existing(config: Config, tell: Told) -> CatalogView | None:
    """The cluster that the catalog, brought up to date, knows of; None before it was ever initialised."""
    await _upgrade_one("catalog", config.catalog_conninfo(), 0, tell)
    try:
        return await Catalog(config.catalog_conninfo()).load()
    except SchemaError:
        return None


async def _upgrade_shards(config: Config, existing: CatalogView | None, tell: Told) -> None:
    slots = config.slots if existing is None else existing.topology.slots
    for name in config.shards:
        await _upgrade_one(name, config.shard_conninfo(name), slots, tell)


async def _upgrade_one(name: str, conninfo: str, slots: int, tell: Told) -> None:
    applied = await _reaching(name, _migrated(name, conninfo, slots))
    tell(f"{name}: " + (f"applied {', '.join(applied)}" if applied else "up to date"))


async def _migrated(name: str, conninfo: str, slots: int) -> list[str]:
    connection = await connect(conninfo, "graphd migrate", timeout_s=10)
    try:
        await check_server(connection, name, slots)
        return await migrate(connection, "catalog" if name == "catalog" else "shard")
    finally:
        await connection.close()


async def _reaching(name: str, work: Awaitable[T]) -> T:
    """Await work on one database; an unreachable one becomes a sentence without the driver's words, which name hosts."""
    try:
        return await work
    except (psycopg.Error, OSError, TimeoutError) as error:
        raise StartError(f"{name}: {words(error)}") from error


async def _found(config: Config) -> None:
    """The rows of a new cluster, all or none."""
    connection = await connect(config.catalog_conninfo(), "graphd init")
    try:
        async with connection.transaction():
            cursor = await connection.execute(
                statement("catalog", "found_cluster"), {"slots": config.slots, "token_key": secrets.token_bytes(32)}
            )
            if cursor.rowcount:
                names = tuple(config.shards)
                await connection.execute(statement("catalog", "found_shards"), {"names": list(names)})
                await connection.execute(
                    statement("catalog", "found_slots"), {"shards": list(spread(config.slots, names))}
                )
    finally:
        await connection.close()


def _compare(config: Config, view: CatalogView) -> None:
    strangers = sorted(set(config.shards) - set(view.topology.shards))
    if strangers:
        raise ConfigError(
            f"[shards] {', '.join(strangers)}: not of this cluster; adding shards is not offered by this release"
        )


async def _identify(conninfo: str, view: CatalogView, name: str) -> None:
    """Write who the shard is and what it owns, unless it knows."""
    connection = await connect(conninfo, "graphd init")
    try:
        identity: Identity = view.identities[name]
        async with connection.transaction():
            await connection.execute("LOCK TABLE shard IN EXCLUSIVE MODE")
            cursor = await connection.execute("SELECT count(*) FROM shard")
            if (await cursor.fetchone() or (0,))[0] == 0:
                await connection.execute(
                    statement("catalog", "identify_shard"),
                    {
                        "name": name,
                        "cluster": identity.cluster,
                        "incarnation": identity.incarnation,
                        "slots": view.topology.slots,
                    },
                )
                await connection.execute(
                    statement("catalog", "own_slots"), {"owned": [owner == name for owner in view.topology.owners]}
                )
        await check_shard(connection, identity)
    finally:
        await connection.close()
