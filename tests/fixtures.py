"""Real Postgres servers, databases on them, and routers before them.

The servers start once a session (and once a worker of pytest-xdist); every module that asks for `databases` gets new ones. The servers
of a session do not fsync: tests that kill servers start their own.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from grpc import aio

from graphd.devcluster.postgres import PostgresServer, PostgresSpec, free_port, running
from tests.databases import Databases, new_databases
from tests.routers import GraphStub, RouterProcess, graph_stub, running_routers

__all__ = ["databases", "folder", "graph", "graphs", "module_folder", "postgres", "router", "three_routers"]

PATIENT = {"reverse_wait_s": 20.0, "lane_timeout_s": 30.0}
"""Settings of routers, so that a busy machine changes what calls cost and not what they answer."""

FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    """A folder that whoever runs Postgres can reach; deleted at the end."""
    path = Path(tempfile.mkdtemp(prefix="graphd-tests-"))
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres(folder: Path) -> Iterator[list[PostgresServer]]:
    """Two servers."""
    servers = [PostgresServer(PostgresSpec(f"pg{i}", folder / f"pg{i}" / "data", free_port(), FAST)) for i in (1, 2)]
    with running(servers):
        yield servers


@pytest.fixture(scope="module")
def databases(postgres: list[PostgresServer]) -> Iterator[Databases]:
    """Two shards of 64 slots, new for each module."""
    with new_databases(postgres) as found:
        yield found


@pytest.fixture(scope="module")
def module_folder(request: pytest.FixtureRequest, folder: Path) -> Path:
    """A folder of the module's own."""
    path = folder / str(request.module.__name__)
    path.mkdir()
    return path


@pytest.fixture(scope="module")
def router(databases: Databases, module_folder: Path) -> Iterator[RouterProcess]:
    """One router before `databases`; it must not log an error."""
    with running_routers(databases, module_folder, settings=PATIENT) as [found]:
        yield found


@pytest.fixture(scope="module")
def three_routers(databases: Databases, module_folder: Path) -> Iterator[list[RouterProcess]]:
    """Three router processes before `databases`; they must not log an error."""
    with running_routers(databases, module_folder, 3, PATIENT) as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def graph(router: RouterProcess) -> AsyncIterator[GraphStub]:
    """A stub for the module's one router."""
    async with aio.insecure_channel(router.target) as channel:
        yield graph_stub(channel)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def graphs(three_routers: list[RouterProcess]) -> AsyncIterator[list[GraphStub]]:
    """A stub for each of the module's three routers."""
    channels = [aio.insecure_channel(router.target) for router in three_routers]
    try:
        yield [graph_stub(channel) for channel in channels]
    finally:
        for channel in channels:
            await channel.close()
