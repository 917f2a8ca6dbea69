"""A whole cluster on one machine, in one folder: `up` brings up whatever is missing and leaves the rest alone, `down`
stops it and keeps the data, `status` tells where everything is.

All calls block, and may be made from any process: nothing about the cluster is known but what its folder says.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from graphd.config import Config
from graphd.devcluster import processes
from graphd.devcluster.account import NoAccountError
from graphd.devcluster.binaries import PostgresNotFoundError
from graphd.devcluster.folder import Folder, State, default_data
from graphd.devcluster.plan import DevClusterError, MisuseError, Options, Plan
from graphd.devcluster.postgres import HOST, PostgresError, PostgresServer, PostgresSpec, start_all, stop_all
from graphd.devcluster.services import Service, ServiceError
from graphd.errors import StartError
from graphd.storage import migrate

__all__ = [
    "CATALOG_DATABASE",
    "SHARD_DATABASE",
    "DevCluster",
    "DevClusterError",
    "MisuseError",
    "Options",
    "default_data",
]

SHARD_DATABASE = "graphd"
CATALOG_DATABASE = "graphd_catalog"
_DRAIN_S = 10.0  # what a router takes at most to finish its calls, by default
_STUCK_S = 10.0  # a process that runs, but does not serve for so long, is started anew


class DevCluster:
    """The cluster in this folder, whether it runs, stands still or is yet to be made."""

    def __init__(self, data: Path | None = None) -> None:
        self.folder = Folder(data or default_data())
        self._servers: dict[str, PostgresServer] = {}

    @property
    def config(self) -> Path:
        """The configuration file that routers, repair and commands read."""
        return self.folder.config

    def exists(self) -> bool:
        return self.folder.read() is not None

    def server(self, shard: str) -> PostgresServer:
        """The shard's Postgres, to be stopped, killed or started on its own."""
        return self._server(self._state().plan, shard)

    def up(
        self, options: Options | None = None, *, timeout_s: float = 60.0, say: Callable[[str], None] = lambda text: None
    ) -> list[str]:
        """Returns when everything serves, and what it had to start for that. `say` is told about each step.

        Raises MisuseError for options that contradict the cluster there is, DevClusterError for all that goes wrong;
        what runs by then goes on running, and the next `up` continues.
        """
        options = options or Options()
        options.check()
        if not self.exists():
            # What is refused leaves nothing behind, neither the lock nor the folder; so look before the lock is made.
            self.folder.check()
            self._planned(options)
        with self.folder.locked():
            self.folder.check()
            state = self._planned(options)
            # Written down before anything starts: an `up` cut short is continued on the same ports.
            self.folder.prepare()
            self.folder.write(state)
            try:
                return self._up(state, timeout_s, say)
            except (PostgresError, PostgresNotFoundError, NoAccountError, ServiceError, StartError) as fault:
                raise DevClusterError(str(fault)) from fault

    def down(self, *, delete: bool = False, say: Callable[[str], None] = lambda text: None) -> bool:
        """Stops everything; the data stays unless `delete`. False when there is no cluster."""
        if not self.exists():
            return False
        with self.folder.locked():
            state = self.folder.read()
            if state is None:  # another command deleted it while we waited for the lock
                return False
            try:
                for service in reversed(self._services(state.plan)):
                    process = state.processes.get(service.name)
                    if process is not None and process.members():
                        say(f"stopping {service.name}")
                        service.stop(process, _DRAIN_S + 5.0)
                say("stopping Postgres")
                stop_all(self._server(state.plan, name) for name in state.plan.shards)
            except (PostgresError, ServiceError) as fault:
                raise DevClusterError(str(fault)) from fault
            self.folder.write(replace(state, processes={}))
            if delete:
                self.folder.delete()
        return True

    def status(self) -> dict[str, Any]:
        """Addresses, process ids (None: does not run) and conninfos, as `graphd dev status --json` prints them."""
        state = self._state()
        ports = state.plan.ports
        router, repair = (state.processes.get(name) for name in ("router", "repair"))
        shards = [
            {
                "name": name,
                "conninfo": server.conninfo(SHARD_DATABASE),
                "pid": server.pid,
                "data": str(server.spec.data),
            }
            for name in state.plan.shards
            for server in [self._server(state.plan, name)]
        ]
        workers: list[int] = []
        if router is not None and router.is_running():
            # With several workers the process started first is their supervisor, and serves nothing itself.
            workers = router.children("--worker") if state.plan.workers > 1 else [router.pid]
        repair_pid = repair.pid if repair and repair.is_running() else None
        return {
            "router": f"{HOST}:{ports.router}",
            "admin": f"{HOST}:{ports.admin}",
            "metrics": f"{HOST}:{ports.metrics}",
            "routers": [{"pid": pid} for pid in workers],
            "repair": {
                "pid": repair_pid,
                "enabled": state.plan.repair,
                "metrics": f"{HOST}:{ports.repair}",
            },
            "catalog": {"conninfo": self._server(state.plan, state.plan.first_shard).conninfo(CATALOG_DATABASE)},
            "shards": shards,
            "slots": state.plan.slots,
            "data": str(self.folder.path),
            "config": str(self.config),
            "running": len(workers) == state.plan.workers
            and all(shard["pid"] for shard in shards)
            and (repair_pid is not None or not state.plan.repair),
        }

    def logs(self) -> dict[str, Path]:
        """The log files by name: router, repair, and each shard."""
        plan = self._state().plan
        names = [service.name for service in self._services(plan)] + plan.shards
        return {name: self.folder.log(name) for name in names}

    def _state(self) -> State:
        state = self.folder.read()
        if state is None:
            raise DevClusterError(f"there is no dev cluster in {self.folder.path}: start one with `graphd dev up`")
        return state

    def _planned(self, options: Options) -> State:
        """What is to run. Raises MisuseError and, for a port that is taken, DevClusterError; changes nothing."""
        state = self.folder.read()
        if state is None:
            state = State(Plan.new(options))
        else:
            running = self._anything_runs(state)
            plan = state.plan.settle(options, running=running)
            if not running:
                plan = plan.with_free_ports({port for port in plan.other_ports() if not processes.port_is_free(port)})
            state = replace(state, plan=plan)
        process = state.processes.get("router")
        if not (process and process.members()) and not processes.port_is_free(state.plan.ports.router):
            raise DevClusterError(
                f"port {state.plan.ports.router} is taken by another program (perhaps another dev cluster): "
                f"stop that program, or choose another port with --port"
            )
        return state

    def _anything_runs(self, state: State) -> bool:
        servers = (self._server(state.plan, name) for name in state.plan.shards)
        return any(process.members() for process in state.processes.values()) or any(server.pid for server in servers)

    def _up(self, state: State, timeout_s: float, say: Callable[[str], None]) -> list[str]:
        plan = state.plan
        servers = {name: self._server(plan, name) for name in plan.shards}
        self.folder.write_config(_config_text(plan, servers))
        started = [name for name, server in servers.items() if server.pid is None]
        if state.initialised:
            self._check_data(servers)
        if started:
            say(f"starting Postgres for {', '.join(started)}")
        start_all(servers.values(), timeout_s)
        if started or not state.initialised:
            _initialise(plan, servers)
            state = replace(state, initialised=True)
            self.folder.write(state)
        services = self._services(plan)
        missing = [service for service in services if not self._runs_well(state, service)]
        for service in missing:
            say(f"starting {service.name}")
            state = self._start_service(state, service)
        for service in missing:
            service.wait_serving(state.processes[service.name], timeout_s)
        return started + [service.name for service in missing]

    def _runs_well(self, state: State, service: Service) -> bool:
        """Whether it runs and serves, for which one that is busy gets some time."""
        process = state.processes.get(service.name)
        if process is None or not process.is_running():
            return False
        try:
            service.wait_serving(process, _STUCK_S)
        except ServiceError:
            return False
        return True

    def _start_service(self, state: State, service: Service) -> State:
        process = state.processes.get(service.name)
        if process is not None and process.members():
            # It is stuck, or its workers outlived it: they hold the port, and nobody watches over them.
            service.stop(process, 1.0)
        state = replace(state, processes={**state.processes, service.name: service.spawn()})
        self.folder.write(state)
        return state

    def _check_data(self, servers: Mapping[str, PostgresServer]) -> None:
        for name, server in servers.items():
            if not (server.spec.data / "PG_VERSION").exists():
                raise DevClusterError(
                    f"shard {name} has lost its data: {server.spec.data} is gone. Put it back, or delete the whole "
                    f"cluster with `graphd dev down --delete`"
                )

    def _server(self, plan: Plan, name: str) -> PostgresServer:
        if name not in plan.ports.shards:
            raise DevClusterError(f"there is no shard {name}: the shards are {', '.join(plan.shards)}")
        spec = PostgresSpec(
            name,
            self.folder.shard_data(name),
            plan.ports.shards[name],
            {
                # One transaction may lock every slot, and each worker has its connections on every server.
                "max_locks_per_transaction": str(max(1024, plan.slots)),
                "max_connections": str(max(200, 40 + 20 * plan.workers)),
                **plan.postgres_settings,
            },
            self.folder.log(name),
        )
        # The same object as before, which alone can collect its child when that has ended.
        if name not in self._servers or self._servers[name].spec != spec:
            self._servers[name] = PostgresServer(spec)
        return self._servers[name]

    def _services(self, plan: Plan) -> list[Service]:
        """In the order in which they start."""
        ports = plan.ports
        arguments = ("--config", str(self.config))
        metrics = tuple(range(ports.metrics, ports.metrics + plan.workers))
        router = Service("router", "router", arguments, self.folder.log("router"), (ports.router, ports.admin), metrics)
        repair = Service("repair", "repair", ("run", *arguments), self.folder.log("repair"), (), (ports.repair,))
        return [router, repair] if plan.repair else [router]


def _config_text(plan: Plan, servers: Mapping[str, PostgresServer]) -> str:
    """The configuration as TOML. Its strings are written as JSON strings, which TOML reads the same way."""
    ports = plan.ports
    sections: dict[str, Mapping[str, Any]] = {
        "shards": {name: server.conninfo(SHARD_DATABASE) for name, server in servers.items()},
        "router": {
            **plan.router_settings,
            "listen": f"{HOST}:{ports.router}",
            "admin_listen": f"{HOST}:{ports.admin}",
            "metrics_listen": f"{HOST}:{ports.metrics}",
            "workers": plan.workers,
        },
        "repair": {**plan.repair_settings, "metrics_listen": f"{HOST}:{ports.repair}"},
    }
    catalog = servers[plan.first_shard].conninfo(CATALOG_DATABASE)
    lines = [
        "# Written anew by every `graphd dev up`. To try another value set its variable, for example",
        "# GRAPHD_ROUTER__WRITE_WAIT_MS=2, before `graphd dev up` starts the router.",
        f"catalog = {_toml(catalog)}",
        f"slots = {plan.slots}",
    ]
    for section, values in sections.items():
        lines += ["", f"[{section}]", *(f"{key} = {_toml(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _initialise(plan: Plan, servers: Mapping[str, PostgresServer]) -> None:
    """Databases, schemas, catalog and slots, or what is missing of them."""
    # Built by hand, since a configuration that is loaded takes in the environment, which may name another cluster.
    config = Config.model_construct(
        catalog=SecretStr(servers[plan.first_shard].conninfo(CATALOG_DATABASE)),
        shards={name: SecretStr(server.conninfo(SHARD_DATABASE)) for name, server in servers.items()},
        slots=plan.slots,
    )
    # In a thread of its own, so that a caller with a running event loop does no harm.
    with ThreadPoolExecutor(max_workers=1) as pool:
        pool.submit(lambda: asyncio.run(migrate.init(config))).result()
