"""graphd: a sharded social graph. Every edge is stored twice, with its source and with its destination."""

__version__ = "0.1.0"
