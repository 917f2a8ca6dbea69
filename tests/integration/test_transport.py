"""The router's own gRPC server keeps the promises of `aio.Server`: each is asked of both, so that either can take the other's place."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Literal, cast

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

from router import transport
from tests.routers import RouterProcess

KINDS = ("direct", "aio")
OPTIONS = (("grpc.so_reuseport", 0),)
LIMIT_S = 20


@asynccontextmanager
async def serving(
    kind: str, handlers: dict[str, grpc.RpcMethodHandler[Any, Any]], options: tuple[tuple[str, Any], ...] = OPTIONS
) -> AsyncIterator[tuple[transport.AnyServer, Any]]:
    """A server of this kind with these methods of the service `s`, and a channel to it."""
    server = transport.server(kind, options)
    assert isinstance(server, transport.Server if kind == "direct" else aio.Server)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("s", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield server, channel
    finally:
        await server.stop(0)


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), LIMIT_S))


async def _failure(call: Any) -> aio.AioRpcError:
    with pytest.raises(aio.AioRpcError) as caught:
        await call
    return caught.value


@pytest.mark.parametrize("kind", KINDS)
def test_answers_many_calls_at_once_each_with_its_own_answer(kind: str) -> None:
    async def double(request: bytes, context: Any) -> bytes:
        assert dict(context.invocation_metadata())["who"] == request.decode()
        assert context.time_remaining() is None or 0 < context.time_remaining() <= LIMIT_S
        await asyncio.sleep(0)
        return request * 2

    async def work() -> None:
        async with serving(kind, {"m": grpc.unary_unary_rpc_method_handler(double)}) as (_, channel):
            method = channel.unary_unary("/s/m")
            asked = [str(number).encode() for number in range(500)]
            answers = await asyncio.gather(
                *(method(each, timeout=LIMIT_S, metadata=(("who", each.decode()),)) for each in asked),
            )
            assert answers == [each * 2 for each in asked]
            assert await method(b"", metadata=(("who", ""),)) == b""
            large = b"x" * 3_000_000
            assert len(await channel.unary_unary("/s/m")(b"y", metadata=(("who", "y"),))) == 2
            # More than a call may send: refused by the transport, and the connection goes on.
            error = await _failure(method(large * 2, metadata=(("who", "z"),)))
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert await method(b"7", metadata=(("who", "7"),)) == b"77"

    run(work)


@pytest.mark.parametrize("kind", KINDS)
def test_a_status_with_its_text_and_metadata_reaches_the_caller(kind: str) -> None:
    async def refuse(request: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "größer", (("reason-bin", b"\x00\xff"), ("a", "b")))
        raise AssertionError("abort returned")

    async def stream(request: bytes, context: Any) -> None:
        await context.send_initial_metadata((("token", "t"),))
        await context.write(b"one")
        await context.abort(grpc.StatusCode.OUT_OF_RANGE, "no more")

    async def work() -> None:
        handlers: dict[str, Any] = {
            "m": grpc.unary_unary_rpc_method_handler(refuse),
            "w": grpc.unary_stream_rpc_method_handler(stream),
        }
        async with serving(kind, handlers) as (_, channel):
            error = await _failure(channel.unary_unary("/s/m")(b""))
            assert (error.code(), error.details()) == (grpc.StatusCode.FAILED_PRECONDITION, "größer")
            assert dict(error.trailing_metadata()) == {"reason-bin": b"\x00\xff", "a": "b"}
            call = channel.unary_stream("/s/w")(b"")
            assert dict(await call.initial_metadata())["token"] == "t"
            assert await call.read() == b"one"
            error = await _failure(call.read())
            assert (error.code(), error.details()) == (grpc.StatusCode.OUT_OF_RANGE, "no more")
            for unknown in ("/s/nothing", "/nobody/m"):
                error = await _failure(channel.unary_unary(unknown)(b""))
                assert error.code() is grpc.StatusCode.UNIMPLEMENTED

    run(work)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["cancel", "deadline", "leave"])
def test_a_handler_is_cancelled_when_nobody_waits_for_it(
    kind: str, how: Literal["cancel", "deadline", "leave"]
) -> None:
    async def work() -> None:
        began, ended = asyncio.Event(), asyncio.Event()

        async def wait(request: bytes, context: Any) -> bytes:
            began.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ended.set()
                raise
            return b""

        async def soon(request: bytes, context: Any) -> bytes:
            return b"here"

        handlers: dict[str, Any] = {
            name: grpc.unary_unary_rpc_method_handler(each) for name, each in (("m", wait), ("n", soon))
        }
        async with serving(kind, handlers) as (_, channel):
            if how == "leave":
                call = channel.unary_unary("/s/m")(b"")
                await began.wait()
                await channel.close()
                await ended.wait()
                return
            call = channel.unary_unary("/s/m")(b"", timeout=0.3 if how == "deadline" else None)
            await began.wait()
            if how == "cancel":
                call.cancel()
            await ended.wait()
            assert await channel.unary_unary("/s/n")(b"") == b"here"

    run(work)


@pytest.mark.parametrize("kind", KINDS)
def test_a_slow_reader_holds_back_his_stream_and_nobody_else(kind: str) -> None:
    async def work() -> None:
        written = 0

        async def stream(request: bytes, context: Any) -> None:
            nonlocal written
            for _ in range(1_000):
                await context.write(b"x" * 100_000)
                written += 1

        async def soon(request: bytes, context: Any) -> bytes:
            return b"here"

        handlers: dict[str, Any] = {
            "w": grpc.unary_stream_rpc_method_handler(stream),
            "n": grpc.unary_unary_rpc_method_handler(soon),
        }
        async with serving(kind, handlers) as (_, channel):
            call = channel.unary_stream("/s/w")(b"")
            assert len(await call.read()) == 100_000
            before = -1
            while written != before:
                # Until it stands: other calls go on meanwhile, and are what time is measured in.
                before = written
                for _ in range(50):
                    assert await channel.unary_unary("/s/n")(b"") == b"here"
            assert written < 200
            for _ in range(999):
                assert len(await call.read()) == 100_000
            assert await call.read() is aio.EOF
            assert written == 1_000

    run(work)


@pytest.mark.parametrize("kind", KINDS)
def test_a_write_that_nobody_reads_ends_the_handler(kind: str) -> None:
    async def work() -> None:
        ended = asyncio.Event()

        async def stream(request: bytes, context: Any) -> None:
            try:
                while True:
                    await context.write(b"x" * 100_000)
            except (asyncio.CancelledError, aio.InternalError):
                ended.set()
                raise

        async with serving(kind, {"w": grpc.unary_stream_rpc_method_handler(stream)}) as (_, channel):
            call = channel.unary_stream("/s/w")(b"")
            await call.read()
            call.cancel()
            await ended.wait()

    run(work)


@pytest.mark.parametrize("kind", KINDS)
def test_health_and_reflection_are_served(kind: str) -> None:
    async def work() -> None:
        server = transport.server(kind, OPTIONS)
        servicer = health.aio.HealthServicer()
        added: Any = server
        health_pb2_grpc.add_HealthServicer_to_server(servicer, added)
        described = reflection.aio.ReflectionServicer((health.SERVICE_NAME,))
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(described, added)  # type: ignore[no-untyped-call]
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            assert (await stub.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING
            error = await _failure(stub.Check(health_pb2.HealthCheckRequest(service="nobody")))
            assert error.code() is grpc.StatusCode.NOT_FOUND
            watch = stub.Watch(health_pb2.HealthCheckRequest())
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
            await servicer.enter_graceful_shutdown()
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            watch.cancel()
            about: Any = reflection_pb2_grpc.ServerReflectionStub(cast(Any, channel))
            info = about.ServerReflectionInfo()
            for _ in range(3):
                await info.write(reflection_pb2.ServerReflectionRequest(list_services=""))
                answer = await info.read()
                assert [each.name for each in answer.list_services_response.service] == [health.SERVICE_NAME]
            await info.done_writing()
            assert await info.read() is aio.EOF
            assert await info.code() is grpc.StatusCode.OK
        await server.stop(1)

    run(work)


@pytest.mark.parametrize("kind", KINDS)
def test_stop_lets_calls_finish_and_then_cancels_them(kind: str) -> None:
    async def work() -> None:
        go, began = asyncio.Event(), asyncio.Semaphore(0)

        async def wait(request: bytes, context: Any) -> bytes:
            began.release()
            await (go if request == b"ends" else asyncio.Event()).wait()
            return request

        async with serving(kind, {"m": grpc.unary_unary_rpc_method_handler(wait)}) as (server, channel):
            method = channel.unary_unary("/s/m")
            ends, stays = method(b"ends"), method(b"stays")
            # A call is sent when somebody waits for it.
            asked = [asyncio.ensure_future(call.code()) for call in (ends, stays)]
            await began.acquire()
            await began.acquire()
            stopping = asyncio.ensure_future(server.stop(1.0))
            go.set()
            assert await ends == b"ends"
            await _failure(stays)
            await stopping
            assert await asked[0] is grpc.StatusCode.OK
            error = await _failure(method(b"late", timeout=5))
            assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert not [thread for thread in threading.enumerate() if thread.name == "grpc-calls"]

    run(work)


@pytest.mark.parametrize("kind", KINDS)
def test_a_port_that_is_taken_is_said(kind: str) -> None:
    async def work() -> None:
        async def soon(request: bytes, context: Any) -> bytes:
            return b""

        first = transport.server(kind, OPTIONS)
        port = first.add_insecure_port("127.0.0.1:0")
        second = transport.server(kind, OPTIONS)
        with pytest.raises(RuntimeError):
            second.add_insecure_port(f"127.0.0.1:{port}")
        for server in (first, second):
            await server.start()
            await server.stop(0)

    run(work)


def test_a_bug_in_a_handler_shows_no_text_to_the_caller() -> None:
    async def broken(request: bytes, context: Any) -> bytes:
        raise KeyError("secret")

    async def work() -> None:
        async with serving("direct", {"m": grpc.unary_unary_rpc_method_handler(broken)}) as (_, channel):
            error = await _failure(channel.unary_unary("/s/m")(b""))
            assert (error.code(), error.details()) == (grpc.StatusCode.INTERNAL, "internal error")

    run(work)


def test_a_grpcio_without_the_inner_names_is_served_by_its_own_server(monkeypatch: pytest.MonkeyPatch) -> None:
    assert transport.available()
    monkeypatch.setattr(transport, "NAMES", (*transport.NAMES, "NoSuchName"))

    async def work() -> None:
        server = transport.server("direct", OPTIONS)
        assert isinstance(server, aio.Server)
        await server.start()
        await server.stop(0)

    run(work)


async def test_a_router_tells_standard_tools_its_services(router: RouterProcess) -> None:
    async with aio.insecure_channel(router.target) as channel:
        about: Any = reflection_pb2_grpc.ServerReflectionStub(cast(Any, channel))
        info = about.ServerReflectionInfo(timeout=LIMIT_S)
        await info.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        answer = await info.read()
        names = {each.name for each in answer.list_services_response.service}
        assert names == {"graphd.v1.GraphService", health.SERVICE_NAME, reflection.SERVICE_NAME}
        await info.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol="graphd.v1.GraphService"))
        assert (await info.read()).file_descriptor_response.file_descriptor_proto
        await info.done_writing()
        assert await info.read() is aio.EOF
