"""Faults of the network, made by relays that stand between two programs.

`TcpProxy` carries bytes: it passes them, cuts every connection, swallows them silently, or holds them back as a network does whose
packets are lost and sent again. `LossyProxy` understands gRPC and loses answers after the router has given them. All of them live on one
thread with a loop of its own, so that a test that blocks does not hold up the network.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine, Iterator
from enum import Enum
from typing import Any, TypeVar

import grpc
from grpc import aio

from graphd.devcluster.processes import free_port

T = TypeVar("T")

HOST = "127.0.0.1"
CHUNK_BYTES = 64 * 1024


class Mode(Enum):
    """What a TcpProxy does with bytes and with new connections."""

    PASS = "pass"
    CUT = "cut"  # connections are reset, new ones too
    BLACKHOLE = "blackhole"  # accepted and dropped in silence; what lost bytes is reset when the mode ends
    HOLD = "hold"  # kept back, and delivered when the mode ends


class Network:
    """The thread on which proxies live. A context manager: it closes all of them."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="network", daemon=True)
        self._proxies: list[TcpProxy | LossyProxy] = []

    def __enter__(self) -> Network:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for proxy in self._proxies:
            self.run(proxy.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something on the network's loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def tcp(self, port: int) -> TcpProxy:
        """A proxy before a port of this machine."""
        proxy = TcpProxy(self, port)
        self.run(proxy.start())
        self._proxies.append(proxy)
        return proxy

    def lossy(self, target: str, every: int) -> LossyProxy:
        """A proxy before a router that loses every n-th answer."""
        proxy = LossyProxy(target, every)
        self.run(proxy.start())
        self._proxies.append(proxy)
        return proxy


class _Link:
    """One connection through a TcpProxy: the caller's side, and the server's side once there is one."""

    def __init__(self, near: asyncio.StreamWriter) -> None:
        self.writers = [near]
        self.lost_bytes = False
        self.is_silent = False

    def reset(self) -> None:
        """End both sides with RST, as a router without memory of the connection does."""
        for writer in self.writers:
            sock = writer.get_extra_info("socket")
            if sock is not None:
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()


class TcpProxy:
    """Made by Network.tcp. Its methods may be called from any thread but the network's own."""

    def __init__(self, network: Network, target_port: int) -> None:
        self.port = free_port()
        self.mode = Mode.PASS
        self.delay_s = 0.0
        """How long each chunk is kept back, in either direction."""
        self.trip = b""
        """When a caller sends these bytes, they are delivered and the mode becomes HOLD."""
        self.accepted = 0
        self._network, self._target_port = network, target_port
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._flowing = asyncio.Event()
        self._flowing.set()

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, HOST, self.port)

    async def close(self) -> None:
        """Stop listening and reset what is open."""
        assert self._server is not None
        self._server.close()
        self._flowing.set()
        for link in list(self._links):
            link.reset()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def set(self, mode: Mode) -> None:
        """Change the mode, and what it means for the connections that are open."""
        self._network.run(self._set(mode))

    @contextlib.contextmanager
    def being(self, mode: Mode) -> Iterator[None]:
        """A mode for a while; PASS afterwards."""
        self.set(mode)
        try:
            yield
        finally:
            self.set(Mode.PASS)

    def cut(self) -> None:
        """Reset every connection once; new ones pass."""
        self.set(Mode.CUT)
        self.set(Mode.PASS)

    def _is_cut(self) -> bool:
        return self.mode is Mode.CUT

    def forget(self) -> None:
        """Let go on what is new, while the connections that are open stay silent for ever."""
        self._network.run(self._forget())

    async def _forget(self) -> None:
        for link in self._links:
            link.is_silent = True
        await self._set(Mode.PASS)

    async def _set(self, mode: Mode) -> None:
        self.mode = mode
        for link in list(self._links):
            if mode is Mode.CUT or (mode is Mode.PASS and link.lost_bytes):
                link.reset()
        if mode is Mode.HOLD:
            self._flowing.clear()
        else:
            self._flowing.set()

    async def _serve(self, near_reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        link = _Link(near)
        self._links.add(link)
        self.accepted += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._carry(link, near_reader, near)
        except (OSError, asyncio.CancelledError):
            # The network's ends just go; whoever held them notices.
            return
        finally:
            self._links.discard(link)
            self._tasks.discard(task)
            for writer in link.writers:
                writer.close()

    async def _carry(self, link: _Link, near_reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        if self._is_cut():
            link.reset()
            return
        await self._flowing.wait()
        if self.mode is Mode.BLACKHOLE:
            link.lost_bytes = True
            while await near_reader.read(CHUNK_BYTES):
                pass
            return
        far_reader, far = await asyncio.open_connection(HOST, self._target_port)
        link.writers.append(far)
        if self._is_cut():
            link.reset()
            return
        pumps = [
            asyncio.ensure_future(self._pump(link, near_reader, far, outward=True)),
            asyncio.ensure_future(self._pump(link, far_reader, near, outward=False)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(
        self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, outward: bool
    ) -> None:
        while data := await reader.read(CHUNK_BYTES):
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            await self._flowing.wait()
            if self.mode is Mode.BLACKHOLE:
                link.lost_bytes = True
            if self.mode is Mode.BLACKHOLE or link.is_silent:
                continue
            if outward and self.trip and self.trip in data:
                self.trip = b""
                await self._set(Mode.HOLD)
            writer.write(data)
            await writer.drain()
        if self.mode is Mode.BLACKHOLE:
            # An end that goes is not heard of either.
            link.lost_bytes = True
            await asyncio.Event().wait()


class LossyProxy:
    """Made by Network.lossy. Hands unary calls to a router as they are; every n-th answer is lost, and the call fails as it does when
    the connection breaks after the router committed."""

    def __init__(self, target: str, every: int) -> None:
        self.target = ""
        self.calls = self.lost = 0
        self._router, self._every = target, every
        self._server: aio.Server | None = None
        self._channel: aio.Channel | None = None

    async def start(self) -> None:
        """Listen on a free port."""
        self._channel = aio.insecure_channel(self._router)
        self._server = aio.server(options=(("grpc.so_reuseport", 0),))
        self._server.add_generic_rpc_handlers((_Handlers(self),))
        self.target = f"{HOST}:{self._server.add_insecure_port(f'{HOST}:0')}"
        await self._server.start()

    async def close(self) -> None:
        """Stop."""
        assert self._server is not None
        assert self._channel is not None
        await self._server.stop(None)
        await self._channel.close()

    async def carry(self, method: str, request: bytes, context: aio.ServicerContext[bytes, bytes]) -> bytes:
        """One call."""
        assert self._channel is not None
        call: Any = self._channel.unary_unary(method)
        try:
            answer: bytes = await call(request, timeout=context.time_remaining())
        except aio.AioRpcError as error:
            metadata: Any = error.trailing_metadata() or ()
            return await context.abort(error.code(), error.details() or "", tuple(metadata))
        self.calls += 1
        if self.calls % self._every == 0:
            self.lost += 1
            return await context.abort(grpc.StatusCode.UNAVAILABLE, "the connection was lost")
        return answer


class _Handlers(grpc.GenericRpcHandler):
    def __init__(self, proxy: LossyProxy) -> None:
        self._proxy = proxy

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        method = handler_call_details.method

        async def behavior(request: bytes, context: aio.ServicerContext[bytes, bytes]) -> bytes:
            return await self._proxy.carry(method, request, context)

        return grpc.unary_unary_rpc_method_handler(behavior)
