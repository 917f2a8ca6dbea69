"""What is measured: a cluster of two shards, the floor, and the connections to both, each process on its own."""

from __future__ import annotations

import base64
import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from google.protobuf.message import Message
from grpc import aio

from graphd.devcluster.cluster import DevCluster
from graphd.devcluster.plan import Options
from graphd.v1.graph_pb2_grpc import GraphServiceStub
from tests.bench.meter import Meter

if TYPE_CHECKING:
    from graphd.v1.graph_pb2_grpc import GraphServiceAsyncStub  # generated for type checkers only

SHARDS = 2
TIMEOUT_S = 20.0

ROUTER = {"reverse_wait_s": 15.0}
"""A disk that stalls for a second shows as a slow call with both halves durable, not as a fast one without."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A running cluster, and who uses how much CPU."""

    cluster: DevCluster
    folder: Path
    router: str
    conninfo: Mapping[str, str]
    meter: Meter

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """The answers of all shards, one after the other."""
        found: list[tuple[Any, ...]] = []
        for conninfo in self.conninfo.values():
            with psycopg.connect(conninfo, autocommit=True) as connection:
                found += connection.execute(query.encode()).fetchall()
        return found

    def settle(self) -> None:
        """What autovacuum and the checkpointer would do in the middle of a measurement is done now."""
        for conninfo in self.conninfo.values():
            with psycopg.connect(conninfo, autocommit=True) as connection:
                connection.execute("VACUUM (ANALYZE) forward, reverse, degrees, outbox")
                connection.execute("CHECKPOINT")

    def postgres_settings(self) -> dict[str, str]:
        names = ("server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "wal_level")
        with psycopg.connect(next(iter(self.conninfo.values()))) as connection:
            return {name: connection.execute(f"SHOW {name}".encode()).fetchall()[0][0] for name in names}


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[Setting]:
    """Two Postgres servers and one router process, metrics on, fsync on; stopped at the end. The folder stays."""
    dev = DevCluster(folder / "cluster")
    try:
        dev.up(Options(shards=SHARDS, slots=64, port=0, workers=1, repair=False, router=ROUTER))
        status = dev.status()
        meter = Meter(
            {
                "router": [router["pid"] for router in status["routers"]],
                "postgres": [shard["pid"] for shard in status["shards"]],
            }
        )
        conninfo = {shard["name"]: shard["conninfo"] for shard in status["shards"]}
        yield Setting(dev, folder, status["router"], conninfo, meter)
    finally:
        dev.down()


@contextlib.contextmanager
def echo(setting: Setting, answers: Mapping[str, Message]) -> Iterator[str]:
    """The bare server that gives these answers, by method; its address."""
    path = setting.folder / "answers.json"
    texts = {name: base64.b64encode(answer.SerializeToString()).decode() for name, answer in answers.items()}
    path.write_text(json.dumps(texts))
    command = [sys.executable, "-m", "tests.bench.echo", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        if not port:
            raise RuntimeError(f"the echo server ended with status {process.wait(10)}")
        setting.meter.add("echo", process.pid)
        yield f"127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.asynccontextmanager
async def connect(address: str) -> Any:
    """A stub on one channel."""
    # Channels to one address would share a connection, were the pool not their own.
    async with aio.insecure_channel(address, options=(("grpc.use_local_subchannel_pool", 1),)) as channel:
        stub: GraphServiceAsyncStub = GraphServiceStub(channel)
        yield stub
