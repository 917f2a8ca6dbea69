"""Rows written as wire bytes are the messages protobuf would have written."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphd.edge import Direction, Key, State, Version
from graphd.limits import MAX_ID
from graphd.storage.items import PageBlock, PageRows
from graphd.topology import Kind
from graphd.v1 import graph_pb2 as pb
from router import wire
from router.reads import ListOf, Page

ids = st.integers(0, MAX_ID) | st.sampled_from([2 ** (7 * n) + d for n in range(1, 9) for d in (-1, 0)])
versions = st.none() | st.builds(Version, ids, st.sampled_from(State), ids)


@given(st.lists(st.tuples(ids, ids, versions), min_size=1, max_size=30), st.sampled_from(["follow", "k" * 32]))
def test_results_are_what_protobuf_reads(found: list[tuple[int, int, Version | None]], kind: str) -> None:
    keys = [Key(1, source, destination) for source, destination, _ in found]
    data = wire.edge_results(keys, [version for _, _, version in found], kind)
    expected = pb.BatchGetEdgesResponse(
        results=[
            pb.BatchGetEdgesResponse.Result(
                found=True,
                edge=pb.Edge(
                    source_id=source,
                    destination_id=destination,
                    kind=kind,
                    state=int(version.state),  # type: ignore[arg-type]
                    position=version.position,
                    since=version.since,
                ),
            )
            if version is not None
            else pb.BatchGetEdgesResponse.Result()
            for source, destination, version in found
        ]
    )
    assert pb.BatchGetEdgesResponse.FromString(data) == expected


@pytest.mark.parametrize("direction", list(Direction))
@pytest.mark.parametrize("backward", [False, True])
@given(
    st.integers(1, 4).flatmap(
        lambda n: st.lists(
            st.tuples(ids, st.lists(st.tuples(ids, ids, ids), min_size=n, max_size=n)), min_size=1, max_size=4
        )
    ),
    st.sampled_from(State),
    st.integers(0, 1),
    st.sampled_from(["", "a" * 44]),
)
def test_pages_of_a_flush_are_what_protobuf_reads(
    direction: Direction,
    backward: bool,
    pages: list[tuple[int, list[tuple[int, int, int]]]],
    state: State,
    spare: int,
    token: str,
) -> None:
    columns = np.array([list(zip(*rows, strict=True)) for _, rows in pages], dtype=np.int64)
    block = PageBlock([account for account, _ in pages], columns)
    for at, (account, rows) in enumerate(pages):
        size = max(len(rows) - spare, 1)
        wanted = ListOf(direction, account, Kind(3, "mute", False, 0), state, False)
        data = wire.list_edges(wanted, Page(PageRows(True, block, at), size, backward, token, token[:10]))
        expected = pb.ListFollowersResponse(next_page_token=token, previous_page_token=token[:10])
        for neighbor, since, position in rows[:size][::-1] if backward else rows[:size]:
            source, destination = (account, neighbor) if direction is Direction.FORWARD else (neighbor, account)
            expected.edges.add(
                source_id=source,
                destination_id=destination,
                kind="mute",
                state=int(state),
                since=since,
                position=position,
            )
        assert pb.ListFollowersResponse.FromString(data) == expected
        assert pb.ListFollowingResponse.FromString(data).SerializeToString() == expected.SerializeToString()
