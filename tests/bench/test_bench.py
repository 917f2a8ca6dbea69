"""The bench's pure parts. How fast anything is, is measured by `python -m tests.bench`, and asserted nowhere."""

import json

import pytest

from tests.bench import imports
from tests.bench.data import QUICK, Graph
from tests.bench.figures import (
    Bound,
    Row,
    Target,
    Window,
    as_json,
    compare,
    disturbance,
    missing,
    percentile,
    rates,
    table,
)
from tests.bench.rows import ROWS

AT_LEAST = Target("get-edge", "GetEdge against echo", Bound.AT_LEAST, 0.9)
AT_MOST = Target("memory", "memory of the router", Bound.AT_MOST, 200, "MB")


def window(rate: float, units: int = 1) -> Window:
    calls = int(rate * 2)
    return Window(calls, calls * units, 2.0, p50_ms=1.0, p99_ms=5.0, max_ms=9.0, cpu_s={"router": calls * 0.0002})


def test_a_row_is_the_median_of_the_ratios_of_neighbouring_windows() -> None:
    # The machine became ten times slower in the third pair: no ratio notices, where a ratio of medians would.
    pairs = [(window(4000), window(3600)), (window(4000), window(2000)), (window(400), window(400))]
    row = compare(AT_LEAST, pairs)
    assert row.value == pytest.approx(0.9)
    assert row.values == pytest.approx([0.9, 0.5, 1.0])
    assert row.verdict == "pass"
    assert row.floor is not None
    assert row.floor.rate == 4000


def test_batches_count_what_they_carry() -> None:
    row = compare(AT_LEAST, [(window(4000), window(300, units=200))])
    assert row.value == pytest.approx(15)
    assert row.ours is not None
    assert row.ours.cpu_us["router"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("target", "value", "verdict"),
    [(AT_LEAST, 0.9, "pass"), (AT_LEAST, 0.89, "FAIL"), (AT_MOST, 200, "pass"), (AT_MOST, 201, "FAIL")],
)
def test_verdicts(target: Target, value: float, verdict: str) -> None:
    assert Row(target, value).verdict == verdict


def test_percentiles() -> None:
    values = [float(n) for n in range(100, 0, -1)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile([7.0], 0.99)) == (50, 99, 7)
    assert percentile([], 0.5) != percentile([], 0.5)


def test_the_table_tells_each_row_and_what_it_must_be() -> None:
    rows = [
        compare(AT_LEAST, [(window(4000), window(3800))]),
        Row(AT_MOST, 212.5),
        missing(Target("import", "import against COPY", Bound.AT_LEAST, 0.5), "not there yet"),
    ]
    lines = table(rows).splitlines()
    assert [" ".join(line.split()) for line in lines[2:5]] == [
        "GetEdge against echo 0.95 x at least 0.90 x pass",
        "memory of the router 212 MB at most 200 MB FAIL",
        "import against COPY - at least 0.50 x not measured",
    ]
    assert lines[5] == "import: not there yet"
    assert "3,800" in rates(rows)


def test_a_machine_that_others_use_is_told() -> None:
    quiet = Window(100, 100, 2.0, 1.0, 5.0, 9.0, {"others": 0.1})
    busy = Window(100, 100, 2.0, 1.0, 5.0, 9.0, {"others": 1.0})
    assert disturbance([compare(AT_LEAST, [(quiet, quiet)]), Row(AT_MOST, 100)]) == ""
    assert "0.5 cores" in disturbance([compare(AT_LEAST, [(quiet, busy)])])


def test_the_json_can_be_read_back() -> None:
    rows = [compare(AT_LEAST, [(window(4000), window(3800))]), Row(AT_MOST, 212.5)]
    values = json.loads(json.dumps(as_json(rows, {"cores": 2}, {"seconds": 3})))
    assert values["machine"] == {"cores": 2}
    assert [(row["target"]["name"], row["verdict"]) for row in values["rows"]] == [
        ("get-edge", "pass"),
        ("memory", "FAIL"),
    ]
    assert values["rows"][0]["ours"]["rate"] == 3800


def test_the_graph_is_the_same_for_a_seed_and_names_of_rows_are_single() -> None:
    one, other = Graph(QUICK, 7), Graph(QUICK, 7)
    assert (one.edges, one.cy, one.list_accounts) == (other.edges, other.cy, other.list_accounts)
    targets = (*ROWS, *imports.TARGETS)
    assert len({target.name for target in targets}) == len(targets)
