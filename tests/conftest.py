"""Options and fixtures that every kind of test shares."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.fixtures import databases, folder, graph, graphs, module_folder, postgres, router, three_routers

__all__ = ["databases", "folder", "graph", "graphs", "module_folder", "postgres", "router", "three_routers"]

# The examples run against real servers on a busy machine: how long one takes says nothing about the code under test.
# The same examples each time, so that a failure is no matter of luck; the long form looks for new ones, and prints how to see one again.
_PATIENT = settings(print_blob=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", _PATIENT, derandomize=True)
settings.register_profile("long", _PATIENT, max_examples=2000)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the long simulations too, and 20 times as many examples")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("long" if config.getoption("--long") else "ci")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--long"):
        return
    skip = pytest.mark.skip(reason="a long simulation: run it with --long")
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def test_data() -> Path:
    """The folder of the real graphs; the test is skipped where there is none."""
    folder = os.environ.get("TEST_DATA")
    if not folder:
        pytest.skip("TEST_DATA is not set: the real graphs are absent")
    return Path(folder)


@pytest.fixture
def is_long(request: pytest.FixtureRequest) -> bool:
    """Whether the long form is asked for."""
    return bool(request.config.getoption("--long"))
