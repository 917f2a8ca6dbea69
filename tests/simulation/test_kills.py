"""Servers and routers killed under load: what was acknowledged stays, and nobody else notices."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from tests.routers import GraphStub, RouterProcess
from tests.simulation.check import check
from tests.simulation.cluster import Site
from tests.simulation.faults import LONG, SHORT, Outage, Victim, strike
from tests.simulation.workload import Caller, Failure, Ledger, connections, writing

CALLERS = 32
ROUNDS, LONG_ROUNDS = 2, 10
POPULAR = 24
"""Accounts that everybody follows; few, so that their degrees are hot."""


def callers_of(site: Site, chance: random.Random, stubs: list[list[GraphStub]], ledger: Ledger) -> list[Caller]:
    """A third of the callers for each shard: their sources live there, and half of them follow only there."""
    names = site.databases.names
    popular = {name: site.accounts(name, POPULAR // len(names), first=1_000_000) for name in names}
    everybody = [account for accounts in popular.values() for account in accounts]
    sources = {name: iter(site.accounts(name, 4 * CALLERS)) for name in names}
    found = []
    for number in range(CALLERS):
        home = names[number % len(names)]
        destinations = popular[home] if number % 2 else everybody
        mine = [next(sources[home]) for _ in range(4)]
        found.append(Caller(stubs[number % len(stubs)], number, mine, destinations, ledger, chance.getrandbits(32)))
    return found


@pytest.mark.timeout(900)
@pytest.mark.parametrize("what", ["shard", "router", "both"])
async def test_kill(site: Site, chance: random.Random, is_long: bool, what: str) -> None:
    outage = LONG if is_long else SHORT
    with site.routers(2) as routers, site.relay():
        async with connections(routers, 4) as stubs:
            for _ in range(LONG_ROUNDS if is_long else ROUNDS):
                shard, router = chance.choice(site.databases.names), chance.choice(routers)
                await kill_round(site, chance, outage, what, shard, router, routers, stubs)


async def kill_round(
    site: Site,
    chance: random.Random,
    outage: Outage,
    what: str,
    shard: str,
    router: RouterProcess,
    routers: list[RouterProcess],
    stubs: list[list[GraphStub]],
) -> None:
    ledger = Ledger()
    victims: list[Victim] = []
    if what in ("shard", "both"):
        victims.append(site.servers[shard])
    if what in ("router", "both"):
        victims.append(router)
    async with writing(callers_of(site, chance, stubs, ledger)):
        await asyncio.to_thread(strike, victims, outage)
    print(f"{what}: killed {victims}; {ledger.outcomes}, failed attempts {ledger.codes()}")

    def is_excused(failure: Failure) -> bool:
        if what != "shard" and routers[failure.router] is router:
            return True
        return what != "router" and shard in {site.shard_of(account) for account in failure.edge}

    unexcused = [failure for failure in ledger.failures if not is_excused(failure)]
    assert not unexcused, f"{len(unexcused)} calls failed that had nothing to do with it, such as {unexcused[:3]}"
    assert ledger.writes > 20 * CALLERS
    began = time.monotonic()
    await check(site.databases, ledger)
    print(f"checked after {time.monotonic() - began:.1f} s")
