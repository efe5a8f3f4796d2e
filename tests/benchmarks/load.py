"""A load generator, run as a process of its own so that its interpreter is not the one measured.

    python -m tests.benchmarks.load SPECIFICATION          # JSON: the fields of `Load`
    python -m tests.benchmarks.load --deliver SPECIFICATION
    python -m tests.benchmarks.load --sends N SPECIFICATION

One thread, raw sockets, frames made before the clock starts where that is possible. Prints one
JSON object: the fields of `figures.Sample`.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NoReturn, Protocol

from agentbus import __version__
from agentbus.encoding import decode_trusted, encode, encode_line
from agentbus.ids import new_id
from agentbus.limits import KIB, MIB, PROTOCOL_VERSION
from agentbus.protocol.frames import FrameBuffer
from tests.benchmarks.content import contents
from tests.benchmarks.figures import Sample

READ_BYTES = 256 * KIB
CHANNEL = "benchmark"
OVERLOADED_PAUSE_S = 0.05
WARM_UP_SHARE = 0.2
"""Of the round's time: goes by before anything is counted."""


@dataclass(frozen=True, slots=True)
class Load:
    """`clients` connections with `in_flight` sends each, for `seconds`; channels take turns."""

    target: Literal["bus", "redis"]
    socket_path: str
    clients: int
    in_flight: int
    seconds: float
    channels: list[str] = field(default_factory=lambda: [CHANNEL])


class Wire(Protocol):
    """One connection to what is measured."""

    socket: socket.socket

    def frame(self, content: str) -> bytes: ...

    def answers(self, data: bytes) -> int:
        """How many sends this input answers; fails when one was refused."""
        ...


class BusWire:
    """An attached session that sends, and is subscribed to nothing that is sent to."""

    def __init__(
        self, socket_path: str, agent: str = "Sam", channels: Sequence[str] = (CHANNEL,)
    ) -> None:
        self._channels = channels
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(socket_path)
        self._frames = FrameBuffer()
        self._sent = 0
        self._told: list[bytes] = []
        self.request(
            "hello", {"protocol": PROTOCOL_VERSION, "version": __version__, "pid": os.getpid()}
        )
        facts = self.request(
            "attach",
            {
                "agent": agent,
                "application": "benchmark",
                "conversation": new_id(),
                "identity_source": "argument",
                "window_messages": 256,
                "window_bytes": 4 * MIB,
            },
        )
        self.facts: dict[str, Any] = facts
        self.attachment = [facts["session_id"], facts["generation"]]

    def request(self, method: str, params: dict[str, Any]) -> Any:
        """Ask and wait; only before the load begins, when nothing else is asked."""
        self.socket.sendall(encode_line(_request(0, method, params)))
        result: dict[str, Any] | None = None
        while result is None:
            for frame in self.receive():
                answer = decode_trusted(frame)
                if "error" in answer:
                    raise SystemExit(f"{method}: {answer['error']}")
                if "result" in answer:
                    result = answer["result"]
                else:
                    self._told.append(frame)
        return result

    def call(self, operation: str, **arguments: Any) -> Any:
        return self.request(operation, {"attachment": self.attachment, "args": arguments})

    def take_told(self) -> list[bytes]:
        """What came unasked while requests were waited for."""
        told, self._told = self._told, []
        return told

    def receive(self) -> list[bytes]:
        """Wait for input; the frames that it completes."""
        data = self.socket.recv(READ_BYTES)
        if not data:
            raise SystemExit("the bus closed the connection")
        return self._frames.feed(data)

    def frame(self, content: str) -> bytes:
        channel = self._channels[self._sent % len(self._channels)]
        self._sent += 1
        arguments = {"channel": channel, "content": content, "operation_id": new_id()}
        params = {"attachment": self.attachment, "args": arguments}
        return encode_line(_request(self._sent, "send", params))

    def answers(self, data: bytes) -> int:
        count = 0
        for frame in self._frames.feed(data):
            if b'"result":' in frame[:64]:
                count += 1
            elif b'"error":' in frame[:64]:
                raise SystemExit(f"a send was refused: {frame.decode()}")
        return count


class RedisWire:
    """XADD of one entry with the content, spoken by hand."""

    def __init__(self, socket_path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(socket_path)
        self._half = False  # the last input ended within an answer

    def frame(self, content: str) -> bytes:
        parts = (b"XADD", CHANNEL.encode(), b"*", b"envelope", content.encode())
        body = b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
        return b"*%d\r\n%s" % (len(parts), body)

    def answers(self, data: bytes) -> int:
        if b"-ERR" in data:
            raise SystemExit(f"Redis refused: {data.decode()}")
        lines = data.count(b"\n") + self._half  # an answer is a length line and an id line
        self._half = bool(lines % 2)
        return lines // 2


def _request(number: int, method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def _wire(load: Load) -> Wire:
    if load.target == "redis":
        return RedisWire(load.socket_path)
    return BusWire(load.socket_path, channels=load.channels)


def run(load: Load) -> Sample:
    """Keep every connection's window full until the time is over and something was answered."""
    wires: list[Wire] = [_wire(load) for _ in range(load.clients)]
    texts = contents()
    selector = selectors.DefaultSelector()
    sent_at_s: dict[Wire, deque[float]] = {}
    for wire in wires:
        selector.register(wire.socket, selectors.EVENT_READ, wire)
        sent_at_s[wire] = deque()
    number = 0

    def send(wire: Wire, count: int) -> None:
        nonlocal number
        frames = [wire.frame(texts[(number + at) % len(texts)]) for at in range(count)]
        number += count
        sent_at_s[wire].extend([time.perf_counter()] * count)
        wire.socket.sendall(b"".join(frames))

    latencies_s: list[float] = []
    begin_s = time.perf_counter() + load.seconds * WARM_UP_SHARE
    end_s = begin_s + load.seconds
    for wire in wires:
        send(wire, load.in_flight)
    now_s = 0.0
    while now_s < end_s or not latencies_s:
        for key, _ in selector.select(5.0):
            wire = key.data
            count = wire.answers(wire.socket.recv(READ_BYTES))
            now_s = time.perf_counter()
            for _ in range(count):
                latency_s = now_s - sent_at_s[wire].popleft()
                if now_s >= begin_s:
                    latencies_s.append(latency_s)
            if count:
                send(wire, count)
    return Sample.of_latencies(latencies_s, now_s - begin_s)


def run_sends(load: Load, sends: int) -> Sample:
    """Exactly so many accepted messages, however long it takes; what is too fast comes again."""
    wires = [BusWire(load.socket_path, channels=load.channels) for _ in range(load.clients)]
    texts = contents()
    accepted = sent = 0
    begin_s = time.perf_counter()

    def send(wire: BusWire, count: int) -> None:
        nonlocal sent
        count = min(count, sends - sent)
        sent += count
        wire.socket.sendall(b"".join(wire.frame(texts[n % len(texts)]) for n in range(count)))

    with selectors.DefaultSelector() as selector:
        for wire in wires:
            selector.register(wire.socket, selectors.EVENT_READ, wire)
            send(wire, load.in_flight)
        while accepted < sends:
            for key, _ in selector.select(5.0):
                answers = key.data.receive()
                refused = [frame for frame in answers if b'"error":' in frame[:64]]
                if any(b'"overloaded"' not in frame for frame in refused):
                    raise SystemExit(f"a send was refused: {refused[0].decode()}")
                if refused:
                    time.sleep(OVERLOADED_PAUSE_S)
                    sent -= len(refused)
                answered = sum(b'"result":' in frame[:64] for frame in answers)
                accepted += answered
                send(key.data, answered + len(refused))
    elapsed_s = time.perf_counter() - begin_s
    return Sample(sends / elapsed_s, elapsed_s / sends * 1e6, elapsed_s / sends * 1e6)


def run_deliver(load: Load) -> Sample:
    """From the moment of a send to its arrival at a receiver that waits in another process."""
    here, there = socket.socketpair()
    receiver = os.fork()
    if receiver == 0:
        _receive(load, there)
    wire = BusWire(load.socket_path, "Kim")
    here.recv(1)  # the receiver is subscribed
    latencies_s: list[float] = []
    texts = contents()
    begin_s = time.perf_counter() + load.seconds * WARM_UP_SHARE
    end_s = begin_s + load.seconds
    while (now_s := time.perf_counter()) < end_s or not latencies_s:
        wire.socket.sendall(wire.frame(texts[len(latencies_s) % len(texts)]))
        arrived_s = float(here.recv(64))  # the same clock: monotonic, of the whole machine
        if now_s >= begin_s:
            latencies_s.append(arrived_s - now_s)
        while not wire.answers(wire.socket.recv(READ_BYTES)):
            pass
    os.kill(receiver, signal.SIGKILL)
    os.waitpid(receiver, 0)
    return Sample.of_latencies(latencies_s, now_s - begin_s)


def _receive(load: Load, teller: socket.socket) -> NoReturn:
    wire = BusWire(load.socket_path, "Sam")
    wire.call("subscribe", channel=CHANNEL)
    teller.sendall(b"!")
    while True:
        for frame in wire.receive():
            arrived_s = time.perf_counter()
            told = decode_trusted(frame)
            if told.get("method") != "deliver":
                continue
            records = told["params"]["delivery"]["records"]
            credit = {
                "attachment": wire.attachment,
                "messages": len(records),
                "bytes": sum(len(encode(record)) for _, record in records),
            }
            for _ in records:
                teller.sendall(b"%.9f" % arrived_s)
            wire.socket.sendall(
                encode_line({"jsonrpc": "2.0", "method": "credit", "params": credit})
            )


def main(argv: list[str]) -> None:
    specification = Load(**decode_trusted(argv[-1]))
    match argv[:-1]:
        case ["--deliver"]:
            sample = run_deliver(specification)
        case ["--sends", number]:
            sample = run_sends(specification, int(number))
        case _:
            sample = run(specification)
    print(encode(asdict(sample)).decode())


if __name__ == "__main__":
    main(sys.argv[1:])
