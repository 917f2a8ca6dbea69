"""The calls of callers, one after the other."""

from graphd.cli.demo.stage import NAMES, Stage, status
from graphd.client import EdgeKey, FollowersOf, Write
from graphd.edge import Direction, State
from graphd.errors import GraphdError, InvalidArgumentError
from graphd.operations import Operation, Outcome

PAGE_SIZE = 2


async def show(stage: Stage) -> None:
    """All of them. Raises GraphdError for what should not fail."""
    _show_places(stage)
    await _show_writes(stage)
    await _show_reads(stage)
    await _show_pages(stage)
    await _show_refusals(stage)


def _show_places(stage: Stage) -> None:
    screen, people = stage.screen, stage.people
    screen.say(
        "An account lives in a slot, chosen by a hash of its id; a slot lives on a shard, one Postgres. An edge is stored as two "
        "halves: the forward half where its source lives, the reverse half where its destination lives."
    )
    rows = [
        (name, account, stage.slot(account), stage.shard(account))
        for name, account in zip(NAMES, people.ids(), strict=True)
    ]
    screen.table(
        ("", "account", "slot", "shard"),
        [(name, str(account), str(slot), shard) for name, account, slot, shard in rows],
    )
    screen.gap()


async def _show_writes(stage: Stage) -> None:
    screen, client, people = stage.screen, stage.client, stage.people
    first = await client.follow(people.ada, people.cy, request_id="demo-1")
    screen.call("Follow(ada, cy)", stage.told(first))
    screen.call("", f"forward half on {stage.shard(people.ada)}, reverse half on {stage.shard(people.cy)}", style="dim")
    again = await client.follow(people.ada, people.cy)
    screen.call("Follow(ada, cy), once more", stage.told(again))
    receipt = await client.follow(people.ada, people.cy, request_id="demo-1")
    screen.call("Follow(ada, cy), a retry of the first", stage.told(receipt))
    screen.check(
        "a second Follow changes nothing, and a retry is answered as at first",
        (first.outcome, again.outcome, receipt.outcome, receipt.duplicate, receipt.edge)
        == (Outcome.APPLIED, Outcome.UNCHANGED, Outcome.APPLIED, True, first.edge),
    )
    pairs = [
        *((people.bo, people.cy), (people.dee, people.cy), (people.eli, people.cy), (people.fay, people.cy)),
        *((people.ada, people.bo), (people.bo, people.ada), (people.dee, people.ada), (people.fay, people.ada)),
        *((people.eli, people.dee), (people.fay, people.dee), (people.ada, stage.hub)),
    ]
    results = await client.batch_write([Write(Operation.FOLLOW, source, destination) for source, destination in pairs])
    applied = sum(result.outcome is Outcome.APPLIED for result in results)
    screen.call(f"BatchWrite of {len(pairs)} follows", f"{applied} APPLIED")
    screen.check("every write of the batch was applied", applied == len(pairs))


async def _show_reads(stage: Stage) -> None:
    screen, client, people = stage.screen, stage.client, stage.people
    followers = [edge async for edge in client.followers(people.cy)]
    screen.call("ListFollowers(cy), newest first", ", ".join(people.name(edge.source_id) for edge in followers))
    following = [edge async for edge in client.following(people.ada)]
    screen.call("ListFollowing(ada)", ", ".join(people.name(edge.destination_id) for edge in following))
    screen.check(
        "whoever followed cy is in her list",
        {edge.source_id for edge in followers} == {people.ada, people.bo, people.dee, people.eli, people.fay},
    )
    keys = [EdgeKey(people.ada, other) for other in (people.bo, people.cy, people.eli)]
    found = await client.batch_get_edges(keys)
    answers = (
        f"{people.name(key.destination_id)} {'yes' if edge and edge.state is State.ACTIVE else 'no'}"
        for key, edge in zip(keys, found, strict=True)
    )
    screen.call("BatchGetEdges: does ada follow ...", ", ".join(answers))
    both = [account async for account in client.intersect(FollowersOf(people.cy), FollowersOf(people.ada))]
    screen.call("Intersect(followers of cy, of ada)", ", ".join(map(people.name, both)))
    screen.check("the intersection is right", both == sorted((people.bo, people.dee, people.fay), reverse=True))
    gone = await client.unfollow(people.fay, people.cy)
    screen.call("Unfollow(fay, cy)", stage.told(gone))
    degrees = await client.get_degrees(people.cy)
    removed = degrees.by_state.get((Direction.REVERSE, State.REMOVED), 0)
    screen.call("GetDegrees(cy)", f"{degrees.followers} followers, {degrees.following} following; {removed} removed")
    screen.check("her degree fell by one", (degrees.followers, degrees.following, removed) == (4, 0, 1))


async def _show_pages(stage: Stage) -> None:
    screen, client, people = stage.screen, stage.client, stage.people
    seen = []
    async for page in client.followers(people.cy, page_size=PAGE_SIZE).pages():
        names = ", ".join(people.name(edge.source_id) for edge in page.items)
        seen += [edge.source_id for edge in page.items]
        token = f"next_page_token {page.next_page_token[:12]}..." if page.next_page_token else "the last page"
        screen.call(f"ListFollowers(cy), page_size {PAGE_SIZE}", f"{names}   {token}")
    screen.check("the pages repeat nobody and miss nobody", len(seen) == len(set(seen)) == 4)
    degrees = await client.get_degrees(stage.hub)
    with screen.working("walking"):
        walked = [neighbor.account_id async for neighbor in client.follower_ids(stage.hub)]
    hub = people.name(stage.hub)
    screen.call(
        f"ListFollowers({hub}), all pages of 1,000", f"{len(walked):,} followers; GetDegrees: {degrees.followers:,}"
    )
    screen.check(
        f"the longest list of the graph, that of {hub}, is as long as its degree says",
        len(walked) == len(set(walked)) == degrees.followers,
    )


async def _show_refusals(stage: Stage) -> None:
    screen, client, people = stage.screen, stage.client, stage.people
    late = await client.follow(people.fay, people.cy, position=1_700_000_000_000_000, backfill=True)
    screen.call("Follow(fay, cy) with a position of 2023", stage.told(late))
    screen.check("an old write does not undo a newer one", late.outcome is Outcome.STALE)
    token = (await client.followers(people.cy, page_size=PAGE_SIZE).page()).next_page_token
    refusal: GraphdError | None = None
    try:
        await client.followers(people.dee).page(token)
    except GraphdError as error:
        refusal = error
    told = "answered" if refusal is None else status(refusal)
    screen.call("ListFollowers(dee) with a token of cy's list", told, style="yellow")
    screen.check("a page token serves the list it was made for alone", isinstance(refusal, InvalidArgumentError))
