"""The cluster of the simulations: one for all of them, emptied before each."""

from __future__ import annotations

import random
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulation.cluster import Site, open_site
from tests.simulation.proxy import Mode


@pytest.fixture(scope="session")
def whole_site() -> Iterator[Site]:
    folder = Path(tempfile.mkdtemp(prefix="graphd-simulation-"))
    folder.chmod(0o755)
    try:
        with open_site(folder) as site:
            yield site
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def site(whole_site: Site) -> Iterator[Site]:
    """An empty cluster, all of it running."""
    whole_site.databases.clear()
    try:
        yield whole_site
    finally:
        for proxy in (*whole_site.proxies.values(), whole_site.catalog_proxy):
            proxy.delay_s, proxy.trip = 0.0, b""
            proxy.set(Mode.PASS)
        for server in whole_site.servers.values():
            server.start()


@pytest.fixture
def chance() -> random.Random:
    """Randomness whose seed stands in the output of a test that fails."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    return random.Random(seed)
