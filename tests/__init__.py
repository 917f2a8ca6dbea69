"""Tests. They fork servers while they call gRPC, whose fork handlers may crash the child: off with them before it is imported."""

import os

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
