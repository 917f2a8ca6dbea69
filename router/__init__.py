"""The graphd-router process: takes gRPC calls and carries them to the shards."""
