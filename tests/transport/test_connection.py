"""A connection's output: whole frames, control before deliveries, a bound, no needless wake-ups."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from agentbus import encoding, limits
from agentbus.protocol import jsonrpc
from agentbus.settings import SETTINGS
from agentbus.transport.connection import Connection, corked
from agentbus.transport.peer import Peer
from tests.eventually import PATIENCE_S, eventually
from tests.transport.server import RawClient, Server

Serve = Callable[..., Server]
Connect = Callable[[Server], RawClient]


def numbered(number: int, text: str = "") -> bytes:
    return jsonrpc.encode_notification("n", {"i": number, "x": text})


class Pair:
    """A connection over a socket pair whose small buffers the test drains itself."""

    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair()
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        self.attended: list[Connection] = []
        self.connection = Connection(
            ours, Peer(uid=0, pid=None), self.attended.append, now_s=0.0, out_buffer_bytes=200_000
        )
        self.received = b""

    def read(self, size_bytes: int) -> bytes:
        data = self.theirs.recv(size_bytes)
        self.received += data
        return data

    def drain(self) -> list[int]:
        """Everything that is still to come, as the numbers of its frames."""
        self.theirs.setblocking(False)
        while True:
            self.connection.flush()
            try:
                if not self.read(65536):
                    break
            except BlockingIOError:
                if not self.connection.queued_bytes:
                    break
        lines = self.received.splitlines()
        return [encoding.decode_trusted(line)["params"]["i"] for line in lines]


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.connection.socket.close()
    pair.theirs.close()


def fill(pair: Pair, number: int = 0) -> None:
    """Send one frame that the socket can only take a part of."""
    assert pair.connection.send(numbered(number, "x" * 50_000))
    assert pair.connection.write_wanted


def test_send_on_an_idle_connection_is_written_at_once_without_waking_the_loop(pair: Pair) -> None:
    assert pair.connection.send(numbered(1))
    assert pair.read(1000) == numbered(1)
    assert pair.attended == []
    assert pair.connection.queued_bytes == 0


def test_loop_is_woken_once_when_output_has_to_wait(pair: Pair) -> None:
    fill(pair)
    for number in range(1, 10):
        pair.connection.send(numbered(number))
    assert pair.attended == [pair.connection]


def test_control_frames_overtake_queued_deliveries_but_tear_no_frame(pair: Pair) -> None:
    fill(pair, 0)
    pair.connection.deliver([numbered(10, "x" * 20_000), numbered(11, "x" * 20_000)])
    pair.connection.send(numbered(1))
    pair.connection.send_many([numbered(2), numbered(3)])
    assert pair.drain() == [0, 1, 2, 3, 10, 11]


def test_delivery_that_is_being_written_is_finished_before_a_control_frame(pair: Pair) -> None:
    pair.connection.deliver([numbered(10, "x" * 50_000), numbered(11, "x" * 20_000)])
    pair.connection.send(numbered(1))
    assert pair.drain() == [10, 1, 11]


def test_client_that_does_not_read_is_closed_when_the_bound_is_passed(pair: Pair) -> None:
    fill(pair)
    accepted = 0
    while pair.connection.deliver([numbered(accepted, "x" * 10_000)]):
        accepted += 1
        assert pair.connection.queued_bytes <= 200_000
    assert 10 <= accepted <= 20
    assert pair.connection.closed
    assert "does not read" in (pair.connection.close_reason or "")
    assert pair.connection.queued_bytes == 0
    assert not pair.connection.send(numbered(1))


def test_corked_frames_are_written_together_in_their_order(pair: Pair) -> None:
    with corked():
        pair.connection.send(numbered(1))
        with corked():
            pair.connection.send(numbered(2))
        pair.theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            pair.theirs.recv(1)
    pair.theirs.setblocking(True)
    assert pair.read(1000) == numbered(1) + numbered(2)


def test_corked_frame_is_not_overtaken_by_its_own_threads_delivery(pair: Pair) -> None:
    with corked():
        pair.connection.send(numbered(1))
        pair.connection.deliver([numbered(10)])
    assert pair.drain() == [1, 10]


def test_corked_frame_is_sent_before_the_connection_closes(pair: Pair) -> None:
    with corked():
        pair.connection.send(numbered(1))
        pair.connection.close_when_sent("test")
    assert pair.drain() == [1]
    assert pair.connection.close_reason == "test"


def test_cork_of_one_thread_does_not_hold_another_ones_frames(pair: Pair) -> None:
    with corked():
        thread = threading.Thread(target=pair.connection.send, args=(numbered(1),))
        thread.start()
        thread.join()
        assert pair.read(1000) == numbered(1)


def test_closing_when_sent_keeps_control_frames_and_drops_deliveries(pair: Pair) -> None:
    fill(pair, 0)
    pair.connection.deliver([numbered(10)])
    pair.connection.send(numbered(1))
    pair.connection.close_when_sent("good bye")
    assert not pair.connection.send(numbered(2))
    assert pair.drain() == [0, 1]
    assert pair.connection.closed
    assert not pair.connection.draining
    assert pair.connection.close_reason == "good bye"


def test_first_reason_for_closing_is_kept(pair: Pair) -> None:
    pair.connection.close("first")
    pair.connection.close("second")
    pair.connection.close_when_sent("third")
    assert pair.connection.close_reason == "first"


def test_peer_that_is_gone_closes_the_connection(pair: Pair) -> None:
    pair.theirs.close()
    assert not pair.connection.send(numbered(1))
    assert pair.connection.closed


def test_frames_from_many_threads_stay_whole_and_in_order(
    server: Server, client: RawClient
) -> None:
    connection = server.connection()
    threads_count, frames_count = 8, 300

    def send(thread_number: int) -> None:
        for number in range(frames_count):
            frame = jsonrpc.encode_notification(
                "n", {"thread": thread_number, "i": number, "x": "x" * (number * 7 % 3000)}
            )
            if number % 3:
                connection.send(frame)
            else:
                connection.send_many([frame])

    threads = [threading.Thread(target=send, args=(number,)) for number in range(threads_count)]
    for thread in threads:
        thread.start()
    seen: dict[int, list[int]] = {number: [] for number in range(threads_count)}
    for _ in range(threads_count * frames_count):
        params = client.frame()["params"]
        seen[params["thread"]].append(params["i"])
    for thread in threads:
        thread.join()
    assert seen == {number: list(range(frames_count)) for number in range(threads_count)}


def test_slow_reader_is_disconnected_and_others_are_not(serve: Serve, connect: Connect) -> None:
    server = serve(out_buffer_bytes=limits.MIB)
    slow = connect(server)
    connection = server.connection()
    other = connect(server)
    while connection.deliver([numbered(0, "x" * 50_000)]):
        assert connection.queued_bytes <= limits.MIB
    assert server.handler.gone.get(timeout=PATIENCE_S) is connection
    other.call(1, "echo")
    assert other.frame()["id"] == 1
    slow.close()


def test_largest_window_and_an_answer_wait_for_a_client_that_reads_slowly(
    server: Server, client: RawClient
) -> None:
    connection = server.connection()
    (window_mib,) = [row.maximum for row in SETTINGS if row.name == "prefetch_mib"]
    assert window_mib is not None
    delivery = numbered(0, "x" * limits.MIB)
    for _ in range(int(window_mib)):
        assert connection.deliver([delivery])
    assert connection.send(numbered(1, "x" * (limits.FRAME_BYTES - limits.KIB)))


def test_heartbeat_is_answered_before_a_queue_of_deliveries(
    server: Server, client: RawClient
) -> None:
    connection = server.connection()
    total = 400
    connection.deliver([numbered(number, "x" * 20_000) for number in range(total)])
    client.call("beat", "heartbeat")
    eventually(lambda: server.listener.statistics().heartbeats == 1)
    delivered_before = 0
    while client.frame().get("id") != "beat":
        delivered_before += 1
    assert delivered_before < 100, "the heartbeat waited behind the deliveries"
    rest = [client.frame()["params"]["i"] for _ in range(total - delivered_before)]
    assert rest == list(range(delivered_before, total))


def test_handler_may_close_a_connection_from_any_thread(server: Server, client: RawClient) -> None:
    connection = server.connection()
    thread = threading.Thread(target=connection.close, args=("replaced",))
    thread.start()
    assert client.at_end()
    assert server.handler.gone.get(timeout=PATIENCE_S).close_reason == "replaced"
    thread.join()
