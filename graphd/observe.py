"""The HTTP side of a process: /metrics for Prometheus, /livez and /readyz for whoever restarts it and routes to it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from graphd.errors import StartError


class Observer:
    """Serves on a thread of its own, so that it answers while the event loop is busy.

    `ready` and `alive` are asked at each request; both must be safe to call from another thread.
    """

    def __init__(
        self,
        host: str,
        port: int,
        collectors: Iterable[Collector],
        ready: Callable[[], bool],
        alive: Callable[[], bool] = lambda: True,
    ) -> None:
        registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)
        for collector in collectors:
            registry.register(collector)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                if path == "/metrics":
                    self._answer(200, generate_latest(registry), CONTENT_TYPE_LATEST)
                elif path == "/livez":
                    self._say(alive())
                elif path == "/readyz":
                    self._say(ready())
                else:
                    self._answer(404, b"not found: /metrics, /livez, /readyz\n", "text/plain")

            def _say(self, well: bool) -> None:
                self._answer(200 if well else 503, b"ok\n" if well else b"not ready\n", "text/plain")

            def _answer(self, code: int, body: bytes, content_type: str) -> None:
                self.send_response(code)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
                return

        try:
            self._server = ThreadingHTTPServer((host, port), Handler)
        except OSError as error:
            raise StartError(f"metrics_listen: cannot listen on port {port}: {error.strerror}") from error
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="observe", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def split_listen(listen: str) -> tuple[str, int]:
    """`host:port` as (host, port); brackets of an IPv6 address taken off."""
    host, _, port = listen.rpartition(":")
    return host.strip("[]"), int(port)
