"""Opening connections: every session is set up and checked the same way before it may carry anything.

A lane's session runs READ COMMITTED, because the ownership fence needs a fresh snapshot for each statement, and plans once and for
all: with `auto` the 14 arrays of the write statement were planned anew at every flush (3 ms of planning for 1 ms of work), and the
generic plan alone chose nested loops, 29 ms for a batch of 500. Nested loops and sequential scans off gives hash joins at any size
(16 ms for 500, 1.8 ms for 32); point look-ups are LATERAL and stay index scans. All on two cores, PostgreSQL 18.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import psycopg
import structlog
from psycopg import AsyncConnection
from psycopg.conninfo import make_conninfo
from psycopg.rows import TupleRow

from graphd.errors import SchemaError, ServerSettingsError
from graphd.storage import arrays

log = structlog.get_logger()

MIN_SERVER_VERSION: Final = 180_000
CONNECT_TIMEOUT_S: Final = 5

_DEFAULTS: Final = {
    "connect_timeout": str(CONNECT_TIMEOUT_S),
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}

LANE_SETTINGS: Final = {
    "plan_cache_mode": "force_generic_plan",
    "enable_nestloop": "off",
    "enable_seqscan": "off",
    "jit": "off",
}
"""For sessions that run the statements of write.sql."""

READ_SETTINGS: Final = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "jit": "off",
}
"""For sessions that run the point reads and pages of read.sql: driven by a short list of keys, each a range of an index in its order."""

SET_SETTINGS: Final = {
    "plan_cache_mode": "force_custom_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "jit": "off",
}
"""For set operations, where a generic plan went from 1 ms to 100 ms by itself after an autoanalyze. Without bitmap scans
and sorts, which read a list whole before its first row: a window is a range of an index in its order, however small the planner believes
the list."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Which shard a database says that it is."""

    name: str
    cluster: str
    incarnation: str


def conninfo_of(conninfo: str, application: str) -> str:
    """The conninfo with our defaults: a lost peer is noticed within seconds."""
    return make_conninfo(conninfo, **{**_DEFAULTS, "application_name": application})


async def set_up(connection: AsyncConnection[TupleRow], settings: dict[str, str]) -> None:
    """READ COMMITTED whatever the server's default, our settings, and numpy arrays both ways."""
    arrays.register(connection)
    wanted = {
        "default_transaction_isolation": "read committed",
        "idle_in_transaction_session_timeout": "60s",
        **settings,
    }
    await connection.execute(
        "SELECT set_config(name, value, false) FROM unnest(%s::text[], %s::text[]) AS t (name, value)",
        (list(wanted), list(wanted.values())),
        prepare=False,
    )


async def connect(
    conninfo: str,
    application: str,
    settings: dict[str, str] | None = None,
    *,
    timeout_s: float = 5.0,
    prepare: bool = False,
) -> AsyncConnection[TupleRow]:
    """An autocommit session, set up. Raises psycopg.Error or TimeoutError."""
    async with asyncio.timeout(timeout_s):
        connection: AsyncConnection[TupleRow] = await AsyncConnection.connect(
            conninfo_of(conninfo, application), autocommit=True, prepare_threshold=0 if prepare else None
        )
    try:
        with answers_within(connection, timeout_s):
            await set_up(connection, settings or {})
    except BaseException:
        await connection.close()
        raise
    return connection


@contextmanager
def answers_within(connection: AsyncConnection[Any], timeout_s: float) -> Iterator[None]:
    """Give the session up when the server has not answered in time: psycopg then raises OperationalError.

    A cancellation is not enough: psycopg asks the server to stop and waits for its word, which a severed network never brings.
    """
    alarm = asyncio.get_running_loop().call_later(timeout_s, _shut, connection)
    try:
        yield
    finally:
        alarm.cancel()


def _shut(connection: AsyncConnection[Any]) -> None:
    """End whatever waits on the session's socket."""
    try:
        with socket.socket(fileno=os.dup(connection.fileno())) as copy:
            copy.shutdown(socket.SHUT_RDWR)
    except (OSError, psycopg.Error) as error:
        # Closed already, which is what was wanted.
        log.debug("session.gone", error=type(error).__name__)


async def check_shard(connection: AsyncConnection[TupleRow], expected: Identity) -> None:
    """Raise SchemaError unless the session leads to that very shard, in that incarnation."""
    try:
        cursor = await connection.execute("SELECT name, cluster::text, incarnation::text FROM shard", prepare=False)
        row = await cursor.fetchone()
    except psycopg.errors.UndefinedTable:
        row = None
    if row is None:
        raise SchemaError(f"shard {expected.name} is not initialised: run graphd init")
    found = Identity(*row)
    if found != expected:
        raise SchemaError(
            f"the database given for shard {expected.name} is shard {found.name}"
            + (" of another cluster" if found.cluster != expected.cluster else "")
            + (" in another incarnation: it must be taken back in by repair" if found.name == expected.name else "")
        )


async def check_server(connection: AsyncConnection[TupleRow], name: str, slots: int, connections: int = 0) -> None:
    """Raise ServerSettingsError when the server is too old, its lock table too small for `slots`, or if it does not let in the
    `connections` that this process and its fellow workers open at the most."""
    if connection.info.server_version < MIN_SERVER_VERSION:
        raise ServerSettingsError(f"{name}: graphd needs PostgreSQL 18 or newer")
    cursor = await connection.execute(
        "SELECT current_setting('max_locks_per_transaction')::int, current_setting('server_encoding'),"
        " current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int"
        " - current_setting('reserved_connections')::int",
        prepare=False,
    )
    row = await cursor.fetchone()
    assert row is not None, "one row"
    locks, encoding, room = row
    if locks < slots:
        raise ServerSettingsError(
            f"{name}: max_locks_per_transaction is {locks}, but must be at least the number of slots, {slots}"
        )
    if encoding != "UTF8":
        raise ServerSettingsError(f"{name}: server_encoding is {encoding}, but must be UTF8")
    if room < connections:
        raise ServerSettingsError(
            f"{name}: max_connections leaves room for {room}, but this process and its fellow workers open {connections}:"
            " raise it, or lower [router] workers or set_connections"
        )


def is_refusal(error: psycopg.Error) -> bool:
    """Whether the server does not take such work now, whichever item asks: a standby, a full disk (53100), out of memory or
    connections, a statement or lock timeout. What was sent has been rolled back."""
    state = error.sqlstate or ""
    return state.startswith("53") or state in {"25006", "57014", "55P03"}
