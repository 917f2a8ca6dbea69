"""A cluster of databases for tests, and the auditor who says whether what it holds is right."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import sql

from graphd.config import Config, from_values
from graphd.devcluster.postgres import PostgresServer
from graphd.storage.catalog import CatalogView
from graphd.storage.migrate import init

PER_SLOT_TABLES = ("forward", "reverse", "degrees", "outbox", "receipts", "archived_accounts")

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Databases:
    """Shards s1, s2, ... and a catalog, each a database; several may lie on one server."""

    config: Config
    catalog: str
    conninfo: Mapping[str, str]
    view: CatalogView
    _sessions: dict[str, psycopg.Connection[Any]] = field(default_factory=dict, repr=False)

    @property
    def slots(self) -> int:
        return self.view.topology.slots

    @property
    def names(self) -> list[str]:
        return list(self.conninfo)

    @contextmanager
    def connect(self, shard: str) -> Iterator[psycopg.Connection[Any]]:
        """An autocommit session on a shard."""
        with psycopg.connect(self.conninfo[shard], autocommit=True) as connection:
            yield connection

    def _execute(self, shard: str, query: str, parameters: Mapping[str, Any] | None) -> psycopg.Cursor[Any]:
        """Run a statement in a session that is kept; in a new one when the server has gone away meanwhile."""
        kept = self._sessions.get(shard)
        if kept is not None:
            try:
                return kept.execute(query.encode(), parameters)
            except psycopg.OperationalError:
                kept.close()
        self._sessions[shard] = psycopg.connect(self.conninfo[shard], autocommit=True)
        return self._sessions[shard].execute(query.encode(), parameters)

    def close(self) -> None:
        """End the sessions that were kept."""
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()

    def rows(self, shard: str, query: str, parameters: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """The answer of one shard."""
        return self._execute(shard, query, parameters).fetchall()

    def all_rows(self, query: str, parameters: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """The answers of all shards, one after the other."""
        return [row for shard in self.conninfo for row in self.rows(shard, query, parameters)]

    def do(self, query: str, parameters: Mapping[str, Any] | None = None) -> None:
        """Run a statement on every shard."""
        for shard in self.conninfo:
            self._execute(shard, query, parameters)

    def clear(self) -> None:
        """Take out every edge, degree, debt and receipt."""
        self.do("; ".join(f"DELETE FROM {table}" for table in PER_SLOT_TABLES))


@contextmanager
def new_databases(servers: Sequence[PostgresServer], *, shards: int = 2, slots: int = 64) -> Iterator[Databases]:
    """New databases on servers that run, shard i on server i modulo their number, the catalog on the first; dropped at the end."""
    number = next(_numbers)
    names = [f"s{i + 1}" for i in range(shards)]
    homes = {name: (servers[i % len(servers)], f"test_{number}_{name}") for i, name in enumerate(names)}
    conninfo = {name: server.conninfo(database) for name, (server, database) in homes.items()}
    catalog = servers[0].conninfo(f"test_{number}_catalog")
    config = from_values({"catalog": catalog, "slots": slots, "shards": conninfo}, "the test's configuration")
    try:
        view = asyncio.run(init(config))
        found = Databases(config, catalog, conninfo, view)
        try:
            yield found
        finally:
            found.close()
    finally:
        for server, database in [*homes.values(), (servers[0], f"test_{number}_catalog")]:
            with psycopg.connect(server.conninfo(), autocommit=True) as connection:
                connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(database)))


# -- the auditor ----------------------------------------------------------------------------------------------------------

_EDGES = {
    "forward": "SELECT owner_id, neighbor_id, kind, position, state, since FROM forward WHERE position > 0",
    "reverse": "SELECT neighbor_id, owner_id, kind, position, state, since FROM reverse WHERE position > 0",
}

_RECOUNT = """
WITH counted AS (
    SELECT owner_id, 1 AS direction, kind, state, slot, count(*) AS degree FROM forward WHERE position > 0 GROUP BY 1, 2, 3, 4, 5
    UNION ALL
    SELECT owner_id, 2, kind, state, slot, count(*) FROM reverse WHERE position > 0 GROUP BY 1, 2, 3, 4, 5
), stored AS (
    SELECT owner_id, direction, kind, state, slot, degree FROM degrees WHERE degree <> 0
)
SELECT owner_id, direction, kind, state, s.degree, c.degree
FROM stored AS s FULL JOIN counted AS c USING (owner_id, direction, kind, state, slot)
WHERE s.degree IS DISTINCT FROM c.degree
LIMIT 5
"""

_MISPLACED = """
SELECT 'forward', owner_id, slot FROM forward AS e
WHERE e.slot <> hashint8extended(owner_id, 0) & (%(slots)s - 1) OR e.slot NOT IN (SELECT slot FROM slots WHERE owned)
UNION ALL
SELECT 'reverse', owner_id, slot FROM reverse AS e
WHERE e.slot <> hashint8extended(owner_id, 0) & (%(slots)s - 1) OR e.slot NOT IN (SELECT slot FROM slots WHERE owned)
LIMIT 5
"""


def edges(databases: Databases, table: str = "forward") -> dict[tuple[int, int, int], tuple[int, int, int]]:
    """All halves of a table, over all shards: (source, destination, kind) -> (position, state, since)."""
    found = {}
    for source, destination, kind, position, state, since in databases.all_rows(_EDGES[table]):
        key = (source, destination, kind)
        assert key not in found, f"{table} holds {key} on two shards"
        found[key] = (position, state, since)
    return found


def problems(databases: Databases) -> list[str]:
    """What is wrong, in words: halves that differ, degrees unlike a recount, rows where they do not belong, debts not paid."""
    found: list[str] = []
    forward, reverse = edges(databases, "forward"), edges(databases, "reverse")
    if forward != reverse:
        different = sorted(key for key in forward.keys() | reverse.keys() if forward.get(key) != reverse.get(key))
        found += [f"edge {key}: forward {forward.get(key)}, reverse {reverse.get(key)}" for key in different[:5]]
        found.append(f"{len(different)} edges whose halves differ")
    for shard in databases.conninfo:
        for owner, direction, kind, state, stored, counted in databases.rows(shard, _RECOUNT):
            found.append(f"{shard}: degree of {owner} {direction=} {kind=} {state=} is {stored}, recounted {counted}")
        for table, owner, slot in databases.rows(shard, _MISPLACED, {"slots": databases.slots}):
            found.append(f"{shard}: a {table} half of {owner} lies in slot {slot}")
        [(owed,)] = databases.rows(shard, "SELECT count(*) FROM outbox")
        if owed:
            found.append(f"{shard}: {owed} rows in the outbox")
    return found


def suspend(databases: Databases, account_ids: Iterable[int], kind: int) -> None:
    """Suspend accounts in a kind, by plain SQL."""
    databases.do(
        "INSERT INTO archived_accounts (account_id, generation, slot, kind, standing)"
        " SELECT a.id, 1, s.slot, %(kind)s, 1 FROM unnest(%(ids)s::bigint[]) AS a (id)"
        " JOIN slots AS s ON s.owned AND s.slot = hashint8extended(a.id, 0) & (%(slots)s - 1)",
        {"ids": list(account_ids), "kind": kind, "slots": databases.slots},
    )


def audit(databases: Databases) -> None:
    """Fail unless everything is right now."""
    found = problems(databases)
    assert not found, "\n".join(found)
