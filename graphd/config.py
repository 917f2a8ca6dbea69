"""Settings: one TOML file, read once into frozen values; every key can be overridden by an environment variable.

`[router] listen` is `GRAPHD_ROUTER__LISTEN`, the conninfo of shard s1 is `GRAPHD_SHARDS__S1`. An unknown key in the file is an error,
an unknown `GRAPHD_...` variable a warning. Conninfos are secrets: they are never shown, logged or put in a message.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from graphd.errors import ConfigError
from graphd.limits import DEFAULT_DEADLINE_S, MAX_SLOTS

ENV_PREFIX = "GRAPHD_"
MAX_WORKERS = 64
NOT_SETTINGS = frozenset({"GRAPHD_CONFIG", "GRAPHD_PG_BINDIR", "GRAPHD_DATA"})
"""Variables with our prefix that are not keys of the configuration."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _listen_rule(value: str) -> str:
    host, colon, port = value.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise ValueError("must be host:port, such as 127.0.0.1:7600 or [::]:7600")
    return value


class RouterConfig(_Section):
    """`[router]`: the serving process."""

    listen: str = Field("127.0.0.1:7600", description="Where callers connect. Loopback unless you say otherwise.")
    admin_listen: str = Field("127.0.0.1:7601", description="Where operators connect; keep it away from callers.")
    metrics_listen: str = Field(
        "127.0.0.1:7602", description="HTTP: /metrics, /livez, /readyz. Worker number i listens on this port + i."
    )
    workers: int = Field(1, ge=1, le=MAX_WORKERS, description="Processes that share the port; about one for each core.")
    tls_certificate: Path | None = Field(None, description="PEM chain; with tls_key, callers must use TLS.")
    tls_key: Path | None = Field(None, description="PEM key of tls_certificate.")
    tls_client_ca: Path | None = Field(None, description="PEM; when set, callers must show a certificate it signed.")
    given_positions: bool = Field(
        True,
        description="Whether callers may name positions (replays, imports). They could lift a block: turn it off for others.",
    )
    write_wait_ms: float = Field(
        5.0,
        ge=0,
        le=100,
        description="How long a busy lane waits for company before it writes; an idle one never waits.",
    )
    read_wait_ms: float = Field(2.0, ge=0, le=100, description="The same for reads.")
    lane_timeout_s: float = Field(
        5.0, gt=0, le=60, description="A batch that takes longer is given up and its connection replaced."
    )
    reverse_wait_s: float = Field(
        1.0,
        gt=0,
        le=60,
        description="How long a write waits for its reverse half before it is answered with reverse_pending.",
    )
    transport: Literal["direct", "aio"] = Field(
        "direct",
        description="direct: our server on gRPC's core, the cheapest for a call. aio: the grpcio package's own asyncio server.",
    )
    default_deadline_s: float = Field(DEFAULT_DEADLINE_S, gt=0, le=60, description="Deadline of calls that name none.")
    max_calls_per_shard: int = Field(
        1024, ge=1, le=100_000, description="Calls that may wait for one shard; more are shed with RESOURCE_EXHAUSTED."
    )
    set_connections: int = Field(4, ge=1, le=64, description="Connections per shard for set operations.")
    drain_s: float = Field(
        10.0, ge=0, le=300, description="After SIGTERM: how long calls under way may take to finish."
    )
    prepare: bool = Field(
        True, description="Prepared statements; turn off behind PgBouncer before 1.21 in transaction mode."
    )
    topology_poll_s: float = Field(
        5.0, gt=0, le=300, description="Fallback when a notification of a new topology is lost."
    )

    _listen = field_validator("listen", "admin_listen", "metrics_listen")(_listen_rule)


class RepairConfig(_Section):
    """`[repair]`: the relay, and later the comparing of halves."""

    metrics_listen: str = Field("127.0.0.1:7603", description="HTTP: /metrics, /livez, /readyz.")
    relay_poll_s: float = Field(0.5, gt=0, le=60, description="How often an idle relay looks for what is owed.")

    events_keep_days: float = Field(
        3.0, gt=0, le=7, description="How long events are kept for those who watch, and half a day longer at the most."
    )

    purge_rows_per_s: int = Field(
        5_000,
        ge=1,
        le=1_000_000,
        description="How many rows of a shard are looked at each second for tombstones that have been kept long enough.",
    )

    _listen = field_validator("metrics_listen")(_listen_rule)


class LogConfig(_Section):
    """`[log]`: on standard error."""

    format: Literal["auto", "json", "console"] = Field(
        "auto", description="auto: console on a terminal, else JSON lines."
    )
    level: Literal["debug", "info", "warning", "error"] = Field("info", description="The least that is logged.")


class _KnownVariables(EnvSettingsSource):
    """The environment without the variables that `unknown_variables` warns of: they may belong to another release."""

    def __init__(self, settings_cls: type[BaseSettings]) -> None:
        super().__init__(settings_cls)
        unknown = {name.upper() for name in unknown_variables()}
        self.env_vars = {name: value for name, value in self.env_vars.items() if name.upper() not in unknown}

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        """A whole section in one variable."""
        try:
            return super().decode_complex_value(field_name, field, value)
        except ValueError:
            name = f"{ENV_PREFIX}{field_name}".upper()
            raise ConfigError(f"{name}: must be a section in JSON, or use {name}__KEY for one key of it") from None


class Config(BaseSettings):
    """The whole configuration of a cluster, the same file for every process."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", env_prefix=ENV_PREFIX, env_nested_delimiter="__", hide_input_in_errors=True
    )

    catalog: SecretStr = Field(description="Conninfo of the catalog database.")
    shards: Mapping[str, SecretStr] = Field(description="Name and conninfo of each shard's database.", min_length=1)
    slots: int = Field(1024, description="Slots of a new cluster, a power of two; read by `graphd init` alone.")
    router: RouterConfig = RouterConfig()
    repair: RepairConfig = RepairConfig()
    log: LogConfig = LogConfig()

    @field_validator("slots")
    @classmethod
    def _power_of_two(cls, value: int) -> int:
        if not 1 <= value <= MAX_SLOTS or value & (value - 1):
            raise ValueError(f"must be a power of two, 1 to {MAX_SLOTS}")
        return value

    @field_validator("shards", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            value = {str(name).lower(): conninfo for name, conninfo in value.items()}
            for name in value:
                if not name.isascii() or not name.replace("_", "").replace("-", "").isalnum() or len(name) > 32:
                    raise ValueError("names must be 1 to 32 ASCII letters, digits, _ or -")
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment stands above the file, which is handed over as init values."""
        return _KnownVariables(settings_cls), init_settings

    def catalog_conninfo(self) -> str:
        """The catalog's conninfo in clear: for connecting only."""
        return self.catalog.get_secret_value()

    def shard_conninfo(self, name: str) -> str:
        """A shard's conninfo in clear: for connecting only. Raises ConfigError when the file has no such shard."""
        found = self.shards.get(name)
        if found is None:
            raise ConfigError(f"[shards] names no {name!r}, but the catalog does: add its conninfo")
        return found.get_secret_value()


def load(path: Path) -> Config:
    """Read the file and the environment. Raises ConfigError with one line per problem and no values in it."""
    try:
        with path.open("rb") as file:
            values = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    return from_values(values, str(path))


def from_values(values: Mapping[str, Any], origin: str) -> Config:
    """As `load`, from a mapping. `origin` names it in errors."""
    try:
        return Config(**values)
    except ValidationError as error:
        problems = [
            f"{'.'.join(str(part) for part in item['loc'])}: {_problem(item['type'], item['msg'])}"
            for item in error.errors(include_input=False)
        ]
        raise ConfigError(f"{origin}: " + "; ".join(problems)) from None


def _problem(kind: str, message: str) -> str:
    """pydantic's message in our words."""
    if kind == "extra_forbidden":
        return "there is no such key"
    if kind == "missing":
        return "must be given"
    return message.removeprefix("Value error, ").replace("Input should be", "must be", 1)


def unknown_variables(environment: Mapping[str, str] | None = None) -> list[str]:
    """Variables with our prefix that no key answers to, most likely misspelt. They are warned of and otherwise passed over."""
    names: set[str] = set()
    for key, field in Config.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            names |= {f"{ENV_PREFIX}{key}__{inner}".upper() for inner in annotation.model_fields}
        names.add(f"{ENV_PREFIX}{key}".upper())
    found = os.environ if environment is None else environment
    return sorted(
        name
        for name in found
        if name.upper().startswith(ENV_PREFIX) and name.upper() not in names | NOT_SETTINGS and not _of_a_shard(name)
    )


def _of_a_shard(variable: str) -> bool:
    """Whether it is GRAPHD_SHARDS__NAME."""
    before, _, name = variable.upper().partition(f"{ENV_PREFIX}SHARDS__")
    return not before and bool(name) and "__" not in name
