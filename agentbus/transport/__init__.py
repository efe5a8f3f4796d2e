"""Unix sockets between clients and daemon: listener, connections, clients, the lock files."""
