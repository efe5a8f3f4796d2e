"""Receivers in a process of their own, so that their interpreter is not the one measured.

    python -m tests.benchmarks.receivers SPECIFICATION          # JSON: the fields of `Receivers`

Prints a line when all are subscribed, and when each has received its messages one JSON object: the
fields of `Received`. They do what an adapter does: give room back, and report what is handed off.
"""

from __future__ import annotations

import selectors
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Literal

from agentbus.encoding import decode_trusted, encode, encode_line
from tests.benchmarks.load import BusWire
from tests.bus_fixture import ROOT

READY = "ready"
SILENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class Receivers:
    """`count` sessions, each of which receives `messages` of `channels` altogether."""

    socket_path: str
    count: int
    channels: list[str]
    from_: Literal["now", "oldest"]
    messages: int


@dataclass(frozen=True, slots=True)
class Received:
    """From the first delivery to the last one; of a backlog, from the end of subscribing."""

    deliveries: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.deliveries / self.seconds


class ReceiverProcess:
    """Started and subscribed when it has been entered."""

    def __init__(self, receivers: Receivers) -> None:
        argv = [
            sys.executable,
            "-m",
            "tests.benchmarks.receivers",
            encode(asdict(receivers)).decode(),
        ]
        self._process = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> ReceiverProcess:
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != READY:
            raise SystemExit("the receivers do not start")
        return self

    def result(self) -> Received:
        """Wait until everything has been received."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("the receivers have failed")
        return Received(**decode_trusted(line.encode()))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()


class _Receiver:
    def __init__(self, receivers: Receivers, number: int) -> None:
        self.wire = BusWire(receivers.socket_path, f"Receiver{number}")
        self.left = receivers.messages
        self._epoch = self.wire.facts["epoch"]
        self._reports = 0
        for channel in receivers.channels:
            self.wire.call("subscribe", channel=channel, **{"from": receivers.from_})

    def read_told(self) -> int:
        """What came while this receiver subscribed."""
        return self._take(self.wire.take_told())

    def read(self) -> int:
        """How many messages this input has brought."""
        return self._take(self.wire.receive())

    def _take(self, frames: list[bytes]) -> int:
        count = 0
        answers: list[bytes] = []
        for frame in frames:
            if b'"deliver"' not in frame[:64]:
                continue
            delivery = decode_trusted(frame)["params"]["delivery"]
            records = delivery["records"]
            size_bytes = sum(len(encode(record)) for _, record in records)
            answers.append(self._notify("credit", messages=len(records), bytes=size_bytes))
            self._reports += 1
            positions = [[delivery["subscription"], delivery["through"]]]
            answers.append(
                self._ask("handoff", epoch=self._epoch, report=self._reports, positions=positions)
            )
            count += len(records)
        if answers:
            self.wire.socket.sendall(b"".join(answers))
        self.left -= count
        return count

    def _notify(self, method: str, **params: Any) -> bytes:
        params = {"attachment": self.wire.attachment, **params}
        return encode_line({"jsonrpc": "2.0", "method": method, "params": params})

    def _ask(self, method: str, **params: Any) -> bytes:
        params = {"attachment": self.wire.attachment, **params}
        return encode_line(
            {"jsonrpc": "2.0", "id": self._reports, "method": method, "params": params}
        )


def receive(receivers: Receivers) -> Received:
    """Until every receiver has all of its messages."""
    everybody = [_Receiver(receivers, number) for number in range(receivers.count)]
    print(READY, flush=True)
    begin_s = end_s = time.perf_counter() if receivers.from_ == "oldest" else 0.0
    # What was told while they subscribed makes no socket ready.
    deliveries = sum(receiver.read_told() for receiver in everybody)
    with closing(selectors.DefaultSelector()) as selector:
        for receiver in everybody:
            selector.register(receiver.wire.socket, selectors.EVENT_READ, receiver)
        while any(receiver.left > 0 for receiver in everybody):
            ready = selector.select(SILENCE_S)
            if not ready:
                raise SystemExit(f"nothing comes any more; {deliveries} were delivered")
            for key, _ in ready:
                count = key.data.read()
                if count:
                    end_s = time.perf_counter()
                    if not begin_s:
                        begin_s, count = end_s, 0
                    deliveries += count
    return Received(deliveries, end_s - begin_s)


if __name__ == "__main__":
    received = receive(Receivers(**decode_trusted(sys.argv[1].encode())))
    print(encode(asdict(received)).decode(), flush=True)
