"""Kinds in the catalog: declared once under numbers of their own, changed, and learnt by who runs without being told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import psycopg
import pytest

from graphd.errors import CatalogUnavailableError, InvalidArgumentError, SchemaError
from graphd.limits import MAX_KIND_NUMBER, MAX_KINDS, MAX_OUT_DEGREE
from graphd.storage.catalog import LOOK_EVERY_S, Catalog, CatalogView, CatalogWatch
from graphd.topology import Kind
from tests.calls import declare_in_silence
from tests.databases import Databases
from tests.waiting import eventually


@pytest.fixture
def catalog(databases: Databases) -> Catalog:
    return Catalog(databases.catalog)


@contextmanager
def typed(databases: Databases, there: str, back: str) -> Iterator[None]:
    """What somebody does to the catalog by hand, and undoes."""
    with psycopg.connect(databases.catalog, autocommit=True) as connection:
        connection.execute(there.encode())
        try:
            yield
        finally:
            connection.execute(back.encode())


# -- declared and changed --------------------------------------------------------------------------------------------------


async def test_kinds_declared_at_once(catalog: Catalog) -> None:
    epoch = (await catalog.load()).topology.epoch
    names = [f"many{n}" for n in range(8)]
    changes = await asyncio.gather(*(catalog.add_kind(Kind(0, name)) for name in names * 2))
    assert sum(change.applied for change in changes) == len(names)
    assert len({change.kind.number for change in changes}) == len(names)
    topology = (await catalog.load()).topology
    assert {change.kind.name: change.kind for change in changes} == {name: topology.kinds[name] for name in names}
    assert topology.epoch == epoch + len(names)


async def test_changing_a_kind(catalog: Catalog) -> None:
    made, applied = await catalog.add_kind(Kind(0, "changing", max_out_degree=5))
    assert applied
    epoch = (await catalog.load()).topology.epoch
    assert await catalog.add_kind(Kind(0, "changing", max_out_degree=5)) == (made, False)
    with pytest.raises(InvalidArgumentError, match="other settings: graphd kind set changing"):
        await catalog.add_kind(Kind(0, "changing"))
    assert (await catalog.load()).topology.epoch == epoch
    wanted = replace(made, max_out_degree=9, allow_self=True, events=False)
    for is_first in (True, False):
        changed = await catalog.set_kind(
            "changing", lambda kind: replace(kind, max_out_degree=9, allow_self=True, events=False)
        )
        assert changed == (wanted, is_first)
        topology = (await catalog.load()).topology
        assert (topology.kinds["changing"], topology.epoch) == (wanted, epoch + 1)
    with pytest.raises(InvalidArgumentError, match="graphd kind add missing"):
        await catalog.set_kind("missing", lambda kind: kind)


@pytest.mark.parametrize("name", ["", "Upper", "9", "a b", "k" * 33])
async def test_what_is_no_name(catalog: Catalog, name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="NAME"):
        await catalog.add_kind(Kind(0, name))
    with pytest.raises(InvalidArgumentError, match="NAME"):
        await catalog.set_kind(name, lambda kind: kind)


@pytest.mark.parametrize("most", [-1, MAX_OUT_DEGREE + 1, 10**30])
async def test_what_is_no_limit(catalog: Catalog, most: int) -> None:
    with pytest.raises(InvalidArgumentError, match="max_out_degree"):
        await catalog.add_kind(Kind(0, "limited", max_out_degree=most))
    with pytest.raises(InvalidArgumentError, match="max_out_degree"):
        await catalog.set_kind("follow", lambda kind: replace(kind, max_out_degree=most))
    view = await catalog.load()
    assert "limited" not in view.topology.kinds
    assert view.topology.kinds["follow"] == Kind(1, "follow")


async def test_a_number_is_never_given_again(catalog: Catalog, databases: Databases) -> None:
    """Not even when somebody deleted the kind by hand: rows may hold it still."""
    first = (await catalog.add_kind(Kind(0, "gone"))).kind
    with psycopg.connect(databases.catalog, autocommit=True) as connection:
        connection.execute("DELETE FROM kinds WHERE name = 'gone'")
    again = (await catalog.add_kind(Kind(0, "gone"))).kind
    assert again.number > first.number


async def test_there_is_an_end_to_kinds_and_to_numbers(catalog: Catalog, databases: Databases) -> None:
    count = len((await catalog.load()).topology.kinds)
    last = f"(SELECT max(number) FROM kinds) + {MAX_KINDS - count}"
    more = (
        f"INSERT INTO kinds (number, name) SELECT n, 'more' || n FROM kinds AS k, LATERAL "
        f"generate_series((SELECT max(number) FROM kinds) + 1, {last}) AS n WHERE k.number = 1"
    )
    with typed(databases, more, "DELETE FROM kinds WHERE name LIKE 'more%'"):
        assert len((await catalog.load()).topology.kinds) == MAX_KINDS
        with pytest.raises(InvalidArgumentError, match="no room"):
            await catalog.add_kind(Kind(0, "one-more"))
        assert not (await catalog.add_kind(Kind(0, "follow"))).applied
    now = (await catalog.add_kind(Kind(0, "room-again"))).kind.number
    end = f"UPDATE cluster SET last_kind = {MAX_KIND_NUMBER}"
    with (
        typed(databases, end, f"UPDATE cluster SET last_kind = {now}"),
        pytest.raises(InvalidArgumentError, match="no"),
    ):
        await catalog.add_kind(Kind(0, "one-more"))


async def test_a_catalog_of_an_older_release_says_what_to_run(catalog: Catalog, databases: Databases) -> None:
    there, back = ("ALTER TABLE kinds RENAME COLUMN {} TO {}".format(*names) for names in _RENAMED)
    with typed(databases, there, back):
        with pytest.raises(SchemaError, match="graphd migrate"):
            await catalog.load()
        with pytest.raises(SchemaError, match="graphd migrate"):
            await catalog.add_kind(Kind(0, "early"))
    assert "early" not in (await catalog.load()).topology.kinds


_RENAMED = (("events", "events_later"), ("events_later", "events"))


# -- learnt ----------------------------------------------------------------------------------------------------------------


class Watched(Catalog):
    """A catalog that counts its readings, and may keep an answer back after it was read, or fail."""

    def __init__(self, conninfo: str) -> None:
        super().__init__(conninfo)
        self.readings = 0
        self.read = asyncio.Event()
        self.free = asyncio.Event()
        self.free.set()
        self.is_down = False

    async def load(self) -> CatalogView:
        self.readings += 1
        if self.is_down:
            raise CatalogUnavailableError
        view = await super().load()
        self.read.set()
        await self.free.wait()
        return view


async def knows(watch: CatalogWatch, name: str, within_s: float = 10.0) -> bool:
    """As a call does that names a kind: look once if it is not known."""
    if name not in watch.view.topology.kinds:
        await watch.look(asyncio.get_running_loop().time() + within_s)
    return name in watch.view.topology.kinds


@pytest.fixture
def watched(databases: Databases) -> Watched:
    return Watched(databases.catalog)


async def test_however_many_ask_for_what_is_not_there(watched: Watched, databases: Databases) -> None:
    """F-numbers of stampedes: callers with a wrong name must not make the catalog work, and hold up nobody with a right one."""
    loop = asyncio.get_running_loop()
    watch = CatalogWatch(watched, await watched.load(), poll_s=60)
    watched.readings = 0
    began = loop.time()
    asked = 0

    async def ask_again_and_again() -> None:
        nonlocal asked
        while loop.time() < began + 1.0:
            assert not await knows(watch, "never")
            asked += 1

    callers = [asyncio.create_task(ask_again_and_again()) for _ in range(300)]
    await eventually(lambda: asked >= 300, what="all have asked")
    declare_in_silence(databases, "midst")
    assert await knows(watch, "midst")
    await asyncio.gather(*callers)
    assert 1 <= watched.readings <= 1 + (loop.time() - began) / LOOK_EVERY_S
    await watch.close()


async def test_who_asks_while_the_catalog_is_read_gets_the_next_reading(watched: Watched, databases: Databases) -> None:
    watch = CatalogWatch(watched, await watched.load(), poll_s=60)
    watched.read.clear()
    watched.free.clear()
    early = asyncio.create_task(knows(watch, "second"))
    await watched.read.wait()
    declare_in_silence(databases, "second")
    late = asyncio.create_task(knows(watch, "second"))
    await asyncio.sleep(2 * LOOK_EVERY_S)
    assert not late.done()
    watched.free.set()
    assert await late
    await early
    await watch.close()


async def test_a_catalog_that_does_not_answer_is_not_waited_for(watched: Watched) -> None:
    loop = asyncio.get_running_loop()
    watch = CatalogWatch(watched, await watched.load(), poll_s=60)
    watched.free.clear()
    began = loop.time()
    assert not any(await asyncio.gather(*(knows(watch, "never", 0.3) for _ in range(100))))
    assert loop.time() - began < 2
    watched.readings = 0
    for _ in range(3):
        assert not await knows(watch, "never", 0.3)
    # A reading that does not come back is not joined by another one.
    assert watched.readings == 0
    await watch.close()


async def test_a_catalog_that_is_away_and_comes_back(watched: Watched, databases: Databases) -> None:
    watch = CatalogWatch(watched, await watched.load(), poll_s=60)
    watched.is_down = True
    declare_in_silence(databases, "later")
    assert not await knows(watch, "later")
    assert await knows(watch, "follow")
    states = [watch.up]
    watched.is_down = False
    assert await knows(watch, "later")
    assert [*states, watch.up] == [False, True]
    await watch.close()
