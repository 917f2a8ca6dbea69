"""What the parts of the demo share: the cluster, the way to it, and the people."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from graphd.cli.demo.screen import Screen
from graphd.client import AdminClient, Client, Edge, TopologyInfo, WriteResult
from graphd.config import Config
from graphd.devcluster.cluster import DevCluster
from graphd.errors import GraphdError, InvalidArgumentError, ShardUnavailableError
from graphd.placement import slot_of

NAMES = ("ada", "bo", "cy", "dee", "eli", "fay")
_BASES = (0, *(10**exponent for exponent in range(6, 18)))
"""Where to look for six ids that the graph does not use."""


@dataclass(frozen=True, slots=True)
class People:
    """Six accounts; cy is the celebrity."""

    ada: int
    bo: int
    cy: int
    dee: int
    eli: int
    fay: int

    def ids(self) -> list[int]:
        """In the order of the alphabet."""
        return [getattr(self, name) for name in NAMES]

    def name(self, account_id: int) -> str:
        """Theirs, and of others the number."""
        return dict(zip(self.ids(), NAMES, strict=True)).get(account_id, str(account_id))


@dataclass(frozen=True, slots=True)
class Stage:
    """Where the demo plays. `impatient` is a client that repeats nothing; `hub` the account with most followers of the graph."""

    screen: Screen
    cluster: DevCluster
    config: Config
    client: Client
    impatient: Client
    admin: AdminClient
    topology: TopologyInfo
    people: People
    hub: int

    def slot(self, account_id: int) -> int:
        """Where an account lives."""
        return slot_of(account_id, self.topology.slots)

    def shard(self, account_id: int) -> str:
        """On which Postgres an account lives."""
        return self.topology.owners[self.slot(account_id)]

    def edge(self, edge: Edge | None) -> str:
        """An edge in words."""
        if edge is None:
            return "never written"
        name = self.people.name
        return f"{name(edge.source_id)} -> {name(edge.destination_id)} {edge.state.name} since {clock_time(edge.since)}"

    def told(self, result: WriteResult) -> str:
        """What a write did, in words."""
        remarks = ["answered from its receipt"] if result.duplicate else []
        remarks += ["reverse_pending"] if result.reverse_pending else []
        return ", ".join([f"{result.outcome.name}: {self.edge(result.edge)}", *remarks])


def status(error: GraphdError) -> str:
    """An error as a caller in any language sees it: the status code, and what it says."""
    codes = {ShardUnavailableError: "UNAVAILABLE", InvalidArgumentError: "INVALID_ARGUMENT"}
    return f"{codes.get(type(error), type(error).__name__)}: {error}"


async def cast(client: Client, topology: TopologyInfo) -> People:
    """Six ids that nobody uses, cy not on the first shard (which also holds the catalog) and ada on another one than cy.

    Raises GraphdError when the graph leaves no such ids.
    """
    for base in _BASES:
        people = People(*range(base + 1, base + 1 + len(NAMES)))
        ada, cy = (topology.owners[slot_of(id_, topology.slots)] for id_ in (people.ada, people.cy))
        if cy in (topology.shards[0], ada):
            continue
        if not any(degrees.by_state for degrees in await client.batch_get_degrees(people.ids())):
            return people
    raise GraphdError("the demo found no six ids that this graph does not use")


def clock_time(position_us: int) -> str:
    """A position as a time of day, in UTC."""
    when = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=position_us)
    return when.strftime("%H:%M:%S.%f")
