"""A cluster that can be hurt: three real servers that fsync, a proxy before each database, routers and relays started by hand."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from graphd.devcluster.postgres import PostgresServer, PostgresSpec, free_port, running
from graphd.placement import slot_of
from tests.databases import Databases, new_databases
from tests.routers import GraphStub, RouterProcess, new_router, stubs
from tests.simulation.proxy import Network, TcpProxy

SHARDS = 3
SLOTS = 64


@dataclass(slots=True)
class Relay:
    """One `graphd-repair run` process."""

    config_file: Path
    log_file: Path
    metrics: str
    process: subprocess.Popen[bytes] | None = None
    expected_errors: set[str] = field(default_factory=set)
    """Events that may stand in its log at level error."""

    def start(self, timeout_s: float = 30.0) -> None:
        """Start it, and return when it runs."""
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "repair", "run", "--config", str(self.config_file)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + timeout_s
        while not self._is_ready():
            assert self.process.poll() is None, f"the relay ended: {self.log_file.read_text()[-2000:]}"
            assert time.monotonic() < deadline, "the relay is not ready"
            time.sleep(0.02)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.metrics}/readyz", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def reaches(self, shards: Iterable[str]) -> bool:
        """Whether it says that it reaches these shards."""
        with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=5) as answer:
            told = answer.read().decode().splitlines()
        return all(f'graphd_shard_up{{shard="{shard}"}} 1.0' in told for shard in shards)

    def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """SIGTERM; safe to repeat."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError("the relay did not stop within 20 s of SIGTERM") from None

    def errors(self) -> list[str]:
        """Lines of its log that tell of a bug."""
        found = []
        for line in self.log_file.read_text().splitlines():
            told = json.loads(line) if line.startswith("{") else {"level": "error"}
            if told.get("level") in ("error", "critical") and told.get("event") not in self.expected_errors:
                found.append(line)
        return found


@dataclass(slots=True)
class Site:
    """The databases as they are (`databases`), and as processes see them through the proxies (`proxied`)."""

    folder: Path
    network: Network
    servers: Mapping[str, PostgresServer]
    databases: Databases
    proxied: Databases
    proxies: Mapping[str, TcpProxy]
    catalog_proxy: TcpProxy
    _count: int = field(default=0)

    def shard_of(self, account: int) -> str:
        """Where an account lived when the cluster was founded."""
        return self.databases.view.topology.owners[slot_of(account, SLOTS)]

    def accounts(self, shard: str, count: int, first: int = 1) -> list[int]:
        """The first `count` accounts from `first` on that live on a shard."""
        found: list[int] = []
        account = first
        while len(found) < count:
            if self.shard_of(account) == shard:
                found.append(account)
            account += 1
        return found

    def new_router(self, settings: Mapping[str, Any] | None = None) -> RouterProcess:
        """A router behind the proxies, not started."""
        self._count += 1
        return new_router(self.proxied, self.folder, f"router{self._count}", settings)

    def new_relay(self) -> Relay:
        """A relay behind the proxies, not started."""
        self._count += 1
        metrics = f"127.0.0.1:{free_port()}"
        lines = [f"catalog = {json.dumps(self.proxied.catalog)}", f"slots = {SLOTS}", "[shards]"]
        lines += [f"{name} = {json.dumps(conninfo)}" for name, conninfo in self.proxied.conninfo.items()]
        lines += ["[repair]", f"metrics_listen = {json.dumps(metrics)}", "[log]", 'format = "json"', 'level = "debug"']
        config_file = self.folder / f"repair{self._count}.toml"
        config_file.write_text("\n".join(lines) + "\n")
        return Relay(config_file, self.folder / f"repair{self._count}.log", metrics)

    @contextmanager
    def routers(self, count: int = 1, settings: Mapping[str, Any] | None = None) -> Iterator[list[RouterProcess]]:
        """Routers that serve; stopped at the end. None of them may log an error."""
        found = [self.new_router(settings) for _ in range(count)]
        with contextlib.ExitStack() as stack:
            for router in found:
                router.launch()
                stack.callback(router.stop)
            for router in found:
                router.wait_ready(self.databases.names)
            yield found
        for router in found:
            assert not router.errors(), f"{router.name} logged: {router.errors()[:3]}"

    @contextmanager
    def relay(self) -> Iterator[Relay]:
        """A relay that runs; stopped at the end. It must not log an error."""
        found = self.new_relay()
        with contextlib.ExitStack() as stack:
            stack.callback(found.stop)
            found.start()
            yield found
        assert not found.errors(), f"the relay logged: {found.errors()[:3]}"

    @asynccontextmanager
    async def one_router(
        self, settings: Mapping[str, Any] | None = None
    ) -> AsyncIterator[tuple[RouterProcess, GraphStub]]:
        """A router and a stub of it."""
        with self.routers(1, settings) as [router]:
            async with stubs([router]) as [stub]:
                yield router, stub


def _through(conninfo: str, proxy: TcpProxy) -> str:
    return make_conninfo(conninfo, port=proxy.port)


def _port(conninfo: str) -> int:
    return int(conninfo_to_dict(conninfo)["port"] or 0)


@contextmanager
def open_site(folder: Path) -> Iterator[Site]:
    """Three servers, the catalog on the first; stopped at the end."""
    names = [f"s{number}" for number in range(1, SHARDS + 1)]
    servers = {name: PostgresServer(PostgresSpec(name, folder / name / "data", free_port())) for name in names}
    with (
        running(servers.values()),
        new_databases(list(servers.values()), shards=SHARDS, slots=SLOTS) as databases,
        Network() as network,
    ):
        proxies = {name: network.tcp(_port(conninfo)) for name, conninfo in databases.conninfo.items()}
        catalog_proxy = network.tcp(_port(databases.catalog))
        proxied = replace(
            databases,
            catalog=_through(databases.catalog, catalog_proxy),
            conninfo={name: _through(conninfo, proxies[name]) for name, conninfo in databases.conninfo.items()},
        )
        yield Site(folder, network, servers, databases, proxied, proxies, catalog_proxy)
