"""Batches sent to shards just as a lane sends them, but one at a time and in an order the test chooses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from uuid import UUID

from graphd.edge import Key, Version
from graphd.errors import GraphdError
from graphd.operations import Operation, Outcome, outcome_of
from graphd.placement import slot_of
from graphd.storage.carry import carry_writes
from graphd.storage.connect import LANE_SETTINGS, connect
from graphd.storage.items import Answer, Receipt, ReverseItem, WriteItem
from graphd.storage.session import Backend, Session
from tests.databases import Databases

FOLLOW_KIND = 1


@dataclass(slots=True)
class Op:
    """An operation on an edge, and what became of it. `stamp`: of a live one; the position of a given one."""

    operation: Operation
    key: Key
    stamp: int
    given: bool = False
    receipt: Receipt | None = None
    most: int = 0
    answer: Answer | None = None

    @property
    def outcome(self) -> Outcome | None:
        """What the shard's answer amounts to; None where the row would have to be read to say (REFUSED or STALE)."""
        assert self.answer is not None
        version = self.answer.version
        return outcome_of(self.answer.before, version) if version is not None else None


@dataclass(slots=True)
class Owed:
    """A reverse version on its way, and the outbox row to strike when it has arrived (None: nothing is owed)."""

    key: Key
    version: Version
    outbox: tuple[int, UUID] | None
    answer: bool | None = None


@dataclass(slots=True)
class Shards:
    """One session a shard. `owed` is what still has to be brought to another shard; `counters` the outbox rows, with their keys, of what
    is owed to the edge the other way, which is struck here and not carried out: it is the router's and the relay's to do."""

    databases: Databases
    sessions: dict[str, Session]
    owed: list[Owed] = field(default_factory=list)
    counters: list[tuple[Key, tuple[int, UUID]]] = field(default_factory=list)

    def home(self, account: int) -> str:
        """The shard of an account."""
        return self.databases.view.topology.owners[self._slot(account)]

    def _slot(self, account: int) -> int:
        return slot_of(account, self.databases.slots)

    def accounts(self, shard: str, count: int, first: int = 0) -> list[int]:
        """The first accounts from `first` on that live on a shard."""
        found: list[int] = []
        account = first
        while len(found) < count:
            if self.home(account) == shard:
                found.append(account)
            account += 1
        return found

    async def carry(
        self, shard: str, ops: Sequence[Op], versions: Sequence[Owed] = (), strikes: Sequence[tuple[int, UUID]] = ()
    ) -> None:
        """One batch. What it leaves owed is added to `owed`."""
        batch: list[WriteItem | ReverseItem] = [self._write(op) for op in ops]
        batch += [self._deliver(version) for version in versions]
        await carry_writes(self.sessions[shard], batch, strikes)
        for op in ops:
            assert op.answer is not None, "every item is settled"
            assert op.answer.owned
            if op.answer.outbox_id is not None and op.answer.version is not None:
                self.owed.append(
                    Owed(op.key, op.answer.version, (self._slot(op.key.destination_id), op.answer.outbox_id))
                )
            if op.answer.counter_id is not None:
                self.counters.append((op.key, (self._slot(op.key.destination_id), op.answer.counter_id)))
        assert all(version.answer for version in versions), "delivered to the shard that owns them"

    async def deliver_all(self) -> None:
        """Bring everything owed where it belongs, then strike it."""
        owed, self.owed = self.owed, []
        counters, self.counters = self.counters, []
        for shard in self.sessions:
            here = [version for version in owed if self.home(version.key.destination_id) == shard]
            strikes = [v.outbox for v in owed if v.outbox is not None and self.home(v.key.source_id) == shard]
            strikes += [row for key, row in counters if self.home(key.source_id) == shard]
            await self.carry(shard, [], here)
            await self.carry(shard, [], [], strikes)

    def _write(self, op: Op) -> WriteItem:
        def settle(item: WriteItem, answer: Answer | GraphdError) -> None:
            assert isinstance(answer, Answer), answer
            assert op.answer is None, "an item is settled once"
            op.answer = answer

        kind, source_id, destination_id = op.key
        slot, peer_slot = self._slot(source_id), self._slot(destination_id)
        return WriteItem(
            source_id,
            destination_id,
            kind,
            slot,
            peer_slot,
            op.operation,
            op.given,
            op.stamp,
            op.receipt,
            settle,
            op.most,
        )

    def _deliver(self, version: Owed) -> ReverseItem:
        def settle(answer: bool | GraphdError) -> None:
            assert isinstance(answer, bool), answer
            version.answer = answer

        kind, source_id, destination_id = version.key
        return ReverseItem(destination_id, kind, self._slot(destination_id), source_id, version.version, settle)


def rounds(ops: Iterable[Op]) -> list[list[Op]]:
    """Operations in batches with no edge and no receipt twice, as a lane takes them; those of one edge keep their order."""
    batches: list[tuple[list[Op], set[object]]] = []
    for op in ops:
        keys: set[object] = {op.key} | ({op.receipt[:2]} if op.receipt is not None else set())
        at = len(batches)
        while at and not keys & batches[at - 1][1]:
            at -= 1
        if at == len(batches):
            batches.append(([], set()))
        batches[at][0].append(op)
        batches[at][1].update(keys)
    return [batch for batch, _ in batches]


@asynccontextmanager
async def open_shards(databases: Databases) -> AsyncIterator[Shards]:
    """Sessions set up like a lane's."""
    async with AsyncExitStack() as stack:
        sessions = {}
        for name, conninfo in databases.conninfo.items():
            connection = await connect(conninfo, "test lane", LANE_SETTINGS)
            sessions[name] = Session(
                connection, Backend(connection.info.backend_pid, "now"), prepare=True, lost=lambda: None
            )
            stack.push_async_callback(sessions[name].close)
        yield Shards(databases, sessions)
