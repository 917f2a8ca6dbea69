"""How files of edges are read: every oddity of the real graphs, what is refused and why, sorting, doubles."""

import gzip
import hashlib
import io
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphd.errors import InvalidArgumentError
from graphd.importer import scan as scan_module
from graphd.importer.blocks import read_block
from graphd.importer.layout import Columns, Layout, detect, parse_columns
from graphd.importer.lines import MAX_LINE_BYTES, Refused, read_line
from graphd.importer.runs import SortedRuns
from graphd.importer.scan import Scanned, UnreadableFileError, edge_reader, scan
from graphd.limits import MAX_AHEAD_US, MAX_ID
from graphd.topology import Kind

NOW_US = 1_800_000_000_000_000
WITH_TIME = Columns(0, 1, 2)


def scanned(text: bytes, columns: str | None = None, *, allow_self: bool = False, stop: bool = False) -> Scanned:
    chosen = None if columns is None else parse_columns(columns)
    kind = Kind(1, "follow", allow_self)
    return scan(io.BytesIO(text), edge_reader(chosen, NOW_US), [kind], stop_at_refused=stop)


def rows(result: Scanned) -> list[tuple[int, ...]]:
    """All rows in key order; also checks that the other direction holds the same."""
    if not result.parts:
        result.close()
        return []
    [part] = result.parts.values()
    forward = [tuple(row) for piece in part.forward.read() for row in piece.tolist()]
    reverse = [tuple(row) for piece in part.reverse.read() for row in piece.tolist()]
    assert forward == sorted(forward)
    assert reverse == sorted(reverse)
    assert sorted((b, a, *rest) for a, b, *rest in reverse) == forward
    assert part.forward.doubles == part.reverse.doubles
    result.close()
    return forward


def refusals(result: Scanned) -> dict[int, str]:
    assert len(result.refused_lines) == result.refused
    return {refused.line: refused.reason for refused in result.refused_lines}


@pytest.mark.parametrize(
    "text",
    [
        b"1 2\n3 4\n",
        b"1 2\n3 4",
        b"1\t2\r\n3\t4\r\n",
        b"1 2\r\n3 4\r",
        b"1,2\n3,4\n",
        b"1, 2\n3 ,4\n",
        b'"1","2"\n3,"4"\n',
        b"  1 \t 2  \n3    4\n",
        b"\xef\xbb\xbf1 2\n3 4\n",
        b"\n\n1 2\n   \n3 4\n\n",
        b"# a comment\n% another, with 3 4\n1 2\n  # and 5 6\n3 4\n#7 8\n",
        b"id_1,id_2\n1,2\n3,4\n",
        b"# FromNodeId ToNodeId\nfrom to\n1 2\n3 4\n",
        b"\xef\xbb\xbfsource destination\n1 2\n3 4\n",
        b"destination,weight,source\n2,9,1\n4,9,3\n",
        b"1 2 9\n3 4 -1\n",
        b"001 2\n3 0004\n",
        gzip.compress(b"1 2\n3 4\n"),
        gzip.compress(b"1 2\n") + gzip.compress(b"3 4\n"),
    ],
)
def test_all_these_are_the_same_two_edges(text: bytes) -> None:
    result = scanned(text)
    assert refusals(result) == {}
    assert (result.read, result.self_loops) == (2, 0)
    assert rows(result) == [(1, 2), (3, 4)]
    assert result.sha256 == hashlib.sha256(text).hexdigest()


@pytest.mark.parametrize("text", [b"", b"\n\n", b"# nothing\n", b"a,b\n", gzip.compress(b"")])
def test_a_file_without_edges_is_no_error(text: bytes) -> None:
    result = scanned(text)
    assert (result.read, result.refused, rows(result)) == (0, 0, [])


def test_lines_are_refused_one_by_one_with_their_number_and_a_reason() -> None:
    bad = {
        3: (b"a 2", "source: 'a' is not a whole number"),
        4: (b"-1 2", "source: '-1' is negative; ids are 0 to 9223372036854775807"),
        6: (b"1 9223372036854775808", "destination: '9223372036854775808' is too large"),
        7: (b"18446744073709551616 1", "source: '18446744073709551616' is too large"),
        8: (b"7", "has 1 column, where the file has 2"),
        9: (b"7 8 9", "has 3 columns, where the file has 2"),
        10: (b"+7 8", "source: '+7' is not a whole number"),
        12: (b"1e3 8", "source: '1e3' is not a whole number"),
        13: (b"1.0 8", "source: '1.0' is not a whole number"),
        14: ("٣ 8".encode(), "is not a whole number"),
        15: (b"1\r2 3", "holds a carriage return that ends no line"),
        16: (b"\xff\xfe 3", "source: '\\\\xff\\\\xfe' is not a whole number"),
        17: (b"1 " + b"9" * 5000, "is too large"),
        18: (b"1 2" + b" " * MAX_LINE_BYTES, "longer than 65536 bytes"),
    }
    lines = [bad[n][0] if n in bad else b"%d %d" % (n, n + 1) for n in range(1, 21)]
    lines[4] = b"# line 5 is no data"
    lines[10] = b""
    result = scanned(b"\n".join(lines))
    found = refusals(result)
    assert list(found) == list(bad)
    for number, (_, reason) in bad.items():
        assert reason in found[number]
    assert result.read == 18
    assert rows(result) == [(n, n + 1) for n in (1, 2, 19, 20)]


def test_with_commas_empty_and_missing_columns_are_told() -> None:
    result = scanned(b'1,2\n,2\n1,\n1\n1,2,3\n1;2\n"1,2\n1 2,3\n3,4\n')
    assert refusals(result) == {
        2: "source: is empty",
        3: "destination: is empty",
        4: "has 1 column, where the file has 2",
        5: "has 3 columns, where the file has 2",
        6: "has 1 column, where the file has 2",
        7: "bad quoting: unexpected end of data",
        8: "source: '1 2' is not a whole number",
    }
    assert rows(result) == [(1, 2), (3, 4)]


def test_a_first_line_that_is_half_a_number_is_refused_and_no_header() -> None:
    result = scanned(b"1 x\n1 2\n")
    assert list(refusals(result)) == [1]
    result = scanned(b"5\n1 2\n3 4\n")
    assert refusals(result) == {1: "has 1 column, where the file has 2"}
    assert rows(result) == [(1, 2), (3, 4)]


def test_the_extremes_of_ids_are_ids() -> None:
    result = scanned(b"0 9223372036854775807\n9223372036854775807 0\n9223372036854775806 1\n")
    assert rows(result) == [(0, MAX_ID), (MAX_ID - 1, 1), (MAX_ID, 0)]


def test_self_loops_and_doubles_are_counted() -> None:
    text = b"1 2\n1 1\n1 2\n2 1\n1 1\n1 2\n"
    result = scanned(text)
    assert rows(result) == [(1, 2), (2, 1)]
    assert (result.read, result.self_loops, result.duplicates, result.refused) == (6, 2, 2, 0)
    result = scanned(text, allow_self=True)
    assert rows(result) == [(1, 1), (1, 2), (2, 1)]
    assert (result.self_loops, result.duplicates) == (0, 3)


@pytest.mark.parametrize(
    ("seconds", "position"),
    [
        ("1289241911.72836", 1_289_241_911_728_360),
        ("1289241911", 1_289_241_911_000_000),
        ("1289241911.", 1_289_241_911_000_000),
        ("0.000001", 1),
        (".5", 500_000),
        ("1.2892419e9", 1_289_241_900_000_000),
        ("1289241911.7283605", 1_289_241_911_728_360),  # half to even, once, at the seventh digit
        ("1289241911.7283615", 1_289_241_911_728_362),
        ("1289241911.72836049999999999999999999", 1_289_241_911_728_360),
        ("0001289241911.728360", 1_289_241_911_728_360),
        (str(Decimal(NOW_US + MAX_AHEAD_US) / 1_000_000), NOW_US + MAX_AHEAD_US),
    ],
)
def test_seconds_become_microseconds_exactly(seconds: str, position: int) -> None:
    result = scanned(f"1 2 {seconds}\n".encode(), "source,destination,time")
    assert refusals(result) == {}
    assert rows(result) == [(1, 2, position)]


@pytest.mark.parametrize(
    ("seconds", "reason"),
    [
        ("x", "is not a number of seconds"),
        ("-1.5", "is negative"),
        ("0", "is before the first microsecond of 1970"),
        ("0.0000001", "is before the first microsecond of 1970"),
        ("1800000005.000001", "is ahead of now"),
        ("1289241911728", "is ahead of now; times are seconds since 1970"),
        ("9" * 60, "is ahead of now"),
        ("9" * 70, "is not a number of seconds"),
        ("1.2.3", "is not a number of seconds"),
        ("nan", "is not a number of seconds"),
        ("inf", "is not a number of seconds"),
        (".", "is not a number of seconds"),
        ("2011-01-01", "is not a number of seconds"),
    ],
)
def test_times_that_are_refused(seconds: str, reason: str) -> None:
    result = scanned(f"3 4 1.5\n1 2 {seconds}\n".encode(), "source,destination,time")
    assert list(refusals(result)) == [2]
    assert reason in refusals(result)[2]
    assert rows(result) == [(3, 4, 1_500_000)]


def test_of_doubles_with_times_the_newest_stays() -> None:
    text = b"1 2 50 7\n1 2 50 9\n1 2 50 8\n1 3 50 1\n"
    result = scanned(text, "source,destination,-,time")
    assert rows(result) == [(1, 2, 9_000_000), (1, 3, 1_000_000)]
    assert result.duplicates == 2
    assert rows(scanned(text, "destination,source,-,-")) == [(2, 1), (3, 1)]
    assert rows(scanned(b"s,d,t\n1,2,3\n", "time,source,destination")) == [(2, 3, 1_000_000)]


@pytest.mark.parametrize(
    "text", ["source", "source,time", "a,b", "source,source,destination", "", "-," * 70 + "source"]
)
def test_columns_that_make_no_sense(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="--columns"):
        parse_columns(text)


def test_stopping_at_the_first_refused_line() -> None:
    result = scanned(b"1 2\nx y\nz z z\n3 4\n", stop=True)
    assert result.stopped
    assert list(refusals(result)) == [2]
    result.close()


@pytest.mark.parametrize("damage", [lambda data: data[:-20], lambda data: data[:50] + b"!!!!" + data[54:]])
def test_damaged_gzip_is_told(damage: object) -> None:
    assert callable(damage)
    data = gzip.compress("".join(f"{n} {n * n}\n" for n in range(5000)).encode())
    with pytest.raises(UnreadableFileError, match="damaged or cut off"):
        scanned(damage(data))


def test_line_numbers_hold_across_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "BLOCK_BYTES", 64)
    lines = [b"%d %d" % (n, n + 1) for n in range(1, 2001)]
    for n in (1, 2, 77, 1999, 2000):
        lines[n - 1] = b"bad %d" % n
    lines[499] = b"z" * 200
    lines[599] = b"# " + b"z" * 70_000
    lines[699] = b"1 2" + b" " * 70_000 + b"3"
    for end in (b"\n", b"\r\n"):
        result = scanned(end.join(lines) + end)
        assert list(refusals(result)) == [1, 2, 77, 500, 700, 1999, 2000]
        assert result.read == 1999
        assert rows(result) == [(n, n + 1) for n in range(3, 1999) if n not in (77, 500, 600, 700)]


line_text = st.one_of(
    st.tuples(st.integers(0, 2**64), st.integers(0, 10**19)).map(lambda pair: f"{pair[0]} {{}}{pair[1]}"),
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.decimals(0, 2 * 10**9, places=7)).map(
        lambda row: f"{row[0]} {{}}{row[1]} {{}}{row[2]}"
    ),
    st.text(alphabet='0123456789 .,-+#%\t\r"ex', max_size=12),
)


@given(
    st.lists(line_text, max_size=12),
    st.booleans(),
    st.sampled_from([Columns(), WITH_TIME, Columns(1, 0), Columns(2, 1, 0)]),
    st.integers(2, 3),
    st.sampled_from(["\n", "\r\n"]),
)
def test_the_fast_reader_reads_what_the_careful_one_reads(
    texts: list[str], comma: bool, columns: Columns, width: int, end: str
) -> None:
    lines = [text.replace("{}", "," if comma else "").replace(" ,", ",").encode() for text in texts]
    lines = [line.rstrip(b"\r") for line in lines]
    layout = Layout(columns, comma, max(width, columns.needed))
    careful = [read_line(line, 7 + i, layout, NOW_US) for i, line in enumerate(lines, 1)]
    block = b"".join(line + end.encode() for line in lines)
    fast = read_block(block, 7, layout, NOW_US) if block else None
    found = [] if fast is None else list(zip(fast.source_id.tolist(), fast.destination_id.tolist(), strict=True))
    assert sorted(found) == sorted(row[:2] for row in careful if isinstance(row, tuple))
    if fast is not None:
        assert [refused.line for refused in fast.refused] == [r.line for r in careful if isinstance(r, Refused)]
        if fast.position is not None:
            assert sorted(fast.position.tolist()) == sorted(row[2] for row in careful if isinstance(row, tuple))


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(1, 5)), max_size=120),
    st.booleans(),
    st.booleans(),
    st.integers(1, 9),
)
def test_sorting_in_runs_equals_sorting_at_once(
    triples: list[tuple[int, int, int]], times: bool, large: bool, run_rows: int
) -> None:
    base = MAX_ID - 9 if large else 0
    width = 3 if times else 2
    runs = SortedRuns(width, run_rows=run_rows, merge_rows=8)
    table = np.array([(base + a, base + b, t) for a, b, t in triples], dtype=np.int64).reshape(-1, 3)
    for piece in np.array_split(table, 3):
        runs.add(*(piece[:, i] for i in range(width)))
    found = [tuple(row) for piece in runs.read() for row in piece.tolist()]
    runs.close()
    newest: dict[tuple[int, int], int] = {}
    for a, b, t in table.tolist():
        newest[a, b] = max(t, newest.get((a, b), 0))
    assert found == sorted((*pair, t) if times else pair for pair, t in newest.items())
    assert runs.doubles == len(triples) - len(newest)


def test_runs_longer_than_a_block_of_the_merge_keep_their_order() -> None:
    random = np.random.default_rng(11)
    runs = SortedRuns(2, run_rows=5000, merge_rows=1)
    pairs = random.integers(0, 300, (60_000, 2))
    runs.add(pairs[:, 0], pairs[:, 1])
    found = np.concatenate(list(runs.read()))
    runs.close()
    assert np.array_equal(found, np.unique(pairs, axis=0))
    assert runs.doubles == len(pairs) - len(found)


REAL = {
    # file: columns, lines with an edge, distinct pairs, self-loop lines, distinct pairs that are self-loops
    "epinions-trust.txt.gz": (None, 355_754, 355_727, 224, 224),
    "soc-epinions1-undirected.txt.gz": (None, 405_739, 405_739, 0, 0),
    "wiki-vote.txt.gz": (None, 103_689, 103_689, 0, 0),
    "bitcoin-otc.txt.gz": ("source,destination,-,time", 35_592, 35_592, 0, 0),
    "bitcoin-alpha.csv.gz": ("source,destination,-,time", 24_186, 24_186, 0, 0),
    "college-msg.txt.gz": ("source,destination,time", 59_835, 20_296, 0, 0),
    "radoslaw-email.txt.gz": ("source,destination,-,time", 82_927, 5_784, 51, 1),
    "email-eu-core.txt.gz": (None, 25_571, 25_571, 642, 642),
    "github-mutual.csv.gz": (None, 289_003, 289_003, 0, 0),
    "facebook-combined.txt.gz": (None, 88_234, 88_234, 0, 0),
    "lastfm-asia.csv.gz": (None, 27_806, 27_806, 0, 0),
    "deezer-europe.csv.gz": (None, 92_752, 92_752, 0, 0),
    "twitch-engb.csv.gz": (None, 35_324, 35_324, 0, 0),
    "filmtrust-trust.txt.gz": (None, 1_853, 1_853, 0, 0),
}


@pytest.mark.parametrize("name", list(REAL))
def test_the_real_graphs(test_data: Path, name: str) -> None:
    columns, lines, distinct, loop_lines, distinct_loops = REAL[name]
    with (test_data / name).open("rb") as file:
        chosen = None if columns is None else parse_columns(columns)
        result = scan(file, edge_reader(chosen, NOW_US), [Kind(1, "follow")], stop_at_refused=False)
    assert (result.read, result.refused, result.self_loops) == (lines, 0, loop_lines)
    found = rows(result)
    assert len(found) == distinct - distinct_loops
    assert result.duplicates == lines - loop_lines - len(found)
    assert found == expected(test_data / name, columns)


def expected(path: Path, columns: str | None) -> list[tuple[int, ...]]:
    """An independent reading, line by line."""
    time_at = columns.split(",").index("time") if columns else None
    newest: dict[tuple[int, int], int] = {}
    for line in gzip.decompress(path.read_bytes()).decode().splitlines():
        fields = line.replace(",", " ").split()
        if not fields or fields[0] in "#%" or not fields[0].isdecimal():
            continue
        pair = int(fields[0]), int(fields[1])
        time = 0 if time_at is None else int(Decimal(fields[time_at]) * 1_000_000)
        newest[pair] = max(time, newest.get(pair, 0))
    found = sorted((*pair, time) if time_at else pair for pair, time in newest.items())
    return [row for row in found if row[0] != row[1]]


def test_a_file_that_is_no_edge_list_is_refused_line_by_line(test_data: Path) -> None:
    with (test_data / "linkbench-distribution.dat.gz").open("rb") as file:
        result = scan(file, edge_reader(None, NOW_US), [Kind(1, "follow")], stop_at_refused=False)
    assert result.refused_lines[0] == Refused(1, "has 1 column, where the file has 2")
    assert result.refused > 0.9 * result.read
    result.close()


def test_the_layout_is_read_off_the_first_lines() -> None:
    assert detect([b"# x", b"a,b", b"1,2"], None) == Layout(Columns(), comma=True, width=2, header_line=2)
    assert detect([b"1 2 3", b"1 2", b"3 4 5"], None) == Layout(Columns(), comma=False, width=3)
    assert detect([], WITH_TIME) == Layout(WITH_TIME, comma=False, width=3)
