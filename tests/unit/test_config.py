"""What stands above the file, what is an error, and in which words."""

from __future__ import annotations

import os
from typing import Any

import pytest

from graphd.config import Config, from_values, unknown_variables
from graphd.errors import ConfigError

SECRET = "hunter2"
VALUES: dict[str, Any] = {"catalog": f"password={SECRET} dbname=catalog", "shards": {"s1": f"password={SECRET}"}}


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("GRAPHD_"):
            monkeypatch.delenv(name)


def read(**changes: Any) -> Config:
    return from_values({**VALUES, **changes}, "graphd.toml")


def refusal(**changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        read(**changes)
    assert SECRET not in str(caught.value)
    return str(caught.value)


def test_the_environment_stands_above_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHD_ROUTER__WORKERS", "3")
    monkeypatch.setenv("graphd_log__level", "debug")
    monkeypatch.setenv("GRAPHD_SHARDS__S2", "dbname=two")
    config = read(router={"workers": 2, "drain_s": 4})
    assert (config.router.workers, config.router.drain_s, config.log.level) == (3, 4.0, "debug")
    assert (list(config.shards), config.shard_conninfo("s2")) == (["s1", "s2"], "dbname=two")
    assert unknown_variables() == []


@pytest.mark.parametrize(
    "name",
    [
        "GRAPHD_FOO",
        "GRAPHD_ROUTER_LISTEN",
        "GRAPHD_ROUTER__BAR",
        "graphd_router__bar",
        "GRAPHD_ROUTER__WORKERS__X",
        "GRAPHD_NOTHING__BAR",
        "GRAPHD_SHARDS__",
        "GRAPHD_SHARDS__S1__X",
        "GRAPHD_MY_GRAPHD_SHARDS__S1",
    ],
)
def test_an_unknown_variable_is_warned_of_and_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = read()
    monkeypatch.setenv(name, "1")
    assert unknown_variables() == [name]
    assert read() == before


def test_an_unknown_key_of_the_file_is_an_error() -> None:
    assert refusal(foo=1) == "graphd.toml: foo: there is no such key"
    assert refusal(router={"bar": 1, "workers": 1}) == "graphd.toml: router.bar: there is no such key"


def test_every_problem_is_told_in_plain_words(monkeypatch: pytest.MonkeyPatch) -> None:
    said = refusal(slots=3, router={"workers": 0, "listen": "here"}, log={"level": "loud"})
    assert said == (
        "graphd.toml: slots: must be a power of two, 1 to 16384; "
        "router.listen: must be host:port, such as 127.0.0.1:7600 or [::]:7600; "
        "router.workers: must be greater than or equal to 1; "
        "log.level: must be 'debug', 'info', 'warning' or 'error'"
    )
    with pytest.raises(ConfigError, match=r"^graphd.toml: catalog: must be given; shards: must be given$"):
        from_values({}, "graphd.toml")
    monkeypatch.setenv("GRAPHD_ROUTER__WORKERS", "many")
    assert refusal().startswith("graphd.toml: router.workers: must be a valid integer")


@pytest.mark.parametrize("name", ["GRAPHD_ROUTER", "GRAPHD_SHARDS"])
def test_a_section_in_one_variable(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, SECRET)
    assert refusal() == f"{name}: must be a section in JSON, or use {name}__KEY for one key of it"
