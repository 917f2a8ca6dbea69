"""A shard is stopped under the router's feet, written to all the same, and started again."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from graphd.cli.demo.stage import Stage, status
from graphd.client import Write
from graphd.devcluster.cluster import DevClusterError
from graphd.devcluster.postgres import PostgresError
from graphd.errors import GraphdError, ShardUnavailableError
from graphd.operations import Operation, Outcome

LATECOMERS = 300
PATIENCE_S = 30.0
POLL_S = 0.05


async def show(stage: Stage, followers: set[int], crowd: Sequence[int]) -> None:
    """Stop the shard of cy, let others follow her meanwhile, start it, and see the relay catch up. Raises GraphdError."""
    screen, cy = stage.screen, stage.people.cy
    victim = stage.shard(cy)
    server = stage.cluster.server(victim)
    await _until(lambda: _nothing_owed(stage), "what the shards owe each other is not delivered")
    screen.say(f"{victim}, where cy lives, is stopped.")
    with screen.working(f"stopping {victim}"):
        await _carried_out(server.stop)
        await _until(lambda: _serves(stage, victim, False), f"the router does not notice that {victim} is away")
    late = [account for account in crowd if stage.shard(account) != victim and account not in followers][:LATECOMERS]
    expected = await _write_meanwhile(stage, followers, late)
    await _read_meanwhile(stage, victim)
    owed = await _owed(stage)
    screen.call("ListShards", *(f"{name} owes {count:,} reverse halves" for name, count in owed.items() if count))
    screen.check("what cy's list lacks is written down where it cannot get lost", sum(owed.values()) == len(late) + 1)
    screen.gap()
    screen.say(f"{victim} is started again. The relay of the repair daemon delivers what is owed.")
    with screen.working(f"starting {victim}"):
        await _carried_out(server.start)
    await _watch_catching_up(stage, expected)


async def _write_meanwhile(stage: Stage, followers: set[int], late: Sequence[int]) -> set[int]:
    """Follow cy from other shards, and let ada leave her; answers who should follow her in the end."""
    screen, client, people = stage.screen, stage.client, stage.people
    first = await client.follow(late[0], people.cy)
    screen.call(f"Follow({late[0]}, cy)", stage.told(first))
    results = [first, *await client.batch_write([Write(Operation.FOLLOW, account, people.cy) for account in late[1:]])]
    pending = sum(result.reverse_pending for result in results)
    screen.call(f"BatchWrite of {len(results) - 1} more", f"{pending - 1} APPLIED, reverse_pending")
    gone = await client.unfollow(people.ada, people.cy)
    screen.call("Unfollow(ada, cy)", stage.told(gone))
    screen.check(
        "writes to cy are taken: durable with their sources, reverse_pending for her list",
        all(result.outcome is Outcome.APPLIED and result.reverse_pending for result in [*results, gone]),
    )
    return (followers | set(late)) - {people.ada}


async def _read_meanwhile(stage: Stage, victim: str) -> None:
    screen, impatient, people = stage.screen, stage.impatient, stage.people
    refusals: list[GraphdError] = []
    for call, work in {
        "ListFollowers(cy)": impatient.followers(people.cy).page(),
        "Follow(cy, ada)": impatient.follow(people.cy, people.ada),
    }.items():
        try:
            await work
        except GraphdError as error:
            refusals.append(error)
            screen.call(call, status(error), style="yellow")
        else:
            screen.call(call, "answered")
    others = [edge async for edge in impatient.following(people.ada)]
    screen.call("ListFollowing(ada)", ", ".join(people.name(edge.destination_id) for edge in others))
    away = [error.shard for error in refusals if isinstance(error, ShardUnavailableError)]
    screen.check(f"only the accounts of {victim} are out of reach, and the error says so", away == [victim] * 2)


async def _watch_catching_up(stage: Stage, expected: set[int]) -> None:
    screen, client, cy = stage.screen, stage.client, stage.people.cy
    began = time.monotonic()
    rows: list[tuple[str, object, int]] = []
    followers: int | None = None
    with screen.working("catching up"):
        while time.monotonic() - began < PATIENCE_S:
            owed = sum((await _owed(stage)).values())
            try:
                followers = (await stage.impatient.get_degrees(cy)).followers
            except GraphdError:
                followers = None  # the router has yet to find the shard
            row = ("UNAVAILABLE" if followers is None else f"{followers:,}", owed)
            if not rows or row != rows[-1][1:]:
                rows.append((f"{time.monotonic() - began:.2f} s", *row))
            if owed == 0 and followers == len(expected):
                break
            await asyncio.sleep(POLL_S)
    screen.table(("after", "cy's followers", "owed"), rows)
    walked = {neighbor.account_id async for neighbor in client.follower_ids(cy)}
    screen.check("the relay has delivered everything, and cy's list is whole", rows[-1][2] == 0 and walked == expected)


async def _owed(stage: Stage) -> dict[str, int]:
    """Outbox rows of each shard that answers."""
    return {shard.name: shard.outbox_length for shard in await stage.admin.list_shards()}


async def _nothing_owed(stage: Stage) -> bool:
    return not any((await _owed(stage)).values())


async def _serves(stage: Stage, name: str, wanted: bool) -> bool:
    return any(shard.name == name and shard.serving is wanted for shard in await stage.admin.list_shards())


async def _carried_out(act: Callable[[], None]) -> None:
    """Raises DevClusterError."""
    try:
        await asyncio.to_thread(act)
    except PostgresError as fault:
        raise DevClusterError(str(fault)) from fault


async def _until(condition: Callable[[], Awaitable[bool]], otherwise: str) -> None:
    """Raises GraphdError with `otherwise` when the time is over."""
    deadline = time.monotonic() + PATIENCE_S
    while not await condition():
        if time.monotonic() > deadline:
            raise GraphdError(otherwise)
        await asyncio.sleep(POLL_S)
