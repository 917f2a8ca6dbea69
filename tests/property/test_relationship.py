"""Six people and everything they may do to each other, through the router, against a plain model in Python: edges, lists in order, degrees
by state, set algebra, and the events that were told."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from graphd.clock import now_us
from graphd.edge import Direction, State, Version
from graphd.limits import RESUME_METADATA
from graphd.operations import (
    ACCOUNT_ARCHIVED,
    ENTERING,
    TABLE,
    Decision,
    Operation,
    Outcome,
    decide,
    decide_given,
    outcome_of,
    refusal_reason,
    state_after,
)
from graphd.storage.cluster import Cluster
from graphd.storage.shard import ShardSettings
from graphd.tasks import end_all
from graphd.v1 import graph_pb2 as pb
from repair.relay import Relay
from router.lifecycle import ARCHIVE, REMOVE, RESTORE, Change
from tests.databases import Databases, problems
from tests.routers import GraphStub
from tests.waiting import eventually

PEOPLE = 6
STEPS = 40
EXAMPLES = settings().max_examples // 5
CALLERS = [operation for operation in Operation if TABLE[operation].given is not None]
MARKABLE = (State.ACTIVE, State.ARCHIVED_BY_SOURCE)
_numbers = itertools.count(1)


class Step(NamedTuple):
    """One write. `ago_us`: a given one, so long before the example began (several may share a moment). `again`: sent twice, as a caller
    does who lost the answer."""

    operation: Operation
    source: int
    destination: int
    ago_us: int | None
    again: bool


class Whole(NamedTuple):
    """A change of a whole account."""

    change: Change
    account: int


people = st.integers(0, PEOPLE - 1)
wholes = st.builds(Whole, st.sampled_from([ARCHIVE, ARCHIVE, RESTORE, RESTORE, REMOVE]), people)
steps = st.builds(
    Step,
    st.sampled_from(CALLERS),
    people,
    people,
    st.none() | st.none() | st.integers(-2, 4),
    st.booleans(),
).filter(lambda step: step.source != step.destination)


@dataclass(slots=True)
class Model:
    """What should be stored, and what should have been told."""

    versions: dict[tuple[int, int], Version] = field(default_factory=dict)
    suspended: set[int] = field(default_factory=set)
    told: dict[tuple[int, int], list[tuple[State | None, State]]] = field(default_factory=lambda: defaultdict(list))

    def put(self, edge: tuple[int, int], version: Version) -> None:
        """Store, and tell if it is a change."""
        before = self.versions.get(edge)
        if outcome_of(before, version) is Outcome.APPLIED:
            self.told[edge].append((State(before.state) if before is not None else None, State(version.state)))
        self.versions[edge] = version

    def refusal(self, operation: Operation, edge: tuple[int, int]) -> str | None:
        """Why a live operation is refused."""
        before = self.versions.get(edge)
        state = State(before.state) if before is not None else None
        reason = refusal_reason(operation, state, suspended=edge[0] in self.suspended)
        if reason is None and operation in ENTERING and edge[1] in self.suspended:
            return ACCOUNT_ARCHIVED
        return reason

    def members(self, direction: Direction, account: int, state: State) -> list[int]:
        """A list, newest first."""
        mine, other = (0, 1) if direction is Direction.FORWARD else (1, 0)
        found = [
            (v.since, edge[other]) for edge, v in self.versions.items() if edge[mine] == account and v.state == state
        ]
        return [account for _, account in sorted(found, reverse=True)]


def stored_version(edge: pb.Edge) -> Version:
    return Version(edge.position, State(edge.state), edge.since)


async def do(
    graph: GraphStub,
    model: Model,
    accounts: Sequence[int],
    began: int,
    number: int,
    step: Step,
    *,
    may_be_pending: bool = False,
) -> None:
    """One step, the answer held to the table, and the model brought on."""
    edge = (accounts[step.source], accounts[step.destination])
    position = None if step.ago_us is None else began - step.ago_us
    write = pb.Write(
        operation=pb.Operation.ValueType(step.operation),
        source_id=edge[0],
        destination_id=edge[1],
        position=position,
        request_id=f"{accounts[0]}-{number}",
    )
    request = pb.BatchWriteRequest(writes=[write])
    [result] = (await graph.BatchWrite(request)).results
    if step.again:
        [second] = (await graph.BatchWrite(request)).results
        assert (second.outcome, second.edge, second.reason) == (result.outcome, result.edge, result.reason)
        assert second.duplicate or result.outcome in (pb.OUTCOME_STALE, pb.OUTCOME_REFUSED, pb.OUTCOME_UNCHANGED)
    assert may_be_pending or not result.reverse_pending
    before = model.versions.get(edge)
    refusal = model.refusal(step.operation, edge)
    if position is not None:
        expected = decide_given(step.operation, before, position, suspended=edge[0] in model.suspended)
    elif refusal is not None:
        expected = Decision(before, Outcome.REFUSED, refusal)
    else:
        expected = decide(step.operation, before, result.edge.position)
    assert Outcome(result.outcome) is expected.outcome, (step, before, result)
    assert result.reason == expected.reason
    if expected.version is None:
        assert not result.edge.state
        return
    assert stored_version(result.edge) == expected.version, (step, before, result)
    if expected.outcome is not Outcome.REFUSED:
        model.put(edge, expected.version)
        if expected.version.state in MARKABLE and edge[1] in model.suspended and expected.version != before:
            await changed(graph, model, edge, Operation.ARCHIVE_BY_DESTINATION)
    if step.operation is Operation.BLOCK and position is None and expected.outcome is Outcome.APPLIED:
        await countered(graph, model, edge[::-1])


async def change(graph: GraphStub, model: Model, accounts: Sequence[int], whole: Whole) -> None:
    """One change of an account, and of its edges in the model."""
    account, of = accounts[whole.account], whole.change
    request = {ARCHIVE: pb.ArchiveAccountRequest, RESTORE: pb.RestoreAccountRequest, REMOVE: pb.RemoveAccountRequest}[
        of
    ]
    told = [(p.done, p.total) async for p in getattr(graph, of.name)(request(account_id=account), timeout=30)]
    (model.suspended.discard if of is RESTORE else model.suspended.add)(account)
    edges = [
        (edge, of.operation(direction))
        for direction, state in of.lists()
        for edge, version in model.versions.items()
        if edge[direction is Direction.REVERSE] == account and version.state == state
    ]
    assert (told[0], told[-1]) == ((0, len(edges)), (len(edges), len(edges))), (whole, told)
    for edge, operation in edges:
        await changed(graph, model, edge, operation)


async def changed(graph: GraphStub, model: Model, edge: tuple[int, int], operation: Operation) -> None:
    """An operation of ours on an edge: by the walk of an account, or by the relay in a moment."""
    before = model.versions[edge]
    now = before
    after = state_after(operation, State(before.state), suspended=edge[0] in model.suspended)

    async def is_done() -> bool:
        nonlocal now
        now = stored_version((await graph.GetEdge(pb.GetEdgeRequest(source_id=edge[0], destination_id=edge[1]))).edge)
        return now.state == after

    await eventually(is_done, 10, f"{operation.name} of {edge}")
    expected = decide(operation, before, now.position, suspended=edge[0] in model.suspended)
    assert now == expected.version, (operation, before)
    model.put(edge, now)


async def countered(graph: GraphStub, model: Model, edge: tuple[int, int]) -> None:
    """A Block ended the edge the other way, as an Unfollow would have, before it was answered."""
    now = (await graph.GetEdge(pb.GetEdgeRequest(source_id=edge[0], destination_id=edge[1]))).edge
    expected = decide(Operation.UNFOLLOW, model.versions.get(edge), now.position)
    assert stored_version(now) == expected.version
    if expected.outcome is not Outcome.REFUSED:
        assert expected.version is not None
        model.put(edge, expected.version)


async def compare(graph: GraphStub, model: Model, accounts: Sequence[int]) -> None:
    """Everything that can be asked about these accounts."""
    for account in accounts:
        degrees = await graph.GetDegrees(pb.GetDegreesRequest(account_id=account))
        counted: Counter[tuple[int, int]] = Counter()
        for (source, destination), version in model.versions.items():
            counted[Direction.FORWARD, version.state] += source == account
            counted[Direction.REVERSE, version.state] += destination == account
        assert {(row.direction, row.state): row.degree for row in degrees.by_state} == +counted
        for state in State:
            number = pb.State.ValueType(state)
            followers = await graph.ListFollowers(pb.ListFollowersRequest(account_id=account, state=number))
            assert [e.source_id for e in followers.edges] == model.members(Direction.REVERSE, account, state)
            following = await graph.ListFollowing(pb.ListFollowingRequest(account_id=account, state=number))
            assert [e.destination_id for e in following.edges] == model.members(Direction.FORWARD, account, state)
    for a, b in itertools.pairwise(accounts):
        operands = [
            pb.Operand(followers_of=pb.ListOperand(account_id=a)),
            pb.Operand(following_of=pb.ListOperand(account_id=b)),
        ]
        left, right = (
            set(model.members(d, x, State.ACTIVE)) for d, x in ((Direction.REVERSE, a), (Direction.FORWARD, b))
        )
        answers = await asyncio.gather(
            graph.Intersect(pb.IntersectRequest(operands=operands)),
            graph.Union(pb.UnionRequest(operands=operands)),
            graph.Difference(pb.DifferenceRequest(operands=operands)),
        )
        assert [set(answer.ids) for answer in answers] == [left & right, left | right, left - right]


class Watcher:
    """Reads what is told, from the beginning of the test on."""

    def __init__(self, graph: GraphStub, token: str) -> None:
        self.told: dict[tuple[int, int], list[tuple[State | None, State]]] = defaultdict(list)
        self._task = asyncio.ensure_future(self._run(graph, token))

    async def _run(self, graph: GraphStub, token: str) -> None:
        async for event in graph.WatchEdges(pb.WatchEdgesRequest(resume_token=token)):
            before = State(event.previous_state) if event.previous_state else None
            self.told[event.edge.source_id, event.edge.destination_id].append((before, State(event.edge.state)))

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def relays(databases: Databases) -> AsyncIterator[None]:
    """A relay for each shard, which never rests for long."""
    cluster = await Cluster.open(databases.config, ShardSettings(application="relay"))
    tasks = [asyncio.ensure_future(Relay(cluster, shard, 0.01).run()) for shard in cluster.shards.values()]
    try:
        yield
    finally:
        await end_all(tasks)
        await cluster.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def watcher(graph: GraphStub) -> AsyncIterator[Watcher]:
    call = graph.WatchEdges(pb.WatchEdgesRequest(), timeout=10)
    token = str(dict(await call.initial_metadata())[RESUME_METADATA])
    call.cancel()
    found = Watcher(graph, token)
    yield found
    await found.stop()


@pytest.mark.timeout(900)
@given(wanted=st.lists(steps | steps | steps | wholes, min_size=1, max_size=STEPS))
@settings(max_examples=EXAMPLES)
@pytest.mark.usefixtures("relays")
async def test_six_people(graph: GraphStub, watcher: Watcher, databases: Databases, wanted: list[Step | Whole]) -> None:
    # Accounts of their own for each example, on both shards.
    base = 1_000 * next(_numbers)
    accounts = range(base, base + PEOPLE)
    model, began = Model(), now_us() - 1_000_000
    for number, step in enumerate(wanted):
        if isinstance(step, Whole):
            await change(graph, model, accounts, step)
        else:
            await do(graph, model, accounts, began, number, step)
    await eventually(partial(agrees, databases), 20, "nothing is owed and all agrees")
    await compare(graph, model, accounts)
    expected = {edge: told for edge, told in model.told.items() if told}

    def is_told() -> bool:
        return {edge: told for edge, told in watcher.told.items() if base <= edge[0] < base + PEOPLE} == expected

    await eventually(is_told, 10, f"the events of {base}")


async def agrees(databases: Databases) -> bool:
    return not await asyncio.to_thread(problems, databases)


def test_the_order_of_the_model() -> None:
    """The model's own order: the newest first, of equals the higher id."""
    model = Model()
    for destination, since in ((2, 5), (3, 5), (4, 9)):
        model.put((1, destination), Version(9, State.ACTIVE, since))
    assert model.members(Direction.FORWARD, 1, State.ACTIVE) == [4, 3, 2]
