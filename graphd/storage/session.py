"""A lane's session: prepared statements sent in one go, in pipeline mode for good, on libpq through psycopg's own binding.

psycopg's cursors spend 0.35 ms of CPU on a flush of two statements; this spends about 0.1 ms, because it prepares once, packs parameters
itself and wakes once for all results. What stands between two syncs is one implicit transaction, so a flush is a transaction without BEGIN
and COMMIT. The socket is watched all the time: a session that dies while idle says so at once.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import AsyncConnection, pq
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.rows import TupleRow

from graphd.storage.arrays import PACKED, register_raw
from graphd.storage.queries import statement

_PLACEHOLDER: Final = re.compile(rb"%\((\w+)\)s")
_TEXT, _BINARY = 0, 1


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A statement as the server is told it: `$1`, `$2`, ... in the order of `names`."""

    name: bytes
    text: bytes
    names: tuple[str, ...]

    def parameters(self, values: Mapping[str, Any]) -> tuple[list[bytes | None], list[int]]:
        """Values and formats in order: packed arrays in binary, everything else as text (the statement casts it)."""
        data: list[bytes | None] = []
        formats: list[int] = []
        for name in self.names:
            value = values[name]
            if isinstance(value, PACKED):
                data.append(value.packed)
                formats.append(_BINARY)
            else:
                data.append(None if value is None else str(value).encode())
                formats.append(_TEXT)
        return data, formats


@cache
def prepared(file: str, name: str, table: str | None = None) -> Prepared:
    """The statement of a .sql file, made ready for `Session.run`."""
    names: list[str] = []

    def numbered(match: re.Match[bytes]) -> bytes:
        found = match[1].decode()
        if found not in names:
            names.append(found)
        return b"$%d" % (names.index(found) + 1)

    text = _PLACEHOLDER.sub(numbered, statement(file, name, table))
    return Prepared("_".join(filter(None, (file, name, table))).encode(), text, tuple(names))


class Backend(NamedTuple):
    """A server process: its id, and when it started, since ids are used again."""

    pid: int
    started: str


IDENTIFY: Final = "SELECT pid, backend_start::text FROM pg_stat_activity WHERE pid = pg_backend_pid()"
_END: Final = Prepared(
    b"end_backend",
    b"SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity AS a"
    b" WHERE a.pid = $1::integer AND a.backend_start = $2::timestamptz",
    ("pid", "started"),
)


class Session:
    """One connection in pipeline mode. Not for two flushes at once. `lost` is called once, when it dies while idle. It answers bigint[] as
    bytes, for `unpack_alike`."""

    def __init__(
        self, connection: AsyncConnection[TupleRow], backend: Backend, *, prepare: bool, lost: Callable[[], None]
    ) -> None:
        self._connection = connection
        self.backend = backend
        self._pgconn = connection.pgconn
        register_raw(connection)
        self._transformer = Transformer(connection)
        self._prepare, self._lost = prepare, lost
        self._known: set[bytes] = set()
        self._loop = asyncio.get_running_loop()
        self._fd = connection.fileno()
        self._done: asyncio.Future[list[pq.abc.PGresult]] | None = None
        self._results: list[pq.abc.PGresult] = []
        self._error: psycopg.Error | None = None
        self.broken = False
        self._watching = True
        self._pgconn.nonblocking = 1
        self._pgconn.enter_pipeline_mode()
        self._loop.add_reader(self._fd, self._readable)

    async def run(self, calls: Sequence[tuple[Prepared, Mapping[str, Any]]]) -> list[list[TupleRow]]:
        """Run statements in one transaction; answers the rows of each. Raises psycopg.Error, having rolled back, or with
        `broken` set when what became of it is not known."""
        assert self._done is None, "one flush at a time"
        new: list[bytes] = []
        self._results, self._error = [], None
        self._done = self._loop.create_future()
        try:
            try:
                for call, values in calls:
                    self._send(call, values, new)
                self._pgconn.pipeline_sync()
                self._flush()
            except psycopg.Error:
                self.broken = True
                raise
            results = await self._done
        finally:
            self._done = None
            # Only a "prepare" is answered without columns. It stands even where the transaction was rolled back.
            answered = sum(result.status == pq.ExecStatus.COMMAND_OK for result in self._results)
            self._known.update(new[:answered])
        return [self._rows(result) for result in results if result.status == pq.ExecStatus.TUPLES_OK]

    def _send(self, call: Prepared, values: Mapping[str, Any], new: list[bytes]) -> None:
        data, formats = call.parameters(values)
        if not self._prepare:
            self._pgconn.send_query_params(call.text, data, param_formats=formats, result_format=_BINARY)
            return
        if call.name not in self._known and call.name not in new:
            self._pgconn.send_prepare(call.name, call.text)
            new.append(call.name)
        self._pgconn.send_query_prepared(call.name, data, formats, _BINARY)

    def _rows(self, result: pq.abc.PGresult) -> list[TupleRow]:
        self._transformer.set_pgresult(result, format=pq.Format.BINARY)
        return self._transformer.load_rows(0, result.ntuples, tuple)

    # -- the socket ----------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Send what libpq holds back; the rest when the socket takes it."""
        if self._pgconn.flush():
            self._loop.add_writer(self._fd, self._writable)

    def _writable(self) -> None:
        try:
            left = self._pgconn.flush()
        except psycopg.Error as error:
            self._fail(error)
            return
        if not left:
            self._loop.remove_writer(self._fd)

    def _readable(self) -> None:
        try:
            self._pgconn.consume_input()
            while not self._pgconn.is_busy():
                result = self._pgconn.get_result()
                if result is None:
                    if self._done is None or not self._expects():
                        return
                    continue
                if result.status == pq.ExecStatus.PIPELINE_SYNC:
                    self._settle()
                    return
                if result.status == pq.ExecStatus.FATAL_ERROR:
                    self._error = self._error or error_from_result(result)
                    if result.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED) in (b"FATAL", b"PANIC"):
                        # The server's last word. The end of the stream may never be told: after a reset libuv calls a reader once
                        # and then forgets it.
                        self._fail(self._error)
                        return
                elif result.status != pq.ExecStatus.PIPELINE_ABORTED:
                    self._results.append(result)
        except psycopg.Error as error:
            self._fail(error)

    def _expects(self) -> bool:
        """Whether more results are to come; False for a connection that has died between two of them."""
        if self._pgconn.status == pq.ConnStatus.BAD:
            self._fail(self._error or psycopg.OperationalError("the connection is lost"))
            return False
        return True

    def _settle(self) -> None:
        done = self._done
        assert done is not None, "a sync answers a flush"
        if done.done():
            return
        if self._error is not None:
            done.set_exception(self._error)
        else:
            done.set_result(self._results)

    def _fail(self, error: psycopg.Error) -> None:
        """The connection is gone."""
        self.broken = True
        self._unwatch()
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)
        else:
            self._lost()

    def _unwatch(self) -> None:
        """Once: the descriptor's number may soon be another session's."""
        if not self._watching:
            return
        self._watching = False
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)

    async def end(self, backend: Backend, timeout_s: float) -> bool:
        """End the server process of a session that was given up; answers whether it is gone. It may hold a batch that it has not run
        yet, and would run it after the writes that come next."""
        deadline = self._loop.time() + timeout_s
        while True:
            [found] = await self.run(((_END, {"pid": backend.pid, "started": backend.started}),))
            if not found:
                return True
            if self._loop.time() > deadline:
                return False
            await asyncio.sleep(0.01)

    def abort(self) -> None:
        """Give the connection up at once, whatever it is doing: a flush under way fails as lost."""
        self._fail(psycopg.OperationalError("the connection was given up"))

    async def close(self) -> None:
        """Disconnect."""
        self._unwatch()
        self.broken = True
        await self._connection.close()
