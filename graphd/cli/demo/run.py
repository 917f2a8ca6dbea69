"""The demo from start to end, and what is left behind: nothing, unless the caller keeps the cluster."""

import asyncio
import shutil
import sys
import tempfile
import time
from pathlib import Path

from pydantic import SecretStr

from graphd.cli.common import say
from graphd.cli.demo import graph, outage, storm, walk
from graphd.cli.demo.screen import Screen
from graphd.cli.demo.stage import People, Stage, cast
from graphd.cli.demo.stopping import StoppedError, Stopping
from graphd.client import AdminClient, Client, RetryBudget
from graphd.config import Config
from graphd.devcluster.cluster import DevCluster, DevClusterError, Options
from graphd.errors import GraphdError
from graphd.storage import audit

SHARDS = 3
SLOTS = 64
READY_S = 10.0


def run(file: Path | None, *, keep: bool) -> int:
    """Run it; answers the exit status. Raises GraphdError, DevClusterError, having cleaned up."""
    screen = Screen()
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="graphd-demo-"))
    folder.chmod(0o755)  # whoever runs Postgres must be able to enter it
    cluster = DevCluster(folder)
    people: People | None = None
    kept = False
    with Stopping() as stopping:
        try:
            people = _play(screen, cluster, file, stopping)
            kept = keep
        except StoppedError as stopped:
            say("stopped; the cluster is being deleted")
            return 128 + stopped.number
        except (GraphdError, DevClusterError):
            kept = keep
            raise
        finally:
            stopping.over()
            if kept:
                _tell_how_to_reach(screen, cluster, people)
            else:
                _delete(screen, cluster)
    return _conclude(screen, time.monotonic() - began)


def _play(screen: Screen, cluster: DevCluster, file: Path | None, stopping: Stopping) -> People | None:
    screen.chapter("A cluster")
    screen.say(
        f"{SHARDS} Postgres servers (the shards), a router and a repair daemon start on this machine, in {cluster.folder.path}."
    )
    began = time.monotonic()
    with screen.working("starting"), stopping.held() as look:
        cluster.up(Options(shards=SHARDS, slots=SLOTS, port=0, repair=True), say=lambda step: look())
    screen.call("graphd dev up", f"serves after {time.monotonic() - began:.1f} s")
    return stopping.run(play(screen, cluster, file))


async def play(screen: Screen, cluster: DevCluster, file: Path | None) -> People | None:
    """All chapters before a cluster that serves; answers who played. Raises GraphdError."""
    status = cluster.status()
    config = _config(cluster)
    async with (
        Client(status["router"]) as client,
        Client(status["router"], budget=RetryBudget(share=0.0, reserve=0)) as impatient,
        AdminClient(status["admin"]) as admin,
    ):
        await asyncio.gather(client.wait_ready(READY_S), admin.wait_ready(READY_S))
        topology = await admin.get_topology()
        screen.table(
            ("shard", "slots", "Postgres"),
            [
                (
                    shard["name"],
                    topology.owners.count(shard["name"]),
                    shard["conninfo"].partition("user=")[0].strip() or "",
                )
                for shard in status["shards"]
            ],
        )
        screen.chapter("A graph")
        await graph.load(screen, config, file)
        hubs = await audit.largest(config, 1, 3)
        if not hubs:
            screen.check("the graph has edges", False)
            return None
        screen.call("the most followed", *(f"account {account}: {degree:,} followers" for account, degree in hubs))
        people = await cast(client, topology)
        stage = Stage(screen, cluster, config, client, impatient, admin, topology, people, hubs[0][0])
        screen.chapter("The calls")
        await walk.show(stage)
        screen.chapter("A celebrity")
        crowd = await _crowd(stage)
        followers = await storm.show(stage, crowd)
        screen.chapter("A shard goes, and comes back")
        await outage.show(stage, followers, crowd)
        screen.chapter("The books")
        await _audit(stage)
        return people


async def _crowd(stage: Stage) -> list[int]:
    """Accounts that will follow cy: those of the graph, and made-up ones where it has too few."""
    enough = storm.SINGLES + storm.BATCHED + 2 * outage.LATECOMERS
    found = await audit.sources(stage.config, 1, enough)
    people = set(stage.people.ids())
    crowd = dict.fromkeys(account for account in found if account not in people)
    made_up = max(stage.people.fay, *crowd) + 1
    crowd |= dict.fromkeys(range(made_up, made_up + max(0, enough - len(crowd))))
    return list(crowd)


async def _audit(stage: Stage) -> None:
    screen = stage.screen
    screen.say(
        "Nobody writes any more, so every half can be read from the databases themselves, past the router: are the halves the same "
        "edges in the same versions, and is every degree what a recount says?"
    )
    with screen.working("counting"):
        found = await audit.audit(stage.config)
    screen.table(
        ("shard", "forward halves", "reverse halves", "degrees", "wrong", "owed"),
        [
            (shard.shard, shard.forward.edges, shard.reverse.edges, shard.degrees, shard.wrong_degrees, shard.owed)
            for shard in found.shards
        ],
    )
    screen.check(f"all {found.forward.edges:,} edges have two equal halves", found.halves_agree)
    screen.check("all degrees equal a recount", found.wrong_degrees == 0)
    screen.check("nothing is owed", found.owed == 0)


def _config(cluster: DevCluster) -> Config:
    """Built by hand, since a configuration that is loaded takes in the environment, which may name another cluster."""
    status = cluster.status()
    return Config.model_construct(
        catalog=SecretStr(status["catalog"]["conninfo"]),
        shards={shard["name"]: SecretStr(shard["conninfo"]) for shard in status["shards"]},
        slots=status["slots"],
    )


def _delete(screen: Screen, cluster: DevCluster) -> None:
    folder = cluster.folder.path
    try:
        with screen.working("stopping and deleting the cluster"):
            cluster.down(delete=True)
            shutil.rmtree(folder, ignore_errors=True)
    except DevClusterError:
        say(f"{folder} could not be deleted: `graphd dev down --delete --data {folder}` tries again")
        raise


def _tell_how_to_reach(screen: Screen, cluster: DevCluster, people: People | None) -> None:
    data = cluster.folder.path
    try:
        status = cluster.status()
    except DevClusterError:
        say(f"what there is of the cluster is left in {data}: `graphd dev down --delete --data {data}` deletes it")
        return
    graphd = _command()
    screen.chapter("It goes on running")
    screen.lines(
        f"router    {status['router']} (gRPC, with reflection)",
        f"metrics   http://{status['metrics']}/metrics",
        *(f"{shard['name']:<8}  psql '{shard['conninfo']}'" for shard in status["shards"]),
        "",
        *([] if people is None else [f"{graphd} list followers {people.cy} --data {data}"]),
        f"{graphd} topology --data {data}",
        f"{graphd} dev status --data {data}",
        f"{graphd} dev down --delete --data {data}     # when you have seen enough",
    )


def _command() -> str:
    """What the reader can type. With its path: try.sh finds the command, which the reader's shell need not."""
    beside = Path(sys.executable).parent / "graphd"
    return str(beside) if beside.exists() else "graphd"


def _conclude(screen: Screen, took_s: float) -> int:
    screen.gap()
    if not screen.failed:
        screen.lines(f"All {screen.passed} checks passed, in {took_s:.0f} s.")
        return 0
    screen.lines(f"{len(screen.failed)} of {screen.passed + len(screen.failed)} checks FAILED:", *screen.failed)
    return 1
