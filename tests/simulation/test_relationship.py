"""Six people, and everything they may do to each other, while the shard of half of them comes and goes: the model of
tests/property/test_relationship.py holds when all is delivered."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest

from graphd.clock import now_us
from graphd.limits import RESUME_METADATA
from graphd.operations import Operation
from graphd.v1 import graph_pb2 as pb
from router.lifecycle import ARCHIVE, REMOVE, RESTORE
from tests.databases import audit
from tests.property.test_relationship import CALLERS, PEOPLE, Model, Step, Watcher, Whole, change, compare, do
from tests.routers import GraphStub
from tests.simulation.calls import serves
from tests.simulation.check import settled
from tests.simulation.cluster import Site
from tests.simulation.proxy import Mode
from tests.waiting import eventually

EXAMPLES, LONG_EXAMPLES = 2, 60
PHASES = 4
STEPS = 15
NEEDS_BOTH = (Operation.BLOCK, Operation.UNBLOCK)
"""What is answered only when the other shard has done its part."""


def drawn(chance: random.Random, *, is_away: bool) -> Step | Whole:
    """A step that can be answered: with s2 away, of a source on s1 (the first three people), and no whole account."""
    if not is_away and chance.random() < 0.15:
        return Whole(chance.choice([ARCHIVE, RESTORE, RESTORE, REMOVE]), chance.randrange(PEOPLE))
    source, destination = chance.sample(range(PEOPLE), 2)
    if is_away and source >= PEOPLE // 2:
        source, destination = destination, source
    if is_away and source >= PEOPLE // 2:
        source = (destination + 1) % PEOPLE % (PEOPLE // 2)
    operations = [one for one in CALLERS if not (is_away and one in NEEDS_BOTH)]
    ago_us = chance.randrange(-2, 4) if chance.random() < 0.25 else None
    return Step(chance.choice(operations), source, destination, ago_us, chance.random() < 0.3)


async def example(site: Site, stub: GraphStub, watcher: Watcher, chance: random.Random, number: int) -> None:
    first = 10_000 * (number + 1)
    accounts = site.accounts("s1", PEOPLE // 2, first) + site.accounts("s2", PEOPLE // 2, first)
    model, began = Model(), now_us() - 1_000_000
    done = 0
    for phase in range(PHASES):
        is_away = phase % 2 == 1
        # A suspension is settled by both shards, so nobody is suspended while one of them is away.
        if is_away:
            for at, account in enumerate(accounts):
                if account in model.suspended:
                    await change(stub, model, accounts, Whole(RESTORE, at))
            site.proxies["s2"].set(Mode.CUT)
        for _ in range(STEPS):
            step = drawn(chance, is_away=is_away)
            if isinstance(step, Whole):
                await change(stub, model, accounts, step)
            else:
                await do(stub, model, accounts, began, done, step, may_be_pending=is_away)
            done += 1
        site.proxies["s2"].set(Mode.PASS)
        if is_away:
            # Of strangers, so that the model knows nothing of it.
            strangers = site.accounts("s1", 1, 1)[0], site.accounts("s2", 1, 1)[0]
            await eventually(partial(serves, stub, *strangers[::-1]), 20, "s2 is back")
            await settled(site.databases)
    await settled(site.databases)
    audit(site.databases)
    await compare(stub, model, accounts)
    expected: dict[Any, Any] = {edge: told for edge, told in model.told.items() if told}
    mine = set(accounts)

    def is_told() -> bool:
        return {edge: told for edge, told in watcher.told.items() if edge[0] in mine} == expected

    await eventually(is_told, 10, "all events are told")


@pytest.mark.timeout(900)
async def test_six_people_and_a_shard_that_comes_and_goes(site: Site, chance: random.Random, is_long: bool) -> None:
    async with site.one_router({"reverse_wait_s": 0.3}) as (_, stub):
        call = stub.WatchEdges(pb.WatchEdgesRequest(), timeout=10)
        token = str(dict(await call.initial_metadata())[RESUME_METADATA])
        call.cancel()
        with site.relay():
            for number in range(LONG_EXAMPLES if is_long else EXAMPLES):
                watcher = Watcher(stub, token)
                try:
                    await example(site, stub, watcher, chance, number)
                finally:
                    await watcher.stop()
