"""What is refused before it is a request: ambiguous heads, slow clients, too much of anything."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from pathlib import Path

import pytest

from agentbus.encoding import encode
from agentbus.limits import SHUTDOWN_GRACE_SECONDS
from agentbus.talk.handler import Answered, Delegation
from agentbus.talk.http_guard import CONNECTIONS, HEAD_BYTES, Patience, what_is_ambiguous
from tests.eventually import eventually
from tests.talk.raw_http import (
    SECRET,
    connect,
    head_of,
    post,
    question,
    read_answer,
    send_raw,
)
from tests.talk.served import RunningServer, ScriptedHandler, running_server

BODY = encode(question())


def test_times_are_those_of_the_contract() -> None:
    patience = Patience(answer_s=1.0)
    assert (patience.head_s, patience.body_s, HEAD_BYTES) == (5.0, 10.0, 8192)


# --- two meanings ---


@pytest.mark.parametrize(
    "lines",
    [
        [f"Content-Length: {len(BODY)}", f"Content-Length: {len(BODY)}"],
        [f"Content-Length: {len(BODY)}", "Content-Length: 0"],
        [f"Content-Length: {len(BODY)}, {len(BODY)}"],
        [f"Content-Length: {len(BODY)}", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: chunked", f"Content-Length: {len(BODY)}"],
        ["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: gzip, chunked"],
        ["Transfer-Encoding: identity"],
        ["Transfer-Encoding : chunked"],
        ["Content-Length: +5"],
        ["Content-Length: 0x10"],
        ["Content-Length: -1"],
        ["Content-Length:"],
        ["Content-Length: " + "9" * 30],
        [f"Content-Length: {len(BODY)}", "X-Folded: a", "  Transfer-Encoding: chunked"],
        [f"Content-Length: {len(BODY)}", "No colon here"],
        [f"Content-Length: {len(BODY)}", "Bad name: x"],
        [f"Content-Length: {len(BODY)}", "Host: evil.example"],
        [f"Content-Length: {len(BODY)}", f"Authorization: Bearer {SECRET}"],
        [f"Content-Length: {len(BODY)}", "X: a\nTransfer-Encoding: chunked"],
        [f"Content-Length: {len(BODY)}", "X: a\x00b"],
    ],
    ids=lambda lines: "|".join(lines)[:60],
)
def test_ambiguous_head_is_refused_and_the_connection_closed(
    lines: list[str], server: RunningServer
) -> None:
    smuggled = head_of(len(BODY)) + BODY
    answer = send_raw(server.port, head_of(None, *lines), BODY, smuggled)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert answer.headers["connection"] == "close"


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n\r\n",
        b"POST /api/talk\r\n\r\n",
        b"POST  /api/talk HTTP/1.1\r\n\r\n",
        b"POST /api/talk HTTP/1.1 x\r\n\r\n",
        b"POST /api/talk HTTP/2.0\r\nHost: localhost\r\n\r\n",
        b"POST /api/talk HTTP/1.1\r\n\r\n",  # no Host
        b"POST /api/talk HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /api/talk HTTP/1.1\nHost: localhost\n\n",
        b"\x16\x03\x01\r\n\r\n",
    ],
)
def test_what_is_no_http_is_refused(data: bytes, server: RunningServer) -> None:
    assert send_raw(server.port, data).status == 400


def test_what_comes_behind_a_request_is_no_second_one(server: RunningServer) -> None:
    one = head_of(len(BODY)) + BODY
    assert send_raw(server.port, one + one).status == 200
    assert send_raw(server.port, one, one).status == 200


@pytest.mark.parametrize("chunk", [b"zz\r\n", b"-5\r\n", b"5\r\nabcdeXX", b"5 5\r\n"])
def test_broken_chunks_are_refused(chunk: bytes, server: RunningServer) -> None:
    answer = send_raw(server.port, head_of(None, "Transfer-Encoding: chunked"), chunk)
    assert (answer.status, answer.code) == (400, "invalid_request")


def test_plain_head_has_one_meaning() -> None:
    assert what_is_ambiguous(head_of(5).removesuffix(b"\r\n\r\n")) is None


# --- too much ---


def _padded(head_bytes: int) -> bytes:
    """A head of so many bytes, its last empty line not counted."""
    empty = len(head_of(len(BODY), "X: ")) - len(b"\r\n\r\n")
    return head_of(len(BODY), "X: " + "x" * (head_bytes - empty)) + BODY


@pytest.mark.parametrize(
    ("head_bytes", "status"), [(HEAD_BYTES - 1, 200), (HEAD_BYTES, 200), (HEAD_BYTES + 1, 431)]
)
def test_head_at_the_limit(head_bytes: int, status: int, server: RunningServer) -> None:
    assert send_raw(server.port, _padded(head_bytes)).status == status


def test_head_without_an_end_is_refused_at_the_limit(server: RunningServer) -> None:
    answer = send_raw(server.port, b"POST /api/talk HTTP/1.1\r\n", b"X: " + b"x" * 2 * HEAD_BYTES)
    assert (answer.status, answer.code) == (431, "request_too_large")


def test_one_connection_too_many_is_told_to_come_back(tmp_path: Path) -> None:
    with running_server(tmp_path, patience=Patience(answer_s=60.0, head_s=60.0)) as server:
        crowd = [connect(server.port) for _ in range(CONNECTIONS)]
        try:
            eventually(lambda: server.connections == CONNECTIONS)
            with connect(server.port) as late:
                answer = read_answer(late)
            assert answer is not None
            assert (answer.status, answer.code) == (503, "instance_unavailable")
            assert answer.document["retryable"] is True
        finally:
            for one in crowd:
                one.close()
        eventually(lambda: server.connections == 0)
        assert post(server.port, question()).status == 200


# --- too slow ---

HASTY = Patience(answer_s=60.0, head_s=0.2, body_s=0.2, linger_s=0.2)


@pytest.mark.parametrize(
    "sent",
    [b"", b"POST /api/talk HTTP/1.1\r\nHost: ", head_of(len(BODY)), head_of(len(BODY)) + BODY[:-1]],
    ids=["nothing", "half a head", "a head", "half a body"],
)
def test_slow_client_is_answered_and_cut_off(sent: bytes, tmp_path: Path) -> None:
    with running_server(tmp_path, patience=HASTY) as server:
        with connect(server.port) as slow:
            slow.sendall(sent)
            answer = read_answer(slow)
        assert answer is not None
        assert (answer.status, answer.code) == (408, "timeout")
        eventually(lambda: server.connections == 0)
        eventually(lambda: not server.http.server_state.tasks, what="end of the application's part")


def test_client_that_drips_gains_no_time(tmp_path: Path) -> None:
    with running_server(tmp_path, patience=HASTY) as server:
        with connect(server.port) as slow:
            stop = threading.Event()

            def drip() -> None:
                while not stop.wait(0.02):
                    try:
                        slow.sendall(b"X")
                    except OSError:
                        return

            dripping = threading.Thread(target=drip)
            dripping.start()
            try:
                answer = read_answer(slow)
            finally:
                stop.set()
                dripping.join()
        assert answer is not None
        assert answer.status == 408


def test_client_that_sends_on_after_its_refusal_is_cut_off(tmp_path: Path) -> None:
    hasty = Patience(answer_s=60.0, linger_s=0.2)
    with running_server(tmp_path, patience=hasty) as server, connect(server.port) as talker:
        talker.sendall(head_of(10**6))
        assert talker.recv(12) == b"HTTP/1.1 413"
        eventually(lambda: server.connections == 0)


def test_client_that_never_takes_its_answer_is_cut_off(tmp_path: Path) -> None:
    async def say_much(_: Delegation) -> Answered:
        return Answered("x" * 30_000_000)

    hasty = Patience(answer_s=1.0)
    handler = ScriptedHandler(say_much)
    with running_server(tmp_path, handler, patience=hasty) as server, connect(server.port) as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.sendall(head_of(len(BODY)) + BODY)
        eventually(lambda: handler.asked)
        eventually(lambda: server.connections == 0)


def test_server_that_stops_waits_for_no_half_question(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        half = [connect(server.port) for _ in range(2)]
        half[0].sendall(b"POST /api")
        half[1].sendall(head_of(len(BODY)) + BODY[:5])
        eventually(lambda: len(server.http.server_state.tasks) == 1)
        began_s = time.monotonic()
    assert time.monotonic() - began_s < SHUTDOWN_GRACE_SECONDS, "the grace was not needed"
    for one in half:
        one.close()


# --- gone ---


@pytest.mark.parametrize("prompt_bytes", [1, 200_000], ids=["short", "long"])
def test_client_that_vanishes_leaves_its_question_to_be_answered(
    prompt_bytes: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    released = threading.Event()

    async def wait(_: Delegation) -> Answered:
        await asyncio.to_thread(released.wait)
        return Answered("late")

    handler = ScriptedHandler(wait)
    with running_server(tmp_path, handler) as server:
        keyed = encode(question(prompt="x" * prompt_bytes, ext={"idempotencyKey": "k"}))
        with connect(server.port) as fleeting:
            fleeting.sendall(head_of(len(keyed)) + keyed)
            eventually(lambda: handler.asked)
        eventually(lambda: server.connections == 0)
        released.set()
        eventually(lambda: "orphaned, its caller has gone" in caplog.text)
        assert handler.asked[0].delegation_id in caplog.text
        assert post(server.port, keyed).document["text"] == "late", "the answer can be had"
        assert len(handler.asked) == 1


@pytest.mark.parametrize("sent", [b"", b"POST /api", head_of(len(BODY)) + BODY[:5]])
def test_client_that_vanishes_before_it_has_asked_leaves_nothing(
    sent: bytes, server: RunningServer
) -> None:
    with connect(server.port) as fleeting:
        fleeting.sendall(sent)
        eventually(lambda: server.connections == 1)
    eventually(lambda: server.connections == 0 and not server.http.server_state.tasks)
