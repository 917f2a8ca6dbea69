"""The graphd-repair process: delivers what shards owe each other, and mends drift."""
