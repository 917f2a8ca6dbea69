"""A write as the router handles it: checked, and what became of it."""

from __future__ import annotations

import hashlib
import struct
from typing import Final, NamedTuple
from uuid import UUID

from graphd.edge import Version
from graphd.errors import GraphdError
from graphd.operations import Operation, Outcome, acting_account
from graphd.storage.items import Receipt, debt_receipt
from graphd.topology import Kind

_FINGERPRINT: Final = struct.Struct(">BqqhBqB")


class Write(NamedTuple):
    """A checked write. `position` None: live. `debt`: the outbox row that an operation of our own comes from; it takes the place of a
    request id, so that it is carried out once, whoever does it."""

    operation: Operation
    source_id: int
    destination_id: int
    kind: Kind
    position: int | None = None
    request_id: str | None = None
    backfill: bool = False
    debt: UUID | None = None

    @property
    def edge(self) -> tuple[int, int, int]:
        """What orders writes among each other."""
        return (self.source_id, self.kind.number, self.destination_id)

    def receipt(self) -> Receipt | None:
        """Under which the answer is remembered, if the caller gave a request id."""
        if self.debt is not None:
            return debt_receipt(self.source_id, self.debt)
        if self.request_id is None:
            return None
        packed = _FINGERPRINT.pack(
            self.operation,
            self.source_id,
            self.destination_id,
            self.kind.number,
            self.position is not None,
            self.position or 0,
            self.backfill,
        )
        digest = hashlib.blake2b(packed, digest_size=8, person=b"graphd.receipt").digest()
        actor_id = acting_account(self.operation, self.source_id, self.destination_id)
        return Receipt(actor_id, self.request_id, int.from_bytes(digest, "big", signed=True))


class WriteOutcome(NamedTuple):
    """What a write did. `version` None: the edge is absent still."""

    version: Version | None
    outcome: Outcome
    reason: str = ""
    duplicate: bool = False
    reverse_pending: bool = False


Result = WriteOutcome | GraphdError
