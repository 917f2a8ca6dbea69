"""The folder of a dev cluster: where each thing lies, what is remembered between two commands, and the lock that lets
only one command at a time change it.

    state.json          the plan, and the processes started last
    config.toml         what router, repair and commands read
    shards/NAME/data    a Postgres data folder
    logs/NAME.log       router, repair, and each shard
"""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from graphd.devcluster.plan import DevClusterError, MisuseError, Plan
from graphd.devcluster.services import Process

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class State:
    plan: Plan
    processes: Mapping[str, Process] = field(default_factory=dict)
    """Router and repair by name, as last started. Postgres servers are found by their data folders."""
    initialised: bool = False
    """Whether the databases were made; from then on a missing data folder is a loss, not a beginning."""


def default_data() -> Path:
    """$GRAPHD_DATA, else graphd/dev in $XDG_DATA_HOME or ~/.local/share."""
    named = os.environ.get("GRAPHD_DATA")
    if named:
        return Path(named)
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "graphd" / "dev"


class Folder:
    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    @property
    def config(self) -> Path:
        return self.path / "config.toml"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def shard_data(self, name: str) -> Path:
        return self.path / "shards" / name / "data"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Waits for another command on the same folder to finish. The folder is made when missing.

        Processes started meanwhile do not inherit the lock.
        """
        while True:
            with self._open_lock() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if self._is_current(lock):
                    yield
                    return

    def check(self) -> None:
        """Raises MisuseError for a folder of strange files: they may be somebody's."""
        if self.read() is None and (strange := self._strangers()):
            raise MisuseError(
                f"{self.path} holds other files ({', '.join(strange[:3])}): take an empty folder with --data"
            )

    def prepare(self) -> None:
        """Makes what the processes write into."""
        self.logs.mkdir(exist_ok=True)
        (self.path / "shards").mkdir(exist_ok=True)

    def read(self) -> State | None:
        """What is remembered; None where there is no cluster."""
        path = self.path / "state.json"
        try:
            value = json.loads(path.read_text())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as fault:
            raise DevClusterError(f"cannot read {path}: {fault}") from fault
        if value.get("format") != _FORMAT:
            raise DevClusterError(f"{path} was written by another release of graphd: take another folder with --data")
        processes = {name: Process(**process) for name, process in value["processes"].items()}
        return State(Plan.from_json(value["plan"]), processes, value["initialised"])

    def write(self, state: State) -> None:
        """In one step: whoever reads sees the old or the new state."""
        processes = {name: asdict(process) for name, process in state.processes.items()}
        value: dict[str, Any] = {
            "format": _FORMAT,
            "plan": state.plan.as_json(),
            "processes": processes,
            "initialised": state.initialised,
        }
        self._replace(self.path / "state.json", json.dumps(value, indent=2) + "\n")

    def write_config(self, text: str) -> None:
        self._replace(self.config, text)

    def delete(self) -> None:
        """Deletes what belongs to the cluster, and the folder when nothing else is in it. Raises DevClusterError; a deletion cut
        short can be repeated."""
        try:
            for name in ("shards", "logs"):
                with contextlib.suppress(FileNotFoundError):
                    shutil.rmtree(self.path / name)
            # By state.json the cluster is known, so it goes last but the lock.
            for name in ("config.toml", "state.json", "lock"):
                (self.path / name).unlink(missing_ok=True)
            if not any(self.path.iterdir()):
                self.path.rmdir()
        except OSError as fault:
            raise DevClusterError(f"cannot delete {fault.filename or self.path}: {fault.strerror}") from fault

    def _open_lock(self) -> IO[str]:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            return open(self.path / "lock", "w")
        except OSError as fault:
            raise DevClusterError(f"cannot write to {self.path}: {fault.strerror}") from fault

    def _is_current(self, lock: IO[str]) -> bool:
        """Whether others will find the same lock: the folder may have been deleted while we waited for it."""
        try:
            return os.path.samestat(os.fstat(lock.fileno()), (self.path / "lock").stat())
        except FileNotFoundError:
            return False

    def _strangers(self) -> list[str]:
        ours = {"lock", "state.json", "state.json.new", "config.toml", "config.toml.new", "shards", "logs"}
        try:
            return sorted(entry.name for entry in self.path.iterdir() if entry.name not in ours)
        except FileNotFoundError:
            return []
        except OSError as fault:
            raise DevClusterError(f"cannot read {self.path}: {fault.strerror}") from fault

    def _replace(self, path: Path, text: str) -> None:
        unfinished = path.with_name(f"{path.name}.new")
        with open(unfinished, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(path)
