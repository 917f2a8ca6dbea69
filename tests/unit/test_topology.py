"""A topology is valid or it is not built."""

from __future__ import annotations

from typing import Any

import pytest

from graphd.errors import InvalidArgumentError
from graphd.limits import MAX_KIND_CHARS, MAX_KINDS, MAX_OUT_DEGREE
from graphd.topology import Kind, Topology, kind_name_rule, out_degree_rule, spread
from router.status import status_of

KINDS = {"follow": Kind(1, "follow"), "mute": Kind(2, "mute", allow_self=True)}


def topology(**changes: Any) -> Topology:
    values: dict[str, Any] = {"epoch": 3, "shards": ("s1", "s2"), "owners": ("s1", "s1", "s2", "s2"), "kinds": KINDS}
    return Topology(**{**values, **changes})


def test_reads() -> None:
    found = topology()
    assert found.slots == 4
    assert found.slots_of("s2") == [2, 3]
    assert found.kind("") is KINDS["follow"]
    assert found.kind("mute") is KINDS["mute"]
    assert found.kind_by_number(2) is KINDS["mute"]
    assert found.kind_by_number(3) is None
    with pytest.raises(InvalidArgumentError, match="follow, mute") as caught:
        found.kind("Follow")
    assert caught.value.field == "kind"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"owners": ()}, "slots"),
        ({"owners": ("s1",) * 3}, "slots"),
        ({"owners": ("s1",) * 32_768}, "slots"),
        ({"shards": ()}, "shards"),
        ({"shards": ("s1", "s1")}, "shards"),
        ({"owners": ("s1", "s9", "s2", "s2")}, "owners"),
        ({"kinds": {"mute": KINDS["mute"]}}, "kinds"),
        ({"kinds": {**KINDS, "like": Kind(2, "like")}}, "kinds"),
    ],
)
def test_invalid_is_not_built(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        topology(**changes)
    assert caught.value.field == field


@pytest.mark.parametrize("slots", [1, 2, 64, 1024])
@pytest.mark.parametrize("shards", [1, 2, 3, 5])
def test_spread_is_even_and_in_runs(slots: int, shards: int) -> None:
    names = tuple(f"s{i}" for i in range(shards))
    owners = spread(slots, names)
    assert len(owners) == slots
    assert list(owners) == sorted(owners)
    counts = [owners.count(name) for name in names]
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("name", ["follow", "a", "x-1_b", "a" * 32])
def test_kind_names(name: str) -> None:
    assert kind_name_rule(name) is None


@pytest.mark.parametrize("name", ["", "Follow", "1a", "-a", "a b", "a" * 33, "münze", "a\n"])
def test_kind_names_that_are_none(name: str) -> None:
    assert kind_name_rule(name) is not None


def test_the_kinds_that_an_error_tells_fit_into_grpc_s_trailers() -> None:
    names = ["follow", *(f"{n:04d}".rjust(MAX_KIND_CHARS, "k") for n in range(1, MAX_KINDS))]
    found = topology(kinds={name: Kind(number, name) for number, name in enumerate(names, 1)})
    with pytest.raises(InvalidArgumentError) as caught:
        found.kind("none")
    assert f"kind: must be one of follow, {names[1]}, " in str(caught.value)
    assert str(caught.value).endswith(", ... (1000 in all: graphd kind list)")
    status = status_of(caught.value)
    # In base64, where they are bytes.
    assert len(status.message) + sum(len(value) * 4 / 3 for _, value in status.metadata) < 6_000


@pytest.mark.parametrize("most", [0, 1, MAX_OUT_DEGREE])
def test_out_degrees(most: int) -> None:
    assert out_degree_rule(most) is None


@pytest.mark.parametrize("most", [-1, MAX_OUT_DEGREE + 1])
def test_out_degrees_that_are_none(most: int) -> None:
    assert out_degree_rule(most) is not None
