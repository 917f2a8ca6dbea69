"""How exports of graphd and Mastodon's following lists are read, and sorting whole versions of several kinds."""

import gzip
import io
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphd.edge import State
from graphd.errors import InvalidArgumentError
from graphd.importer import mastodon as mastodon_module
from graphd.importer import scan as scan_module
from graphd.importer.lines import MAX_LINE_BYTES
from graphd.importer.runs import SortedRuns
from graphd.importer.scan import Scanned, UnreadableFileError, scan, scan_following
from graphd.importer.versions import COLUMNS, VersionReader
from graphd.limits import MAX_AHEAD_US, MAX_ID
from graphd.storage import dump
from graphd.topology import Kind

NOW_US = 1_800_000_000_000_000
LATEST = NOW_US + MAX_AHEAD_US
KINDS = [Kind(1, "follow"), Kind(7, "mute", allow_self=True)]
Row = tuple[int, ...]


def scanned(text: bytes, *, stop: bool = False, kinds: Sequence[Kind] = KINDS) -> Scanned:
    reader = VersionReader({kind.name: kind.number for kind in kinds}, NOW_US)
    return scan(io.BytesIO(text), reader, kinds, stop_at_refused=stop)


def rows(result: Scanned) -> dict[int, list[Row]]:
    """By kind all rows in key order; also checks that the other direction holds the same."""
    found: dict[int, list[Row]] = {}
    for kind, part in result.parts.items():
        found[kind] = [tuple(row) for piece in part.forward.read() for row in piece.tolist()]
        reverse = [tuple(row) for piece in part.reverse.read() for row in piece.tolist()]
        assert reverse == sorted((b, a, *rest) for a, b, *rest in found[kind])
        assert part.forward.doubles == part.reverse.doubles
    result.close()
    return found


def refusals(result: Scanned) -> dict[int, str]:
    return {refused.line: refused.reason for refused in result.refused_lines}


def test_reader_and_writer_agree_on_the_first_lines() -> None:
    assert dump.COLUMNS == COLUMNS
    result = scanned(dump.HEADER)
    assert (result.read, result.refused, rows(result)) == (0, 0, {})


HEAD = dump.HEADER
EDGES = b"1\t2\tfollow\tACTIVE\t50\t40\n3\t3\tmute\tBLOCKED\t9\t9\n"


@pytest.mark.parametrize(
    "text",
    [
        HEAD + EDGES,
        EDGES,
        EDGES.removesuffix(b"\n"),
        HEAD + EDGES[: EDGES.index(b"3")] + HEAD + EDGES[EDGES.index(b"3") :],
        (HEAD + EDGES).replace(b"\n", b"\r\n"),
        (HEAD + EDGES).replace(b"\n", b"\r\n").removesuffix(b"\n"),
        b"\xef\xbb\xbf" + HEAD + b"\n# and a comment\n" + EDGES + b"\n",
        gzip.compress(HEAD + EDGES),
        gzip.compress(HEAD) + gzip.compress(EDGES),
    ],
)
def test_all_these_are_the_same_two_edges(text: bytes) -> None:
    result = scanned(text)
    assert refusals(result) == {}
    assert (result.read, result.self_loops) == (2, 0)
    assert rows(result) == {1: [(1, 2, 50, 1, 40)], 7: [(3, 3, 9, 7, 9)]}


def test_lines_are_refused_one_by_one_with_their_number_and_a_reason() -> None:
    bad = {
        3: ("1\t2\tfollow\tACTIVE\t5", "has 5 columns, where an export has source, destination, kind, state, position"),
        4: ("1\t2\tfollow\tACTIVE\t5\t5\t5", "has 7 columns"),
        5: ("1 2 follow ACTIVE 5 5", "has 1 column, where"),
        6: ("1\t2\tfollow\tGONE\t5\t5", "state: 'GONE' is none; states are ACTIVE, PENDING"),
        7: ("1\t2\tfollow\tactive\t5\t5", "state: 'active' is none"),
        8: ("1\t2\tfollow\t1\t5\t5", "state: '1' is none"),
        9: (f"{2**63}\t2\tfollow\tACTIVE\t5\t5", "source: '9223372036854775808' is too large"),
        10: ("1\t-2\tfollow\tACTIVE\t5\t5", "destination: '-2' is negative"),
        11: ("1\tbo\tfollow\tACTIVE\t5\t5", "destination: 'bo' is not a whole number"),
        12: ("1\t2\tfollow\tACTIVE\t0\t0", "position: '0' is not a position"),
        13: ("1\t2\tfollow\tACTIVE\t5\t0", "since: '0' is not a position"),
        14: ("1\t2\tfollow\tACTIVE\t-5\t5", "position: '-5' is not a position"),
        15: (f"1\t2\tfollow\tACTIVE\t{LATEST + 1}\t5", "position: '1800000005000001' is ahead of now"),
        16: (f"1\t2\tfollow\tACTIVE\t{LATEST}\t{LATEST + 1}", "since: '1800000005000001' is ahead of now"),
        17: (f"1\t2\tfollow\tACTIVE\t{'9' * 19}\t5", "is ahead of now"),
        18: (f"1\t2\tfollow\tACTIVE\t{'9' * 40}\t5", "is not a position"),
        19: ("1\t2\t\tACTIVE\t5\t5", "kind: '' must have 1 to 32 characters"),
        20: ("1\t2\tFollow\tACTIVE\t5\t5", "kind: 'Follow' must be lower-case"),
        21: ("1\t2\tfollow\tACTIVE\t5\t" + " " * MAX_LINE_BYTES, "longer than 65536 bytes"),
    }
    good = [f"{n}\t{n + 1}\tfollow\tREMOVED\t{LATEST}\t{n}" for n in range(1, 31)]
    text = "\n".join(bad[n][0] if n in bad else good[n - 1] for n in range(1, 31)).encode()
    result = scanned(text)
    assert list(refusals(result)) == list(bad)
    for number, (_, reason) in bad.items():
        assert reason in refusals(result)[number]
    assert (result.read, result.refused) == (30, len(bad))
    expected = [(n, n + 1, LATEST, 6, n) for n in range(1, 31) if n not in bad]
    assert rows(result) == {1: expected}
    stopped = scanned(text, stop=True)
    assert (stopped.stopped, list(refusals(stopped))) == (True, [3])
    stopped.close()


def test_a_kind_that_nobody_declared_ends_it() -> None:
    words = "FILE: line 4: kind favourite is not declared in this cluster; declare it: graphd kind add favourite"
    with pytest.raises(InvalidArgumentError) as fault:
        scanned(HEAD + b"1\t2\tfollow\tACTIVE\t5\t5\n1\t2\tfavourite\tACTIVE\t5\t5\n")
    assert str(fault.value) == words


def test_a_file_of_another_release_is_told() -> None:
    with pytest.raises(InvalidArgumentError, match="line 1: is of another release, which wrote 'graphd edges 2'"):
        scanned(b"# graphd edges 2\n" + EDGES)


def test_self_loops_are_counted_where_the_kind_has_none() -> None:
    result = scanned(b"5\t5\tfollow\tACTIVE\t5\t5\n5\t5\tmute\tACTIVE\t5\t5\n")
    assert (result.read, result.self_loops) == (2, 1)
    assert rows(result) == {1: [], 7: [(5, 5, 5, 1, 5)]}


def test_of_doubles_the_greatest_version_stays() -> None:
    versions = [(9, "ACTIVE", 9), (9, "REMOVED", 3), (9, "REMOVED", 4), (8, "BLOCKED", 8)]
    for turn in range(4):
        turned = versions[turn:] + versions[:turn]
        result = scanned("".join(f"1\t2\tfollow\t{s}\t{p}\t{t}\n" for p, s, t in turned).encode())
        assert rows(result) == {1: [(1, 2, 9, 6, 4)]}
        assert result.duplicates == 3


ids = st.one_of(st.integers(0, 3), st.integers(0, MAX_ID))
moments = st.one_of(st.integers(1, 9), st.integers(1, LATEST))


@given(
    st.lists(st.tuples(ids, ids, st.sampled_from(KINDS), st.sampled_from(State), moments, moments), max_size=60),
    st.integers(40, 300),
    st.integers(1, 50),
)
def test_what_is_written_is_read_whatever_the_blocks_and_the_memory(
    edges: list[tuple[int, int, Kind, State, int, int]], block_bytes: int, held: int
) -> None:
    text = HEAD + "".join(f"{a}\t{b}\t{k.name}\t{s.name}\t{p}\t{t}\n" for a, b, k, s, p, t in edges).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan_module, "BLOCK_BYTES", block_bytes)
        patch.setattr(scan_module, "HELD_WHOLE_ROWS", held)
        result = scanned(text)
    expected: dict[int, dict[tuple[int, int], Row]] = {}
    for a, b, kind, state, position, since in edges:
        if a != b or kind.allow_self:
            of_kind = expected.setdefault(kind.number, {})
            of_kind[a, b] = max(of_kind.get((a, b), (0,)), (position, int(state), since))
    found = {kind: part for kind, part in rows(result).items() if part}
    assert found == {
        kind: sorted((*pair, *version) for pair, version in of_kind.items()) for kind, of_kind in expected.items()
    }
    assert result.read == len(edges)
    assert result.refused == 0


def test_memory_is_shared_by_all_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "HELD_WHOLE_ROWS", 1_000)
    monkeypatch.setattr(scan_module, "BLOCK_BYTES", 1_000)
    kinds = [Kind(n, f"k{n}") for n in range(1, 301)]
    edges = [(n, n * 7 % 1000 + 10_000, n % 300 + 1) for n in range(9_000)]
    result = scanned("".join(f"{a}\t{b}\tk{k}\tACTIVE\t5\t5\n" for a, b, k in edges).encode(), kinds=kinds)
    assert sum(part.forward.held + part.reverse.held for part in result.parts.values()) <= 1_000
    found = rows(result)
    assert sorted((a, b, kind) for kind, part in found.items() for a, b, *_ in part) == sorted(edges)


def test_a_sorter_gives_its_memory_back_and_goes_on() -> None:
    runs = SortedRuns(2, run_rows=100)
    for start in range(0, 300, 30):
        runs.add(np.arange(start, start + 30)[::-1], np.arange(30))
        runs.spill()
        assert runs.held == 0
    found = np.concatenate(list(runs.read()))
    runs.close()
    assert found[:, 0].tolist() == list(range(300))


# -- Mastodon ----------------------------------------------------------------------------------------------------------------

MAP = b"handle,id\n# people\nada@example.org,1\n@bo@example.org 2\ncy@Example.org,3\n\ndee@example.net\t4\neli@x.test,5\r\n"
FOLLOW = Kind(1, "follow")


def following(
    text: bytes, map_: bytes = MAP, owner: str = "ada@example.org", *, kind: Kind = FOLLOW, stop: bool = False
) -> Scanned:
    return scan_following(io.BytesIO(text), io.BytesIO(map_), owner, kind, stop_at_refused=stop)


@pytest.mark.parametrize(
    "text",
    [
        b"Account address,Show boosts,Notify on new posts,Languages\n"
        b'bo@example.org,true,false,\ncy@example.org,false,true,"de, en"\ndee@example.net,true,false,\n',
        b"Account address,Show boosts\nbo@example.org,true\ncy@example.org,true\ndee@example.net,false\n",
        b"Account address\nbo@example.org\ncy@example.org\ndee@example.net\n",
        b"bo@example.org\ncy@example.org\ndee@example.net",
        b"@bo@example.org\n  @CY@EXAMPLE.org \n\nDee@example.net\n\n",
        b"bo@example.org,true,false\r\ncy@example.org,true,false\r\ndee@example.net,true,false\r\n",
        b"\xef\xbb\xbfAccount address,Show boosts\nbo@example.org,true\ncy@example.org,true\ndee@example.net,false\n",
        b"Show boosts,account Address\ntrue,bo@example.org\ntrue,cy@example.org\ntrue,dee@example.net\n",
        b"# mine\nbo@example.org\ncy@example.org\ndee@example.net\n",
        gzip.compress(b"bo@example.org\ncy@example.org\ndee@example.net\n"),
    ],
)
def test_all_these_are_the_same_three_follows_in_their_order(text: bytes) -> None:
    result = following(text)
    assert refusals(result) == {}
    assert result.read == 3
    assert rows(result) == {1: [(1, 2, 0), (1, 3, -1), (1, 4, -2)]}


def test_handles_that_the_map_lacks_are_refused_with_their_lines() -> None:
    text = b'Account address\nbo@example.org\nfay@example.org\n"bo\n,true\ncy@example.org\nada@example.org\nBo@example.org\n'
    result = following(text)
    assert refusals(result) == {
        3: "'fay@example.org' is not in the map",
        4: "bad quoting: unexpected end of data",
        5: "has no account address",
    }
    assert (result.read, result.refused, result.self_loops) == (7, 3, 1)
    assert rows(result) == {1: [(1, 2, 0), (1, 3, -1)]}
    assert result.duplicates == 1
    stopped = following(text, stop=True)
    assert (stopped.stopped, list(refusals(stopped))) == (True, [3])
    stopped.close()


def test_the_owner_is_a_handle_of_the_map_or_an_id() -> None:
    for owner, id_ in (("@Bo@example.org", 2), ("77", 77), ("0", 0), (str(MAX_ID), MAX_ID)):
        result = following(b"cy@example.org\n", owner=owner)
        assert rows(result) == {1: [(id_, 3, 0)]}
    for owner in ("fay@example.org", "bo", str(MAX_ID + 1), "-1", "9" * 5000):
        with pytest.raises(InvalidArgumentError, match="--owner: must be an account's id, or a handle that the map"):
            following(b"cy@example.org\n", owner=owner)


def test_equal_files_of_two_owners_are_two_files() -> None:
    names = []
    for owner in ("1", "2", "1"):
        result = following(b"cy@example.org\n", owner=owner)
        result.close()
        names.append(result.sha256)
    assert names[0] == names[2] != names[1]


@pytest.mark.parametrize(
    ("map_", "words"),
    [
        (b"ada@example.org,1\ncy@example.org\n", "--map: line 2: must be a handle and an id, 0 to 9223372036854775807"),
        (b"ada@example.org,1\ncy@example.org,x\n", "--map: line 2: must be"),
        (b"ada@example.org,1\ncy@example.org,9223372036854775808\n", "--map: line 2: must be"),
        (b"ada@example.org,1\ncy@example.org,-3\n", "--map: line 2: must be"),
        (b"ada@example.org,1\ncy@example.org,3\nCY@example.org,4\n", "--map: line 3: gives a handle a second id"),
        (b"ada@example.org,1\n" + b"z" * 200_000, "--map: line 2: must be"),
    ],
)
def test_maps_that_are_none(map_: bytes, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        following(b"cy@example.org\n", map_)


def test_maps_may_be_compressed_have_no_header_and_repeat_themselves() -> None:
    result = following(b"cy@example.org\n", gzip.compress(b"ada@example.org 1\ncy@example.org 3\ncy@example.org,3\n"))
    assert rows(result) == {1: [(1, 3, 0)]}


def test_other_exports_of_mastodon_and_files_too_large_are_misuse(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgumentError, match="its header names no column Account address"):
        following(b"Show boosts,Languages\ntrue,de\n")
    with pytest.raises(UnreadableFileError):
        following(gzip.compress(b"cy@example.org\n" * 100)[:-9])
    monkeypatch.setattr(mastodon_module, "MAX_LINES", 3)
    with pytest.raises(InvalidArgumentError, match="must have at most 3 lines"):
        following(b"cy@example.org\n" * 4)
    monkeypatch.setattr(scan_module, "MAX_FILE_BYTES", 1 << 20)
    with pytest.raises(InvalidArgumentError, match="must have at most 1 MB"):
        following(gzip.compress(b" " * ((1 << 20) + 1)))
