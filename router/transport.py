"""The router's gRPC server: grpc.aio's handlers over the C core's completion queue, for a fifth of the processor time.

grpc.aio costs 220 to 280 us of server CPU for a call that does nothing, most of a router's time: a task, half a dozen awaits and two
wake-ups of the event loop for each. This server costs 46 to 48 us in the same run (64 calls in flight, grpcio 1.85, 30 bytes each way;
the thread-pool server 263 to 277). One thread waits on the completion queue, takes calls in, and hands what has arrived to the event
loop, one wake-up for all of it; the handler runs there, in one task; its answer, status and metadata leave in one batch.

Handlers are those that `grpc.aio` takes, so `aio.server` can stand in its place: `[router] transport = "aio"` does that, and so does a
grpcio whose inner module (`grpc._cython.cygrpc`, which its own thread-pool server is written on) has lost a name used here.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from time import time
from typing import Any, Final

import grpc
import structlog
from grpc import aio
from grpc._cython import cygrpc  # type: ignore[attr-defined]

log = structlog.get_logger()

NAMES: Final = (
    "CompletionQueue",
    "CompletionType",
    "ReceiveCloseOnServerOperation",
    "ReceiveMessageOperation",
    "SendInitialMetadataOperation",
    "SendMessageOperation",
    "SendStatusFromServerOperation",
    "Server",
)
"""Of the inner module, what is used here."""

_NO_FLAGS: Final = 0
_OK: Final = grpc.StatusCode.OK.value[0]
_NEVER_S: Final = 1e15
"""A deadline after this, in seconds since the Unix epoch, is none."""

Metadata = Sequence[tuple[str, str | bytes]]


def available() -> bool:
    """Whether this grpcio has what the server is made of."""
    return all(hasattr(cygrpc, name) for name in NAMES)


class Server:
    """What the router uses of `aio.Server`, and nothing else. Made, started and stopped on one event loop."""

    def __init__(self, options: Iterable[tuple[str, Any]] = ()) -> None:
        self._queue = cygrpc.CompletionQueue()
        self._core = cygrpc.Server(tuple(options), False)
        self._core.register_completion_queue(self._queue)
        self._generic: list[grpc.GenericRpcHandler] = []
        self._registered: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
        self._handlers: dict[bytes, _Handler | None] = {}
        self._arrived: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._woken = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._idle = asyncio.Event()
        self._ended = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Serve these too; the first that knows a method has it."""
        self._generic.extend(handlers)

    def add_registered_method_handlers(
        self, service: str, handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]]
    ) -> None:
        """Generated code adds its handlers in this way as well."""
        self._registered.update({f"/{service}/{name}": handler for name, handler in handlers.items()})

    def add_insecure_port(self, address: str) -> int:
        """Listen; answers the port. Raises RuntimeError."""
        return self._listening(address, self._core.add_http2_port(address.encode()))

    def add_secure_port(self, address: str, credentials: grpc.ServerCredentials) -> int:
        """Listen with TLS; answers the port. Raises RuntimeError."""
        inner = credentials._credentials  # type: ignore[attr-defined]  # as grpc's own servers read it
        return self._listening(address, self._core.add_http2_port(address.encode(), inner))

    @staticmethod
    def _listening(address: str, port: int) -> int:
        if port == 0:
            raise RuntimeError(f"cannot listen on {address}")
        return port

    async def start(self) -> None:
        """Take calls."""
        self._loop = asyncio.get_running_loop()
        self._core.start()
        self._core.request_call(self._queue, self._queue, self._call_arrived)
        self._thread = threading.Thread(target=self._poll, name="grpc-calls", daemon=True)
        self._thread.start()

    async def stop(self, grace_s: float | None) -> None:
        """Take no new calls, let those under way finish for up to `grace_s` seconds, cancel the rest, and end."""
        if self._loop is None or self._stopping:
            return
        self._stopping = True
        self._core.shutdown(self._queue, self._core_idle)
        try:
            await asyncio.wait_for(self._idle.wait(), grace_s or 0)
        except TimeoutError:
            self._core.cancel_all_calls()
            await self._idle.wait()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._core.destroy()
        self._queue.shutdown()
        await self._ended.wait()
        if self._thread is not None:
            # It has said its last word, and takes no time any more.
            self._thread.join()

    # -- on the thread that waits --------------------------------------------------------------------------------------

    def _poll(self) -> None:
        while True:
            event = self._queue.poll()
            if event.tag is None:
                # The queue was shut down and all that was in it has been seen.
                break
            try:
                event.tag(event)
            except Exception as error:
                # A bug of ours; one call is lost, the server is not.
                log.error("transport.failed", error=type(error).__name__, exc_info=error)
            # The next wait can be long, and an event holds its call.
            event = None
        self.post(_set, self._ended)

    def post(self, function: Callable[[Any], None], argument: Any) -> None:
        """Call it on the event loop, from any thread, in the order of the posts. Many of them cost one wake-up."""
        self._arrived.append((function, argument))
        if not self._woken:
            self._woken = True
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._deliver)

    def _core_idle(self, event: Any) -> None:
        self.post(_set, self._idle)

    def _call_arrived(self, event: Any) -> None:
        if not event.success:
            # The server stops.
            return
        if not self._stopping:
            self._core.request_call(self._queue, self._queue, self._call_arrived)
        method = event.call_details.method
        try:
            handler = self._handlers[method]
        except KeyError:
            handler = self._find(method)
        call = _Call(self, event, handler)
        event.call.start_server_batch((cygrpc.ReceiveCloseOnServerOperation(_NO_FLAGS),), call.closed)
        if handler is None:
            call.refuse(f"Method not found: {method.decode(errors='replace')}")
        elif handler.streams_requests:
            self.post(call.begin, None)
        else:
            event.call.start_server_batch((cygrpc.ReceiveMessageOperation(_NO_FLAGS),), call.received)

    def _find(self, method: bytes) -> _Handler | None:
        name = method.decode(errors="replace")
        found = self._registered.get(name)
        details = _HandlerCallDetails(name)
        for generic in self._generic:
            if found is not None:
                break
            found = generic.service(details)
        if found is None:
            # Not kept: a caller could fill the memory with names.
            return None
        handler = self._handlers[method] = _Handler(found)
        return handler

    # -- on the event loop ---------------------------------------------------------------------------------------------

    def _deliver(self) -> None:
        # First this, then the look: what is posted after the last look wakes the loop again.
        self._woken = False
        arrived = self._arrived
        while arrived:
            function, argument = arrived.popleft()
            try:
                function(argument)
            except Exception as error:
                log.error("transport.failed", error=type(error).__name__, exc_info=error)

    def run(self, call: _Call, work: Any) -> asyncio.Task[None]:
        """A task for a handler, known until it ends."""
        assert self._loop is not None
        task: asyncio.Task[None] = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(call.ended)
        return task

    def forget(self, task: asyncio.Task[None]) -> None:
        """Its task has ended."""
        self._tasks.discard(task)


AnyServer = Server | aio.Server


def server(kind: str, options: Sequence[tuple[str, Any]]) -> AnyServer:
    """The server of `[router] transport`."""
    if kind == "aio":
        return aio.server(options=options)
    if not available():
        log.warning("transport.not_available", instead="aio", grpcio=grpc.__version__)
        return aio.server(options=options)
    return Server(options)


def _set(event: asyncio.Event) -> None:
    event.set()


class _HandlerCallDetails(grpc.HandlerCallDetails):
    """What a generic handler is asked with."""

    def __init__(self, method: str) -> None:
        self.method = method
        self.invocation_metadata = ()


class _Handler:
    """A method's handler, looked at once."""

    __slots__ = ("behavior", "deserialize", "generates", "serialize", "streams_requests", "streams_responses")

    def __init__(self, handler: grpc.RpcMethodHandler[Any, Any]) -> None:
        self.streams_requests, self.streams_responses = handler.request_streaming, handler.response_streaming
        self.deserialize, self.serialize = handler.request_deserializer, handler.response_serializer
        self.behavior: Any = (
            (handler.stream_stream if self.streams_responses else handler.stream_unary)
            if self.streams_requests
            else (handler.unary_stream if self.streams_responses else handler.unary_unary)
        )
        self.generates = inspect.isasyncgenfunction(self.behavior)


class _Call:
    """One call, and the context that its handler is given: what the router and the standard services use of `aio.ServicerContext`."""

    __slots__ = (
        "_call",
        "_cancelled",
        "_deadline",
        "_handler",
        "_metadata",
        "_metadata_sent",
        "_server",
        "_status_sent",
        "_task",
    )

    def __init__(self, server: Server, event: Any, handler: _Handler | None) -> None:
        self._server, self._call, self._handler = server, event.call, handler
        self._deadline: float = event.call_details.deadline
        self._metadata: Metadata = event.invocation_metadata
        self._metadata_sent = self._status_sent = self._cancelled = False
        self._task: asyncio.Task[None] | None = None

    # -- on the thread that waits --------------------------------------------------------------------------------------

    def closed(self, event: Any) -> None:
        """The call is over, by our status or by the caller's leave, deadline or connection."""
        if event.batch_operations[0].cancelled():
            self._server.post(self._cancel, None)

    def received(self, event: Any) -> None:
        """The message of a caller who sends one."""
        self._server.post(self.begin, event.batch_operations[0].message())

    def refuse(self, details: str) -> None:
        """Answer UNIMPLEMENTED."""
        self._finish(None, grpc.StatusCode.UNIMPLEMENTED.value[0], details, ())

    # -- on the event loop ---------------------------------------------------------------------------------------------

    def begin(self, message: bytes | None) -> None:
        """Run the handler. `message`: what a caller who sends one message sent; None: he sent none, or was cut off."""
        handler = self._handler
        assert handler is not None
        if self._cancelled:
            return
        if handler.streams_requests:
            request: Any = self._requests()
        elif message is None:
            self.refuse("the method takes exactly one request message")
            return
        else:
            request = handler.deserialize(message) if handler.deserialize is not None else message
        self._task = self._server.run(self, self._handle(handler, request))

    async def _handle(self, handler: _Handler, request: Any) -> None:
        try:
            if handler.generates:
                async for response in handler.behavior(request, self):
                    await self.write(response)
                response = None
            else:
                response = await handler.behavior(request, self)
        except aio.AbortError:
            return
        except Exception as error:
            # The router's handlers let nothing through, so this is a bug: the caller gets no text of it, the log gets all.
            log.error("call.failed", error=type(error).__name__, exc_info=error)
            self._finish(None, grpc.StatusCode.INTERNAL.value[0], "internal error", ())
            return
        if self._cancelled or self._status_sent:
            return
        if handler.streams_responses:
            self._finish(None, _OK, "", ())
        else:
            self._finish(handler.serialize(response) if handler.serialize is not None else response, _OK, "", ())

    def ended(self, task: asyncio.Task[None]) -> None:
        """The handler's task is over."""
        self._server.forget(task)
        self._task = None
        if not (self._status_sent or self._cancelled):
            # It was cancelled, and not by the caller.
            self._finish(None, grpc.StatusCode.CANCELLED.value[0], "the call was cancelled", ())
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("call.failed", error=type(error).__name__, exc_info=error)

    def _cancel(self, _: None) -> None:
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()

    def _finish(self, message: bytes | None, code: int, details: str, metadata: Metadata) -> None:
        """What is still to be sent, and the status, in one batch."""
        self._status_sent = True
        operations = [cygrpc.SendStatusFromServerOperation(metadata, code, details.encode(), _NO_FLAGS)]
        if message is not None:
            operations.append(cygrpc.SendMessageOperation(message, _NO_FLAGS))
        if not self._metadata_sent:
            self._metadata_sent = True
            operations.append(cygrpc.SendInitialMetadataOperation((), _NO_FLAGS))
        self._call.start_server_batch(operations, _ignore)

    async def _requests(self) -> AsyncIterator[Any]:
        while (request := await self.read()) is not aio.EOF:
            yield request

    async def _batch(self, *operations: Any) -> Any:
        """Start a batch and wait until the transport has done it. Raises aio.InternalError where the call is over."""
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        post = self._server.post
        self._call.start_server_batch(operations, lambda event: post(_resolve, (done, event)))
        event = await done
        if not event.success:
            raise aio.InternalError("the call is over")
        return event

    # -- the context ---------------------------------------------------------------------------------------------------

    async def read(self) -> Any:
        """The next message of a caller who sends many; aio.EOF after the last."""
        assert self._handler is not None
        try:
            event = await self._batch(cygrpc.ReceiveMessageOperation(_NO_FLAGS))
        except aio.InternalError:
            return aio.EOF
        message = event.batch_operations[0].message()
        if message is None:
            return aio.EOF
        return self._handler.deserialize(message) if self._handler.deserialize is not None else message

    async def write(self, response: Any) -> None:
        """Send one of many responses, and wait until the transport has room for the next. Raises aio.InternalError where nobody reads."""
        assert self._handler is not None
        data = self._handler.serialize(response) if self._handler.serialize is not None else response
        operations = [cygrpc.SendMessageOperation(data, _NO_FLAGS)]
        if not self._metadata_sent:
            self._metadata_sent = True
            operations.append(cygrpc.SendInitialMetadataOperation((), _NO_FLAGS))
        await self._batch(*operations)

    async def send_initial_metadata(self, metadata: Metadata) -> None:
        """Send it now, once, before any response."""
        assert not self._metadata_sent
        self._metadata_sent = True
        await self._batch(cygrpc.SendInitialMetadataOperation(tuple(metadata), _NO_FLAGS))

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()) -> None:
        """End the call with this status. Always raises aio.AbortError."""
        if not (self._status_sent or self._cancelled):
            self._finish(None, code.value[0], details, tuple(trailing_metadata))
        raise aio.AbortError("the call was ended with a status")

    def invocation_metadata(self) -> Metadata:
        """What the caller sent along."""
        return self._metadata

    def time_remaining(self) -> float | None:
        """Seconds until the caller's deadline; None: he set none."""
        return None if self._deadline > _NEVER_S else max(self._deadline - time(), 0.0)

    def cancelled(self) -> bool:
        """Whether nobody waits for an answer any more."""
        return self._cancelled


def _resolve(pair: tuple[asyncio.Future[Any], Any]) -> None:
    done, event = pair
    if not done.done():
        done.set_result(event)


def _ignore(event: Any) -> None:
    """Whether the caller saw the end of his call is not ours to mend: writes are repeated, reads asked again."""
