"""The wire between adapter and daemon: frames, JSON-RPC 2.0, operations and their codec."""
