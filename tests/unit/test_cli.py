"""The commands without a cluster: how one is found, what is refused, and how fast help is there."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType

import pytest
import typer
from typer.testing import CliRunner, Result

from graphd.cli import main
from graphd.cli.app import app
from graphd.cli.common import MisuseError, account, find_config, moment, reachable
from graphd.client import KindInfo, ShardInfo, TopologyInfo
from graphd.config import RouterConfig
from graphd.devcluster.plan import DevClusterError
from graphd.devcluster.processes import free_port
from repair import __main__ as repair
from router import __main__ as router

COMMANDS = [
    ["edge", "get"],
    ["edge", "follow"],
    ["edge", "unfollow"],
    ["list", "followers"],
    ["list", "following"],
    ["degrees"],
    ["where"],
    ["topology"],
    ["account", "archive"],
    ["account", "restore"],
    ["account", "remove"],
    ["kind", "add"],
    ["kind", "set"],
    ["kind", "list"],
    ["init"],
    ["migrate"],
    ["config", "check"],
]
SECRET = "hunter2"
MOST_MODULES = 330
"""Loaded by a command that shows its help: some 280, nearly all of the standard library and typer."""


def graphd(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env=dict(environment))


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GRAPHD_CONFIG", raising=False)
    monkeypatch.setenv("GRAPHD_DATA", str(tmp_path / "nothing"))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration whose servers and routers are not there."""
    ports = [free_port() for _ in range(4)]
    path = tmp_path / "graphd.toml"
    path.write_text(
        f'catalog = "host=127.0.0.1 port={ports[0]} user=ada password={SECRET} dbname=catalog"\n'
        f'[shards]\ns1 = "host=127.0.0.1 port={ports[0]} user=ada password={SECRET} dbname=graphd"\n'
        f'[router]\nlisten = "127.0.0.1:{ports[1]}"\nadmin_listen = "127.0.0.1:{ports[2]}"\n'
        f'metrics_listen = "127.0.0.1:{ports[3]}"\n'
    )
    return path


# Help and version


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_examples(command: list[str]) -> None:
    result = graphd(*command, "--help")
    assert result.exit_code == 0
    assert f"Examples:\n    graphd {' '.join(command)}" in result.stdout


@pytest.mark.parametrize(
    "command", [[], ["edge", "get"], ["topology"], ["kind", "add"], ["config", "check"]], ids=" ".join
)
def test_help_loads_nothing_heavy(command: list[str]) -> None:
    code = "import sys; from graphd.cli import main; main(); print(*sys.modules, file=sys.stderr)"
    arguments = [sys.executable, "-c", code, *command, "--help"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    loaded = done.stderr.split()
    assert not set(loaded) & {"grpc", "psycopg", "numpy", "pydantic_settings", "google.protobuf", "rich"}
    # What it takes to load them is a matter of their number; the clock is one of who else is busy.
    assert len(loaded) < MOST_MODULES


def test_the_version() -> None:
    assert graphd("--version").stdout.startswith("graphd 0.")


# Misuse


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["edge", "follow", "1"], "graphd edge follow: Missing argument 'B'; see graphd edge follow --help"),
        (["nope"], "graphd: No such command 'nope'; see graphd --help"),
        (
            ["edge", "folow"],
            "graphd edge: No such command 'folow'. Did you mean 'follow', 'unfollow'? See graphd edge --help",
        ),
        (["topology", "7"], "graphd topology: Got unexpected extra argument(s) (7); see graphd topology --help"),
        (["--nope"], "graphd: No such option: --nope; see graphd --help"),
        (["topology", "--data"], "graphd: Option '--data' requires an argument"),
        (
            ["import", "f", "--on-error", "shrug\nit off"],
            "graphd import: Invalid value for '--on-error': 'shrug\\nit off' is not one of 'skip', 'stop'; see graphd import --help",
        ),
        (["dev", "up", "--shards", "0", "--data", "/nowhere"], "graphd dev: --shards 0: must be 1 to 16"),
        (["kind", "add"], "graphd kind add: Missing argument 'NAME'; see graphd kind add --help"),
        (
            ["kind", "add", "mute", "--max-out-degree", "-1"],
            "graphd kind add: Invalid value for '--max-out-degree': must be greater than or equal to 0; see graphd kind add --help",
        ),
        (
            ["kind", "add", "mute", "--allow-self=maybe"],
            "graphd kind add: Invalid value for '--allow-self': 'maybe' is not one of 'yes', 'no'; see graphd kind add --help",
        ),
        (
            ["kind", "add", "Mute"],
            "graphd: NAME: must be lower-case ASCII letters, digits, _ or -, and begin with a letter",
        ),
        (["kind", "add", "m" * 33], "graphd: NAME: must have 1 to 32 characters"),
        (
            ["edge", "follow", "1", "2", "--backfill"],
            "graphd: edge follow: --backfill needs --position: what is written now is never too old",
        ),
        (["kind", "set", "mute"], "graphd: kind set: say what to change: --max-out-degree, --allow-self or --events"),
        (
            ["kind", "set", "Mute", "--events=no"],
            "graphd: NAME: must be lower-case ASCII letters, digits, _ or -, and begin with a letter",
        ),
        (["degrees", "ada"], "graphd: A 'ada': must be an account id, a whole number from 0 to 9223372036854775807"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_misuse_is_one_line_and_exit_2(
    arguments: list[str], said: str, config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAPHD_CONFIG", str(config))
    assert main(arguments) == 2
    assert capsys.readouterr() == ("", f"{said}\n")


def test_misuse_is_told_without_the_words_of_pydantic(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["edge", "follow", "1", "2", "--position", "now"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("graphd edge follow: Invalid value for '--position': must be a valid integer")
    assert said.count("\n") == 1


@pytest.mark.parametrize("group", [[], ["edge"], ["list"], ["dev"], ["kind"], ["account"], ["config"]], ids=" ".join)
def test_a_group_without_a_command_shows_its_help(group: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(group) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"Usage: {' '.join(['graphd', *group])} [OPTIONS] COMMAND")


def test_other_exit_statuses_survive(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert main(["config", "check", "--offline", "--config", str(config)]) == 0
    assert main(["degrees", "7"]) == 1
    assert main(["degrees", "7", "--config", str(tmp_path / "none.toml")]) == 2


def test_interrupted_and_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    def given_up(*arguments: object) -> None:
        raise typer.Abort

    monkeypatch.setattr("graphd.cli.operate.load_config", interrupted)
    assert main(["topology"]) == 130
    monkeypatch.setattr("graphd.cli.operate.load_config", given_up)
    assert main(["topology"]) == 1


@pytest.mark.parametrize(
    ("module", "arguments", "said"),
    [
        (router, [], "graphd-router: the following arguments are required: --config; see graphd-router --help"),
        (
            router,
            ["--config", "x", "--workers", "0"],
            "graphd-router: --workers must be 1 to 64; see graphd-router --help",
        ),
        (
            repair,
            ["run"],
            "graphd-repair run: the following arguments are required: --config; see graphd-repair run --help",
        ),
        (
            repair,
            ["run", "--config", "x", "now"],
            "graphd-repair: unrecognized arguments: now; see graphd-repair --help",
        ),
    ],
    ids=["none", "workers", "run", "more"],
)
def test_misuse_of_a_process_is_one_line_and_exit_2(
    module: ModuleType, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        module.main(arguments)
    assert caught.value.code == 2
    assert capsys.readouterr() == ("", f"{said}\n")


# Ids


@pytest.mark.parametrize("text", ["0", "1", "9007199254740993", "9223372036854775807"])
def test_ids(text: str) -> None:
    assert account("A", text) == int(text)


@pytest.mark.parametrize(
    "text", ["", "-1", "+7", " 7", "7 ", "007", "1_000", "1e3", "7.0", "ada", "٣", "²", "9223372036854775808", "9" * 99]
)
def test_what_is_no_id(text: str) -> None:
    with pytest.raises(MisuseError, match="must be an account id"):
        account("A", text)


@pytest.mark.parametrize(
    "command", [command for command in COMMANDS if command[0] in {"edge", "list", "degrees", "where"}]
)
@pytest.mark.parametrize("bad", ["-5", "9223372036854775808", "ada"])
def test_a_bad_id_is_one_line_and_exit_2(command: list[str], bad: str, config: Path) -> None:
    ids = [bad, "7"] if command[0] in {"edge", "where"} else [bad]
    result = graphd(*command, *ids, "--config", str(config))
    assert result.exit_code == 2
    assert result.stderr == f"graphd: A {bad!r}: must be an account id, a whole number from 0 to 9223372036854775807\n"
    assert not result.stdout


# Finding the cluster


def test_how_a_cluster_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named, other, default = (tmp_path / name for name in ("named.toml", "other", "default"))
    for folder in (other, default):
        folder.mkdir()
        (folder / "config.toml").touch()
    monkeypatch.setenv("GRAPHD_DATA", str(default))
    assert find_config(None, None) == default / "config.toml"
    monkeypatch.setenv("GRAPHD_CONFIG", str(tmp_path / "environment.toml"))
    assert find_config(None, None) == tmp_path / "environment.toml"
    assert find_config(None, other) == other / "config.toml"
    assert find_config(named, other) == named
    with pytest.raises(DevClusterError, match="graphd dev up"):
        find_config(None, tmp_path / "nowhere")


def test_where_to_connect() -> None:
    assert reachable("127.0.0.1:7600") == "127.0.0.1:7600"
    assert reachable("0.0.0.0:7600") == "127.0.0.1:7600"
    assert reachable("[::]:7600") == "[::1]:7600"
    assert reachable("graph.internal:7600") == "graph.internal:7600"


def test_no_cluster_and_no_router_are_one_line_and_exit_1(config: Path) -> None:
    result = graphd("degrees", "7")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert "there is no dev cluster" in result.stderr
    result = graphd("degrees", "7", "--config", str(config))
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert result.stderr.startswith("graphd: no router answers at 127.0.0.1:")
    for command in (["init"], ["kind", "list"], ["kind", "add", "mute"], ["kind", "set", "follow", "--events=no"]):
        result = graphd(*command, "--config", str(config))
        assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
        assert SECRET not in result.output
        assert "127.0.0.1" not in result.output


def test_a_missing_file_is_exit_2(tmp_path: Path) -> None:
    for command in (["degrees", "7"], ["topology"], ["migrate"]):
        result = graphd(*command, "--config", str(tmp_path / "none.toml"))
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert "cannot read" in result.stderr


# config check


def test_a_good_file_offline(config: Path) -> None:
    result = graphd("config", "check", "--config", str(config), "--offline")
    assert (result.exit_code, result.stdout) == (0, f"{config}: ok\n")
    result = graphd("config", "check", "--config", str(config), "--offline", "--json", GRAPHD_ROUTER_LISTEN="x")
    assert result.exit_code == 0
    told = json.loads(result.stdout)
    assert (told["ok"], told["problems"], told["databases"]) == (True, [], {})
    assert [warning.partition(":")[0] for warning in told["warnings"]] == ["GRAPHD_ROUTER_LISTEN"]


def test_every_problem_of_a_file(config: Path, tmp_path: Path) -> None:
    text = config.read_text()
    config.write_text(text.replace("[router]", "[router]\nworkers = 0\nlisten_to = 3"))
    result = graphd("config", "check", "--config", str(config), "--json")
    assert result.exit_code == 1
    assert {problem.partition(":")[0] for problem in json.loads(result.stdout)["problems"]} == {
        "router.workers",
        "router.listen_to",
    }
    config.write_text(
        text.replace("[router]", '[router]\ntls_certificate = "/nowhere.pem"\n').replace("listen = ", "#", 1)
        + '\n[repair]\nmetrics_listen = "0.0.0.0:1"\n'
    )
    result = graphd("config", "check", "--config", str(config), "--offline")
    assert result.exit_code == 1
    assert "router.tls_certificate, router.tls_key: give both or neither" in result.stdout
    assert "router.tls_certificate: cannot read /nowhere.pem" in result.stdout
    assert SECRET not in result.output
    # The router says the same before it looks for its databases, which are not there.
    config.write_text(text.replace("[router]", '[router]\ntls_key = "/nowhere.pem"\n'))
    started = subprocess.run(
        [sys.executable, "-m", "router", "--config", str(config)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert started.returncode == 2
    assert "tls_certificate and tls_key: give both or neither" in started.stderr


def test_databases_that_do_not_answer(config: Path) -> None:
    result = graphd(
        "config", "check", "--config", str(config), "--json", GRAPHD_SHARDS__S2="postgres//nonsense hunter2"
    )
    assert result.exit_code == 1
    databases = json.loads(result.stdout)["databases"]
    assert databases["catalog"] == databases["s1"] == "does not answer: check its conninfo, and that the server runs"
    assert databases["s2"].startswith("the conninfo is not one")
    assert SECRET not in result.output


def test_a_conninfo_that_is_none_is_seen_offline(config: Path) -> None:
    arguments = ["config", "check", "--offline", "--config", str(config)]
    result = graphd(*arguments, GRAPHD_CATALOG=f"blah {SECRET}", GRAPHD_SHARDS__S2="postgresql://ada@db/graphd")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[1:] == [
        "  catalog: the conninfo is not one: write it as 'host=... dbname=...' or postgresql://..."
    ]


# What is told of a shard


@pytest.fixture
def one_shard_down(monkeypatch: pytest.MonkeyPatch) -> None:
    class Admin:
        async def get_topology(self) -> TopologyInfo:
            return TopologyInfo(3, ("s1", "s2"), ("s1", "s2"), (KindInfo("follow", False, 0),))

        async def list_shards(self) -> list[ShardInfo]:
            return [ShardInfo("s1", True, 1, 2, 3.21, 400, 5_000), ShardInfo("s2", False, 1, 0, 0.0, 0, 0)]

    @asynccontextmanager
    async def admin_of(settings: RouterConfig) -> AsyncIterator[Admin]:
        yield Admin()

    monkeypatch.setattr("graphd.cli.operate.admin_of", admin_of)


@pytest.mark.usefixtures("one_shard_down")
def test_what_nobody_knows_is_not_shown_as_0(config: Path) -> None:
    result = graphd("topology", "--config", str(config))
    lines = result.stdout.splitlines()
    assert (result.exit_code, [line.split() for line in lines[3:5]]) == (
        0,
        [
            ["s1", "yes", "1", "400", "5000", "2", "3.2", "0-0"],
            ["s2", "NO", "1", "-", "-", "-", "-", "1-1"],
        ],
    )
    assert lines[3].index("400") + 2 == lines[4].index("-"), "dashes stand where the numbers end"
    told = json.loads(graphd("topology", "--config", str(config), "--json").stdout)["shards"]
    assert (told[0]["halves"], told[0]["outbox_length"]) == (400, 2)
    assert {key: value for key, value in told[1].items() if value is None} == {
        "halves": None,
        "bytes": None,
        "outbox_length": None,
        "outbox_age_s": None,
    }


def test_moments() -> None:
    assert moment(0) == "1970-01-01 00:00:00.000000Z"
    assert moment(1_700_000_000_123_456) == "2023-11-14 22:13:20.123456Z"
    assert moment(2**63 - 1) == str(2**63 - 1)
