"""The daemon's socket loop against well-behaved, clumsy and hostile clients."""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentbus import limits
from agentbus.protocol import jsonrpc
from agentbus.protocol.jsonrpc import Notification
from agentbus.transport import listener
from agentbus.transport.connection import Connection
from agentbus.transport.reply import InFlight
from tests.clock import FakeClock
from tests.eventually import PATIENCE_S, eventually
from tests.transport.server import HEARTBEAT_PAYLOAD, RawClient, Recorder, Server

Serve = Callable[..., Server]
Connect = Callable[[Server], RawClient]


def request_of_frame_bytes(frame_bytes: int) -> bytes:
    """A valid request whose frame has exactly this size, newline not counted."""
    head = b'{"jsonrpc":"2.0","id":1,"method":"hold","params":{"x":"'
    tail = b'"}}'
    return head + b"x" * (frame_bytes - len(head) - len(tail)) + tail + b"\n"


def test_request_is_answered(client: RawClient) -> None:
    client.call(1, "echo", text="hello")
    assert client.frame() == {"jsonrpc": "2.0", "id": 1, "result": {"text": "hello"}}


def test_answer_may_come_later_from_another_thread(server: Server, client: RawClient) -> None:
    client.call("a", "hold")
    client.call("b", "echo")
    assert client.frame()["id"] == "b"
    reply = server.handler.held.get(timeout=PATIENCE_S)
    threading.Thread(target=reply.set, args=({"late": True},)).start()
    assert client.frame() == {"jsonrpc": "2.0", "id": "a", "result": {"late": True}}


def test_two_requests_in_one_write_get_two_answers(client: RawClient) -> None:
    frame = jsonrpc.encode_request(1, "echo", {}) + jsonrpc.encode_request(2, "echo", {})
    client.send(frame)
    assert [client.frame()["id"], client.frame()["id"]] == [1, 2]


def test_request_may_arrive_one_byte_at_a_time(client: RawClient) -> None:
    for byte in jsonrpc.encode_request(1, "echo", {"a": "b"}):
        client.send(bytes([byte]))
    assert client.frame()["result"] == {"a": "b"}


def test_empty_lines_and_crlf_are_tolerated(client: RawClient) -> None:
    client.send(b"\r\n\n" + jsonrpc.encode_request(1, "echo", {}).replace(b"\n", b"\r\n"))
    assert client.frame()["id"] == 1


def test_repeated_id_gets_an_answer_for_each_request(client: RawClient) -> None:
    client.call(1, "echo", n=1)
    client.call(1, "echo", n=2)
    assert [client.frame()["result"]["n"], client.frame()["result"]["n"]] == [1, 2]


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b"\xff\xfe", jsonrpc.PARSE_ERROR),
        (b"\x00", jsonrpc.PARSE_ERROR),
        (b'{"jsonrpc":"2.0","id":1,"method":"\\udfff"}', jsonrpc.PARSE_ERROR),
        (b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"x":NaN}}', jsonrpc.PARSE_ERROR),
        (b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"x":1' + b"0" * 400 + b"}}", -32700),
        (b"[" * 10_000, jsonrpc.PARSE_ERROR),
        (b'[{"jsonrpc":"2.0","id":1,"method":"echo"}]', jsonrpc.INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","id":1,"method":"echo","params":[]}', jsonrpc.INVALID_PARAMS),
        (b'{"jsonrpc":"2.0","id":1,"method":"fly"}', jsonrpc.METHOD_NOT_FOUND),
    ],
)
def test_bad_frame_is_answered_and_the_connection_goes_on(
    client: RawClient, frame: bytes, code: int
) -> None:
    client.send(frame + b"\n")
    answer = client.frame()
    assert answer["error"]["code"] == code
    assert answer["error"]["data"]["code"] == "validation"
    client.call(2, "echo")
    assert client.frame()["id"] == 2


def test_answer_to_a_question_that_was_never_asked_is_ignored(
    server: Server, client: RawClient
) -> None:
    client.send(b'{"jsonrpc":"2.0","id":9,"result":{}}\n')
    client.call(1, "echo")
    assert client.frame()["id"] == 1
    assert server.listener.statistics().malformed == 1


@pytest.mark.parametrize("frame_bytes", [limits.FRAME_BYTES - 1, limits.FRAME_BYTES])
def test_frame_up_to_8_mib_is_taken(server: Server, client: RawClient, frame_bytes: int) -> None:
    client.send(request_of_frame_bytes(frame_bytes))
    server.handler.held.get(timeout=PATIENCE_S).set("taken")
    assert client.frame()["result"] == "taken"


def test_frame_of_8_mib_and_one_byte_is_answered_then_closed(
    server: Server, client: RawClient
) -> None:
    client.send(request_of_frame_bytes(limits.FRAME_BYTES + 1))
    answer = client.frame()
    assert (answer["id"], answer["error"]["data"]["code"]) == (None, "too_large")
    assert client.at_end()
    assert "larger than" in (server.handler.gone.get(timeout=PATIENCE_S).close_reason or "")


def test_requests_before_an_oversized_frame_are_answered(client: RawClient) -> None:
    def send() -> None:
        first = jsonrpc.encode_request(1, "echo", {})
        client.send(first + request_of_frame_bytes(limits.FRAME_BYTES + 1))

    sender = threading.Thread(target=send)
    sender.start()
    assert client.frame()["id"] == 1
    assert client.frame()["error"]["data"]["code"] == "too_large"
    sender.join()


def test_endless_line_is_closed_with_an_error(client: RawClient) -> None:
    piece = b"x" * limits.MIB

    def flood() -> None:
        with pytest.raises(OSError):  # noqa: PT012 - how many pieces it takes is not the point
            while True:
                client.send(piece)

    sender = threading.Thread(target=flood)
    sender.start()
    assert client.frame()["error"]["data"]["code"] == "too_large"
    sender.join()
    assert client.at_end()


def test_client_that_sends_nothing_disturbs_nobody(
    server: Server, connect: Connect, client: RawClient
) -> None:
    silent = connect(server)
    client.call(1, "echo")
    assert client.frame()["id"] == 1
    silent.close()
    assert server.handler.gone.get(timeout=PATIENCE_S).close_reason == "client disconnected"


def test_handlers_bus_error_is_answered_with_its_code(client: RawClient) -> None:
    client.call(1, "missing")
    error = client.frame()["error"]
    assert (error["code"], error["data"]["code"]) == (jsonrpc.APPLICATION_ERROR, "not_found")


def test_handlers_unforeseen_error_is_internal_without_its_text(client: RawClient) -> None:
    client.call(1, "crash")
    error = client.frame()["error"]
    assert error["data"]["code"] == "internal"
    assert "secret" not in str(error)


def test_fault_in_a_notification_ends_its_connection_only(
    server: Server, connect: Connect, client: RawClient
) -> None:
    clumsy = connect(server)
    clumsy.send(jsonrpc.encode_notification("crash", {}))
    assert clumsy.at_end()
    client.call(1, "echo")
    assert client.frame()["id"] == 1


def test_notification_reaches_the_handler_and_gets_no_answer(
    server: Server, client: RawClient
) -> None:
    client.send(jsonrpc.encode_notification("used", {"n": 1}))
    client.call(1, "echo")
    assert client.frame()["id"] == 1
    assert server.handler.notifications.get(timeout=PATIENCE_S).params == {"n": 1}


def test_heartbeat_is_answered_while_every_reply_is_held(server: Server, client: RawClient) -> None:
    for request_id in range(limits.IN_FLIGHT_PER_ATTACHMENT):
        client.call(request_id, "hold")
    client.call("beat", "heartbeat")
    assert client.frame() == {"jsonrpc": "2.0", "id": "beat", "result": HEARTBEAT_PAYLOAD}
    assert server.listener.statistics().heartbeats == 1


def test_any_input_counts_as_sign_of_life(serve: Serve, connect: Connect) -> None:
    clock = FakeClock()
    server = serve(clock=clock)
    client = connect(server)
    connection = server.connection()
    clock.advance(12.0)
    client.send(jsonrpc.encode_notification("heartbeat", {}))
    eventually(lambda: connection.last_seen_s == clock.monotonic_s())
    assert server.handler.notifications.empty()


def test_more_than_32_requests_of_an_attachment_are_overloaded(
    server: Server, client: RawClient
) -> None:
    for request_id in range(limits.IN_FLIGHT_PER_ATTACHMENT + 1):
        client.call(request_id, "hold", attachment=["s", 1])
    answer = client.frame()
    assert answer["id"] == limits.IN_FLIGHT_PER_ATTACHMENT
    assert answer["error"]["data"]["code"] == "overloaded"
    assert answer["error"]["data"]["retryable"] is True
    client.call("other", "echo", attachment=["s", 2])
    assert client.frame()["id"] == "other"
    server.handler.held.get(timeout=PATIENCE_S).set()
    assert "result" in client.frame()
    client.call("again", "echo", attachment=["s", 1])
    assert client.frame()["id"] == "again"


def test_reports_that_wait_for_their_commit_do_not_keep_requests_out(
    server: Server, client: RawClient
) -> None:
    for report in range(limits.REPORTS_IN_FLIGHT_PER_ATTACHMENT + 1):
        client.call(report, "handoff", attachment=["s", 1])
    answer = client.frame()
    assert answer["id"] == limits.REPORTS_IN_FLIGHT_PER_ATTACHMENT
    assert answer["error"]["data"]["code"] == "overloaded"
    client.call("pull", "echo", attachment=["s", 1])
    assert client.frame()["id"] == "pull"


@pytest.mark.parametrize("attachment", [None, 5, "s", [], [[], {}], {"a": 1}])
def test_odd_attachment_values_are_counted_together(client: RawClient, attachment: Any) -> None:
    client.call(1, "echo", attachment=attachment)
    assert client.frame()["result"] == {"attachment": attachment}


def test_bytes_in_flight_are_bounded_over_all_connections(serve: Serve, connect: Connect) -> None:
    server = serve(in_flight=InFlight(total_bytes=100_000))
    first, second = connect(server), connect(server)
    first.call(1, "hold", text="x" * 60_000)
    held = server.handler.held.get(timeout=PATIENCE_S)
    second.call(1, "echo", text="x" * 60_000)
    assert second.frame()["error"]["data"]["code"] == "overloaded"
    held.set()
    first.frame()
    second.call(2, "echo", text="x" * 60_000)
    assert "result" in second.frame()


class Held(Recorder):
    """Keeps the transport thread in the handler from a `wait` on, until `go` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.waits, self.go = threading.Event(), threading.Event()

    def notification(self, connection: Connection, notification: Notification) -> None:
        if notification.method == "wait":
            self.waits.set()
            assert self.go.wait(PATIENCE_S)
        super().notification(connection, notification)


def test_what_a_client_said_before_it_died_is_read_even_after_a_write_to_it_failed(
    serve: Serve, connect: Connect
) -> None:
    handler = Held()
    server = serve(handler=handler)
    client = connect(server)
    client.send(jsonrpc.encode_notification("wait", {}))
    assert handler.waits.wait(PATIENCE_S)
    client.send(jsonrpc.encode_notification("used", {"n": 1}))
    client.close()
    assert not server.connection().deliver([b"nobody reads this\n"])
    handler.go.set()
    told = [handler.notifications.get(timeout=PATIENCE_S) for _ in range(2)]
    assert [notification.method for notification in told] == ["wait", "used"]
    assert "write failed" in (handler.gone.get(timeout=PATIENCE_S).close_reason or "")


def test_disconnected_client_gives_back_what_it_had_in_flight(
    server: Server, client: RawClient
) -> None:
    client.call(1, "hold", text="x" * 1000)
    reply = server.handler.held.get(timeout=PATIENCE_S)
    assert server.listener.statistics().in_flight_now == 1
    client.close()
    server.handler.gone.get(timeout=PATIENCE_S)
    assert server.listener.statistics().in_flight_now == 0
    reply.set("too late")
    statistics = server.listener.statistics()
    assert (statistics.in_flight_now, statistics.in_flight_bytes_now) == (0, 0)


def test_process_of_another_user_is_refused(serve: Serve, connect: Connect) -> None:
    server = serve(accepted_uid=os.getuid() + 1)
    assert connect(server).at_end()
    assert server.handler.connections.empty()
    assert server.listener.statistics().refused == 1


def test_peer_is_known_by_user_and_process(server: Server, client: RawClient) -> None:
    peer = server.connection().peer
    assert (peer.uid, peer.pid) == (os.getuid(), os.getpid())


def test_broadcast_reaches_every_connection(server: Server, connect: Connect) -> None:
    clients = [connect(server) for _ in range(3)]
    for _ in clients:
        server.connection()
    server.listener.broadcast(jsonrpc.encode_notification("stopping", {"intentional": True}))
    assert [client.frame()["method"] for client in clients] == ["stopping"] * 3


def test_stop_accepting_keeps_the_connections_that_exist(server: Server, client: RawClient) -> None:
    server.connection()
    server.listener.stop_accepting()
    eventually(lambda: _refused(server.path))
    client.call(1, "echo")
    assert client.frame()["id"] == 1


def _refused(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) != 0


def test_close_delivers_what_is_queued_first(server: Server, client: RawClient) -> None:
    connection = server.connection()
    frames = [jsonrpc.encode_notification("n", {"i": i, "x": "x" * 10_000}) for i in range(200)]
    connection.send_many(frames)
    closer = threading.Thread(target=server.listener.close, args=(10.0,))
    closer.start()
    assert [client.frame()["params"]["i"] for _ in frames] == list(range(200))
    assert client.at_end()
    closer.join()
    assert server.handler.gone.get(timeout=PATIENCE_S) is connection


def test_close_does_not_wait_longer_than_told_for_a_client_that_does_not_read(
    server: Server, client: RawClient
) -> None:
    server.connection().send(jsonrpc.encode_notification("n", {"x": "x" * limits.MIB}))
    before_s = time.monotonic()
    server.listener.close(0.2)
    assert time.monotonic() - before_s < 20.0
    client.close()


def test_client_that_does_not_read_its_last_frames_is_closed_all_the_same(
    server: Server, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "LINGER_S", 0.05)
    connection = server.connection()
    connection.send(jsonrpc.encode_notification("n", {"x": "x" * limits.MIB}))
    connection.close_when_sent("version mismatch")
    assert server.handler.gone.get(timeout=PATIENCE_S) is connection
    assert connection.close_reason == "version mismatch"
    client.close()


def test_failure_of_the_loop_is_told_and_closes_everything(serve: Serve, connect: Connect) -> None:
    failures: queue.Queue[Exception] = queue.Queue()
    server = serve(on_failure=failures.put, heartbeat_payload=lambda: 1 // 0)
    client = connect(server)
    client.call(1, "heartbeat")
    assert isinstance(failures.get(timeout=PATIENCE_S), ZeroDivisionError)
    assert client.at_end()


def test_listener_that_never_started_can_be_closed(folder: Path) -> None:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(folder / "s"))
    unstarted = listener.Listener(listening, Recorder(), dict, clock=FakeClock())
    unstarted.close(1.0)
    assert listening.fileno() == -1


_FEW_DESCRIPTORS = """
import resource, socket, sys, time
from pathlib import Path
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
from tests.transport.server import Server
server = Server(Path(sys.argv[1]))
began_s = time.process_time()
print("ready", flush=True)
sys.stdin.readline()
statistics = server.listener.statistics()
print(statistics.accept_pauses, time.process_time() - began_s, flush=True)
sys.stdin.readline()
"""


def test_accept_rests_when_no_descriptor_is_left_and_goes_on_when_one_is(folder: Path) -> None:
    path = folder / "s"
    process = subprocess.Popen(
        [sys.executable, "-c", _FEW_DESCRIPTORS, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=Path(__file__).parents[2],
        text=True,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        clients = [RawClient(path) for _ in range(60)]
        clients[0].call(1, "echo")
        assert clients[0].frame()["id"] == 1
        waiting = clients[-1]
        waiting.call(1, "echo")
        waiting.socket.settimeout(1.0)
        with pytest.raises(TimeoutError):
            waiting.frame()
        process.stdin.write("\n")
        process.stdin.flush()
        pauses, used_s = process.stdout.readline().split()
        assert 1 <= int(pauses) < 20
        assert float(used_s) < 0.9, "the loop was spinning"
        for client in clients[:-1]:
            client.close()
        successor = RawClient(path)
        successor.call(2, "echo")
        assert successor.frame()["id"] == 2
        successor.close()
        waiting.close()
        process.stdin.write("\n")
