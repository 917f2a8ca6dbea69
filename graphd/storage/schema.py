"""The schema of a database: the migrations this release knows, and the check that a database has just those."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from typing import cast

import psycopg
from psycopg import AsyncConnection
from psycopg.rows import TupleRow

from graphd.errors import SchemaError


@dataclass(frozen=True, slots=True)
class Migration:
    """One file: its number, its name and its text."""

    version: int
    name: str
    text: str


def migrations(database: str) -> list[Migration]:
    """The migrations of `shard` or `catalog` databases, in order. Asserts that their numbers are 1, 2, 3, ..."""
    folder = resources.files("graphd.storage") / "migrations" / database
    found = []
    for entry in sorted((e for e in folder.iterdir() if e.name.endswith(".sql")), key=lambda e: e.name):
        number, _, name = entry.name.removesuffix(".sql").partition("_")
        found.append(Migration(int(number), name, entry.read_text(encoding="utf-8")))
    assert [m.version for m in found] == list(range(1, len(found) + 1)), f"gaps in the migrations of {database}"
    return found


async def version_of(connection: AsyncConnection[TupleRow]) -> int | None:
    """The schema version of a database; None when it was never migrated. Raises psycopg.errors.UndefinedTable."""
    cursor = await connection.execute("SELECT max(version) FROM schema_version")
    row = await cursor.fetchone()
    return cast("int | None", row[0]) if row is not None else None


async def check_schema(connection: AsyncConnection[TupleRow], database: str) -> None:
    """Raise SchemaError unless the database has just the schema of this release."""
    try:
        version = await version_of(connection)
    except psycopg.errors.UndefinedTable:
        version = None
    if version is None:
        raise SchemaError(f"the {database} database is not initialised: run graphd init")
    known = len(migrations(database))
    if version != known:
        hint = "run graphd migrate" if version < known else "upgrade graphd"
        raise SchemaError(f"the {database} database has schema {version}, this release needs {known}: {hint}")
