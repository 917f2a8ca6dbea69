"""What is stored: an edge, its version, and the two halves it is kept as.

An edge is (kind, source, destination) with a version (position, state, since). It is kept twice: the FORWARD half is owned by the
source and names the destination as neighbor, the REVERSE half the other way round. Both halves hold the same version once every
write has been delivered.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class State(IntEnum):
    """State of an edge. The number is the wire value, the stored value and the precedence in a tie of positions."""

    ACTIVE = 1
    PENDING = 2
    ARCHIVED_BY_SOURCE = 3
    ARCHIVED_BY_DESTINATION = 4
    ARCHIVED_BY_BOTH = 5
    REMOVED = 6
    BLOCKED = 7


class Direction(IntEnum):
    """Which of the two halves; the numbers are the wire values and those of degrees.direction."""

    FORWARD = 1
    REVERSE = 2

    @property
    def table(self) -> str:
        """The table that holds the halves of this direction."""
        return "forward" if self is Direction.FORWARD else "reverse"


class Version(NamedTuple):
    """(position, state, since), compared in this order and taken whole. Times in microseconds."""

    position: int
    state: int
    since: int


class Key(NamedTuple):
    """Names an edge. `kind` is the number the catalog gave to the kind's name."""

    kind: int
    source_id: int
    destination_id: int


class Edge(NamedTuple):
    """An edge and its version."""

    key: Key
    version: Version

    def halves(self) -> tuple[Half, Half]:
        """The forward and the reverse half."""
        kind, source_id, destination_id = self.key
        return (
            Half(Direction.FORWARD, source_id, kind, destination_id, self.version),
            Half(Direction.REVERSE, destination_id, kind, source_id, self.version),
        )


class Half(NamedTuple):
    """One stored row: `owner_id`'s list in `direction` holds `neighbor_id`."""

    direction: Direction
    owner_id: int
    kind: int
    neighbor_id: int
    version: Version

    def edge(self) -> Edge:
        """The edge this is a half of."""
        if self.direction is Direction.FORWARD:
            return Edge(Key(self.kind, self.owner_id, self.neighbor_id), self.version)
        return Edge(Key(self.kind, self.neighbor_id, self.owner_id), self.version)
