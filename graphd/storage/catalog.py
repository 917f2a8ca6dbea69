"""The catalog: what every process of a cluster agrees on, and how processes hear that it changed.

A process loads it when it starts, listens for the notification that every change sends, and asks for the epoch now and then in case a
notification was lost. With the catalog down it goes on with what it knows.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import psycopg
import structlog
from psycopg.rows import TupleRow

from graphd.errors import CatalogUnavailableError, GraphdError, InvalidArgumentError, SchemaError
from graphd.limits import MAX_KIND_NUMBER, MAX_KINDS
from graphd.storage.connect import Identity, answers_within, connect
from graphd.storage.queries import statement
from graphd.storage.words import words
from graphd.topology import Kind, Topology, kind_name_rule, out_degree_rule

log = structlog.get_logger()

CHANNEL: Final = "graphd_topology"
RETRY_S: Final = 0.5
TIMEOUT_S: Final = 5.0
"""What the catalog does not answer by then, it does not answer: the session is given up and made anew."""

LOOK_EVERY_S: Final = 0.25
"""How often at most callers who name what is not known here make the catalog be read."""


class KindChange(NamedTuple):
    """A kind as it is now, and whether it was otherwise before."""

    kind: Kind
    applied: bool


@dataclass(frozen=True, slots=True)
class CatalogView:
    """One snapshot of the catalog. `token_key` is secret."""

    cluster: str
    token_key: bytes
    topology: Topology
    identities: dict[str, Identity]


class Catalog:
    """The catalog database at a conninfo."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo

    async def connect(self) -> psycopg.AsyncConnection[TupleRow]:
        """A session with the catalog. Raises psycopg.Error, OSError, TimeoutError."""
        return await connect(self._conninfo, "graphd catalog", {"statement_timeout": "5s"}, timeout_s=TIMEOUT_S)

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[psycopg.AsyncConnection[TupleRow]]:
        """`connect` for one question, which must be answered within TIMEOUT_S."""
        connection = await self.connect()
        try:
            with answers_within(connection, TIMEOUT_S):
                yield connection
        finally:
            await connection.close()

    async def load(self) -> CatalogView:
        """Read everything. Raises CatalogUnavailableError, SchemaError."""
        try:
            async with self.session() as connection:
                cursor = await connection.execute(statement("catalog", "cluster"), prepare=False)
                row = await cursor.fetchone()
        except (psycopg.Error, OSError, TimeoutError) as error:
            raise _failure(error) from error
        if row is None:
            raise SchemaError("the catalog is not initialised: run graphd init")
        return _view(row)

    async def assign(self, slot: int, shard: str) -> None:
        """Give a slot to a shard in the topology; every router hears of it."""
        async with self.session() as connection:
            await connection.execute(statement("catalog", "assign_slot"), {"slot": slot, "shard": shard})

    async def add_kind(self, wanted: Kind) -> KindChange:
        """Declare a kind, under the next number, whatever number it brings. The same again changes nothing. Raises InvalidArgumentError
        for a name that cannot be one, and for one that stands for something else already; CatalogUnavailableError, SchemaError."""
        rule = kind_name_rule(wanted.name)
        if rule is not None:
            raise InvalidArgumentError("NAME", rule)

        def add(there: Kind | None) -> tuple[str, Kind] | None:
            if there is None:
                return "add_kind", wanted
            if replace(wanted, number=there.number) != there:
                raise InvalidArgumentError(
                    "NAME", f"{wanted.name} is a kind already, with other settings: graphd kind set {wanted.name}"
                )
            return None

        return await self._change_kind(wanted.name, add)

    async def set_kind(self, name: str, changed: Callable[[Kind], Kind]) -> KindChange:
        """Change what a kind allows; its name and number stay. Raises InvalidArgumentError when there is no such kind;
        CatalogUnavailableError, SchemaError."""
        rule = kind_name_rule(name)
        if rule is not None:
            raise InvalidArgumentError("NAME", rule)

        def change(there: Kind | None) -> tuple[str, Kind] | None:
            if there is None:
                raise InvalidArgumentError("NAME", f"{name} is no kind yet: graphd kind add {name}")
            wanted = changed(there)
            assert (wanted.number, wanted.name) == (there.number, there.name)
            return ("set_kind", wanted) if wanted != there else None

        return await self._change_kind(name, change)

    async def _change_kind(self, name: str, decide: Callable[[Kind | None], tuple[str, Kind] | None]) -> KindChange:
        async def there(connection: psycopg.AsyncConnection[TupleRow]) -> Kind | None:
            cursor = await connection.execute(statement("catalog", "kind"), {"name": name})
            row = await cursor.fetchone()
            return Kind(*row) if row is not None else None

        try:
            async with self.session() as connection, connection.transaction():
                await connection.execute(statement("catalog", "lock_kinds"))
                todo = decide(await there(connection))
                if todo is not None:
                    which, wanted = todo
                    limit = out_degree_rule(wanted.max_out_degree)
                    if limit is not None:
                        raise InvalidArgumentError("max_out_degree", limit)
                    if which == "add_kind":
                        await _check_room(connection)
                    await connection.execute(
                        statement("catalog", which),
                        {
                            "name": wanted.name,
                            "allow_self": wanted.allow_self,
                            "max_out_degree": wanted.max_out_degree,
                            "events": wanted.events,
                        },
                    )
                kind = await there(connection)
        except (psycopg.Error, OSError, TimeoutError) as error:
            raise _failure(error) from error
        assert kind is not None, "it was written in this transaction"
        return KindChange(kind, todo is not None)

    async def import_position(self, checksum: str, kind: int, position: int) -> int:
        """The position of the first import of this file in this kind: `position` if this is it."""
        try:
            async with self.session() as connection:
                cursor = await connection.execute(
                    statement("catalog", "import_position"),
                    {"checksum": checksum, "kind": kind, "position": position},
                )
                row = await cursor.fetchone()
        except (psycopg.Error, OSError, TimeoutError) as error:
            raise CatalogUnavailableError() from error
        assert row is not None, "RETURNING answers one row"
        return int(row[0])


async def _check_room(connection: psycopg.AsyncConnection[TupleRow]) -> None:
    cursor = await connection.execute(statement("catalog", "room_for_kinds"))
    row = await cursor.fetchone()
    if row is None:
        raise SchemaError("the catalog is not initialised: run graphd init")
    if row[0] >= MAX_KINDS or row[1] >= MAX_KIND_NUMBER:
        raise InvalidArgumentError("NAME", f"there are {row[0]} kinds, and there is no room for another")


def _failure(error: Exception) -> GraphdError:
    """What an operator must do about it."""
    if isinstance(error, psycopg.errors.UndefinedTable):
        return SchemaError("the catalog is not initialised: run graphd init")
    if isinstance(error, psycopg.errors.UndefinedColumn):
        return SchemaError("the catalog has the schema of an older release: run graphd migrate")
    return CatalogUnavailableError(f"the catalog is not reachable: {words(error)}")


def _view(row: TupleRow) -> CatalogView:
    cluster, slots, token_key, epoch, names, incarnations, owners, numbers, kinds, selfs, limits, events = row
    if not names or not owners or len(owners) != slots:
        raise SchemaError("the catalog is incomplete: run graphd init")
    topology = Topology(
        epoch=epoch,
        shards=tuple(names),
        owners=tuple(owners),
        kinds={
            name: Kind(number, name, allow_self, int(limit), told)
            for number, name, allow_self, limit, told in zip(numbers, kinds, selfs, limits, events, strict=True)
        },
    )
    identities = {
        name: Identity(name, cluster, incarnation) for name, incarnation in zip(names, incarnations, strict=True)
    }
    return CatalogView(cluster, bytes(token_key), topology, identities)


class CatalogWatch:
    """Keeps a CatalogView fresh. `view` is the newest known; `changed` is called with each newer one."""

    def __init__(self, catalog: Catalog, view: CatalogView, *, poll_s: float) -> None:
        self.view = view
        self.up = True
        self.changed: Callable[[CatalogView], None] = lambda view: None
        self._catalog, self._poll_s = catalog, poll_s
        self._task: asyncio.Task[None] | None = None
        self._refreshing: asyncio.Task[bool] | None = None
        self._next_look: asyncio.Task[None] | None = None
        self._look_due = 0.0
        self._looks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Listen, in a task of its own."""
        self._task = asyncio.create_task(self._run(), name="catalog-watch")

    async def close(self) -> None:
        """Stop listening."""
        tasks = [task for task in (self._task, self._refreshing, *self._looks) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def look(self, until: float) -> bool:
        """See whether the catalog has anything that is not known here; answers whether it had, as far as was learnt `until` then (a time
        of the loop's clock). All who ask together share one reading, and there is one in LOOK_EVERY_S: callers who name what does not
        exist cannot make the catalog work."""
        known = self.view
        if self._next_look is None:
            self._next_look = asyncio.create_task(self._look(), name="catalog-look")
            self._looks.add(self._next_look)
            self._next_look.add_done_callback(self._looks.discard)
        await asyncio.wait([self._next_look], timeout=max(0.0, until - asyncio.get_running_loop().time()))
        return self.view is not known

    async def _look(self) -> None:
        now = asyncio.get_running_loop().time
        await asyncio.sleep(self._look_due - now())
        # Who asks from here on may mean something declared after this reading began: the next one is his.
        self._next_look = None
        self._look_due = now() + LOOK_EVERY_S
        await self.reread()

    async def reread(self) -> bool:
        """`refresh`, with a reading that begins after the call; one that is under way may miss what the caller was told of."""
        if self._refreshing is not None and not self._refreshing.done():
            await asyncio.wait([self._refreshing])
        return await self.refresh()

    async def refresh(self) -> bool:
        """Read the catalog now, once however many ask; False when it is down."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh())
        return await asyncio.shield(self._refreshing)

    async def _refresh(self) -> bool:
        try:
            view = await self._catalog.load()
        except (CatalogUnavailableError, SchemaError) as error:
            self._told(False, error)
            return False
        self._told(True)
        if view.topology.epoch != self.view.topology.epoch:
            if view.topology.epoch < self.view.topology.epoch:
                log.warning("topology.went_back", epoch=view.topology.epoch, hint="was the catalog restored?")
            log.info("topology.changed", epoch=view.topology.epoch)
            self.view = view
            self.changed(view)
        return True

    def _told(self, up: bool, error: Exception | None = None) -> None:
        if up != self.up:
            self.up = up
            if up:
                log.info("catalog.up")
            else:
                log.warning("catalog.down", error=type(error).__name__)

    async def _run(self) -> None:
        while True:
            try:
                connection = await self._catalog.connect()
                try:
                    with answers_within(connection, TIMEOUT_S):
                        await connection.execute(f"LISTEN {CHANNEL}", prepare=False)
                    await self.reread()
                    await self._listen(connection)
                finally:
                    await connection.close()
            except (psycopg.Error, OSError, TimeoutError) as error:
                self._told(False, error)
            await asyncio.sleep(RETRY_S)

    async def _listen(self, connection: psycopg.AsyncConnection[TupleRow]) -> None:
        while True:
            async for _ in connection.notifies(timeout=self._poll_s, stop_after=1):
                pass
            # Woken, or the poll is due: either way the epoch says whether anything is new.
            with answers_within(connection, TIMEOUT_S):
                cursor = await connection.execute(statement("catalog", "epoch"), prepare=False)
                row = await cursor.fetchone()
            if row is not None and row[0] != self.view.topology.epoch:
                # Never two readings at a time: the older one might be the last to come back.
                await self.reread()
            else:
                self._told(True)
