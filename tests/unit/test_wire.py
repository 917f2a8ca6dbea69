"""Rows written as wire bytes are the messages protobuf would have written."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from graphd.edge import Key, State, Version
from graphd.limits import MAX_ID
from graphd.v1 import graph_pb2 as pb
from router import wire

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
