"""A database's refusal in our words: the driver's name hosts, users and passwords."""

from __future__ import annotations

import psycopg

from graphd.errors import GraphdError

NO_CONNINFO = "the conninfo is not one: write it as 'host=... dbname=...' or postgresql://..."


def words(error: Exception) -> str:
    """What to do about an error of connecting or asking, for an operator; it holds no host, user or conninfo."""
    if isinstance(error, GraphdError):
        return str(error)
    if isinstance(error, psycopg.OperationalError | OSError | TimeoutError):
        text = str(error)
        if "authentication" in text or "password" in text:
            return "the server refuses the user or the password of the conninfo"
        if 'database "' in text and "does not exist" in text:
            return "the server has no such database: check the conninfo, or run graphd init"
        if 'role "' in text and "does not exist" in text:
            return "the server has no such user: check the conninfo, or create the user"
        return "does not answer: check its conninfo, and that the server runs"
    if isinstance(error, psycopg.ProgrammingError) and error.sqlstate is None:
        return NO_CONNINFO
    state = error.sqlstate if isinstance(error, psycopg.Error) else None
    return f"the server refused a query (sqlstate {state})"
