"""SQL, in .sql files beside this one: each statement named by `-- name: x` and introduced by a sentence; loaded once."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

from psycopg import sql

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


@cache
def statements(file: str) -> dict[str, str]:
    """The statements of `file`.sql by name, comments taken out."""
    text = (resources.files(__name__) / f"{file}.sql").read_text(encoding="utf-8")
    parts = _NAME.split(text)[1:]
    found: dict[str, str] = {}
    for name, body in zip(parts[::2], parts[1::2], strict=True):
        lines = [line for line in body.splitlines() if line.strip() and not line.lstrip().startswith("--")]
        assert name not in found, f"{file}.sql names {name} twice"
        found[name] = "\n".join(lines).rstrip().removesuffix(";")
    return found


@cache
def statement(file: str, name: str, table: str | None = None) -> bytes:
    """One statement, ready to send. `table` (forward or reverse) fills its `{table}`."""
    text = statements(file)[name]
    if table is None:
        return text.encode()
    return sql.SQL(text).format(table=sql.Identifier(table)).as_bytes(None)
