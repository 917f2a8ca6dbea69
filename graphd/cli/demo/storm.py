"""A storm: thousands follow one account at once, some twice, some only to leave again."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from graphd.cli.demo.stage import Stage
from graphd.client import FollowersOf, Write, WriteResult
from graphd.operations import Operation, Outcome

CALLERS = 64
SINGLES = 1_500
BATCHED = 6_000
BATCH = 500
TWICE_EVERY = 10
LEAVES_EVERY = 7


@dataclass(slots=True)
class Tally:
    """What was sent, and what came back."""

    calls: int = 0
    seconds: list[float] = field(default_factory=list)
    outcomes: dict[Outcome, int] = field(default_factory=dict)

    def add(self, result: WriteResult) -> None:
        """Count an answer."""
        self.calls += 1
        self.outcomes[result.outcome] = self.outcomes.get(result.outcome, 0) + 1

    def told(self) -> str:
        """In words."""
        return ", ".join(f"{count:,} {outcome.name}" for outcome, count in sorted(self.outcomes.items()))


async def show(stage: Stage, crowd: Sequence[int]) -> set[int]:
    """Let the crowd follow cy; answers who follows her in the end. Raises GraphdError."""
    screen, client, cy = stage.screen, stage.client, stage.people.cy
    singles, batched = crowd[:SINGLES], crowd[SINGLES : SINGLES + BATCHED]
    before = {neighbor.account_id async for neighbor in client.follower_ids(cy)}
    screen.say(
        f"{len(singles):,} accounts follow cy in a call each, {CALLERS} calls at a time, every {TWICE_EVERY}th of them twice; every "
        f"{LEAVES_EVERY}th then unfollows her. {len(batched):,} more follow her in batches of {BATCH}, meanwhile."
    )
    began = time.perf_counter()
    with screen.working("storming"):
        (one_by_one, lasted_s), in_batches = await asyncio.gather(_singles(stage, singles), _batches(stage, batched))
    took_s = time.perf_counter() - began
    screen.call("Follow and Unfollow", one_by_one.told(), _speed(one_by_one, lasted_s))
    screen.call("BatchWrite", in_batches.told())
    screen.call("all together", f"{one_by_one.calls + in_batches.calls:,} writes in {took_s:.1f} s")
    expected = (before | set(singles) | set(batched)) - set(singles[::LEAVES_EVERY])
    degrees = await client.get_degrees(cy)
    screen.call("GetDegrees(cy)", f"{degrees.followers:,} followers")
    screen.check(f"her degree is {len(expected):,} to the last one", degrees.followers == len(expected))
    with screen.working("walking"):
        walked = [neighbor.account_id async for neighbor in client.follower_ids(cy)]
        both = {account async for account in client.intersect(FollowersOf(cy), FollowersOf(stage.hub))}
        hub = {neighbor.account_id async for neighbor in client.follower_ids(stage.hub)}
    screen.check(
        "her list holds each of them once, and nobody else", len(walked) == len(expected) and set(walked) == expected
    )
    name = stage.people.name(stage.hub)
    screen.call(f"Intersect(followers of cy, of {name})", f"{len(both):,} accounts")
    screen.check("the intersection equals that of the two lists", both == expected & hub)
    return expected


async def _singles(stage: Stage, crowd: Sequence[int]) -> tuple[Tally, float]:
    """CALLERS at once, each with the next one of the crowd; how long all took, too."""
    tally, waiting = Tally(), iter(enumerate(crowd))
    client, cy = stage.client, stage.people.cy

    async def call(operation: Operation, account: int) -> None:
        began = time.perf_counter()
        write = client.follow if operation is Operation.FOLLOW else client.unfollow
        tally.add(await write(account, cy))
        tally.seconds.append(time.perf_counter() - began)

    async def caller() -> None:
        for at, account in waiting:
            await call(Operation.FOLLOW, account)
            if at % TWICE_EVERY == 0:
                await call(Operation.FOLLOW, account)
            if at % LEAVES_EVERY == 0:
                await call(Operation.UNFOLLOW, account)

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return tally, time.perf_counter() - began


async def _batches(stage: Stage, crowd: Sequence[int]) -> Tally:
    tally, cy = Tally(), stage.people.cy
    for start in range(0, len(crowd), BATCH):
        writes = [Write(Operation.FOLLOW, account, cy) for account in crowd[start : start + BATCH]]
        for result in await stage.client.batch_write(writes):
            tally.add(result)
    return tally


def _speed(tally: Tally, took_s: float) -> str:
    times = sorted(tally.seconds)
    if not times:
        return ""
    median_ms, p99_ms = (1000 * times[int(share * (len(times) - 1))] for share in (0.5, 0.99))
    return f"{len(times) / took_s:,.0f} calls a second; half of them within {median_ms:.0f} ms, 99 % within {p99_ms:.0f} ms"
