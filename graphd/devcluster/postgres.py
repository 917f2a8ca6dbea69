"""Starts and stops real Postgres servers on loopback, for dev clusters and tests.

initdb runs once per process, into a template that every new server copies; many servers start at once. A server
outlives the process that started it: whoever comes later finds it by its data folder and stops or restarts it there.

All calls block; from asyncio run them in a thread (`await asyncio.to_thread(server.start)`).
"""

import atexit
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

from graphd.devcluster import processes
from graphd.devcluster.account import Account, check_known, choose_account
from graphd.devcluster.binaries import find_bindir
from graphd.devcluster.processes import free_port

__all__ = [
    "HOST",
    "SETTINGS",
    "SUPERUSER",
    "PostgresError",
    "PostgresServer",
    "PostgresSpec",
    "find_bindir",
    "free_port",
    "running",
    "start_all",
    "stop_all",
]

SUPERUSER = "graphd"
HOST = "127.0.0.1"

# A dev cluster must behave like a real one: durable, with room for every slot's lock and for logical replication.
SETTINGS: Mapping[str, str] = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",  # a long data path would not fit into a socket's name
    "max_connections": "200",
    "max_locks_per_transaction": "1024",  # one transaction may lock every slot
    "shared_buffers": "256MB",
    "max_wal_size": "2GB",
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "wal_level": "logical",
    "max_wal_senders": "32",
    "max_replication_slots": "64",
    "max_logical_replication_workers": "32",
    "max_worker_processes": "48",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "logging_collector": "off",  # the server's stderr is the log file
    "log_line_prefix": "%m [%p] %d ",
}

_SETTINGS_FILE = "graphd.conf"
_ORPHAN_SIGNS = ("is still in use", "lock file", "terminate any old server processes")


class PostgresError(RuntimeError):
    """A server did not start or stop as asked; the text holds what its log says."""


@dataclass(frozen=True, slots=True)
class PostgresSpec:
    """One server: its data folder (made when missing), its loopback port, settings over `SETTINGS`, and its log file
    (default: server.log in the data folder)."""

    name: str
    data: Path
    port: int
    settings: Mapping[str, str] = field(default_factory=dict)
    log: Path | None = None

    @property
    def log_file(self) -> Path:
        return self.log or self.data / "server.log"


class PostgresServer:
    """A server by its data folder, whoever started it."""

    def __init__(self, spec: PostgresSpec, bindir: Path | None = None) -> None:
        self.spec = spec
        self._bindir = bindir
        self._child: subprocess.Popen[bytes] | None = None
        self._log_from = 0

    def __repr__(self) -> str:
        return f"PostgresServer({self.spec.name!r}, port={self.spec.port}, pid={self.pid})"

    @property
    def bindir(self) -> Path:
        if self._bindir is None:
            self._bindir = find_bindir()
        return self._bindir

    @property
    def pid(self) -> int | None:
        """The postmaster's process id; None when it does not run, also when the id is somebody else's by now."""
        self._reap()
        lines = self._pid_file()
        if not lines or not lines[0].isdecimal():
            return None
        pid = int(lines[0])
        if not processes.is_running(pid):
            return None
        if processes.can_tell_folders() and processes.working_folder(pid) != self.spec.data.resolve():
            return None
        return pid

    def conninfo(self, dbname: str = "postgres") -> str:
        """A superuser session on that database."""
        return make_conninfo(host=HOST, port=self.spec.port, user=SUPERUSER, dbname=dbname)

    def start(self, timeout_s: float = 60.0) -> None:
        """Returns when the server answers. Starts nothing when it runs already. Raises PostgresError."""
        self.launch()
        self.wait_ready(timeout_s)

    def launch(self) -> None:
        """Starts the postmaster (unless it runs) and does not wait for it; the data folder is made when missing."""
        if self.pid is not None:
            return
        account = choose_account(self.bindir, self._folders())
        if not (self.spec.data / "PG_VERSION").exists():
            self._create(account)
        account.own(self.spec.data)
        self._write_settings()
        self._drop_stale_pid_file()
        with open(self.spec.log_file, "ab") as log:
            self._log_from = log.tell()
            self._child = account.popen(
                [str(self.bindir / "postgres"), "-D", str(self.spec.data.resolve())],
                output=log.fileno(),
                environment=_environment(),
            )

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Waits until the server answers; starts it again while backends orphaned by a SIGKILL hold its memory."""
        deadline = time.monotonic() + timeout_s
        while not self._answers():
            if time.monotonic() >= deadline:
                raise PostgresError(f"{self.spec.name} does not answer after {timeout_s:g} s: {self._last_words()}")
            if self._child is not None and self._child.poll() is not None and self.pid is None:
                last_words = self._last_words()
                if not any(sign in last_words for sign in _ORPHAN_SIGNS):
                    raise PostgresError(f"{self.spec.name} did not start: {last_words}")
                time.sleep(0.1)
                self.launch()
            time.sleep(0.02)

    def stop(self, timeout_s: float = 60.0) -> None:
        """Fast shutdown (SIGINT): sessions end, the data is checkpointed. When the time is over SIGQUIT, from which the
        next start recovers. Returns when no process is left in the data folder; does nothing when there is none."""
        pid = self.pid
        if pid is not None:
            _send(pid, signal.SIGINT)
            if not self._gone(pid, timeout_s):
                _send(pid, signal.SIGQUIT)
                if not self._gone(pid, 10.0):
                    raise PostgresError(f"{self.spec.name} (process {pid}) does not stop: {self._last_words()}")
        if not processes.wait_for(lambda: not processes.processes_in(self.spec.data), 30.0):
            raise PostgresError(f"backends of {self.spec.name} outlive their server")

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Signals the postmaster; after SIGKILL and SIGQUIT returns when it is gone (its backends may linger)."""
        pid = self.pid
        if pid is None:
            raise PostgresError(f"{self.spec.name} does not run")
        _send(pid, number)
        if number in (signal.SIGKILL, signal.SIGQUIT) and not self._gone(pid, 30.0):
            raise PostgresError(f"{self.spec.name} (process {pid}) survives {number.name}")

    def restart(self, timeout_s: float = 60.0) -> None:
        self.stop(timeout_s)
        self.start(timeout_s)

    def _folders(self) -> list[Path]:
        self.spec.data.parent.mkdir(parents=True, exist_ok=True)
        return [self.spec.data.parent.resolve(), Path(tempfile.gettempdir())]

    def _create(self, account: Account) -> None:
        """Copies the template next to the data folder, then moves it there: half a copy is never taken for data."""
        template = _template(self.bindir, account)
        data = self.spec.data
        unfinished = data.with_name(f".{data.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        copy = ["cp", "-a", "--reflink=auto"] if sys.platform == "linux" else ["cp", "-a"]
        _run([*copy, str(template), str(unfinished)])
        try:
            data.rmdir()  # an empty folder made by the caller
        except FileNotFoundError:
            pass
        except OSError as fault:
            raise PostgresError(f"{data} holds something that is no Postgres data; it is left as it is") from fault
        unfinished.rename(data)

    def _write_settings(self) -> None:
        """Written at each start: a server keeps its port and gets new settings; ALTER SYSTEM stands above them."""
        settings = {**SETTINGS, "port": str(self.spec.port), **self.spec.settings}
        lines = [f"{name} = '{value.replace(chr(39), chr(39) * 2)}'\n" for name, value in settings.items()]
        path = self.spec.data / _SETTINGS_FILE
        path.write_text("".join(lines))
        path.chmod(0o644)  # root writes it, another user reads it, whatever the umask

    def _pid_file(self) -> list[str]:
        try:
            return (self.spec.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return []

    def _drop_stale_pid_file(self) -> None:
        """After a crash the id in the file may belong to another server by now (or to a zombie), and Postgres would
        refuse to start. With no process at work in the folder nobody holds its memory, so the file is of no use."""
        if processes.can_tell_folders() and not processes.processes_in(self.spec.data):
            (self.spec.data / "postmaster.pid").unlink(missing_ok=True)

    def _answers(self) -> bool:
        # The pid file's eighth line tells that this server is ready, where a connection alone might reach another one.
        if self.pid is None or self._pid_file()[7:8] not in (["ready   "], ["ready"]):
            return False
        try:
            with psycopg.connect(self.conninfo(), connect_timeout=2, autocommit=True) as connection:
                connection.execute("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def _gone(self, pid: int, timeout_s: float) -> bool:
        def ended() -> bool:
            self._reap()
            return not processes.is_running(pid)

        return processes.wait_for(ended, timeout_s)

    def _reap(self) -> None:
        """Collects our own child when it has ended: Postgres would take the zombie for a running server."""
        if self._child is not None:
            self._child.poll()

    def _last_words(self) -> str:
        """What the server wrote since its last start, the fatal lines if there are any."""
        try:
            with open(self.spec.log_file, "rb") as log:
                log.seek(self._log_from)
                lines = log.read(64_000).decode(errors="replace").splitlines()
        except FileNotFoundError:
            return "it wrote no log"
        telling = [line for line in lines if any(word in line for word in ("FATAL", "PANIC", "HINT", "could not"))]
        return " / ".join((telling or lines)[-4:]) or f"see {self.spec.log_file}"


def start_all(servers: Iterable[PostgresServer], timeout_s: float = 60.0) -> None:
    """Starts them side by side. When one fails the others stay as they are, and its error is raised."""
    _each(servers, lambda server: server.start(timeout_s))


def stop_all(servers: Iterable[PostgresServer], timeout_s: float = 60.0) -> None:
    """Stops all of them side by side, also when one of them fails; then raises its error."""
    _each(servers, lambda server: server.stop(timeout_s))


@contextlib.contextmanager
def running(servers: Iterable[PostgresServer]) -> Iterator[list[PostgresServer]]:
    """The servers started, and stopped at the end whatever happens."""
    servers = list(servers)
    try:
        start_all(servers)
        yield servers
    finally:
        stop_all(servers)


def _each(servers: Iterable[PostgresServer], act: Callable[[PostgresServer], None]) -> None:
    servers = list(servers)
    with ThreadPoolExecutor(max_workers=max(1, len(servers))) as pool:
        futures = [pool.submit(act, server) for server in servers]
        # Here, and not in the pool's exit, is where a signal interrupts: the exit then still waits for the threads, so that whoever
        # cleans up finds all that they started.
        wait(futures)
    for future in futures:
        future.result()


_template_lock = threading.Lock()
_templates: dict[tuple[Path, Account], Path] = {}


def _template(bindir: Path, account: Account) -> Path:
    """A data folder fresh from initdb, made once per process and removed at its end."""
    with _template_lock:
        if (bindir, account) not in _templates:
            _templates[bindir, account] = _make_template(bindir, account)
        return _templates[bindir, account]


def _make_template(bindir: Path, account: Account) -> Path:
    check_known()
    base = Path(tempfile.mkdtemp(prefix="graphd-template-"))
    atexit.register(shutil.rmtree, base, ignore_errors=True)
    account.own(base)
    template, log_path = base / "data", base / "initdb.log"
    with open(log_path, "wb") as log:
        initdb = account.popen(
            [
                *(str(bindir / "initdb"), "-D", str(template), "-U", SUPERUSER, "-A", "trust", "-E", "UTF8"),
                *("--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"),
                *("--no-sync", "--no-instructions"),
            ],
            output=log.fileno(),
            environment=_environment(),
        )
        if initdb.wait(timeout=120) != 0:
            raise PostgresError(f"initdb failed: {log_path.read_text(errors='replace')[-2000:]}")
    with open(template / "postgresql.conf", "a") as conf:
        conf.write(f"\ninclude_if_exists = '{_SETTINGS_FILE}'\n")
    return template


def _environment() -> dict[str, str]:
    """Ours without PGPORT, PGDATA and the like, which would overrule the settings; one locale, whoever calls."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
    return {**kept, "LC_ALL": "C"}


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _run(command: list[str]) -> None:
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    if outcome.returncode != 0:
        raise PostgresError(f"{command[0]} failed: {outcome.stderr.strip()[-500:]}")
