"""The SQL that the runbook tells people to type does what it says."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from graphd.client import Client
from graphd.devcluster.postgres import find_bindir
from graphd.placement import slot_of
from graphd.storage.audit import audit
from tests.databases import Databases
from tests.routers import RouterProcess
from tests.waiting import eventually

RUNBOOK = (Path(__file__).resolve().parents[2] / "deploy" / "RUNBOOK.md").read_text("utf-8")
BLOCKS = re.findall(r"^```sql\n(.*?)^```", RUNBOOK, re.MULTILINE | re.DOTALL)
RECOUNT = re.search(r"<!-- recount -->\n```sql\n(.*?)^```", RUNBOOK, re.MULTILINE | re.DOTALL)


def psql(conninfo: str, text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(find_bindir() / "psql"), "-X", "-v", "ON_ERROR_STOP=1", "-d", conninfo, "-f", "-"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.split("\n")[0][:40])
def test_every_block_runs(databases: Databases, block: str) -> None:
    for shard in databases.names:
        done = psql(databases.conninfo[shard], block)
        assert done.returncode == 0, done.stderr


async def test_the_recount_mends_an_account(databases: Databases, router: RouterProcess) -> None:
    assert RECOUNT is not None
    people = range(1, 7)
    async with Client(router.target) as client:
        for source in people:
            for destination in people:
                if source != destination:
                    await client.follow(source, destination)
        await client.unfollow(1, 3)

        async def settled() -> bool:
            return (await audit(databases.config)).owed == 0

        await eventually(settled, what="nothing is owed")
        owner = databases.view.topology.owners[slot_of(3, databases.slots)]
        with databases.connect(owner) as connection:
            connection.execute("UPDATE degrees SET degree = -2 WHERE owner_id = 3 AND direction = 2 AND state = 1")
            connection.execute("DELETE FROM degrees WHERE owner_id = 3 AND direction = 1")
            connection.execute("UPDATE degrees SET state = 2 WHERE owner_id = 3 AND direction = 2 AND state = 6")
        assert (await audit(databases.config)).wrong_degrees == 4
        done = psql(databases.conninfo[owner], RECOUNT[1])
        assert done.returncode == 0, done.stderr
        assert (await audit(databases.config)).wrong_degrees == 0
        degrees = await client.get_degrees(3)
        assert (degrees.followers, degrees.following) == (4, 5)


async def test_the_recount_gives_up_rather_than_wait(databases: Databases) -> None:
    assert RECOUNT is not None
    slot = slot_of(3, databases.slots)
    shard = databases.view.topology.owners[slot]
    with databases.connect(shard) as connection, connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock_shared(%s::bigint)", (slot,))
        done = psql(databases.conninfo[shard], RECOUNT[1])
    assert done.returncode != 0
    assert "canceling statement due to lock timeout" in done.stderr
