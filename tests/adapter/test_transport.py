"""What the transport makes of bad input, odd descriptors and a client that does not read."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import pty
import subprocess
import sys
import tty
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCRequest, JSONRPCResponse

from agentbus.adapter.handoff import Delivery, Outcome, current_delivery, current_exchange
from agentbus.adapter.inbound import LineSplitter, OverlongLine, Refusal, decode_line
from agentbus.adapter.transport import StdioTransport
from agentbus.encoding import decode_trusted, encode_line
from agentbus.limits import OUT_BUFFER_BYTES, STDIN_FRAME_BYTES
from tests.adapter.raw_client import EventLog, RawClient
from tests.eventually import PATIENCE_S

ROOT = Path(__file__).parents[2]
ARGV = [sys.executable, "-m", "tests.adapter.probe_server"]
HANDSHAKE = (
    b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25",'
    b'"capabilities":{},"clientInfo":{"name":"raw","version":"1"}}}\n'
    b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n'
)


def probe_env(events: EventLog) -> dict[str, str]:
    return {**os.environ, "PROBE_EVENTS": str(events.path), "PYTHONPATH": str(ROOT)}


def call_line(arguments: str, *, request_id: str = "9") -> bytes:
    """A tool call as most clients write it."""
    return (
        f'{{"jsonrpc":"2.0","id":{request_id},"method":"tools/call",'
        f'"params":{{"name":"mark","arguments":{arguments}}}}}'
    ).encode()


@pytest.fixture(scope="module")
def shared_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RawClient]:
    """One server for the whole table: every bad line must leave it as it was."""
    events = EventLog(tmp_path_factory.mktemp("adapter") / "events")
    client = RawClient(ARGV, env=probe_env(events))
    client.initialize()
    yield client
    client.close()


DEEP = "[" * 10_000 + "]" * 10_000

BAD_LINES: dict[str, tuple[bytes, int, Any, str]] = {
    # name: line, code, id of the answer, what the message must name
    "bad UTF-8": (call_line('{"a":"\x00"}').replace(b"\0", b"\xff"), -32700, 9, "UTF-8"),
    "raw NUL": (call_line('{"a":"\0"}'), -32700, 9, "control character"),
    "escaped NUL": (call_line(r'{"a":"\u0000"}'), -32602, 9, "NUL"),
    "lone surrogate": (call_line(r'{"a":"\ud800"}'), -32602, 9, "lone surrogate"),
    "NaN": (call_line('{"a":NaN}'), -32602, 9, "NaN"),
    "infinity": (call_line('{"a":1e999}'), -32602, 9, "out of range"),
    "huge integer": (call_line('{"a":' + "9" * 5000 + "}"), -32602, 9, "64 bits"),
    "duplicate key": (call_line('{"a":1,"a":2}'), -32602, 9, "duplicate key 'a'"),
    "nesting 40": (call_line('{"a":' + "[" * 40 + "]" * 40 + "}"), -32602, 9, "nested"),
    "nesting 10,000": (call_line('{"a":' + DEEP + "}"), -32600, 9, "nested"),
    "nesting 10,000, id last": (
        b'{"method":"tools/call","params":{"a":' + DEEP.encode() + b'},"jsonrpc":"2.0","id":"z"}',
        -32600,
        "z",
        "nested",
    ),
    "nesting 10,000 and nothing else": (DEEP.encode(), -32600, None, "nested"),
    "bad content, other method": (
        rb'{"jsonrpc":"2.0","id":9,"method":"ping","params":{"a":"\ud800"}}',
        -32600,
        9,
        "lone surrogate",
    ),
    "batch": (b"[" + call_line("{}") + b"]", -32600, None, "batches"),
    "number": (b"5", -32600, None, "object"),
    "no JSON": (b"hello", -32700, None, "not a JSON document"),
    "cut off": (call_line("{}")[:-5], -32700, 9, "not a JSON document"),
    "BOM": ("\ufeff".encode() + call_line("{}"), -32700, 9, "BOM"),
    "empty object": (b"{}", -32600, None, "jsonrpc"),
    "no version": (b'{"id":9,"method":"ping"}', -32600, 9, '"jsonrpc"'),
    "id is true": (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', -32600, None, '"id"'),
    "id is null": (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600, None, '"id"'),
    "id is a fraction": (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', -32600, None, '"id"'),
    "id is a lone surrogate": (
        rb'{"jsonrpc":"2.0","id":"\ud800","method":"ping"}',
        -32600,
        None,
        "lone surrogate",
    ),
    "method is a number": (b'{"jsonrpc":"2.0","id":9,"method":1}', -32600, 9, '"method"'),
    "params is a list": (b'{"jsonrpc":"2.0","id":9,"method":"ping","params":[]}', -32600, 9, "par"),
    "unknown method": (b'{"jsonrpc":"2.0","id":9,"method":"no/such"}', -32601, 9, "Method"),
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_a_bad_line_is_answered_and_the_session_goes_on(
    shared_session: RawClient, name: str
) -> None:
    line, code, request_id, reason = BAD_LINES[name]
    shared_session.send_bytes(line + b"\n")
    answer = shared_session.receive()
    assert answer["id"] == request_id
    assert answer["error"]["code"] == code
    assert reason in answer["error"]["message"]
    following = shared_session.request("ping")
    assert shared_session.receive() == {"jsonrpc": "2.0", "id": following, "result": {}}


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b" \t\r",
        rb'{"jsonrpc":"2.0","method":"notifications/x","params":{"a":"\ud800"}}',
        b'{"jsonrpc":"2.0","method":"notifications/x","params":[]}',
        b'{"jsonrpc":"2.0","id":9,"result":[]}',
        b'{"jsonrpc":"2.0","id":9,"error":{"code":"x"}}',
        b'{"jsonrpc":"2.0","id":"unknown","result":{}}',
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":[1]}}',
        b'{"jsonrpc":"2.0","method":"notifications/cancelled"}',
    ],
)
def test_what_must_not_be_answered_is_passed_over(shared_session: RawClient, line: bytes) -> None:
    shared_session.send_bytes(line + b"\n")
    following = shared_session.request("ping")
    assert shared_session.receive()["id"] == following


def test_an_endless_line_is_refused_at_its_end_and_costs_no_memory(
    shared_session: RawClient,
) -> None:
    head, tail = b'{"method":"tools/call","params":{"a":"', b'"},"jsonrpc":"2.0","id":"long"}\n'
    shared_session.send_bytes(head)
    piece = b"x" * (1 << 20)
    for _ in range(4 * STDIN_FRAME_BYTES // len(piece)):
        shared_session.send_bytes(piece)
    shared_session.send_bytes(tail)
    answer = shared_session.receive()
    assert (answer["id"], answer["error"]["code"]) == ("long", -32600)
    assert str(STDIN_FRAME_BYTES) in answer["error"]["message"]
    following = shared_session.request("ping")
    assert shared_session.receive()["id"] == following
    status = Path(f"/proc/{shared_session.process.pid}/status")
    if status.exists():
        peak = next(line for line in status.read_text().splitlines() if "VmHWM" in line)
        assert int(peak.split()[1]) < 200 * 1024


def test_a_line_of_the_largest_size_is_taken(shared_session: RawClient) -> None:
    frame = call_line('{"tag":"large","a":"@"}')
    filler = b"x" * (STDIN_FRAME_BYTES - len(frame) + 1)
    shared_session.send_bytes(frame.replace(b"@", filler) + b"\n")
    answer = shared_session.receive()
    assert answer["id"] == 9
    assert len(answer["result"]["structuredContent"]["echo"]["a"]) == len(filler)


def test_lines_may_come_in_any_pieces(shared_session: RawClient) -> None:
    ping = b'{"jsonrpc":"2.0","id":%d,"method":"ping"}'
    for byte in ping % 1 + b"\r\n":
        shared_session.send_bytes(bytes([byte]))
    assert shared_session.receive()["id"] == 1
    shared_session.send_bytes(ping % 2 + b"\n\n" + ping % 3 + b"\n" + (ping % 4)[:10])
    assert [shared_session.receive()["id"] for _ in range(2)] == [2, 3]
    shared_session.send_bytes((ping % 4)[10:] + b"\n")
    assert shared_session.receive()["id"] == 4


@pytest.mark.parametrize("request_id", [0, -1, 2**63, "text", "7", "ünïcode", ""])
def test_an_id_comes_back_as_it_was(shared_session: RawClient, request_id: Any) -> None:
    shared_session.request("ping", request_id=request_id)
    answer = shared_session.receive()
    assert answer["id"] == request_id
    assert type(answer["id"]) is type(request_id)


def test_stdin_and_stdout_may_be_files(tmp_path: Path) -> None:
    events = EventLog(tmp_path / "events")
    requests = tmp_path / "requests"
    requests.write_bytes(HANDSHAKE + b'{"jsonrpc":"2.0","id":1,"method":"ping"}')
    with requests.open("rb") as stdin, (tmp_path / "answers").open("wb") as stdout:
        process = subprocess.Popen(ARGV, stdin=stdin, stdout=stdout, env=probe_env(events))
        assert process.wait(20) == 0
    assert events.all("exit")
    lines = (tmp_path / "answers").read_bytes().splitlines()
    ids = [decode_trusted(line)["id"] for line in lines]
    assert ids == [0, 1], "nothing else, although the probe also prints"


def test_a_result_in_a_file_is_handed_off(tmp_path: Path) -> None:
    events = EventLog(tmp_path / "events")
    with (tmp_path / "answers").open("wb") as stdout:
        process = subprocess.Popen(
            ARGV, stdin=subprocess.PIPE, stdout=stdout, env=probe_env(events), bufsize=0
        )
    assert process.stdin is not None
    call = {"name": "receive", "arguments": {"tag": "filed", "bytes": 1 << 20}}
    line = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    process.stdin.write(HANDSHAKE + encode_line(line))
    assert events.expect("settled", tag="filed")["outcome"] == "handed_off"
    assert (tmp_path / "answers").read_bytes().endswith(b"}\n")
    process.stdin.close()
    assert process.wait(PATIENCE_S) == 0


def test_a_paused_terminal_blocks_neither_the_loop_nor_the_exit(tmp_path: Path) -> None:
    events = EventLog(tmp_path / "events")
    controller, terminal = pty.openpty()
    tty.setraw(terminal)
    process = subprocess.Popen(ARGV, stdin=terminal, stdout=terminal, env=probe_env(events))
    os.close(terminal)
    call = '{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"%s","arguments":%s}}\n'
    try:
        os.write(controller, HANDSHAKE)
        os.write(controller, (call % (1, "receive", '{"tag":"unread","bytes":1000000}')).encode())
        events.expect("handler_return", tag="unread")
        os.write(controller, (call % (2, "mark", '{"tag":"alive"}')).encode())
        assert events.expect("mark", tag="alive")["queued_bytes"] > 0
        assert not events.all("settled")
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
        settled = events.expect("settled", tag="unread")
        assert (settled["outcome"], settled["bytes_left"]) == ("shutdown", True)
    finally:
        process.kill()
        process.wait()
        os.close(controller)


class Pipes:
    """A transport in this process, and the client's ends of its pipes."""

    def __init__(self) -> None:
        read_fd, self.to_transport = os.pipe()
        self.from_transport, write_fd = os.pipe()
        os.set_blocking(self.from_transport, False)
        self.stdio = StdioTransport(read_fd, write_fd)

    async def __aenter__(self) -> Pipes:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stdio.close(flush_s=0)
        os.close(self.to_transport)
        os.close(self.from_transport)

    async def take_request(self, request_id: int) -> contextvars.Context:
        """Let the transport read a request; returns the context that answers it."""
        line = b'{"jsonrpc":"2.0","id":%d,"method":"ping"}\n' % request_id
        os.write(self.to_transport, line)
        taken = await self.stdio.read.receive()
        assert isinstance(taken.message, JSONRPCRequest)
        assert self.stdio.read.last_context is not None
        return self.stdio.read.last_context.copy()


def answer(request_id: int, **result: Any) -> SessionMessage:
    return SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=request_id, result=result))


def test_a_cancel_counts_although_the_handler_returns_before_the_sdk_handles_it() -> None:
    outcomes: list[tuple[Outcome | None, bool]] = []

    async def scenario() -> None:
        async with Pipes() as pipes:
            context = await pipes.take_request(1)
            delivery = Delivery(lambda d: outcomes.append((d.outcome, d.bytes_left)))
            context.run(current_delivery.set, delivery)
            pipes.stdio.write.cancel(1)
            sending = pipes.stdio.write.send(answer(1))
            await asyncio.get_running_loop().create_task(sending, context=context)
            assert outcomes == [(Outcome.CANCELLED, False)]
            assert len(pipes.stdio.write.exchanges) == 0
            await asyncio.create_task(pipes.stdio.write.send(answer(2)))
            assert b'"id":2' in os.read(pipes.from_transport, 1000)

    asyncio.run(scenario())


def test_an_unanswered_request_is_reported_as_such() -> None:
    outcomes: list[Outcome | None] = []

    async def scenario() -> None:
        async with Pipes() as pipes:
            context = await pipes.take_request(1)
            context.run(current_delivery.set, Delivery(lambda d: outcomes.append(d.outcome)))
            exchange = context[current_exchange]
            assert exchange is not None
            context.run(pipes.stdio.write.unanswered, exchange)
            assert outcomes == [Outcome.UNANSWERED]

    asyncio.run(scenario())


def test_input_that_the_client_has_closed_is_noticed_before_it_is_read() -> None:
    async def scenario() -> None:
        read_fd, to_transport = os.pipe()
        from_transport, write_fd = os.pipe()
        stdio = StdioTransport(read_fd, write_fd)
        assert stdio.read.is_open()
        os.write(to_transport, b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
        os.close(to_transport)
        assert not stdio.read.is_open()
        assert not stdio.read.ended
        await stdio.close()
        os.close(from_transport)

    asyncio.run(scenario())


def test_reading_pauses_while_too_much_output_is_unread() -> None:
    async def scenario() -> None:
        async with Pipes() as pipes:
            stdio = pipes.stdio
            sending = asyncio.create_task(stdio.write.send(answer(1, a="x" * OUT_BUFFER_BYTES)))
            await asyncio.sleep(0)
            assert stdio.write.queued_bytes > 0
            more = asyncio.create_task(stdio.write.send(answer(2, a="x" * 1_000_000)))
            await asyncio.sleep(0)
            assert stdio.write.queued_bytes > OUT_BUFFER_BYTES
            os.write(pipes.to_transport, b'{"jsonrpc":"2.0","id":3,"method":"ping"}\n')
            receiving = asyncio.create_task(stdio.read.receive())
            for _ in range(10):  # the loop polls its descriptors on every turn
                await asyncio.sleep(0)
            assert not receiving.done()
            while not receiving.done():
                with contextlib.suppress(BlockingIOError):
                    os.read(pipes.from_transport, 1 << 20)
                await asyncio.sleep(0)
            assert stdio.write.queued_bytes <= OUT_BUFFER_BYTES
            more.cancel()
            sending.cancel()
            await asyncio.gather(sending, more, return_exceptions=True)

    asyncio.run(scenario())


def test_a_session_that_ends_does_not_wait_for_each_answer() -> None:
    async def scenario() -> None:
        async with Pipes() as pipes:
            pipes.stdio.stop()
            await pipes.stdio.write.send(answer(1, a="x" * 1_000_000))
            assert pipes.stdio.write.queued_bytes > 0

    asyncio.run(scenario())


def test_refusals_are_bounded_when_nobody_reads_them() -> None:
    async def scenario() -> None:
        async with Pipes() as pipes:
            for _ in range(50_000):
                pipes.stdio.write.refuse(Refusal(None, -32700, "x" * 100))
            assert 0 < pipes.stdio.write.queued_bytes < 2 * 1024 * 1024

    asyncio.run(scenario())


def test_the_splitter_keeps_only_the_edges_of_an_overlong_line() -> None:
    splitter = LineSplitter(limit_bytes=1000)
    assert splitter.feed(b"a" * 1000 + b"\n") == [b"a" * 1000]
    assert splitter.feed(b"b" * 1001) == []
    assert splitter.feed(b"c" * 600 + b"\nnext\nunfinished") == [
        OverlongLine(b"b" * 512, b"c" * 512),
        b"next",
    ]
    assert splitter.finish() == [b"unfinished"]
    assert splitter.finish() == []


def test_an_id_inside_the_arguments_is_not_taken_for_the_id_of_the_request() -> None:
    deep = b"[" * 5000 + b"]" * 5000
    line = b'{"method":"x","params":{"a":' + deep + b',"id":5}}'
    refusal = decode_line(line)
    assert isinstance(refusal, Refusal)
    assert refusal.request_id is None
