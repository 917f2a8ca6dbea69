"""An edge splits into two halves, and either gives it back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from graphd.edge import Direction, Edge, Key, State, Version

ids = st.integers(0, 2**63 - 1)
edges = st.builds(
    Edge, st.builds(Key, st.integers(1, 1_000), ids, ids), st.builds(Version, ids, st.sampled_from(State), ids)
)


@given(edges)
def test_halves_join_again(edge: Edge) -> None:
    forward, reverse = edge.halves()
    assert forward.edge() == reverse.edge() == edge
    assert (forward.direction.table, reverse.direction.table) == ("forward", "reverse")
    assert (forward.owner_id, forward.neighbor_id) == (reverse.neighbor_id, reverse.owner_id)
    assert (forward.direction, reverse.direction) == (Direction.FORWARD, Direction.REVERSE)
