"""The composition root: everything a router consists of is made here, started in order, and stopped in the reverse order."""

from __future__ import annotations

import asyncio
import gc
import signal
from typing import Any, Final

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from graphd import placement
from graphd.clock import HybridClock
from graphd.config import Config, RouterConfig
from graphd.errors import ConfigError, StartError
from graphd.observe import Observer, split_listen
from graphd.storage.cluster import Cluster
from graphd.storage.shard import Shard, ShardSettings
from graphd.v1 import admin_pb2, graph_pb2
from router import transport
from router.admin import AdminService
from router.admission import Admission
from router.codec import Checker
from router.lifecycle import Lifecycle
from router.metrics import RouterMetrics
from router.reads import Reader
from router.service import GraphService, Wrapper
from router.setreads import SetReader
from router.suspensions import KnownSuspensions
from router.watch import Watcher
from router.writes import Writer

log = structlog.get_logger()

MAX_REQUEST_BYTES: Final = 20 * 1024 * 1024
"""16 operands of 100,000 ids are 15 MB. What is larger is refused by the transport."""

LOOPBACK: Final = ("127.", "localhost", "::1")

_OPTIONS: Final[tuple[tuple[str, Any], ...]] = (
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    # Our client pings every 30 s, also when idle; less than 10 s between pings is abuse.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
)


class Router:
    """One serving process. `share_port`: other workers listen on the same port."""

    def __init__(self, config: Config, *, worker: int = 0, share_port: bool = False) -> None:
        self._config, self._worker, self._share_port = config, worker, share_port
        settings = config.router
        self._admission = Admission(settings.max_calls_per_shard)
        self._metrics = RouterMetrics(self._admission)
        self._health = health.aio.HealthServicer()
        self._cluster: Cluster | None = None
        self._writer: Writer | None = None
        self._watcher: Watcher | None = None
        self._lifecycle: Lifecycle | None = None
        self._suspensions: KnownSuspensions | None = None
        self._servers: list[transport.AnyServer] = []
        self._observer: Observer | None = None
        self._ready = False
        self._health_tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then finish what is under way. Raises StartError."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        await self.start()
        await stop.wait()
        await self.stop()

    async def start(self) -> None:
        """Connect and listen. Raises ConfigError, StartError or CatalogUnavailableError."""
        placement.check_golden()
        settings = self._config.router
        # Before anything is connected: what is wrong with the configuration is said whatever else is wrong.
        credentials = _credentials(settings)
        host, port = split_listen(settings.metrics_listen)
        self._observer = Observer(host, port + self._worker if port else 0, (self._metrics,), lambda: self._ready)
        self._cluster = await Cluster.open(
            self._config,
            ShardSettings(
                application="graphd-router",
                write_wait_s=settings.write_wait_ms / 1000,
                read_wait_s=settings.read_wait_ms / 1000,
                lane_timeout_s=settings.lane_timeout_s,
                set_connections=settings.set_connections,
                prepare=settings.prepare,
                processes=settings.workers,
            ),
            self._admission.pressure,
        )
        self._metrics.cluster = self._cluster
        await self._watch_health(self._cluster)
        self._suspensions = KnownSuspensions(self._cluster)
        self._suspensions.start()
        self._writer = Writer(self._cluster, HybridClock(), self._admission, settings.reverse_wait_s, self._suspensions)
        await self._serve(self._cluster, self._writer, credentials)
        self._ready = True
        await self._health.set("", health_pb2.HealthCheckResponse.SERVING)
        # What was made so far lives as long as the process: the collector need not look at it again. And a call leaves few cycles
        # behind, so it need not look every 700 objects.
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 50)
        log.info("router.serving", listen=settings.listen, worker=self._worker, shards=len(self._cluster.shards))

    async def _serve(self, cluster: Cluster, writer: Writer, credentials: grpc.ServerCredentials | None) -> None:
        settings = self._config.router
        reader = Reader(cluster, self._admission, self._negative_degree)
        sets = SetReader(cluster, reader)
        wrapper = Wrapper(self._admission, self._metrics, settings.default_deadline_s)
        self._watcher = Watcher(cluster)
        self._lifecycle = Lifecycle(cluster, writer, reader)
        graph = GraphService(
            cluster,
            writer,
            reader,
            sets,
            self._watcher,
            self._lifecycle,
            Checker(settings.given_positions),
            self._admission,
            self._metrics,
        )
        public = transport.server(settings.transport, (*_OPTIONS, ("grpc.so_reuseport", int(self._share_port))))
        public.add_generic_rpc_handlers((graph.handler(wrapper),))
        self._add_standard(public, graph_pb2.DESCRIPTOR.services_by_name["GraphService"].full_name)
        self._listen(public, "listen", settings.listen, credentials)
        self._servers.append(public)
        if self._worker == 0:
            admin = transport.server(settings.transport, (*_OPTIONS, ("grpc.so_reuseport", 0)))
            admin.add_generic_rpc_handlers((AdminService(cluster).handler(wrapper),))
            self._add_standard(admin, admin_pb2.DESCRIPTOR.services_by_name["AdminService"].full_name)
            self._listen(admin, "admin_listen", settings.admin_listen, credentials)
            self._servers.append(admin)
        for server in self._servers:
            await server.start()

    def _add_standard(self, server: Any, service: str) -> None:
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        # Not `enable_server_reflection`: it would take our server for one of threads.
        names = (service, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(  # type: ignore[no-untyped-call]
            reflection.aio.ReflectionServicer(names), server
        )

    def _listen(
        self, server: transport.AnyServer, key: str, listen: str, credentials: grpc.ServerCredentials | None
    ) -> None:
        try:
            if credentials is not None:
                server.add_secure_port(listen, credentials)
            else:
                server.add_insecure_port(listen)
                if not split_listen(listen)[0].startswith(LOOPBACK):
                    log.warning("router.no_tls", key=key, listen=listen, hint="set tls_certificate and tls_key")
        except RuntimeError as error:
            tls = "" if credentials is None else ", or the TLS files are no certificate with its key"
            raise StartError(
                f"[router] {key}: cannot listen on {listen}: the port is taken or not ours{tls}"
            ) from error

    async def stop(self) -> None:
        """Say that we go, finish what is under way, disconnect."""
        log.info("router.draining")
        self._ready = False
        await self._health.enter_graceful_shutdown()
        if self._watcher is not None:
            await self._watcher.close()
        if self._lifecycle is not None:
            self._lifecycle.close()
        await asyncio.gather(*(server.stop(self._config.router.drain_s) for server in self._servers))
        if self._suspensions is not None:
            await self._suspensions.close()
        if self._writer is not None:
            await self._writer.close()
        if self._cluster is not None:
            await self._cluster.close()
        if self._observer is not None:
            self._observer.close()
        log.info("router.stopped")

    # -- health --------------------------------------------------------------------------------------------------------

    async def _watch_health(self, cluster: Cluster) -> None:
        for shard in cluster.shards.values():
            shard.changed = lambda shard=shard: self._shard_changed(shard)  # type: ignore[misc]
            await self._tell_health(shard)

    def _shard_changed(self, shard: Shard) -> None:
        task = asyncio.ensure_future(self._tell_health(shard))
        self._health_tasks.add(task)
        task.add_done_callback(self._health_tasks.discard)

    async def _tell_health(self, shard: Shard) -> None:
        response = health_pb2.HealthCheckResponse
        await self._health.set(f"graphd.shard.{shard.name}", response.SERVING if shard.up else response.NOT_SERVING)

    def _negative_degree(self, account_id: int, kind: int) -> None:
        self._metrics.negative_degrees += 1
        log.warning("degree.negative", kind=kind, hint="drift: run graphd-repair")


def _credentials(settings: RouterConfig) -> grpc.ServerCredentials | None:
    if settings.tls_certificate is None and settings.tls_key is None:
        if settings.tls_client_ca is not None:
            raise ConfigError("[router] tls_client_ca: needs tls_certificate and tls_key too")
        return None
    if settings.tls_certificate is None or settings.tls_key is None:
        raise ConfigError("[router] tls_certificate and tls_key: give both or neither")
    try:
        pair = (settings.tls_key.read_bytes(), settings.tls_certificate.read_bytes())
        ca = settings.tls_client_ca.read_bytes() if settings.tls_client_ca is not None else None
    except OSError as error:
        raise ConfigError(f"[router] TLS: cannot read {error.filename}: {error.strerror}") from error
    return grpc.ssl_server_credentials([pair], root_certificates=ca, require_client_auth=ca is not None)
