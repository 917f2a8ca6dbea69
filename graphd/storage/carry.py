"""How a lane's batch becomes statements, and their rows become answers.

Each function here sends one batch in one transaction. It raises psycopg.Error having settled nothing, or settles every item.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from psycopg.rows import TupleRow

from graphd.clock import now_us
from graphd.edge import Version
from graphd.limits import (
    BACKFILL_MARK_US,
    EVENTS_BUCKET_S,
    EVENTS_BUCKETS,
    MAX_AHEAD_US,
    OUTBOX_FIRST_DUE_S,
    PURGE_HORIZON_US,
)
from graphd.operations import (
    FIRST_KEEPING_SINCE,
    GIVEN,
    SUSPENDED,
    Operation,
    Outcome,
    counter_operations,
    given_states,
    transition_matrix,
)
from graphd.storage.arrays import Int2s, Int4s, Int8s, Texts, Uuids, unpack_alike
from graphd.storage.items import (
    NO_ROWS,
    Answer,
    Counter,
    CountersRead,
    DegreesRead,
    EdgesRead,
    Nudge,
    PageBlock,
    PageRead,
    PageRows,
    Remembered,
    ReverseItem,
    SuspensionRead,
    WriteItem,
)
from graphd.storage.session import Prepared, Session, prepared

Asked = tuple[Prepared, dict[str, Any]]
"""A statement and its parameters."""

WriteLaneItem = WriteItem | ReverseItem | Nudge
ReadItem = EdgesRead | DegreesRead | PageRead | CountersRead | SuspensionRead

_RULES: Final[dict[str, Any]] = {
    "given": GIVEN,
    "suspended": SUSPENDED,
    "given_states": Int2s(given_states()),
    "transitions": str(transition_matrix()).replace("[", "{").replace("]", "}"),
    "keeps_since": FIRST_KEEPING_SINCE,
    "counters": Int2s(counter_operations()),
    "ahead": MAX_AHEAD_US,
    "first_due_s": OUTBOX_FIRST_DUE_S,
    "bucket_s": EVENTS_BUCKET_S,
    "buckets": EVENTS_BUCKETS,
}
_NO_INT2, _NO_INT4, _NO_INT8 = Int2s(()), Int4s(()), Int8s(())
_NO_RECEIPTS: Final[dict[str, Any]] = {
    "r_item": _NO_INT4, "r_actor": _NO_INT8, "r_namespace": _NO_INT2, "r_id": Texts(()), "r_slot": _NO_INT2,
    "r_fingerprint": _NO_INT8,
}  # fmt: skip
_NO_LIMITS: Final[dict[str, Any]] = {"l_item": _NO_INT4, "l_most": _NO_INT8}
_NO_VERSIONS: Final[dict[str, Any]] = {
    "v_item": _NO_INT4, "v_owner_id": _NO_INT8, "v_kind": _NO_INT2, "v_slot": _NO_INT2, "v_neighbor_id": _NO_INT8,
    "v_position": _NO_INT8, "v_state": _NO_INT2, "v_since": _NO_INT8,
}  # fmt: skip


def _operation_columns(writes: Sequence[WriteItem]) -> dict[str, Any]:
    return {
        "item": Int4s(range(len(writes))),
        "source_id": Int8s([w.source_id for w in writes]),
        "kind": Int2s([w.kind for w in writes]),
        "slot": Int2s([w.slot for w in writes]),
        "destination_id": Int8s([w.destination_id for w in writes]),
        "peer_slot": Int2s([w.peer_slot for w in writes]),
        "operation": Int2s([w.operation + GIVEN if w.given else w.operation for w in writes]),
        "stamp": Int8s([w.stamp for w in writes]),
    }


def _receipt_columns(writes: Sequence[WriteItem]) -> dict[str, Any]:
    found = [(at, w.receipt, w.slot) for at, w in enumerate(writes) if w.receipt is not None]
    if not found:
        return _NO_RECEIPTS
    return {
        "r_item": Int4s([at for at, _, _ in found]),
        "r_actor": Int8s([receipt.actor_id for _, receipt, _ in found]),
        "r_namespace": Int2s([receipt.namespace for _, receipt, _ in found]),
        "r_id": Texts([receipt.id for _, receipt, _ in found]),
        "r_slot": Int2s([slot for _, _, slot in found]),
        "r_fingerprint": Int8s([receipt.fingerprint for _, receipt, _ in found]),
    }


def _limit_columns(limited: Sequence[tuple[int, WriteItem]]) -> dict[str, Any]:
    if not limited:
        return _NO_LIMITS
    return {"l_item": Int4s([at for at, _ in limited]), "l_most": Int8s([w.most for _, w in limited])}


def _version_columns(versions: Sequence[ReverseItem]) -> dict[str, Any]:
    if not versions:
        return _NO_VERSIONS
    return {
        # Below zero, so that one result can name items of both sorts.
        "v_item": Int4s(range(-1, -1 - len(versions), -1)),
        "v_owner_id": Int8s([v.owner_id for v in versions]),
        "v_kind": Int2s([v.kind for v in versions]),
        "v_slot": Int2s([v.slot for v in versions]),
        "v_neighbor_id": Int8s([v.neighbor_id for v in versions]),
        "v_position": Int8s([v.version.position for v in versions]),
        "v_state": Int2s([v.version.state for v in versions]),
        "v_since": Int8s([v.version.since for v in versions]),
    }


async def carry_writes(session: Session, batch: Sequence[WriteLaneItem], strikes: Sequence[tuple[int, UUID]]) -> None:
    """Operations, reverse versions and strikes (peer slot, outbox id) of one shard, in one transaction."""
    writes: list[WriteItem] = []
    versions: list[ReverseItem] = []
    for item in batch:
        if isinstance(item, WriteItem):
            item.sent = True
            writes.append(item)
        elif isinstance(item, ReverseItem):
            versions.append(item)
    if not writes and not versions and not strikes:
        return
    slots = {w.slot for w in writes} | {w.peer_slot for w in writes} | {v.slot for v in versions}
    limited = [(at, w) for at, w in enumerate(writes) if w.most]
    values = {
        **_RULES,
        **_operation_columns(writes),
        **_limit_columns(limited),
        **_receipt_columns(writes),
        **_version_columns(versions),
        "unwatched": Int2s(sorted({w.kind for w in writes if not w.watched})),
        "o_peer_slot": Int2s([slot for slot, _ in strikes]) if strikes else _NO_INT2,
        "o_id": Uuids([id_ for _, id_ in strikes]),
    }
    calls: list[Asked] = [(prepared("write", "lock_slots"), {"slots": Int2s(sorted(slots))})]
    oldest_us = now_us() - PURGE_HORIZON_US
    if any(w.given and w.stamp < oldest_us for w in writes):
        # Nobody may write so far back but those who say that it is a backfill.
        calls.append((prepared("purge", "mark"), {"refresh_us": BACKFILL_MARK_US}))
    if limited:
        owners = {"owner_id": Int8s([w.source_id for _, w in limited]), "kind": Int2s([w.kind for _, w in limited])}
        calls.append((prepared("write", "lock_owners"), owners))
    calls.append((prepared("write", "write"), values))
    answers = await session.run(calls)
    _settle_writes(answers[-1], writes, versions)


def _settle_writes(rows: Sequence[TupleRow], writes: Sequence[WriteItem], versions: Sequence[ReverseItem]) -> None:
    owned = [False] * len(versions)
    for row in rows:
        at = row[0]
        if at < 0:
            owned[-1 - at] = True
        else:
            writes[at].answer(_answer(row))
    for version, here in zip(versions, owned, strict=True):
        version.settle(here)


def _answer(row: TupleRow) -> Answer:
    (
        _, owned, position, state, since, old_position, old_state, old_since, outbox_id, counter_id,
        fingerprint, outcome, r_position, r_state, r_since, ahead, crowded, suspended, reason,
    ) = row  # fmt: skip
    if not owned:
        return Answer(False)
    if fingerprint is not None:
        version = Version(r_position, r_state, r_since) if r_position is not None else None
        return Answer(True, remembered=Remembered(fingerprint, Outcome(outcome), version, reason or ""))
    if position is None:
        return Answer(True, ahead=ahead, crowded=crowded, suspended=suspended)
    before = Version(old_position, old_state, old_since) if old_position else None
    return Answer(True, Version(position, state, since), before, outbox_id, counter_id=counter_id)


# -- reads -------------------------------------------------------------------------------------------------------------


def _joined(columns: Sequence[Any]) -> Sequence[int]:
    """Columns of several items, one after the other."""
    if len(columns) == 1:
        found: Sequence[int] = columns[0]
        return found
    return [value for column in columns for value in column]


def _ask_edges(reads: Sequence[EdgesRead]) -> Asked:
    keys = [read.wanted for read in reads]
    return prepared("read", "edges", "forward"), {
        "item": Int4s(range(sum(len(k) for k in keys))),
        "owner_id": Int8s(_joined([k.source_ids for k in keys])),
        "kind": Int2s(_joined([k.kinds for k in keys])),
        "slot": Int2s(_joined([k.slots for k in keys])),
        "neighbor_id": Int8s(_joined([k.destination_ids for k in keys])),
    }


def _settle_edges(rows: Sequence[TupleRow], reads: Sequence[EdgesRead]) -> None:
    found: list[tuple[bool, Version | None]] = [(False, None)] * len(rows)
    for item, owned, position, state, since in rows:
        found[item] = (owned, Version(position, state, since) if position is not None else None)
    at = 0
    for read in reads:
        read.settle(found[at : at + len(read.wanted)])
        at += len(read.wanted)


def _ask_degrees(reads: Sequence[DegreesRead]) -> Asked:
    owners = [read.owners for read in reads]
    return prepared("read", "degrees"), {
        "item": Int4s(range(sum(len(o) for o in owners))),
        "owner_id": Int8s(_joined([o.owner_ids for o in owners])),
        "kind": Int2s(_joined([[o.kind] * len(o) for o in owners])),
        "slot": Int2s(_joined([o.slots for o in owners])),
    }


def _settle_degrees(rows: Sequence[TupleRow], reads: Sequence[DegreesRead]) -> None:
    found: list[tuple[bool, list[tuple[int, int, int]]]] = [
        (False, []) for read in reads for _ in range(len(read.owners))
    ]
    for item, owned, direction, state, degree in rows:
        if owned and not found[item][0]:
            found[item] = (True, [])
        if degree is not None:
            found[item][1].append((direction, state, degree))
    at = 0
    for read in reads:
        read.settle(found[at : at + len(read.owners)])
        at += len(read.owners)


def _ask_counters(reads: Sequence[CountersRead]) -> Asked:
    return prepared("read", "counters"), {
        "item": Int4s(range(len(reads))),
        "source_id": Int8s([read.source_id for read in reads]),
        "kind": Int2s([read.kind for read in reads]),
        "slot": Int2s([read.slot for read in reads]),
        "destination_id": Int8s([read.destination_id for read in reads]),
    }


def _settle_counters(rows: Sequence[TupleRow], reads: Sequence[CountersRead]) -> None:
    found: list[tuple[bool, list[Counter]]] = [(False, []) for _ in reads]
    for item, owned, peer_slot, outbox_id, operation in rows:
        debts = found[item][1]
        if outbox_id is not None:
            debts.append(Counter(peer_slot, outbox_id, Operation(operation)))
        found[item] = (owned, debts)
    for read, answer in zip(reads, found, strict=True):
        read.settle(answer)


def _ask_suspensions(reads: Sequence[SuspensionRead]) -> Asked:
    return prepared("read", "suspensions"), {
        "item": Int4s(range(len(reads))),
        "owner_id": Int8s([read.account_id for read in reads]),
        "kind": Int2s([read.kind for read in reads]),
        "slot": Int2s([read.slot for read in reads]),
    }


def _settle_suspensions(rows: Sequence[TupleRow], reads: Sequence[SuspensionRead]) -> None:
    for item, owned, suspended in rows:
        reads[item].settle((owned, suspended))


def _ask_pages(table: str, ascending: bool, reads: Sequence[PageRead]) -> Asked:
    return prepared("read", "oldest_first" if ascending else "newest_first", table), {
        "item": Int4s(range(len(reads))),
        "owner_id": Int8s([read.owner_id for read in reads]),
        "kind": Int2s([read.kind for read in reads]),
        "slot": Int2s([read.slot for read in reads]),
        "state": Int2s([read.state for read in reads]),
        "since": Int8s([read.since for read in reads]),
        "neighbor_id": Int8s([read.neighbor_id for read in reads]),
        "row_count": Int4s([read.row_count for read in reads]),
    }


def _settle_pages(rows: Sequence[TupleRow], reads: Sequence[PageRead]) -> None:
    alike: dict[tuple[int, int, int], list[tuple[PageRead, bytes]]] = {}
    for item, owned, columns in rows:
        read = reads[item]
        if columns is None:
            read.settle(PageRows(owned, NO_ROWS, 0))
        else:
            alike.setdefault((len(columns), read.kind, read.state), []).append((read, columns))
    for pages in alike.values():
        columns = unpack_alike([data for _, data in pages])
        block = PageBlock([read.owner_id for read, _ in pages], columns.reshape(len(pages), 3, -1))
        for at, (read, _) in enumerate(pages):
            read.settle(PageRows(True, block, at))


async def carry_reads(session: Session, batch: Sequence[ReadItem]) -> None:
    """Look-ups, degrees and pages of one shard: a statement for each sort there is."""
    edges = [read for read in batch if isinstance(read, EdgesRead)]
    degrees = [read for read in batch if isinstance(read, DegreesRead)]
    counters = [read for read in batch if isinstance(read, CountersRead)]
    suspensions = [read for read in batch if isinstance(read, SuspensionRead)]
    pages: dict[tuple[str, bool], list[PageRead]] = {}
    for read in batch:
        if isinstance(read, PageRead):
            pages.setdefault((read.table, read.ascending), []).append(read)
    calls: list[Asked] = []
    if edges:
        calls.append(_ask_edges(edges))
    if degrees:
        calls.append(_ask_degrees(degrees))
    if counters:
        calls.append(_ask_counters(counters))
    if suspensions:
        calls.append(_ask_suspensions(suspensions))
    calls += [_ask_pages(table, ascending, reads) for (table, ascending), reads in pages.items()]
    if not calls:
        return
    answers = iter(await session.run(calls))
    if edges:
        _settle_edges(next(answers), edges)
    if degrees:
        _settle_degrees(next(answers), degrees)
    if counters:
        _settle_counters(next(answers), counters)
    if suspensions:
        _settle_suspensions(next(answers), suspensions)
    for reads in pages.values():
        _settle_pages(next(answers), reads)
