"""The edges of one shard as text, for export: `source, destination, kind, state, position, since`, parted by tabs, a line each."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from typing import Final

import psycopg
from psycopg import sql

from graphd.edge import State
from graphd.errors import ShardUnavailableError
from graphd.storage.connect import Identity, check_shard, connect
from graphd.storage.queries import statements
from graphd.storage.schema import check_schema
from graphd.topology import Kind

COLUMNS: Final = ("source", "destination", "kind", "state", "position", "since")
HEADER: Final = ("# graphd edges 1\n" + "\t".join(COLUMNS) + "\n").encode()
"""First lines of every file."""


async def dump(
    conninfo: str, identity: Identity, kinds: Collection[Kind], kind: Kind | None = None, state: State | None = None
) -> AsyncGenerator[bytes, None]:
    """Whole lines, some at a time, of one snapshot of the shard; memory is bounded whatever it holds. Raises ShardUnavailableError,
    SchemaError."""
    numbers = {one.number: one.name for one in kinds}
    query = sql.SQL(statements("export")["edges"]).format(
        kinds=sql.Literal(list(numbers.values())),
        numbers=sql.Literal(list(numbers)),
        states=sql.Literal([one.name for one in State]),
        kind=sql.Literal(kind.number if kind is not None else 0),
        state=sql.Literal(int(state) if state is not None else 0),
    )
    try:
        connection = await connect(conninfo, "graphd export")
        try:
            await check_schema(connection, "shard")
            await check_shard(connection, identity)
            async with connection.cursor() as cursor, cursor.copy(query) as copy:
                async for block in copy:
                    yield bytes(block)
        finally:
            await connection.close()
    except (psycopg.Error, OSError, TimeoutError) as error:
        raise ShardUnavailableError(identity.name) from error
