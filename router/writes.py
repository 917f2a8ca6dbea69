"""The write path: an operation is decided at its forward half, its version is carried to the reverse half, then the caller is answered.

Everything happens in callbacks of the lanes, so a batch of 500 costs one future. What may go wrong, and what then:

- the shard does not own the slot: refresh the topology, try again, until the deadline;
- the operation changed nothing: read the row to say why (REFUSED, STALE), keep that as the receipt's answer; if the row as read would
  no longer refuse, run again;
- the reverse half cannot be delivered in time: the write is a success with `reverse_pending`, the relay delivers;
- the deadline passes: what waits is taken out, what was sent runs on, and the caller is told that it may have been kept.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any, Final
from uuid import UUID

import structlog

from graphd.clock import HybridClock
from graphd.edge import State, Version
from graphd.errors import (
    BadItemError,
    DeadlineError,
    GraphdError,
    OutOfRangeError,
    OverloadedError,
    RequestIdReusedError,
)
from graphd.limits import AHEAD_RULE
from graphd.operations import (
    ACCOUNT_ARCHIVED,
    ENTERING,
    TABLE,
    Operation,
    Outcome,
    decide_given,
    outcome_of,
    refusal_reason,
)
from graphd.placement import all_slots
from graphd.storage.cluster import Cluster
from graphd.storage.items import Answer, Counter, CountersRead, EdgeKeys, ReverseItem, SuspensionRead, WriteItem
from graphd.storage.shard import Shard
from router.admission import RETRY_AFTER_S, Admission
from router.suspensions import KnownSuspensions
from router.values import Result, Write, WriteOutcome

log = structlog.get_logger()

PAUSE_S: Final = 0.01
MAX_PAUSE_S: Final = 0.2
"""Pauses between two tries of an item whose slot is being handed over."""

MAX_PAYMENT_S: Final = 10.0
"""How long an Unblock's payment of what its Block owes may take."""

LIMIT_REACHED: Final = "LIMIT_REACHED"


class _Group:
    """The writes of one call: done when the last of them is."""

    __slots__ = ("admission", "chains", "done", "entered", "left", "results", "reverse_timer", "runs")

    def __init__(self, size: int, admission: Admission) -> None:
        self.left = size
        self.admission = admission
        self.entered: dict[str, int] = {}
        self.results: list[Result | None] = [None] * size
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.runs: list[_Run] = []
        self.chains: dict[tuple[int, int, int], deque[_Run]] = {}
        self.reverse_timer: asyncio.TimerHandle | None = None

    def enter(self, shard: str) -> bool:
        """One more write of this call needs a shard; False when too many calls do."""
        assert self.left, "a call that has been answered needs no shard"
        count = self.entered.get(shard, 0)
        if count == 0:
            try:
                self.admission.enter(shard)
            except OverloadedError:
                return False
        self.entered[shard] = count + 1
        return True

    def leave(self, shard: str) -> None:
        """One write of this call needs the shard no longer."""
        count = self.entered.pop(shard) - 1
        if count:
            self.entered[shard] = count
        else:
            self.admission.leave(shard)

    def expire(self) -> None:
        """The deadline has passed, or the caller has gone."""
        for run in self.runs:
            run.expire()

    def expire_reverse(self) -> None:
        """Those that wait for their reverse half only are answered without it."""
        for run in self.runs:
            run.give_up_reverse()


class _Run:
    """One write on its way."""

    __slots__ = (
        "confirmed",
        "entered",
        "finished",
        "group",
        "index",
        "item",
        "outbox_id",
        "outcome",
        "owing",
        "paid",
        "pauses",
        "peer_slot",
        "shard",
        "slot",
        "write",
        "writer",
    )

    def __init__(self, writer: Writer, group: _Group, index: int, write: Write, slot: int, peer_slot: int) -> None:
        self.writer, self.group, self.index, self.write = writer, group, index, write
        self.slot, self.peer_slot = slot, peer_slot
        self.item: WriteItem | None = None
        self.outcome: WriteOutcome | None = None
        self.outbox_id: UUID | None = None
        self.shard: Shard | None = None
        self.entered: str | None = None
        self.finished = False
        self.paid = False
        self.confirmed = False
        self.owing = 0
        self.pauses = 0

    def begin(self) -> None:
        """Hand the operation to the lane of its source's shard."""
        if self.finished:
            return
        write = self.write
        self.shard = self.writer.cluster.shard_of(self.slot)
        if not self._enter(self.shard.name):
            self.finish(OverloadedError(f"shard {self.shard.name}", RETRY_AFTER_S))
            return
        self.item = WriteItem(
            write.source_id,
            write.destination_id,
            write.kind.number,
            self.slot,
            self.peer_slot,
            write.operation,
            write.position is not None,
            self.writer.clock.stamp() if write.position is None else write.position,
            write.receipt(),
            self.decided,
            most=write.kind.max_out_degree,
            watched=write.kind.events,
        )
        if write.operation is Operation.UNBLOCK and write.position is None and not self.paid:
            self.writer.spawn(self, self._pay_first(self.item))
            return
        if (
            write.operation in ENTERING
            and write.position is None
            and not self.confirmed
            and (write.destination_id, write.kind.number) in self.writer.suspensions
        ):
            self.writer.spawn(self, self._refuse_suspended(self.item))
            return
        try:
            self.shard.write(self.item)
        except GraphdError as error:
            self.finish(error)

    def _enter(self, shard: str) -> bool:
        """Take a place among the calls that need a shard, instead of the place taken before."""
        if self.entered == shard:
            return True
        if not self.group.enter(shard):
            return False
        self._leave()
        self.entered = shard
        return True

    def _leave(self) -> None:
        if self.entered is not None:
            self.group.leave(self.entered)
            self.entered = None

    def decided(self, item: WriteItem, answer: Answer | GraphdError) -> None:
        """The lane's answer."""
        if isinstance(answer, GraphdError):
            self.finish(answer)
        elif not answer.owned:
            self.writer.spawn(self, self._again())
        elif answer.remembered is not None:
            self._duplicate(item, answer)
        elif answer.ahead:
            # The router's clock let it pass, the shard's does not.
            self.finish(OutOfRangeError("position", AHEAD_RULE))
        elif answer.version is None:
            self.writer.spawn(self, self._explain(item, answer))
        else:
            self.writer.clock.observe(answer.version.position)
            self.outcome = WriteOutcome(answer.version, outcome_of(answer.before, answer.version))
            looks = answer.counter_id is None and self._looks_for_debts
            self.owing = (answer.outbox_id is not None) + (answer.counter_id is not None) + looks
            if looks:
                self._wait_for_others()
                self.writer.spawn(self, self._pay_what_is_owed(item))
            if answer.counter_id is not None:
                operation = TABLE[self.write.operation].counter
                assert operation is not None, "the statement names what the table owes"
                self._wait_for_others()
                self.writer.pay(self, Counter(item.peer_slot, answer.counter_id, operation))
            if answer.outbox_id is not None:
                self.outbox_id = answer.outbox_id
                self._deliver()
            if not self.owing:
                self.finish(self.outcome)

    def _duplicate(self, item: WriteItem, answer: Answer) -> None:
        remembered = answer.remembered
        assert remembered is not None
        assert item.receipt is not None
        if remembered.fingerprint != item.receipt.fingerprint:
            self.finish(RequestIdReusedError())
            return
        reason = ""
        if remembered.outcome is Outcome.REFUSED and not (reason := remembered.reason):
            state = State(remembered.version.state) if remembered.version is not None else None
            # What the state itself does not refuse was one edge too many.
            reason = refusal_reason(self.write.operation, state) or LIMIT_REACHED
        outcome = WriteOutcome(remembered.version, remembered.outcome, reason, duplicate=True)
        if remembered.version is None or remembered.outcome not in (Outcome.APPLIED, Outcome.UNCHANGED):
            self.finish(outcome)
            return
        # The first answer may have been lost, or said reverse_pending. Merging its version again changes nothing, and tells whether the
        # other shard has it now; and what it owed to the edge the other way may be unpaid still.
        elsewhere = self.writer.cluster.shard_of(item.peer_slot) is not self.shard
        self.outcome, self.owing = outcome, elsewhere + self._looks_for_debts
        if self._looks_for_debts:
            self._wait_for_others()
            self.writer.spawn(self, self._pay_what_is_owed(item))
        if elsewhere:
            self._deliver()
        if not self.owing:
            self.finish(outcome)

    # -- the reverse half ----------------------------------------------------------------------------------------------

    def _deliver(self) -> None:
        """Carry the version to the destination's shard."""
        item, outcome = self.item, self.outcome
        assert item is not None
        assert outcome is not None
        assert outcome.version is not None
        self._wait_for_others()
        shard = self.writer.cluster.shard_of(item.peer_slot)
        # From here on it is the destination's shard that is waited for: the source's has done its part. A call that has been answered
        # meanwhile (its deadline passed) waits for nothing and takes no place, or nobody would give it back.
        place = self.finished or self._enter(shard.name)
        try:
            shard.deliver(
                ReverseItem(
                    item.destination_id, item.kind, item.peer_slot, item.source_id, outcome.version, self.delivered
                )
            )
        except GraphdError:
            self.give_up_reverse()
            return
        if not place or shard.writes.stuck_s > self.writer.reverse_wait_s:
            # Too many wait for it, or it answers nobody now. The version is on its way; the caller need not wait for it.
            self.give_up_reverse()

    def delivered(self, answer: bool | GraphdError) -> None:
        """The other shard's answer. The outbox row goes only when that shard owned the slot."""
        if isinstance(answer, GraphdError):
            self.give_up_reverse()
        elif answer:
            assert self.item is not None
            assert self.shard is not None
            assert self.outcome is not None
            if self.outbox_id is not None:
                self.shard.strike(self.item.peer_slot, self.outbox_id)
            self._paid_one()
        else:
            self.writer.spawn(self, self._deliver_again())

    async def _deliver_again(self) -> None:
        if not self.finished and await self._pause():
            self._deliver()
        else:
            self.give_up_reverse()

    def _wait_for_others(self) -> None:
        """From now on the caller waits for shards that are not the source's, for so long and no longer."""
        group = self.group
        if group.reverse_timer is None and not group.done.done():
            group.reverse_timer = asyncio.get_running_loop().call_later(
                self.writer.reverse_wait_s, group.expire_reverse
            )

    def _paid_one(self) -> None:
        """One of the things that this write owed has been done."""
        self.owing -= 1
        if not self.owing and self.outcome is not None:
            self.finish(self.outcome)

    # -- what is owed to the edge the other way --------------------------------------------------------------------------

    @property
    def _looks_for_debts(self) -> bool:
        """Whether the edge may owe something still: a Block that this one repeats, whose router has died since, or one that came between
        an Unblock's look and the Unblock."""
        operation = self.write.operation
        return self.write.position is None and (operation is Operation.UNBLOCK or TABLE[operation].counter is not None)

    async def _pay_what_is_owed(self, item: WriteItem) -> None:
        """Pay what the edge owes before the caller is answered, or say that it is pending: what comes after the answer must not be
        undone."""
        shard = self.writer.cluster.shard_of(item.slot)
        try:
            owned, debts = await shard.counters(CountersRead(item.source_id, item.kind, item.slot, item.destination_id))
            stands = not debts or self.write.operation is Operation.UNBLOCK or await self._stands(shard, item)
        except GraphdError:
            self.give_up_reverse()
            return
        until = asyncio.get_running_loop().time() + self.writer.reverse_wait_s
        for debt in debts if owned else ():
            if not stands:
                # Lifted meanwhile: what it owed was given up with it.
                shard.strike(debt.peer_slot, debt.id)
                continue
            result = await self._pay_now(debt, until)
            if isinstance(result, GraphdError) or result.reverse_pending:
                self.give_up_reverse()
                return
        if owned:
            self._paid_one()
        else:
            self.give_up_reverse()

    async def _stands(self, shard: Shard, item: WriteItem) -> bool:
        """Whether the edge is BLOCKED now."""
        keys = EdgeKeys([item.source_id], [item.kind], [item.slot], [item.destination_id])
        [(_, stored)] = await shard.edges(keys)
        return stored is not None and stored.state == State.BLOCKED

    def payment(self, debt: Counter) -> Write:
        """The operation that this edge owes to the edge the other way."""
        write = self.write
        return Write(debt.operation, write.destination_id, write.source_id, write.kind, debt=debt.id)

    def settle_payment(self, debt: Counter, result: Result) -> bool:
        """What became of a payment; False when it must be made again, or has been made only half. The outbox row goes as soon as the
        other edge's forward half is right: its reverse half is then owed by a row of its own."""
        if isinstance(result, GraphdError):
            return False
        assert self.shard is not None
        self.shard.strike(debt.peer_slot, debt.id)
        return not result.reverse_pending

    def paid_at_once(self, debt: Counter, result: Result) -> None:
        """The payment was tried beside the write itself; what failed is left to the relay."""
        if self.settle_payment(debt, result):
            self._paid_one()
        else:
            self.give_up_reverse()

    async def _pay_now(self, debt: Counter, deadline: float) -> Result:
        """What became of it."""
        [result] = await self.writer.write((self.payment(debt),), deadline)
        self.settle_payment(debt, result)
        return result

    async def _pay_first(self, item: WriteItem) -> None:
        """An Unblock waits for what its Block still owes: done later, it would undo what came after the Unblock."""
        shard = self.shard
        assert shard is not None
        try:
            owned, debts = await shard.counters(CountersRead(item.source_id, item.kind, item.slot, item.destination_id))
            if not owned:
                await self._again()
                return
            # The call's own deadline ends this run; the payment itself goes on a little, as every batch once sent does.
            until = asyncio.get_running_loop().time() + MAX_PAYMENT_S
            for debt in debts:
                result = await self._pay_now(debt, until)
                if isinstance(result, GraphdError):
                    self.finish(result)
                    return
        except GraphdError as error:
            self.finish(error)
            return
        self.paid = True
        if not self.finished:
            self.begin()

    def give_up_reverse(self) -> None:
        """The write stands; its reverse half is left to the relay."""
        if self.outcome is not None:
            self.finish(self.outcome._replace(reverse_pending=True))

    # -- again, and why ------------------------------------------------------------------------------------------------

    async def _pause(self) -> bool:
        """Learn the newest topology and wait a little; False when the caller has gone meanwhile."""
        await self.writer.cluster.refresh()
        await asyncio.sleep(min(MAX_PAUSE_S, PAUSE_S * 2**self.pauses))
        self.pauses += 1
        return not self.finished

    async def _again(self) -> None:
        if await self._pause():
            self.begin()

    async def _refuse_suspended(self, item: WriteItem) -> None:
        """The destination is suspended, as far as is known here: make sure, and refuse for it if the edge itself gives no reason. What was
        done under this request id before is answered as it was."""
        home, peer = self.writer.cluster.shard_of(item.slot), self.writer.cluster.shard_of(item.peer_slot)
        write, self.confirmed = self.write, True
        try:
            owned, suspended = await peer.suspended(SuspensionRead(item.destination_id, item.kind, item.peer_slot))
            if owned and not suspended:
                self.writer.suspensions.learn(item.destination_id, item.kind, suspended=False)
            if owned and suspended:
                keys = EdgeKeys([item.source_id], [item.kind], [item.slot], [item.destination_id])
                [(owned, stored)] = await home.edges(keys)
                state = State(stored.state) if stored is not None else None
                reason = refusal_reason(write.operation, state) or ACCOUNT_ARCHIVED
                if owned and (
                    item.receipt is None
                    or await home.remember(item.slot, item.receipt, Outcome.REFUSED, stored, reason)
                ):
                    self.finish(WriteOutcome(stored, Outcome.REFUSED, reason))
                    return
        except GraphdError as error:
            self.finish(error)
            return
        self.begin()

    async def _explain(self, item: WriteItem, answer: Answer) -> None:
        """The operation changed nothing: read the row, and say why or run again."""
        shard = self.writer.cluster.shard_of(item.slot)
        try:
            keys = EdgeKeys([item.source_id], [item.kind], [item.slot], [item.destination_id])
            [(owned, stored)] = await shard.edges(keys)
            if not owned:
                await self._again()
                return
            outcome = self._reason(item, stored, suspended=answer.suspended)
            if answer.crowded and outcome is None:
                outcome = WriteOutcome(stored, Outcome.REFUSED, LIMIT_REACHED)
            if outcome is not None and item.receipt is not None:
                kept = await shard.remember(item.slot, item.receipt, outcome.outcome, stored, outcome.reason)
                outcome = outcome if kept else None
        except GraphdError as error:
            self.finish(error)
            return
        if outcome is not None:
            self.finish(outcome)
        elif not self.finished:
            self.begin()

    def _reason(self, item: WriteItem, stored: Version | None, *, suspended: bool) -> WriteOutcome | None:
        """REFUSED, STALE or UNCHANGED as the row explains it; None when it no longer does."""
        if item.given:
            decision = decide_given(item.operation, stored, item.stamp, suspended=suspended)
            if decision.outcome in (Outcome.STALE, Outcome.UNCHANGED) and decision.version == stored:
                return WriteOutcome(stored, decision.outcome)
            return None
        state = State(stored.state) if stored is not None else None
        reason = refusal_reason(item.operation, state, suspended=suspended)
        return WriteOutcome(stored, Outcome.REFUSED, reason) if reason is not None else None

    # -- the end -------------------------------------------------------------------------------------------------------

    def finish(self, result: Result) -> None:
        """Settle this write, once; begin the next one of the same edge."""
        if self.finished:
            return
        self.finished = True
        self._leave()
        group = self.group
        group.results[self.index] = result
        group.left -= 1
        if group.chains and (chain := group.chains.get(self.write.edge)):
            # Not from here: a chain of a thousand that fail at once would be as deep a recursion.
            asyncio.get_running_loop().call_soon(chain.popleft().begin)
        if group.left == 0 and not group.done.done():
            group.done.set_result(None)

    def expire(self) -> None:
        """The deadline has passed."""
        if self.outcome is not None:
            self.give_up_reverse()
            return
        kept = self.item is not None and self.item.sent
        if self.item is not None:
            self.item.abandoned = True
        self.finish(DeadlineError(kept=kept))


class Writer:
    """Carries out writes. `reverse_wait_s`: how long a decided write waits for its reverse half."""

    def __init__(
        self,
        cluster: Cluster,
        clock: HybridClock,
        admission: Admission,
        reverse_wait_s: float,
        suspensions: KnownSuspensions | None = None,
    ) -> None:
        self.cluster, self.clock, self.reverse_wait_s = cluster, clock, reverse_wait_s
        self.admission = admission
        self.suspensions = suspensions if suspensions is not None else KnownSuspensions(cluster)
        self._tasks: set[asyncio.Task[None]] = set()
        self._to_pay: list[tuple[_Run, Counter]] = []

    def spawn(self, run: _Run, work: Coroutine[Any, Any, None]) -> None:
        """Take a rare detour with a write, and hold on to it."""
        self._spawn((run,), work)

    def _spawn(self, runs: Sequence[_Run], work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(lambda ended: self._ended(runs, ended))

    def _ended(self, runs: Sequence[_Run], task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # A bug; the caller must not wait for it until his deadline.
            log.error("write.detour_failed", error=type(error).__name__, exc_info=error)
            for run in runs:
                run.finish(BadItemError("a bug"))

    def pay(self, run: _Run, debt: Counter) -> None:
        """Carry out what a write owes to the edge the other way, together with what others of the same flush owe: one call, which takes
        one place of a shard's. 500 calls of one write each would be shed."""
        if not self._to_pay:
            asyncio.get_running_loop().call_soon(self._pay_together)
        self._to_pay.append((run, debt))

    def _pay_together(self) -> None:
        debts, self._to_pay = self._to_pay, []
        self._spawn([run for run, _ in debts], self._pay_all(debts))

    async def _pay_all(self, debts: Sequence[tuple[_Run, Counter]]) -> None:
        until = asyncio.get_running_loop().time() + self.reverse_wait_s
        results = await self.write([run.payment(debt) for run, debt in debts], until)
        for (run, debt), result in zip(debts, results, strict=True):
            run.paid_at_once(debt, result)

    async def close(self) -> None:
        """Wait for what is still under way."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def write(self, writes: Sequence[Write], deadline: float) -> list[Result]:
        """Carry out writes; a result or an error for each, in order. Writes of one edge apply in the order given.

        `deadline`: on the event loop's clock.
        """
        slots = self.cluster.topology.slots
        at = all_slots([write.source_id for write in writes], slots)
        peers = all_slots([write.destination_id for write in writes], slots)
        group = _Group(len(writes), self.admission)
        runs = group.runs = [
            _Run(self, group, index, write, slot, peer)
            for index, (write, slot, peer) in enumerate(zip(writes, at, peers, strict=True))
        ]
        return await self._carry_out(group, runs, deadline)

    async def _carry_out(self, group: _Group, runs: Sequence[_Run], deadline: float) -> list[Result]:
        try:
            if len(runs) == 1:
                runs[0].begin()
            else:
                for run in _first_of_each_edge(group, runs):
                    run.begin()
            if not group.done.done():
                alarm = asyncio.get_running_loop().call_at(deadline, group.expire)
                try:
                    await group.done
                finally:
                    alarm.cancel()
        except asyncio.CancelledError:
            group.expire()
            raise
        finally:
            if group.reverse_timer is not None:
                group.reverse_timer.cancel()
            # All are finished. Without the circle between a group and its runs nothing is left to the garbage collector, which took a
            # fifth of a batch's time.
            group.runs.clear()
        return [result for result in group.results if result is not None]


def _first_of_each_edge(group: _Group, runs: Sequence[_Run]) -> list[_Run]:
    """Those that may begin at once; the others are chained behind the one before them."""
    first: list[_Run] = []
    seen: set[tuple[int, int, int]] = set()
    for run in runs:
        edge = run.write.edge
        if edge in seen:
            group.chains.setdefault(edge, deque()).append(run)
        else:
            seen.add(edge)
            first.append(run)
    return first
