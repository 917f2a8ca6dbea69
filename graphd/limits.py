"""Every bound, with its reason. Units stand in the names; positions are microseconds."""

from __future__ import annotations

from typing import Final

MAX_ID: Final = 2**63 - 1
"""Ids are Postgres bigint, not negative."""

MAX_SLOTS: Final = 16_384
"""A slot is a smallint column, and a lock of every slot must fit into one transaction's share of the lock table."""

MAX_BATCH: Final = 1_000
"""Items in BatchWrite, BatchGetEdges, BatchGetDegrees: 1,000 edges are 50 kB, far under the 4 MiB of a gRPC message."""

DEFAULT_PAGE_SIZE: Final = 100
MAX_PAGE_SIZE: Final = 1_000
"""1,000 edges are about 50 kB. A larger page_size is answered with a page of this size."""

MAX_PAGE_TOKEN_CHARS: Final = 256
"""Longer than any token we make; anything beyond is refused unread."""

RESUME_METADATA: Final = "graphd-resume-token"
"""Initial metadata of WatchEdges: the token of the place where it begins."""

MAX_RESUME_TOKEN_CHARS: Final = 64 * 1024
"""A watcher's token: 32 characters for each shard."""

MIN_OPERANDS: Final = 2
MAX_OPERANDS: Final = 16
"""Operands of a set operation: each costs a round trip per window."""

MAX_EXPRESSION_DEPTH: Final = 8
"""Of a Select; a bare operand counts 1."""

MAX_EXPRESSION_OPERANDS: Final = 4_096
"""Of a Select, all together: as many as depth 4 can hold, and each costs a round trip per window."""

DEFAULT_SUGGESTIONS: Final = 10
MAX_SUGGESTIONS: Final = 100

MAX_OPERAND_IDS: Final = 100_000
"""Ids of one explicit operand: 1 MB on the wire, 0.8 MB in memory."""

MAX_REQUEST_ID_CHARS: Final = 64
"""Room for a UUID with a prefix; it is part of a primary key."""

MAX_KIND_CHARS: Final = 32
"""The name stands in every edge of every page."""

MAX_KINDS: Final = 1_000
"""Every process holds them all, and GetTopology tells them all."""

MAX_KIND_NUMBER: Final = 2**15 - 1
"""It stands in every half as a smallint, and is never given again."""

MAX_KINDS_TOLD_CHARS: Final = 1_000
"""Of an error that lists the kinds: it travels three times over in gRPC's trailers, which hold 8 kB."""

MAX_OUT_DEGREE: Final = 10**12
"""The largest limit a kind may set: above what any account can have, and far below where sums with it overflow a bigint."""

MAX_AHEAD_US: Final = 5_000_000
"""How far a position may be ahead of now: nothing could ever be written over one further ahead."""

AHEAD_RULE: Final = f"must not be more than {MAX_AHEAD_US // 1_000_000} s ahead of now (microseconds)"

PURGE_HORIZON_US: Final = 30 * 24 * 3600 * 1_000_000
"""Tombstones are kept this long, so an older given write could bring back what was removed."""

PURGE_AFTER_US: Final = PURGE_HORIZON_US + 3600 * 1_000_000
"""Tombstones older than this are purged. The hour is for writes on their way that were just young enough, and for clocks that differ."""

PURGE_DEBT_S: Final = 1800.0
"""What has been owed for less than this concerns no tombstone that may go: it was within the horizon when it was written."""

BACKFILL_MARK_US: Final = 600 * 1_000_000
"""How exactly the last backfill of a shard is remembered: well within that hour, and seldom enough to cost nothing."""

RECEIPT_KEEP_S: Final = 24 * 3600
"""How long a request_id is remembered."""

DEFAULT_DEADLINE_S: Final = 10.0
"""For callers who name none."""

MAX_DEADLINE_S: Final = 60.0
"""A unary call that takes longer has failed its caller anyway."""

DEADLINE_MARGIN_S: Final = 0.005
"""Taken off the caller's deadline, so that our answer still reaches him."""

SET_BUDGET_S: Final = 0.5
"""Time one page of a set operation may take before it is returned short and `partial`."""

SET_WINDOW_MIN_IDS: Final = 256
"""Ids of the driving list looked at in the first round trip of a small page: fewer would save nothing."""

SET_WINDOW_MAX_IDS: Final = 65_536
"""To which windows grow while they find little: 0.5 MB each."""

SET_MEMORY_IDS: Final = 1_048_576
"""Ids that all windows of one call may hold at a time, a share for each list: 8 MB, and 20 MB while they are decoded."""

SET_READS_AT_ONCE: Final = 8
"""Of one call: a large expression must not take every session of a shard's pool."""

MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
"""gRPC's own default, for requests and answers."""

OUTBOX_FIRST_DUE_S: Final = 2.0
"""Time the router has to deliver an owed version itself before the relay tries."""

RELAY_BACKOFF_FIRST_S: Final = 0.1
"""Pause after the first try; it doubles with each one more."""

RELAY_BACKOFF_MAX_S: Final = 2.0
"""Longest pause between two tries, so that a shard that comes back is served within seconds."""

EVENTS_BUCKET_S: Final = 12 * 3600
"""Time that one partition of the events holds."""

EVENTS_BUCKETS: Final = 16
"""Partitions, used in turn: eight days."""

RELAY_BATCH: Final = 1_000
"""Outbox rows leased at a time."""

RELAY_LEASE_S: Final = 10.0
"""A relay that died leaves its rows to others after this time."""

RELAY_MAX_REFUSALS: Final = 10
"""An owed version that the destination's store refused this often, for a reason of its own, can never apply: it is parked."""
