"""What `graphd dev` refuses leaves no trace: neither a folder, nor a lock in one."""

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from graphd.devcluster.cluster import DevCluster
from graphd.devcluster.folder import Folder
from graphd.devcluster.plan import DevClusterError, MisuseError, Options


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def everything_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize(
    "options", [Options(shards=0), Options(slots=63), Options(slots=2), Options(port=-1), Options(workers=0)]
)
def test_impossible_options_make_no_folder(options: Options, tmp_path: Path) -> None:
    with pytest.raises(MisuseError):
        DevCluster(tmp_path / "new" / "dev").up(options)
    assert everything_in(tmp_path) == []


def test_a_taken_port_makes_no_folder(taken_port: int, tmp_path: Path) -> None:
    with pytest.raises(DevClusterError, match=rf"port {taken_port} is taken"):
        DevCluster(tmp_path / "dev").up(Options(port=taken_port))
    assert everything_in(tmp_path) == []


def test_a_folder_of_other_files_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    cluster = DevCluster(tmp_path)
    with pytest.raises(DevClusterError, match=r"holds other files \(thesis.txt\)"):
        cluster.up(Options(port=0))
    assert not cluster.down()
    assert not cluster.down(delete=True)
    assert everything_in(tmp_path) == ["thesis.txt"]


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    path = tmp_path / "thesis.txt"
    path.write_text("years of work")
    with pytest.raises(DevClusterError, match="Not a directory"):
        DevCluster(path).up(Options(port=0))
    assert path.read_text() == "years of work"


def test_what_cannot_be_deleted_is_named_and_the_cluster_still_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(path: Path) -> None:
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(path))

    (tmp_path / "state.json").touch()
    monkeypatch.setattr("shutil.rmtree", busy)
    with pytest.raises(DevClusterError, match=rf"cannot delete {tmp_path}/shards: Directory not empty"):
        Folder(tmp_path).delete()
    assert everything_in(tmp_path) == ["state.json"]


def test_asking_for_a_cluster_that_is_not_there_makes_none(tmp_path: Path) -> None:
    cluster = DevCluster(tmp_path / "dev")
    assert not cluster.down(delete=True)
    for question in (cluster.status, cluster.logs):
        with pytest.raises(DevClusterError, match="there is no dev cluster"):
            question()
    assert everything_in(tmp_path) == []
