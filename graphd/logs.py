"""Logs: structlog on standard error, JSON lines or a console's words."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

from graphd.config import LogConfig


def configure(config: LogConfig, **always: Any) -> None:
    """Set up logging for this process; `always` is bound to every line."""
    console = config.format == "console" or (config.format == "auto" and sys.stderr.isatty())
    renderer: Any = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()) if console else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[config.level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(**always)
    # Libraries that log by themselves (psycopg, its pool) name hosts and users in their messages: only the worst of them is kept.
    logging.basicConfig(level=logging.CRITICAL, stream=sys.stderr)
    logging.getLogger("psycopg").setLevel(logging.CRITICAL)
