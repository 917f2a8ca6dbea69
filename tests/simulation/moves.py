"""A slot handed from one shard to another by hand, in the order that DESIGN.md section 10 fixes."""

from __future__ import annotations

import time
from dataclasses import dataclass

import psycopg

from graphd.placement import slot_of
from tests.databases import PER_SLOT_TABLES
from tests.simulation.cluster import SLOTS, Site

LOCK_TRIES = 200


@dataclass(frozen=True, slots=True)
class Move:
    """Blocks: run it in a thread."""

    site: Site
    slot: int
    donor: str
    recipient: str

    @classmethod
    def of(cls, site: Site, account: int, recipient: str) -> Move:
        """The first move of the slot of an account."""
        return cls(site, slot_of(account, SLOTS), site.shard_of(account), recipient)

    def back(self) -> Move:
        """The same slot the other way."""
        return Move(self.site, self.slot, self.recipient, self.donor)

    def run(self) -> None:
        """Take the slot from the donor, carry its rows, give it to the recipient, tell the catalog, delete what is left behind."""
        databases = self.site.databases
        self._flip(self.donor, owned=False)
        before = self.rows(self.donor)
        with (
            databases.connect(self.donor) as donor,
            databases.connect(self.recipient) as recipient,
            recipient.transaction(),
        ):
            for table in PER_SLOT_TABLES:
                with (
                    donor.cursor().copy(
                        f"COPY (SELECT * FROM {table} WHERE slot = {self.slot}) TO STDOUT".encode()
                    ) as out,
                    recipient.cursor().copy(f"COPY {table} FROM STDIN".encode()) as into,
                ):
                    for data in out:
                        into.write(data)
        self._flip(self.recipient, owned=True)
        with psycopg.connect(databases.catalog, autocommit=True) as catalog:
            catalog.execute("UPDATE slots SET shard = %s WHERE slot = %s", (self.recipient, self.slot))
        after = self.rows(self.donor)
        for table in PER_SLOT_TABLES:
            # What was delivered meanwhile may still be struck from the old outbox: the copy is delivered once more, which does no harm.
            same = set(after[table]) <= set(before[table]) if table == "outbox" else after[table] == before[table]
            assert same, f"{self.donor} wrote into {table} of a slot it had given away"
        with databases.connect(self.donor) as donor:
            for table in PER_SLOT_TABLES:
                donor.execute(f"DELETE FROM {table} WHERE slot = {self.slot}".encode())

    def rows(self, shard: str) -> dict[str, list[tuple[object, ...]]]:
        """Everything a shard holds of the slot."""
        return {
            table: self.site.databases.rows(
                shard, f"SELECT * FROM {table} WHERE slot = {self.slot} ORDER BY 1, 2, 3, 4, 5"
            )
            for table in PER_SLOT_TABLES
        }

    def _flip(self, shard: str, *, owned: bool) -> None:
        """Under the exclusive lock, waited for in short turns, so that nobody waits long behind it."""
        with self.site.databases.connect(shard) as connection:
            connection.execute("SET lock_timeout = '50ms'")
            for _ in range(LOCK_TRIES):
                try:
                    with connection.transaction():
                        connection.execute("SELECT pg_advisory_xact_lock(%s::bigint)", (self.slot,))
                        connection.execute("UPDATE slots SET owned = %s WHERE slot = %s", (owned, self.slot))
                    return
                except psycopg.errors.LockNotAvailable:
                    time.sleep(0.01)
        raise AssertionError(f"{shard} does not let go of slot {self.slot}")
