"""What stands in deploy/ agrees with the code: the example configuration, the alerts, the runbook, the image, compose."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from graphd.config import Config, load

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
PACKAGES = ("graphd", "router", "repair")

EXAMPLE = (DEPLOY / "graphd.toml").read_text("utf-8")
ALERTS = (DEPLOY / "alerts.yaml").read_text("utf-8")
RUNBOOK = (DEPLOY / "RUNBOOK.md").read_text("utf-8")
COMPOSE = (DEPLOY / "compose.yaml").read_text("utf-8")
DOCKERFILE = (DEPLOY / "Dockerfile").read_text("utf-8")


# The example configuration


def keys() -> Iterator[tuple[str, str, FieldInfo]]:
    """(section, key, field) of all settings, "" the section of the uppermost."""
    for name, field in Config.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            for inner, inner_field in annotation.model_fields.items():
                yield name, inner, inner_field
        else:
            yield "", name, field


def sections() -> dict[str, str]:
    """The text of each section of the example, the comments before its head included in the one before."""
    parts = re.split(r"^\[(\w+)\]\n", EXAMPLE, flags=re.MULTILINE)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


@pytest.mark.parametrize(
    ("section", "key", "field"), [pytest.param(*row, id=".".join(filter(None, row[:2]))) for row in keys()]
)
def test_each_key_has_its_sentence_and_its_default(section: str, key: str, field: FieldInfo) -> None:
    if key == "shards":
        assert f"# {field.description}\n[shards]\n" in EXAMPLE
        return
    found = re.search(rf"((?:^# .*\n)+)^(# )?{key} = (.*)$", sections()[section], re.MULTILINE)
    assert found is not None, f"the example lacks {key}"
    sentence = " ".join(found[1].replace("# ", "").split())
    value = tomllib.loads(f"x = {found[3]}")["x"]
    assert field.description is not None
    if field.is_required():
        assert found[2] is None, f"{key} has no default, so it must stand there"
        assert sentence.endswith(field.description)
    elif field.default is None:
        assert sentence == f"{field.description} Without a default."
    else:
        assert sentence == field.description
        assert (value, type(value)) == (field.default, type(field.default)), f"{key}: not the default"
    assert found[2] == "# " or field.is_required(), f"{key}: defaults are commented out"


def test_the_example_holds_no_other_keys() -> None:
    named = {
        (section, key) for section, text in sections().items() for key in re.findall(r"^(?:# )?(\w+) = ", text, re.M)
    }
    assert named == {(section, key) for section, key, _ in keys() if key != "shards"} | {
        ("shards", name) for name in ("s1", "s2", "s3")
    }


def test_the_example_loads_as_it_is_and_with_every_comment_taken_off(tmp_path: Path) -> None:
    assert set(load(DEPLOY / "graphd.toml").shards) == {"s1", "s2", "s3"}
    path = tmp_path / "all.toml"
    path.write_text(re.sub(r"^# (\w+ = )", r"\1", EXAMPLE, flags=re.MULTILINE))
    everything = load(path)
    assert (
        everything.router.model_copy(update={"tls_certificate": None, "tls_key": None, "tls_client_ca": None})
        == load(DEPLOY / "graphd.toml").router
    )


# Metrics, alerts, runbook


def strings(function: str) -> list[tuple[str, Any]]:
    """(name of the call, its first argument) of all calls that the code makes with a constant."""
    found = []
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
                    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                    if re.fullmatch(function, name):
                        found.append((name, node.args[0].value))
    return found


def metrics() -> set[str]:
    """Series by the names under which Prometheus knows them."""
    suffixes = {
        CounterMetricFamily.__name__: ("_total",),
        GaugeMetricFamily.__name__: ("",),
        HistogramMetricFamily.__name__: ("_bucket", "_sum", "_count"),
    }
    return {name + suffix for kind, name in strings(r"\w+MetricFamily") for suffix in suffixes[kind]}


def alerts() -> dict[str, str]:
    """The text of each alert by its name."""
    parts = re.split(r"^ +- alert: (\w+)\n", ALERTS, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def chapters() -> dict[str, str]:
    """The text of each chapter of the runbook by the anchor that GitHub gives to it."""
    parts = re.split(r"^## (.+)\n", RUNBOOK, flags=re.MULTILINE)
    return {title.lower().replace(" ", "-"): text for title, text in zip(parts[1::2], parts[2::2], strict=True)}


def test_there_are_metrics_and_alerts() -> None:
    assert {"graphd_calls_total", "graphd_call_seconds_bucket", "graphd_outbox_parked"} <= metrics()
    assert len(alerts()) == ALERTS.count("expr:") >= 10


@pytest.mark.parametrize("text", [ALERTS, RUNBOOK], ids=["alerts", "runbook"])
def test_every_metric_named_exists(text: str) -> None:
    named = set(re.findall(r"\bgraphd_[a-z_]+", text)) - {"graphd_catalog", "graphd_"}
    assert named <= metrics()


@pytest.mark.parametrize("name", alerts())
def test_every_alert_has_a_sentence_and_a_chapter_that_names_it(name: str) -> None:
    assert re.search(rf"^ +# [A-Z].+\.\n +- alert: {name}\n", ALERTS, re.MULTILINE), "no sentence above it"
    text = alerts()[name]
    assert "summary: " in text
    assert re.search(r"severity: (page|ticket)\b", text)
    anchor = re.search(r"runbook: RUNBOOK\.md#([\w-]+)", text)
    assert anchor is not None
    assert f"`{name}`" in chapters()[anchor[1]]


def test_the_runbook_names_no_alert_that_does_not_exist() -> None:
    assert set(re.findall(r"`(Graphd\w+)`", RUNBOOK)) == set(alerts())


def test_every_link_within_the_runbook_leads_somewhere() -> None:
    assert set(re.findall(r"\]\(#([\w-]+)\)", RUNBOOK)) <= set(chapters())
    for file in re.findall(r"\]\((\w[\w.]*\.\w+)\)", RUNBOOK):
        assert (DEPLOY / file).exists(), file


def test_every_log_event_named_exists() -> None:
    events = {event for _, event in strings("debug|info|warning|error") if isinstance(event, str)}
    named = {
        name
        for name in re.findall(r"`([a-z]+\.[a-z_]+)`", RUNBOOK)
        if name not in {"this.form"} and not name.endswith((".yaml", ".toml", ".md"))
    }
    assert len(named) > 10
    assert named <= events


def test_the_defaults_that_the_runbook_quotes() -> None:
    router, text = load(DEPLOY / "graphd.toml").router, " ".join(RUNBOOK.split())
    assert f"`[router] reverse_wait_s` ({router.reverse_wait_s:g} s)" in text
    assert f"`[router] max_calls_per_shard` ({router.max_calls_per_shard:,})" in text
    assert f"`[router] drain_s` ({router.drain_s:g} s)" in text


# The image and compose


def test_the_image_runs_as_nobody_in_particular_from_locked_packages() -> None:
    last = DOCKERFILE.rpartition("\nFROM ")[2]
    assert re.search(r"^USER 10001:10001$", last, re.MULTILINE)
    assert re.search(r"^HEALTHCHECK .*\n +CMD .*/readyz", last, re.MULTILINE)
    assert DOCKERFILE.count("--require-hashes") == DOCKERFILE.count(" -r deploy/requirements") == 2
    for line in DOCKERFILE.splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            for source in [word for word in line.split()[1:-1] if not word.startswith("--")]:
                assert (ROOT / source).exists(), f"COPY {source}"


def test_what_builds_the_image_is_locked_as_tested() -> None:
    tested = (DEPLOY / "requirements-dev.txt").read_text("utf-8")
    packages = re.split(r"\n(?! )", (DEPLOY / "requirements-build.txt").read_text("utf-8").rstrip())
    assert any(package.startswith("hatchling==") for package in packages)
    for package in packages:
        assert package in tested, "take it over from requirements-dev.txt: run sh deploy/lock.sh"


def test_compose_publishes_to_this_machine_alone_and_holds_no_password() -> None:
    ports = re.findall(r"^ +- (\S*\d+:\d+)$", COMPOSE, re.MULTILINE)
    assert len(ports) == 4
    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert not re.search(r"PASSWORD: |password=", COMPOSE)


def test_compose_gives_postgres_the_locks_that_the_slots_need() -> None:
    found = re.search(r"max_locks_per_transaction=(\d+)", COMPOSE)
    assert found is not None
    assert int(found[1]) >= load(DEPLOY / "graphd.toml").slots


def test_the_variables_of_compose_are_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = dict(re.findall(r"^ +(GRAPHD_\w+): (\S+)$", COMPOSE, re.MULTILINE))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    loaded = load(DEPLOY / "graphd.toml")
    assert loaded.router.listen == "0.0.0.0:7600"
    assert loaded.router.admin_listen == "0.0.0.0:7601"
    assert loaded.router.metrics_listen == "0.0.0.0:7602"
    assert loaded.repair.metrics_listen == "0.0.0.0:7603"
    assert len(variables) == 4
