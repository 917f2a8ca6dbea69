"""What a dev cluster is: its constants and ports, what a caller asked for, and whether the two go together. Pure, but
for the choice of free ports.

Constants hold for ever, since rows are placed by them. The port, the workers and whether there is a repair daemon may
change, but only while the whole cluster is down: a running process does not hear of it.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self, TypeVar

from graphd.devcluster.processes import free_port
from graphd.limits import MAX_SLOTS

T = TypeVar("T")

DEFAULT_SHARDS = 3
DEFAULT_SLOTS = 64
DEFAULT_PORT = 7600
MAX_SHARDS = 16
MAX_WORKERS = 64


class DevClusterError(RuntimeError):
    """The cluster cannot be brought up or down; the text says why and what to do."""


class MisuseError(DevClusterError):
    """What was asked for makes no sense, or contradicts the cluster that is there (exit status 2)."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the caller asked for; None: as the cluster has it, else the default. Port 0: a free one.

    `router` and `repair_settings` are keys of [router] and [repair], `postgres` is settings of every server.
    """

    shards: int | None = None
    slots: int | None = None
    port: int | None = None
    workers: int | None = None
    repair: bool | None = None
    router: Mapping[str, Any] | None = None
    repair_settings: Mapping[str, Any] | None = None
    postgres: Mapping[str, str] | None = None

    def check(self) -> None:
        """Raises MisuseError for a value that no cluster can have."""
        bounds = {
            "--shards": (self.shards, 1, MAX_SHARDS),
            "--workers": (self.workers, 1, MAX_WORKERS),
            "--port": (self.port, 0, 65_535),
            "--slots": (self.slots, 1, MAX_SLOTS),
        }
        for name, (value, least, most) in bounds.items():
            if value is not None and not least <= value <= most:
                raise MisuseError(f"{name} {value}: must be {least} to {most}")
        if self.slots is not None and self.slots & (self.slots - 1):
            raise MisuseError(f"--slots {self.slots}: must be a power of two, such as 64")


@dataclass(frozen=True, slots=True)
class Ports:
    """All on loopback. Worker i serves metrics on `metrics` + i; `shards` by name."""

    router: int
    admin: int
    metrics: int
    repair: int
    shards: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Plan:
    slots: int
    workers: int
    repair: bool
    ports: Ports
    router_settings: Mapping[str, Any] = field(default_factory=dict)
    repair_settings: Mapping[str, Any] = field(default_factory=dict)
    postgres_settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def shards(self) -> list[str]:
        return list(self.ports.shards)

    @property
    def first_shard(self) -> str:
        """The shard whose server also holds the catalog."""
        return self.shards[0]

    @classmethod
    def new(cls, options: Options) -> Self:
        options.check()
        shards = DEFAULT_SHARDS if options.shards is None else options.shards
        slots = DEFAULT_SLOTS if options.slots is None else options.slots
        workers = 1 if options.workers is None else options.workers
        if slots < shards:
            raise MisuseError(f"--slots {slots} is fewer than the {shards} shards: every shard needs one")
        port = DEFAULT_PORT if options.port is None else options.port
        return cls(
            slots=slots,
            workers=workers,
            repair=options.repair is not False,
            ports=_choose_ports(port, [f"s{number}" for number in range(1, shards + 1)], workers),
            router_settings=dict(options.router or {}),
            repair_settings=dict(options.repair_settings or {}),
            postgres_settings=dict(options.postgres or {}),
        )

    def settle(self, options: Options, *, running: bool) -> Self:
        """This plan with the options taken in. Raises MisuseError where they contradict it."""
        options.check()
        _agree("--shards", options.shards, len(self.shards))
        _agree("--slots", options.slots, self.slots)
        port = options.port or self.ports.router  # 0, a free one, is content with the one there is
        wanted = replace(
            self,
            workers=_or(options.workers, self.workers),
            repair=_or(options.repair, self.repair),
            ports=replace(self.ports, router=port),
            router_settings=_or(options.router, self.router_settings),
            repair_settings=_or(options.repair_settings, self.repair_settings),
            postgres_settings=_or(options.postgres, self.postgres_settings),
        )
        if running and wanted != self:
            raise MisuseError(
                f"the cluster runs already, with port {self.ports.router}, workers {self.workers}, repair "
                f"{'on' if self.repair else 'off'}: leave options that say otherwise out, or stop it first with "
                f"`graphd dev down`"
            )
        if wanted.workers > self.workers:
            metrics = free_port(wanted.workers, avoid=_all(self.ports, self.workers) | {port})
            wanted = replace(wanted, ports=replace(wanted.ports, metrics=metrics))
        return wanted

    def with_free_ports(self, taken: set[int]) -> Self:
        """The same cluster, with other ports in place of those that strangers took. The router's own port stays."""
        ports = self.ports
        if taken & set(range(ports.metrics, ports.metrics + self.workers)):
            ports = replace(ports, metrics=free_port(self.workers, avoid=_all(ports, self.workers)))
        if ports.admin in taken:
            ports = replace(ports, admin=free_port(avoid=_all(ports, self.workers)))
        if ports.repair in taken:
            ports = replace(ports, repair=free_port(avoid=_all(ports, self.workers)))
        shards = {
            name: free_port(avoid=_all(ports, self.workers)) if port in taken else port
            for name, port in ports.shards.items()
        }
        return replace(self, ports=replace(ports, shards=shards))

    def other_ports(self) -> set[int]:
        """All of its ports but the router's."""
        return _all(self.ports, self.workers) - {self.ports.router}

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        return cls(**{**value, "ports": Ports(**value["ports"])})


def _choose_ports(port: int, shards: list[str], workers: int) -> Ports:
    port = port or free_port()
    return Ports(
        router=port,
        admin=free_port(avoid={port}),
        metrics=free_port(workers, avoid={port}),
        repair=free_port(avoid={port}),
        shards={name: free_port(avoid={port}) for name in shards},
    )


def _all(ports: Ports, workers: int) -> set[int]:
    metrics = range(ports.metrics, ports.metrics + workers)
    return {ports.router, ports.admin, ports.repair, *metrics, *ports.shards.values()}


def _or(wanted: T | None, is_now: T) -> T:
    return is_now if wanted is None else wanted


def _agree(option: str, wanted: int | None, is_now: int) -> None:
    if wanted is not None and wanted != is_now:
        raise MisuseError(
            f"{option} {wanted} contradicts the cluster that is there, which has {is_now}: leave the option out, take "
            f"another folder with --data, or delete this cluster with `graphd dev down --delete`"
        )
