"""Short folders for sockets, and servers that end with their test."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.transport.server import RawClient, Server


@pytest.fixture
def folder() -> Iterator[Path]:
    """A private folder whose path is short enough for a socket."""
    path = Path(tempfile.mkdtemp(prefix="ab-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def serve(folder: Path) -> Iterator[Callable[..., Server]]:
    """Starts a listener; options are those of `Listener`."""
    servers: list[Server] = []

    def start(**options: Any) -> Server:
        server = Server(folder / f"s{len(servers)}", **options)
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.listener.close(0.0)


@pytest.fixture
def server(serve: Callable[..., Server]) -> Server:
    return serve()


@pytest.fixture
def connect() -> Iterator[Callable[[Server], RawClient]]:
    """Connects raw clients and closes them afterwards."""
    clients: list[RawClient] = []

    def start(server: Server) -> RawClient:
        client = server.client()
        clients.append(client)
        return client

    yield start
    for client in clients:
        client.close()


@pytest.fixture
def client(server: Server, connect: Callable[[Server], RawClient]) -> RawClient:
    return connect(server)
