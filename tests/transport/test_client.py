"""The blocking client against a real listener."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentbus import limits
from agentbus.errors import NotFoundError, TooLargeError, UnavailableError, ValidationError
from agentbus.protocol import jsonrpc
from agentbus.protocol.jsonrpc import Notification
from agentbus.transport.client import Client, NoAnswerError
from tests.eventually import PATIENCE_S
from tests.transport.server import HEARTBEAT_PAYLOAD, Server


@pytest.fixture
def attached(server: Server) -> Iterator[Client]:
    with Client.connect(server.path, PATIENCE_S) as client:
        yield client


def test_request_returns_the_result(attached: Client) -> None:
    assert attached.request("echo", {"a": 1}, PATIENCE_S) == {"a": 1}
    assert attached.request("heartbeat", {}, PATIENCE_S) == HEARTBEAT_PAYLOAD


def test_large_frames_travel_both_ways(attached: Client) -> None:
    text = "x" * (limits.FRAME_BYTES - 100)
    assert attached.request("echo", {"a": text}, 30.0) == {"a": text}


def test_request_over_the_frame_limit_is_refused_before_it_is_sent(attached: Client) -> None:
    with pytest.raises(TooLargeError):
        attached.request("echo", {"a": "x" * limits.FRAME_BYTES}, PATIENCE_S)
    assert attached.request("echo", {}, PATIENCE_S) == {}


def test_error_is_raised_as_it_was_answered(attached: Client) -> None:
    with pytest.raises(NotFoundError, match="no such thing"):
        attached.request("missing", {}, PATIENCE_S)
    with pytest.raises(ValidationError, match="no method fly"):
        attached.request("fly", {}, PATIENCE_S)


def test_no_daemon_is_unavailable(folder: Path) -> None:
    with pytest.raises(UnavailableError, match="agentbus daemon"):
        Client.connect(folder / "nobody", PATIENCE_S)


def test_answer_that_does_not_come_in_time_is_reported_as_sent(attached: Client) -> None:
    with pytest.raises(NoAnswerError) as caught:
        attached.request("hold", {}, 0.05)
    assert caught.value.sent
    assert caught.value.code == "unavailable"


def test_late_answer_is_not_taken_for_the_next_requests(server: Server, attached: Client) -> None:
    with pytest.raises(NoAnswerError):
        attached.request("hold", {}, 0.05)
    server.handler.held.get(timeout=PATIENCE_S).set("late")
    assert attached.request("echo", {"a": 2}, PATIENCE_S) == {"a": 2}


def test_daemon_that_goes_away_is_reported_as_sent(server: Server, attached: Client) -> None:
    def close() -> None:
        server.handler.held.get(timeout=PATIENCE_S)
        server.connection().close("test")

    closer = threading.Thread(target=close)
    closer.start()
    with pytest.raises(NoAnswerError) as caught:
        attached.request("hold", {}, 10.0)
    assert caught.value.sent
    closer.join()


def test_request_on_a_dead_connection_is_reported_as_not_sent(
    server: Server, attached: Client
) -> None:
    server.connection().close("test")
    server.handler.gone.get(timeout=PATIENCE_S)
    with pytest.raises(NoAnswerError) as caught:
        attached.request("echo", {"a": "x" * limits.MIB}, PATIENCE_S)
    assert not caught.value.sent


def test_notifications_reach_the_callback_while_a_request_waits(server: Server) -> None:
    seen: list[Notification] = []
    with Client.connect(server.path, PATIENCE_S, seen.append) as client:
        connection = server.connection()
        connection.send(jsonrpc.encode_notification("readiness", {"n": 1}))
        connection.send(jsonrpc.encode_notification("readiness", {"n": 2}))
        assert client.request("echo", {}, PATIENCE_S) == {}
    assert seen == [Notification("readiness", {"n": 1}), Notification("readiness", {"n": 2})]


def test_client_waits_for_a_notification(server: Server, attached: Client) -> None:
    assert attached.wait_notification(0.01) is None
    server.connection().send(jsonrpc.encode_notification("stopping", {}))
    assert attached.wait_notification(PATIENCE_S) == Notification("stopping", {})


def test_notify_reaches_the_daemon(server: Server, attached: Client) -> None:
    attached.notify("used", {"n": 1})
    assert server.handler.notifications.get(timeout=PATIENCE_S) == Notification("used", {"n": 1})


def test_answer_that_is_no_json_ends_the_connection() -> None:
    ours, theirs = socket.socketpair()
    with theirs, Client(ours) as client:
        theirs.sendall(b"nonsense\n")
        with pytest.raises(NoAnswerError, match="no JSON-RPC"):
            client.request("echo", {}, PATIENCE_S)


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("agentbus.transport.client", {"asyncio", "mcp", "peewee", "pykka", "redis"}),
        ("agentbus.launch", {"asyncio", "mcp", "peewee", "pykka", "redis"}),
        ("agentbus.transport.async_client", {"mcp", "peewee", "pykka", "redis"}),
    ],
)
def test_clients_load_nothing_heavy(module: str, heavy: set[str]) -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", f"import sys, {module}; print(*sys.modules)"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        check=True,
        text=True,
    ).stdout.split()
    assert module in loaded
    assert heavy.isdisjoint(loaded)


def test_connection_can_be_given_away(attached: Client) -> None:
    attached.request("heartbeat", {}, PATIENCE_S)
    assert Client(attached.detach()).request("echo", {"a": 1}, PATIENCE_S) == {"a": 1}
