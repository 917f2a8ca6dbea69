"""Real router processes on free ports, and stubs to call them with."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import grpc
from google.rpc import error_details_pb2, status_pb2
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from graphd.devcluster.processes import free_port
from graphd.v1 import admin_pb2_grpc, graph_pb2_grpc
from tests.databases import Databases

# Known to type checkers alone: the stubs' classes are not there when the tests run.
GraphStub: TypeAlias = "graph_pb2_grpc.GraphServiceAsyncStub"
AdminStub: TypeAlias = "admin_pb2_grpc.AdminServiceAsyncStub"

START_S = 30.0
STOP_S = 20.0


@dataclass(slots=True)
class RouterProcess:
    """One router: its addresses, its configuration and log files, and the process while it runs."""

    name: str
    target: str
    admin: str
    metrics: str
    config_file: Path
    log_file: Path
    process: subprocess.Popen[bytes] | None = None
    signalled: set[int] = field(default_factory=set)

    def launch(self) -> None:
        """Start the process, and do not wait for it."""
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "router", "--config", str(self.config_file)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def wait_ready(self, shards: Sequence[str] = (), timeout_s: float = START_S) -> None:
        """Wait until it serves, and until it says that it reaches these shards."""
        deadline = time.monotonic() + timeout_s
        while not (self._is_ready() and all(self.serves(shard) for shard in shards)):
            process = self.process
            assert process is not None
            assert process.poll() is None, f"{self.name} ended with {process.returncode}: {self.log()[-2000:]}"
            assert time.monotonic() < deadline, f"{self.name} is not ready: {self.log()[-2000:]}"
            time.sleep(0.02)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.metrics}/readyz", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def serves(self, shard: str) -> bool:
        """Whether its health check says that it reaches a shard ("" asks for the router itself)."""
        request = health_pb2.HealthCheckRequest(service=f"graphd.shard.{shard}" if shard else "")
        with grpc.insecure_channel(self.target) as channel:
            try:
                stub: Any = health_pb2_grpc.HealthStub(channel)
                answer = stub.Check(request, timeout=2)
            except grpc.RpcError:
                return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        assert self.process is not None
        self.signalled.add(number)
        self.process.send_signal(number)

    def stop(self) -> None:
        """SIGTERM, and SIGKILL when that does not end it; safe to repeat."""
        process = self.process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"{self.name} did not stop within {STOP_S:g} s of SIGTERM") from None

    def log(self) -> str:
        """Everything it has logged."""
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def errors(self) -> list[str]:
        """Lines of its log that tell of a bug: level error, or no JSON at all (a traceback)."""
        found = []
        for line in self.log().splitlines():
            try:
                level = json.loads(line).get("level")
            except (json.JSONDecodeError, AttributeError):
                level = "error"
            if level in ("error", "critical"):
                found.append(line)
        return found

    def metric(self, line: str) -> float:
        """The value of a metric, named as the text format prints it, labels included; 0 when it is not there."""
        with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=5) as answer:
            for found in answer.read().decode().splitlines():
                if found.startswith(line + " "):
                    return float(found.rpartition(" ")[2])
        return 0.0


def new_router(
    databases: Databases, folder: Path, name: str, settings: Mapping[str, Any] | None = None
) -> RouterProcess:
    """A router that is not started yet. `settings` stand above the defaults of [router]; conninfos come from `databases`."""
    listen, admin, metrics = (f"127.0.0.1:{free_port()}" for _ in range(3))
    values = {"listen": listen, "admin_listen": admin, "metrics_listen": metrics, **(settings or {})}
    lines = [f"catalog = {json.dumps(databases.catalog)}", f"slots = {databases.slots}", "[shards]"]
    lines += [f"{shard} = {json.dumps(conninfo)}" for shard, conninfo in databases.conninfo.items()]
    lines += ["[router]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    lines += ["[log]", 'format = "json"']
    config_file = folder / f"{name}.toml"
    config_file.write_text("\n".join(lines) + "\n")
    return RouterProcess(name, listen, admin, metrics, config_file, folder / f"{name}.log")


@contextmanager
def running_routers(
    databases: Databases, folder: Path, count: int = 1, settings: Mapping[str, Any] | None = None, *, quiet: bool = True
) -> Iterator[list[RouterProcess]]:
    """`count` routers that serve and reach every shard; stopped at the end. `quiet`: fail if any of them logged an error."""
    routers = [new_router(databases, folder, f"router{i + 1}", settings) for i in range(count)]
    try:
        for router in routers:
            router.launch()
        for router in routers:
            router.wait_ready(databases.names)
        yield routers
    finally:
        with contextlib.ExitStack() as stack:
            for router in routers:
                stack.callback(router.stop)
    if quiet:
        for router in routers:
            assert not router.errors(), f"{router.name} logged: {router.errors()[:3]}"


# -- calls ----------------------------------------------------------------------------------------------------------------


def graph_stub(channel: aio.Channel) -> GraphStub:
    """GraphService over a channel."""
    return graph_pb2_grpc.GraphServiceStub(channel)


def admin_stub(channel: aio.Channel) -> AdminStub:
    """AdminService over a channel."""
    return admin_pb2_grpc.AdminServiceStub(channel)


@contextlib.asynccontextmanager
async def stubs(routers: Sequence[RouterProcess]) -> AsyncIterator[list[GraphStub]]:
    """A GraphService stub for each router, each over a connection of its own."""
    async with contextlib.AsyncExitStack() as stack:
        channels = [await stack.enter_async_context(aio.insecure_channel(router.target)) for router in routers]
        yield [graph_stub(channel) for channel in channels]


Detail = TypeVar("Detail", error_details_pb2.BadRequest, error_details_pb2.ErrorInfo, error_details_pb2.RetryInfo)


def detail(error: aio.AioRpcError, kind: type[Detail]) -> Detail | None:
    """The google.rpc detail of that kind in an error, if there is one."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            assert isinstance(value, bytes)
            for packed in status_pb2.Status.FromString(value).details:
                found = kind()
                if packed.Unpack(found):
                    return found
    return None


def fields(error: aio.AioRpcError) -> list[str]:
    """The fields an INVALID_ARGUMENT or OUT_OF_RANGE names."""
    found = detail(error, error_details_pb2.BadRequest)
    return [violation.field for violation in found.field_violations] if found is not None else []
