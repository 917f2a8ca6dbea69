"""Which shard holds which slot, and which kinds there are: one frozen, versioned value.

A topology is valid or it is not built. Routers keep the newest one they know in memory and may be as stale as they like: every
shard checks ownership itself (DESIGN.md section 3), and "not owned" makes the router fetch a newer one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from graphd.errors import InvalidArgumentError
from graphd.limits import MAX_KIND_CHARS, MAX_KINDS_TOLD_CHARS, MAX_OUT_DEGREE, MAX_SLOTS

DEFAULT_KIND = "follow"


@dataclass(frozen=True, slots=True)
class Kind:
    """A family of edges. `number` is what rows hold; `max_out_degree` 0 is no limit; `events`: changes are told to those who watch."""

    number: int
    name: str
    allow_self: bool = False
    max_out_degree: int = 0
    events: bool = True


def out_degree_rule(most: int) -> str | None:
    """The rule a kind's `max_out_degree` breaks, or None."""
    return None if 0 <= most <= MAX_OUT_DEGREE else f"must be 0 (any number) to {MAX_OUT_DEGREE}"


class UnknownKindError(InvalidArgumentError):
    """No kind of that name is known here; it may have been declared a moment ago."""


def kind_name_rule(name: str) -> str | None:
    """The rule a kind's name breaks, or None."""
    if not 1 <= len(name) <= MAX_KIND_CHARS:
        return f"must have 1 to {MAX_KIND_CHARS} characters"
    if not (
        name.isascii() and name[0].isalpha() and all(c.isalnum() or c in "_-" for c in name) and name == name.lower()
    ):
        return "must be lower-case ASCII letters, digits, _ or -, and begin with a letter"
    return None


@dataclass(frozen=True, slots=True)
class Topology:
    """`owners[slot]` is the name of the shard that holds the slot."""

    epoch: int
    shards: tuple[str, ...]
    owners: tuple[str, ...]
    kinds: Mapping[str, Kind]

    def __post_init__(self) -> None:
        slots = len(self.owners)
        if not 1 <= slots <= MAX_SLOTS or slots & (slots - 1):
            raise InvalidArgumentError("slots", f"must be a power of two, 1 to {MAX_SLOTS}, not {slots}")
        if not self.shards or len(set(self.shards)) != len(self.shards):
            raise InvalidArgumentError("shards", "must be one or more different names")
        strangers = set(self.owners) - set(self.shards)
        if strangers:
            raise InvalidArgumentError("owners", f"name shards that do not exist: {sorted(strangers)}")
        numbers = {kind.number for kind in self.kinds.values()}
        if DEFAULT_KIND not in self.kinds or len(numbers) != len(self.kinds):
            raise InvalidArgumentError("kinds", f"must hold {DEFAULT_KIND!r}, each with a number of its own")

    @property
    def slots(self) -> int:
        """How many slots the cluster was created with; a power of two, never changed."""
        return len(self.owners)

    def kind(self, name: str, field: str = "kind") -> Kind:
        """The kind of that name; an empty name is the default. Raises InvalidArgumentError naming `field` and the kinds."""
        found = self.kinds.get(name or DEFAULT_KIND)
        if found is None:
            raise UnknownKindError(field, f"must be one of {self._known()}")
        return found

    def kind_by_number(self, number: int) -> Kind | None:
        """The kind that rows call `number`; None where it is not known here, as one declared a moment ago."""
        return next((kind for kind in self.kinds.values() if kind.number == number), None)

    def _known(self) -> str:
        """The names of the kinds, as many as an error has room for."""
        names = ", ".join(sorted(self.kinds))
        if len(names) <= MAX_KINDS_TOLD_CHARS:
            return names
        return f"{names[:MAX_KINDS_TOLD_CHARS].rpartition(',')[0]}, ... ({len(self.kinds)} in all: graphd kind list)"

    def slots_of(self, shard: str) -> list[int]:
        """The slots a shard holds, ascending."""
        return [slot for slot, owner in enumerate(self.owners) if owner == shard]


def spread(slots: int, shards: tuple[str, ...]) -> tuple[str, ...]:
    """The assignment of a new cluster: runs of neighbouring slots, as even as can be."""
    return tuple(shards[slot * len(shards) // slots] for slot in range(slots))
