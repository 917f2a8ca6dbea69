"""The gRPC messages and stubs, generated from proto/graphd/v1 by ``python -m tests.generate``."""
