"""The client against a router made of a script: what it repeats, under which ids, for how long, and what it raises in the end."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import pytest

from graphd import errors
from graphd.cli.common import REPETITIONS
from graphd.cli.common import client_of as commands_client
from graphd.client import (
    Client,
    FollowersOf,
    FollowingOf,
    RetryBudget,
    RouterUnavailableError,
    SetOrder,
    UnexpectedStatusError,
    Write,
    WriteResult,
)
from graphd.client.batch import to_repeat
from graphd.client.failures import Call, failure_of
from graphd.config import RouterConfig
from graphd.devcluster.processes import free_port
from graphd.edge import State
from graphd.operations import Operation, Outcome
from graphd.v1 import graph_pb2 as pb
from router.status import CODES, status_of

ADA, BO, CY, DEE = 1, 2, 3, 2**63 - 1

Step = Callable[[Any, Any], Awaitable[Any]]


class FakeRouter:
    """Answers each call with the next step of the script, then with `last` for ever. Remembers the requests."""

    def __init__(self, *script: Step, last: Step) -> None:
        self.script, self.last = list(script), last
        self.requests: list[Any] = []

    async def answer(self, request: Any, context: Any) -> Any:
        self.requests.append(request)
        step = self.script.pop(0) if self.script else self.last
        return await step(request, context)

    def handlers(self) -> grpc.GenericRpcHandler:
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                self.answer,
                request_deserializer=getattr(pb, f"{name}Request").FromString,
                response_serializer=getattr(pb, f"{name}Response").SerializeToString,
            )
            for name in ("GetEdge", "Follow", "BatchWrite", "ListFollowers", "Intersect")
        }
        return grpc.method_handlers_generic_handler("graphd.v1.GraphService", handlers)


@asynccontextmanager
async def serving(router: FakeRouter, port: int = 0, grace_s: float = 0) -> AsyncIterator[str]:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((router.handlers(),))
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(grace_s)


@asynccontextmanager
async def client_of(router: FakeRouter, **options: Any) -> AsyncIterator[Client]:
    async with serving(router) as target, Client(target, **options) as client:
        yield client


def fail(error: errors.GraphdError) -> Step:
    async def step(request: Any, context: Any) -> Any:
        status = status_of(error)
        await context.abort(status.code, status.message, status.metadata)

    return step


def after(seconds: float, step: Step) -> Step:
    async def slow(request: Any, context: Any) -> Any:
        await asyncio.sleep(seconds)
        return await step(request, context)

    return slow


def wire(state: State = State.ACTIVE) -> pb.Edge:
    return pb.Edge(
        source_id=ADA, destination_id=BO, kind="follow", state=pb.State.ValueType(state), position=7, since=5
    )


async def edge(request: Any, context: Any) -> Any:
    return pb.GetEdgeResponse(edge=wire())


async def followed(request: Any, context: Any) -> Any:
    return pb.FollowResponse(result=pb.WriteResult(edge=wire(), outcome=pb.OUTCOME_APPLIED))


DOWN = errors.ShardUnavailableError("s1")
SHED = errors.OverloadedError("shard s1", 0.05)


# What is repeated


async def test_a_read_is_repeated_until_it_succeeds() -> None:
    router = FakeRouter(fail(DOWN), fail(SHED), fail(errors.StalePlacementError(3)), last=edge)
    async with client_of(router) as client:
        found = await client.get_edge(ADA, BO)
    assert found == (ADA, BO, "follow", State.ACTIVE, 7, 5)
    assert found.state is State.ACTIVE
    assert len(router.requests) == 4


async def test_a_write_is_repeated_under_one_request_id() -> None:
    router = FakeRouter(fail(DOWN), fail(SHED), last=followed)
    async with client_of(router) as client:
        await client.follow(ADA, BO)
        await client.follow(ADA, BO)
        await client.follow(ADA, BO, request_id="mine", position=0)
    ids = [request.request_id for request in router.requests]
    assert len(set(ids[:3])) == 1
    assert len(ids[0]) == 32
    assert ids[3] not in ids[:3]
    assert ids[4] == "mine"
    assert [request.HasField("position") for request in router.requests[3:]] == [False, True]


@pytest.mark.parametrize(
    "error",
    [
        errors.InvalidArgumentError("kind", "must be one of follow"),
        errors.OutOfRangeError("position", "too far ahead"),
        errors.NotFoundError("never written"),
        errors.RefusedError("BLOCKED", "the destination has blocked the source"),
        errors.RequestIdReusedError(),
        errors.NotOfferedError("verify"),
    ],
)
async def test_what_will_not_change_is_not_repeated(error: errors.GraphdError) -> None:
    router = FakeRouter(last=fail(error))
    async with client_of(router) as client:
        with pytest.raises(type(error)) as raised:
            await client.get_edge(ADA, BO)
    assert type(raised.value) is type(error)
    assert str(raised.value) == str(error)
    assert len(router.requests) == 1


async def test_a_slow_attempt_is_given_up_for_another() -> None:
    router = FakeRouter(after(30, edge), last=edge)
    async with client_of(router, attempt_timeout_s=0.2) as client:
        await client.wait_ready()
        began = time.monotonic()
        await client.get_edge(ADA, BO)
    assert 0.2 <= time.monotonic() - began < 2
    assert len(router.requests) == 2


async def test_the_router_says_how_long_to_wait() -> None:
    router = FakeRouter(fail(errors.OverloadedError("shard s1", 0.4)), last=edge)
    async with client_of(router) as client:
        began = time.monotonic()
        await client.get_edge(ADA, BO)
    assert time.monotonic() - began >= 0.4


# Deadlines


async def test_the_deadline_bounds_all_repetitions() -> None:
    router = FakeRouter(last=fail(DOWN))
    async with client_of(router) as client:
        began = time.monotonic()
        with pytest.raises(errors.ShardUnavailableError) as raised:
            await client.get_edge(ADA, BO, deadline_s=0.5)
    assert time.monotonic() - began < 0.7
    assert raised.value.shard == "s1"
    assert len(router.requests) > 1


async def test_a_pause_beyond_the_deadline_is_not_begun() -> None:
    router = FakeRouter(last=fail(errors.OverloadedError("shard s1", 2)))
    async with client_of(router) as client:
        began = time.monotonic()
        with pytest.raises(errors.OverloadedError):
            await client.get_edge(ADA, BO, deadline_s=1.5)
    assert time.monotonic() - began < 1


async def test_a_deadline_that_passes_says_whether_something_may_be_kept() -> None:
    router = FakeRouter(last=after(30, edge))
    async with client_of(router) as client:
        await client.wait_ready()
        with pytest.raises(errors.DeadlineError) as read:
            await client.get_edge(ADA, BO, deadline_s=0.2)
        with pytest.raises(errors.DeadlineError) as written:
            await client.follow(ADA, BO, deadline_s=0.2)
    assert not read.value.kept
    assert written.value.kept
    with pytest.raises(ValueError, match="deadline_s"):
        async with Client("127.0.0.1:1") as client:
            await client.get_edge(ADA, BO, deadline_s=0)


async def test_without_a_router_the_error_says_so() -> None:
    target = f"127.0.0.1:{free_port()}"
    async with Client(target) as client:
        with pytest.raises(RouterUnavailableError, match=target):
            await client.get_edge(ADA, BO, deadline_s=0.3)
        with pytest.raises(RouterUnavailableError, match=target):
            await client.wait_ready(0.1)


async def test_the_commands_do_not_wait_long_for_a_shard_that_is_down() -> None:
    router = FakeRouter(fail(DOWN), last=edge)
    async with serving(router) as target, commands_client(RouterConfig(listen=target)) as client:
        assert (await client.get_edge(ADA, BO)).state is State.ACTIVE
        router.requests, router.last = [], fail(DOWN)
        with pytest.raises(errors.ShardUnavailableError, match="shard s1 is not reachable"):
            await client.get_edge(ADA, BO, deadline_s=60)
    assert 2 <= len(router.requests) <= REPETITIONS + 1


# The budget


async def test_an_overload_is_not_amplified() -> None:
    router = FakeRouter(last=fail(errors.OverloadedError("shard s1", 0.01)))
    calls = 1000
    async with client_of(router) as client:
        asked = (client.get_edge(ADA, BO, deadline_s=60) for _ in range(calls))
        answers = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(answer, errors.OverloadedError) for answer in answers)
    assert calls < len(router.requests) < 1.2 * calls


def test_the_budget_is_a_share_and_comes_back() -> None:
    budget = RetryBudget(share=0.1, reserve=2, window_s=10)
    for _ in range(100):
        budget.count(0)
    assert sum(budget.take(0) for _ in range(50)) == 12
    assert not budget.take(0)
    # Two windows later most of it has faded, and the reserve is there again, though nobody called meanwhile.
    assert budget.take(20)
    assert not budget.take(20)
    # A clock that steps back changes nothing.
    assert not budget.take(3)


# Routers that come and go


class Load:
    """16 tasks that call without a pause until told to stop."""

    def __init__(self, client: Client) -> None:
        self.client, self.done, self.failed = client, 0, Counter[str]()
        self.running = True
        self.one_more = asyncio.Condition()

    async def worker(self) -> None:
        while self.running:
            try:
                await self.client.follow(ADA, BO)
                self.done += 1
                async with self.one_more:
                    self.one_more.notify_all()
            except errors.GraphdError as error:
                self.failed[repr(error)] += 1

    async def progress(self, calls: int) -> None:
        goal = self.done + calls
        async with asyncio.timeout(20), self.one_more:
            await self.one_more.wait_for(lambda: self.done >= goal)


@asynccontextmanager
async def load_on(client: Client) -> AsyncIterator[Load]:
    load = Load(client)
    async with asyncio.TaskGroup() as group:
        for _ in range(16):
            group.create_task(load.worker())
        try:
            yield load
        finally:
            load.running = False


async def test_a_router_that_drains_fails_no_call() -> None:
    first, second = FakeRouter(last=after(0.02, followed)), FakeRouter(last=after(0.02, followed))
    async with AsyncExitStack() as one, serving(second) as b:
        a = await one.enter_async_context(serving(first, grace_s=10))
        async with Client([a, b]) as client, load_on(client) as load:
            await load.progress(200)
            assert first.requests
            assert second.requests
            await one.aclose()
            after_drain = len(first.requests)
            await load.progress(200)
    assert not load.failed
    assert len(first.requests) == after_drain


async def test_a_router_that_is_killed_fails_no_call() -> None:
    first, second = FakeRouter(last=after(0.02, followed)), FakeRouter(last=after(0.02, followed))
    async with AsyncExitStack() as one, serving(second) as b:
        a = await one.enter_async_context(serving(first))
        async with Client([a, b]) as client, load_on(client) as load:
            await load.progress(200)
            await one.aclose()
            await load.progress(200)
    assert not load.failed


async def test_a_router_that_starts_again_fails_no_call() -> None:
    router = FakeRouter(last=after(0.02, followed))
    port = free_port()
    async with AsyncExitStack() as stack:
        run = await stack.enter_async_context(AsyncExitStack())
        target = await run.enter_async_context(serving(router, port))
        client = await stack.enter_async_context(Client(target))
        async with load_on(client) as load:
            await load.progress(100)
            await run.aclose()
            await asyncio.sleep(0.5)  # the time without a router
            await stack.enter_async_context(serving(router, port))
            await load.progress(100)
    assert not load.failed


async def test_names_and_addresses_of_several_routers() -> None:
    router = FakeRouter(last=edge)
    async with serving(router) as target:
        port = target.rpartition(":")[2]
        async with Client([f"localhost:{port}", f"[::1]:{port}", f"127.0.0.1:{free_port()}"]) as client:
            for _ in range(5):
                await client.get_edge(ADA, BO)
    assert len(router.requests) == 5
    with pytest.raises(ValueError, match="host:port"):
        await Client(["127.0.0.1", "127.0.0.2"]).__aenter__()
    with pytest.raises(ValueError, match="at least one"):
        Client([])


# Batches


def batch_answer(*results: tuple[int, str]) -> Step:
    async def step(request: Any, context: Any) -> Any:
        assert len(request.writes) == len(results)
        wires = [pb.WriteResult(outcome=pb.Outcome.ValueType(outcome), reason=reason) for outcome, reason in results]
        return pb.BatchWriteResponse(results=wires)

    return step


OK, LATER, NEVER = (1, ""), (5, "UNAVAILABLE"), (4, "BLOCKED")


async def test_failed_items_of_a_batch_are_sent_again_under_their_own_ids() -> None:
    router = FakeRouter(batch_answer(OK, LATER, NEVER, LATER), batch_answer(LATER, OK), last=batch_answer(OK))
    writes = [Write(Operation.FOLLOW, ADA, other) for other in (BO, CY, DEE, 0)]
    async with client_of(router) as client:
        results = await client.batch_write([*writes[:3], replace(writes[3], request_id="mine")])
    assert [result.outcome for result in results] == [
        Outcome.APPLIED,
        Outcome.APPLIED,
        Outcome.REFUSED,
        Outcome.APPLIED,
    ]
    assert results[2].reason == "BLOCKED"
    ids = [[write.request_id for write in request.writes] for request in router.requests]
    assert ids[1] == [ids[0][1], "mine"]
    assert ids[2] == [ids[0][1]]
    assert len(set(ids[0])) == 4


async def test_a_batch_tells_what_is_known_when_time_is_up() -> None:
    router = FakeRouter(batch_answer(OK, LATER), last=fail(DOWN))
    async with client_of(router) as client:
        results = await client.batch_write(
            [Write(Operation.FOLLOW, ADA, BO), Write(Operation.UNFOLLOW, ADA, CY)], deadline_s=0.3
        )
    assert [(result.outcome, result.reason) for result in results] == [
        (Outcome.APPLIED, ""),
        (Outcome.FAILED, "UNAVAILABLE"),
    ]


def test_a_live_write_is_never_sent_after_a_later_one_of_its_edge() -> None:
    done, failed = WriteResult(None, Outcome.APPLIED), WriteResult(None, Outcome.FAILED, "UNAVAILABLE")
    reused = WriteResult(None, Outcome.FAILED, "ABORTED")
    live = Write(Operation.FOLLOW, ADA, BO)
    given, elsewhere = replace(live, position=5), replace(live, destination_id=CY)
    assert to_repeat([live, live], [failed, done]) == []
    assert to_repeat([live, elsewhere], [failed, done]) == [0]
    assert to_repeat([live, live], [failed, failed]) == [0, 1]
    assert to_repeat([live, live], [done, failed]) == [1]
    assert to_repeat([given, given], [failed, done]) == [0]
    assert to_repeat([given, live], [failed, done]) == []
    assert to_repeat([live, given], [failed, done]) == []
    assert to_repeat([live, replace(live, kind="follow")], [failed, done]) == []
    assert to_repeat([live, live], [reused, failed]) == [1]


async def test_the_size_of_a_batch() -> None:
    async with client_of(FakeRouter(last=edge)) as client:
        for size in (0, 1001):
            with pytest.raises(errors.InvalidArgumentError, match="writes: must hold 1 to 1000"):
                await client.batch_write([Write(Operation.FOLLOW, ADA, BO)] * size)


# Lists


def pages(*spans: range) -> Step:
    """Pages of follower edges; the token is the number of the page."""

    async def step(request: Any, context: Any) -> Any:
        index = int(request.page_token or 0)
        token = str(index + 1) if index + 1 < len(spans) else ""
        previous = str(index - 1) if index else ""
        if isinstance(request, pb.IntersectRequest):
            return pb.IntersectResponse(ids=spans[index], next_page_token=token, partial=not spans[index])
        if request.view == pb.VIEW_IDS:
            ids, since = list(spans[index]), [9] * len(spans[index])
            return pb.ListFollowersResponse(ids=ids, since=since, next_page_token=token)
        edges = [pb.Edge(source_id=i, destination_id=BO, state=pb.STATE_ACTIVE) for i in spans[index]]
        return pb.ListFollowersResponse(edges=edges, next_page_token=token, previous_page_token=previous)

    return step


async def test_lists_are_walked_and_paged() -> None:
    router = FakeRouter(fail(DOWN), last=pages(range(3), range(3, 6), range(6, 7)))
    async with client_of(router) as client:
        listing = client.followers(BO, state=State.REMOVED, page_size=3, max_staleness_s=0.5)
        assert [found.source_id async for found in listing] == list(range(7))
        assert [found.account_id async for found in client.follower_ids(BO)] == list(range(7))
        page = await listing.page("1", page_size=2)
        assert [found.source_id for found in page.items] == [3, 4, 5]
        assert (page.next_page_token, page.previous_page_token) == ("2", "0")
        assert [len(page.items) async for page in listing.pages("1")] == [3, 1]
    first, second = router.requests[0], router.requests[2]
    assert (first.page_size, first.state, first.max_staleness.nanos) == (3, pb.STATE_REMOVED, 500_000_000)
    assert second.page_token == "1"


async def test_an_empty_partial_page_is_not_the_end() -> None:
    router = FakeRouter(last=pages(range(2), range(0), range(2, 4)))
    async with client_of(router) as client:
        common = client.intersect(FollowersOf(ADA), FollowingOf(BO), [CY, DEE], order=SetOrder.RECENCY)
        assert [account async for account in common] == [0, 1, 2, 3]
        assert (await common.page("1")).partial
    request = router.requests[0]
    assert [operand.WhichOneof("operand") for operand in request.operands] == ["followers_of", "following_of", "ids"]
    assert list(request.operands[2].ids.ids) == [CY, DEE]
    assert request.order == pb.SET_ORDER_RECENCY


async def test_ids_the_wire_cannot_carry() -> None:
    async with client_of(FakeRouter(last=edge)) as client:
        for bad in (2**63, -(2**63) - 1, "7", 1.0):
            with pytest.raises(errors.InvalidArgumentError, match="source_id"):
                await client.get_edge(bad, BO)  # type: ignore[arg-type]
        await client.get_edge(0, DEE)


async def test_request_ids_are_text_and_not_empty() -> None:
    router = FakeRouter(last=edge)
    async with client_of(router) as client:
        for bad in ("", "\ud800"):
            with pytest.raises(errors.InvalidArgumentError) as raised:
                await client.follow(ADA, BO, request_id=bad)
            assert raised.value.field == "request_id"
            with pytest.raises(errors.InvalidArgumentError) as raised:
                await client.batch_write(
                    [Write(Operation.FOLLOW, ADA, BO), Write(Operation.FOLLOW, ADA, CY, request_id=bad)]
                )
            assert raised.value.field == "writes[1].request_id"
    assert not router.requests


# Errors


EXAMPLES: list[errors.GraphdError] = [
    errors.InvalidArgumentError("source_id", "must be 0 to 2^63-1"),
    errors.OutOfRangeError("position", "is ahead of the clock"),
    errors.NotFoundError("no such edge"),
    errors.RefusedError("BLOCKED", "the destination has blocked the source"),
    errors.RequestIdReusedError(),
    errors.SupersededError("RemoveAccount"),
    errors.OverloadedError("shard s2", 0.25),
    errors.ShardUnavailableError("s2"),
    errors.ShardUnavailableError("s2", kept=True),
    errors.CatalogUnavailableError(),
    errors.StalePlacementError(17),
    errors.DrainingError(),
    errors.DeadlineError(),
    errors.DeadlineError(kept=True),
    errors.NotOfferedError("order RECENCY"),
]


def aio_error(code: grpc.StatusCode, text: str, metadata: tuple[tuple[str, bytes], ...] = ()) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*metadata), text)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_errors_come_back_as_they_were(error: errors.GraphdError) -> None:
    status = status_of(error)
    failure = failure_of(aio_error(status.code, status.message, status.metadata), Call("Follow", "here", True))
    assert type(failure.error) is type(error)
    assert str(failure.error) == str(error)
    assert {**vars(failure.error)} == {**vars(error)}
    assert failure.repeated == (error.retryable or isinstance(error, errors.DeadlineError))


def test_every_error_of_the_router_has_an_example() -> None:
    # BadItemError is answered as a bare INTERNAL.
    assert {type(error) for error in EXAMPLES} == set(CODES) - {errors.BadItemError}


@pytest.mark.parametrize("code", list(grpc.StatusCode))
def test_every_status_code_becomes_an_error(code: grpc.StatusCode) -> None:
    for metadata in ((), (("grpc-status-details-bin", b"\xff\xff"),)):
        failure = failure_of(aio_error(code, "words", metadata), Call("Follow", "here", True))
        assert isinstance(failure.error, errors.GraphdError)
        # Of what no router explained only the loss of a connection or of time is tried again.
        assert failure.repeated == (code.name in {"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"})
        if code.name in {"INTERNAL", "UNKNOWN", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "INVALID_ARGUMENT"}:
            assert isinstance(failure.error, UnexpectedStatusError)
            assert failure.error.code == code.name
