"""The relay: delivers what shards owe each other, when the router could not.

An outbox row says that the reverse half of an edge may be behind. The relay leases rows, reads each forward half as it is *now*, and
merges that version into the reverse half; so a late delivery can only bring the newest, and delivering twice changes nothing. A row goes
when a shard that owned the destination's slot has said that it has the version. While that shard is away its rows are left alone, for
as long as it takes; what can never apply is parked, so that it stands in nobody's way.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from graphd.clock import now_us
from graphd.edge import State, Version
from graphd.errors import BadItemError, GraphdError
from graphd.limits import MAX_ID, RELAY_BACKOFF_MAX_S, RELAY_BATCH, RELAY_LEASE_S, RELAY_MAX_REFUSALS
from graphd.operations import Operation, Outcome, counter_operations
from graphd.placement import slot_of
from graphd.storage.cluster import Cluster
from graphd.storage.items import Answer, EdgeKeys, Receipt, ReverseItem, WriteItem, debt_receipt
from graphd.storage.outbox import Outbox, Owed
from graphd.storage.shard import Shard
from graphd.tasks import ends_here

log = structlog.get_logger()

DELIVERY_TIMEOUT_S: Final = RELAY_LEASE_S / 2
"""Given up well before the lease ends, so that no two relays carry the same row."""


_MARKS: Final = frozenset({Operation.ARCHIVE_BY_DESTINATION, Operation.RESTORE_BY_DESTINATION})
_OWED: Final = frozenset([0, *counter_operations(), *_MARKS])


@dataclass(slots=True)
class RelayStats:
    """What one relay has done since it started."""

    delivered: int = 0
    put_off: int = 0
    parked: int = 0


def problem_of(row: Owed, slots: int, kinds: frozenset[int]) -> str | None:
    """Why a row can never apply; None if it may."""
    if not (0 <= row.source_id <= MAX_ID and 0 <= row.destination_id <= MAX_ID):
        return "an id is out of range"
    if row.kind not in kinds:
        return "there is no such kind"
    if slot_of(row.source_id, slots) != row.slot:
        return "the slot is not that of the source"
    if row.operation not in _OWED:
        return "no edge owes this operation"
    return None


class Relay:
    """Delivers what one shard owes. Any number of relays may run for the same shard."""

    def __init__(self, cluster: Cluster, shard: Shard, poll_s: float) -> None:
        self._cluster, self._shard, self._poll_s = cluster, shard, poll_s
        self._outbox = Outbox(shard)
        self.stats = RelayStats()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            ends_here()
            try:
                leased = await self.once()
            except GraphdError as error:
                # This shard is away or slow: its rows are safe where they are.
                log.debug("relay.waits", shard=self._shard.name, error=type(error).__name__)
                leased = 0
            except Exception as error:
                # A bug met at this shard must not end the relays of the others.
                log.error("relay.failed", shard=self._shard.name, error=type(error).__name__, exc_info=error)
                leased = 0
                await asyncio.sleep(RELAY_BACKOFF_MAX_S)
            if leased < RELAY_BATCH:
                await asyncio.sleep(self._poll_s)

    async def once(self) -> int:
        """Lease what is due and deliver it; answers how many rows were leased. Raises ShardUnavailableError."""
        topology = self._cluster.topology
        reachable = [slot for slot, name in enumerate(topology.owners) if self._cluster.shards[name].up]
        if not reachable or not self._shard.up:
            return 0
        # In another order each time: however much one slot is owed, no other waits behind it for ever.
        random.shuffle(reachable)
        rows = await self._outbox.lease(reachable)
        if not rows:
            return 0
        leased = len(rows)
        rows = await self._of_known_kinds(rows)
        kinds = frozenset(kind.number for kind in self._cluster.topology.kinds.values())
        problems = [problem_of(row, topology.slots, kinds) for row in rows]
        sound = [row for row, problem in zip(rows, problems, strict=True) if problem is None]
        bad = [(row, problem) for row, problem in zip(rows, problems, strict=True) if problem is not None]
        if sound:
            bad += await self._deliver(sound, topology.slots)
        if bad:
            await self._park(bad)
        return leased

    async def _of_known_kinds(self, rows: list[Owed]) -> list[Owed]:
        """Rows whose kind may have been declared a moment ago wait while the catalog cannot be asked; they must not be parked for that."""

        def is_known(row: Owed) -> bool:
            return self._cluster.topology.kind_by_number(row.kind) is not None

        if all(map(is_known, rows)) or await self._cluster.reread():
            return rows
        await self._outbox.put_off([row for row in rows if not is_known(row)])
        return [row for row in rows if is_known(row)]

    async def _deliver(self, rows: Sequence[Owed], slots: int) -> list[tuple[Owed, str]]:
        """Carry the forward halves of rows to their destinations; answers those that can never apply."""
        found = await self._shard.edges(
            EdgeKeys(
                [row.source_id for row in rows],
                [row.kind for row in rows],
                [row.slot for row in rows],
                [row.destination_id for row in rows],
            )
        )
        sent: list[tuple[Owed, asyncio.Future[bool | GraphdError]]] = []
        bad: list[tuple[Owed, str]] = []
        later: list[Owed] = []
        for row, (owned, version) in zip(rows, found, strict=True):
            if not owned:
                later.append(row)
            elif row.operation in _MARKS:
                sent.append((row, asyncio.ensure_future(self._mark(row, slots))))
            elif version is None:
                bad.append((row, "there is no forward half"))
            elif not row.operation:
                sent.append((row, self._send(row, version, slots)))
            elif version.state == State.BLOCKED:
                sent.append((row, asyncio.ensure_future(self._counter(row, slots))))
            else:
                # The Block does not stand any more: what it owed was given up with it.
                self._shard.strike(row.peer_slot, row.id)
        if sent:
            _, late = await asyncio.wait([answer for _, answer in sent], timeout=DELIVERY_TIMEOUT_S)
            for future in late:
                future.cancel()
        stale = False
        for row, future in sent:
            answer = future.result() if future.done() and not future.cancelled() else False
            if answer is True:
                self._shard.strike(row.peer_slot, row.id)
                self.stats.delivered += 1
            elif isinstance(answer, BadItemError) and row.attempts >= RELAY_MAX_REFUSALS:
                bad.append((row, f"refused by the destination's store (sqlstate {answer.sqlstate})"))
            else:
                stale = stale or answer is False
                later.append(row)
        if later:
            self.stats.put_off += len(later)
            await self._outbox.put_off(later)
        if stale:
            await self._cluster.refresh()
        return bad

    def _send(self, row: Owed, version: Version, slots: int) -> asyncio.Future[bool | GraphdError]:
        answer: asyncio.Future[bool | GraphdError] = asyncio.get_running_loop().create_future()

        def settle(result: bool | GraphdError) -> None:
            if not answer.done():
                answer.set_result(result)

        slot = slot_of(row.destination_id, slots)
        item = ReverseItem(row.destination_id, row.kind, slot, row.source_id, version, settle)
        try:
            self._cluster.shard_of(slot).deliver(item)
        except GraphdError as error:
            settle(error)
        return answer

    async def _counter(self, row: Owed, slots: int) -> bool | GraphdError:
        """Carry out what an edge owes to the edge the other way; True when it is done, by whomever."""
        slot = slot_of(row.destination_id, slots)
        shard = self._cluster.shard_of(slot)
        receipt = debt_receipt(row.destination_id, row.id)
        try:
            result = await self._operate(row, slot, receipt)
            if result.owned and result.version is None and result.remembered is None:
                # Refused, as a follow is that is itself blocked. Whether this receipt or a twin's is kept, it is settled.
                keys = EdgeKeys([row.destination_id], [row.kind], [slot], [row.source_id])
                [(owned, stored)] = await shard.edges(keys)
                if not owned:
                    return False
                await shard.remember(slot, receipt, Outcome.REFUSED, stored)
        except GraphdError as error:
            return error
        return result.owned

    async def _mark(self, row: Owed, slots: int) -> bool | GraphdError:
        """Carry out the ARCHIVE or RESTORE that a reverse half owes, because its owner is suspended, or is not any more. True when it is
        done, or refused. It needs no receipt: done once more or too late it is put right by the reverse half it leads to."""
        try:
            return (await self._operate(row, slot_of(row.destination_id, slots), None)).owned
        except GraphdError as error:
            return error

    async def _operate(self, row: Owed, slot: int, receipt: Receipt | None) -> Answer:
        """An operation on the edge the other way from where the row lies, at its forward half."""
        answer: asyncio.Future[Answer | GraphdError] = asyncio.get_running_loop().create_future()

        def settle(_: WriteItem, result: Answer | GraphdError) -> None:
            if not answer.done():
                answer.set_result(result)

        kind = self._cluster.topology.kind_by_number(row.kind)
        item = WriteItem(
            row.destination_id,
            row.source_id,
            row.kind,
            slot,
            row.slot,
            Operation(row.operation),
            False,
            now_us(),
            receipt,
            settle,
            most=kind.max_out_degree if kind is not None else 0,
            watched=kind is None or kind.events,
        )
        self._cluster.shard_of(slot).write(item)
        result = await answer
        if isinstance(result, GraphdError):
            raise result
        return result

    async def _park(self, bad: Sequence[tuple[Owed, str]]) -> None:
        await self._outbox.park([row for row, _ in bad], [problem for _, problem in bad])
        self.stats.parked += len(bad)
        for row, problem in bad:
            log.error("relay.parked", shard=self._shard.name, outbox_id=str(row.id), slot=row.slot, problem=problem)
