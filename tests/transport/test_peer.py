"""Processes of another user, on either end of the socket. Needs root to become another user."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from agentbus.errors import ForbiddenError
from agentbus.transport.client import Client
from agentbus.transport.peer import Peer, peer_of
from tests.eventually import PATIENCE_S
from tests.transport.server import Server

STRANGER = 4242

as_root = pytest.mark.skipif(os.getuid() != 0, reason="becoming another user takes root")


@pytest.fixture
def open_folder(folder: Path) -> Path:
    """A folder that keeps nobody out, so that only the peer check is left."""
    folder.chmod(0o777)
    return folder


def run_as_stranger(script: str, path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, str(path), str(STRANGER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


_CONNECT = """
import os, socket, sys
os.setuid(int(sys.argv[2]))
client = socket.socket(socket.AF_UNIX)
client.connect(sys.argv[1])
try:
    client.sendall(b'{"jsonrpc":"2.0","id":1,"method":"echo"}\\n')
    print(client.recv(100))
except OSError:
    print(b"")
"""

_LISTEN = """
import os, socket, sys
os.setuid(int(sys.argv[2]))
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[1])
listening.listen()
print("ready", flush=True)
sys.stdin.readline()
"""


def test_both_ends_of_a_pair_are_this_process() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert peer_of(one) == peer_of(other) == Peer(uid=os.getuid(), pid=os.getpid())


@as_root
def test_client_of_another_user_gets_no_answer(open_folder: Path, server: Server) -> None:
    server.path.chmod(0o777)
    with run_as_stranger(_CONNECT, server.path) as stranger:
        assert stranger.communicate()[0] == "b''\n"
    assert server.listener.statistics().refused == 1
    assert server.handler.connections.empty()


@as_root
def test_daemon_of_another_user_is_not_talked_to(open_folder: Path) -> None:
    path = open_folder / "s"
    with run_as_stranger(_LISTEN, path) as stranger:
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == "ready\n"
        with pytest.raises(ForbiddenError, match=f"user {STRANGER}"):
            Client.connect(path, PATIENCE_S)
        stranger.communicate("end\n")
