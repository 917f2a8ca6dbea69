"""README.md tells the truth: its tour gives the answers that stand there, its links and names exist."""

from __future__ import annotations

import re
from difflib import unified_diff

import pytest

from graphd.client import Client
from graphd.config import Config
from graphd.edge import State
from graphd.operations import Operation, state_after
from graphd.v1 import graph_pb2
from tests.calls import offered
from tests.readme import (
    README,
    Session,
    blocks,
    masked,
    new_cluster,
    rewritten,
    speeds,
    steps,
    transitions,
    with_transitions,
)

ROOT = README.parent
TEXT = README.read_text("utf-8")


async def test_the_tour_gives_the_answers_that_stand_there() -> None:
    with new_cluster() as cluster:
        walked = await Session(cluster).walk(TEXT)
    found = rewritten(TEXT, walked)
    difference = "\n".join(
        unified_diff(masked(TEXT).splitlines(), masked(found).splitlines(), "README.md", "now", lineterm="")
    )
    assert not difference, f"run python -m tests.readme, and see whether you like what changes:\n{difference}"


def test_the_table_of_what_follows_what_is_the_router_s() -> None:
    assert with_transitions(TEXT) == TEXT, "run python -m tests.readme"
    assert transitions() in TEXT
    archived = (State.ARCHIVED_BY_SOURCE, State.ARCHIVED_BY_DESTINATION, State.ARCHIVED_BY_BOTH)
    for operation in Operation:
        # They share a column.
        if operation <= Operation.UNBLOCK:
            assert len({state_after(operation, state) for state in archived}) == 1


def test_there_is_a_tour() -> None:
    found = [step for block in blocks(TEXT) for step in steps(*block)]
    assert len(found) > 20
    for call in (
        "follow",
        "unfollow",
        "batch_write",
        "get_edge",
        "batch_get_edges",
        "followers",
        "following",
        "get_degrees",
    ):
        assert any(f"client.{call}(" in step.typed for step in found), f"the tour lacks {call}"
        assert hasattr(Client, call)


def test_every_link_leads_somewhere() -> None:
    anchors = {
        re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in re.findall(r"^#+ (.+)$", TEXT, re.M)
    }
    for target in re.findall(r"\]\(([^)#]*)(?:#[\w-]+)?\)", TEXT):
        assert not target or (ROOT / target).exists(), target
    for anchor in re.findall(r"\]\(#([\w-]+)\)", TEXT):
        assert anchor in anchors, anchor


def test_every_file_named_exists() -> None:
    for name in re.findall(r"`((?:deploy|tests|proto|graphd|router|repair|\.ci)/[\w./]*)`", TEXT):
        assert (ROOT / name).exists(), name


def test_every_key_named_is_one() -> None:
    for section, key in re.findall(r"`\[(\w+)\] (\w+)`", TEXT):
        model = Config.model_fields[section].annotation
        assert key in getattr(model, "model_fields", {}), f"[{section}] {key}"


@pytest.mark.parametrize("heading", ["Offered by this release", "Answered UNIMPLEMENTED in this release"])
def test_what_is_offered_is_what_the_router_offers(heading: str) -> None:
    row = re.search(rf"^\| {heading} \| (.+) \|$", TEXT, re.MULTILINE)
    assert row is not None
    named = set(re.findall(r"\b[A-Z][A-Za-z]+\b", row[1]))
    methods = {method.name for method in graph_pb2.DESCRIPTOR.services_by_name["GraphService"].methods}
    assert named == (offered() if heading.startswith("Offered") else methods - offered())


def test_the_figures_of_a_bench_become_a_table() -> None:
    machine = {"cores": 2, "python": "3.11.2", "postgres": {"server_version": "18.6"}, "versions": {"grpcio": "1.85"}}
    rows = [
        {"target": {"what": "GetEdge", "unit": "x"}, "value": 0.915, "ours": {"rate": 4100.0, "p50_ms": 15.04}},
        {"target": {"what": "memory", "unit": "MB"}, "value": 148.7, "ours": None},
        {"target": {"what": "import", "unit": "x"}, "value": None, "ours": None},
    ]
    table = speeds({"machine": machine, "rows": rows})
    assert table.splitlines()[-2:] == ["| GetEdge | 0.92 x | 4,100 | 15.0 ms |", "| memory | 149 MB |  |  |"]
    assert "2 cores" in table
