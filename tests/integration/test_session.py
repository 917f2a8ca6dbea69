"""Sessions: statements in one transaction, and what survives an error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest
import pytest_asyncio

from graphd.storage import session as sessions
from graphd.storage.arrays import Int2s
from graphd.storage.connect import connect
from graphd.storage.session import IDENTIFY, Backend, Prepared, Session, prepared
from tests.databases import Databases

DIVIDE = Prepared(b"divide", b"SELECT 1 / $1::integer", ("by",))
SLEEP = Prepared(b"sleep", b"SELECT pg_sleep($1::float8)", ("seconds",))


class Lost:
    """Counts what a session says when it dies idle."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    def __call__(self) -> None:
        self.event.set()


@pytest_asyncio.fixture(loop_scope="session")
async def lost() -> Lost:
    return Lost()


@pytest_asyncio.fixture(loop_scope="session", params=[True, False], ids=["prepared", "unprepared"])
async def session(request: pytest.FixtureRequest, databases: Databases, lost: Lost) -> AsyncIterator[Session]:
    connection = await connect(databases.conninfo["s1"], "test")
    cursor = await connection.execute(IDENTIFY)
    row = await cursor.fetchone()
    assert row is not None
    made = Session(connection, Backend(*row), prepare=request.param, lost=lost)
    yield made
    await made.close()


async def test_a_statement_prepared_in_a_failed_flush_is_used_again(session: Session) -> None:
    lock = prepared("write", "lock_slots")
    for _ in range(3):
        with pytest.raises(psycopg.errors.DivisionByZero):
            await session.run(((lock, {"slots": Int2s([1, 2])}), (DIVIDE, {"by": 0})))
    [[(locks,)], [(one,)]] = await session.run(((lock, {"slots": Int2s([1, 2])}), (DIVIDE, {"by": 1})))
    assert (locks, one) == (2, 1)
    assert not session.broken


async def test_a_flush_is_one_transaction(session: Session) -> None:
    xid = Prepared(b"xid", b"SELECT pg_current_xact_id()::text", ())
    [[(a,)], [(b,)]] = await session.run(((xid, {}), (xid, {})))
    [[(c,)]] = await session.run(((xid, {}),))
    assert a == b != c


async def test_parameters_larger_than_the_socket_takes_at_once(session: Session) -> None:
    count = Prepared(b"count", b"SELECT cardinality($1::smallint[])", ("values",))
    [[(n,)]] = await session.run(((count, {"values": Int2s([7] * 3_000_000)}),))
    assert n == 3_000_000


async def test_a_session_that_dies_idle_says_so(session: Session, databases: Databases, lost: Lost) -> None:
    pid = Prepared(b"pid", b"SELECT pg_backend_pid()", ())
    [[(backend,)]] = await session.run(((pid, {}),))
    async with await psycopg.AsyncConnection.connect(databases.conninfo["s1"], autocommit=True) as other:
        await other.execute("SELECT pg_terminate_backend(%s)", (backend,))
    async with asyncio.timeout(10):
        await lost.event.wait()
    assert session.broken


async def test_a_flush_given_up_fails_at_once(session: Session) -> None:
    loop = asyncio.get_running_loop()
    loop.call_later(0.1, session.abort)
    with pytest.raises(psycopg.OperationalError):
        await session.run(((SLEEP, {"seconds": 60}),))
    assert session.broken


async def test_a_backend_killed_under_a_flush_leaves_its_fate_unknown(session: Session, databases: Databases) -> None:
    pid = Prepared(b"pid", b"SELECT pg_backend_pid()", ())
    [[(backend,)]] = await session.run(((pid, {}),))
    sleeping = asyncio.ensure_future(session.run(((SLEEP, {"seconds": 60}),)))
    async with await psycopg.AsyncConnection.connect(databases.conninfo["s1"], autocommit=True) as other:
        async with asyncio.timeout(10):
            while True:
                cursor = await other.execute(
                    "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND wait_event = 'PgSleep'", (backend,)
                )
                if (await cursor.fetchone() or (0,))[0]:
                    break
        await other.execute("SELECT pg_terminate_backend(%s)", (backend,))
    with pytest.raises(psycopg.OperationalError):
        await sleeping
    assert session.broken


async def test_the_server_process_of_another_session_is_ended(session: Session, databases: Databases) -> None:
    other = await connect(databases.conninfo["s1"], "test")
    cursor = await other.execute(IDENTIFY)
    row = await cursor.fetchone()
    assert row is not None
    assert await session.end(Backend(row[0], "2000-01-01 00:00:00+00"), 5), (
        "another process of that number is left alone"
    )
    await other.execute("SELECT 1")
    assert await session.end(Backend(*row), 5)
    with pytest.raises(psycopg.OperationalError):
        await other.execute("SELECT 1")
    await other.close()


def test_placeholders_are_numbered_in_the_order_of_their_first_use() -> None:
    write = sessions.prepared("write", "write")
    assert len(write.names) == len(set(write.names))
    assert b"%(" not in write.text
    assert f"${len(write.names)}".encode() in write.text
