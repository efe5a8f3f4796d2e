"""Directed work between two agents that wait, run as a process of its own like `load`.

    python -m tests.benchmarks.peer_load SPECIFICATION     # JSON: the fields of `load.Load`

One agent sends a request and collects; the other, in a second process, waits, and replies at once.
Prints one JSON object: the fields of `figures.Sample`.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from typing import Any, NoReturn

from agentbus.encoding import decode_trusted, encode, encode_line
from agentbus.ids import new_id
from agentbus.limits import CONSULTATION_REQUESTS, PEER_COLLECT_SECONDS, PEER_WAIT_SECONDS
from tests.benchmarks.content import contents
from tests.benchmarks.figures import Sample
from tests.benchmarks.load import WARM_UP_SHARE, BusWire, Load


class Peer:
    """A session that uses the tool `peer`, as its adapter would for it."""

    def __init__(self, socket_path: str, agent: str) -> None:
        self._wire = BusWire(socket_path, agent)
        self._numbers = 0

    def use(self, op: str, token: str | None = None, **args: Any) -> Any:
        self._numbers += 1
        params = {
            "attachment": self._wire.attachment,
            "op": op,
            "args": args,
            "number": self._numbers,
            **({} if token is None else {"token": token}),
        }
        return self._wire.request("peer", params)

    def has_shown(self, responses: list[str]) -> None:
        """What keeps answers from being delivered once more."""
        params = {"attachment": self._wire.attachment, "responses": responses, "notices": []}
        told = {"jsonrpc": "2.0", "method": "peer_shown", "params": params}
        self._wire.socket.sendall(encode_line(told))

    def close(self) -> None:
        self._wire.socket.close()


def run(load: Load) -> Sample:
    """From the send of a request until its answer is collected."""
    here, there = socket.socketpair()
    worker = os.fork()
    if worker == 0:
        _work(load, there)
    here.recv(1)  # the worker is known
    latencies_s: list[float] = []
    texts = contents()
    begin_s = time.perf_counter() + load.seconds * WARM_UP_SHARE
    end_s = begin_s + load.seconds
    asked_s = 0.0
    while asked_s < end_s or not latencies_s:
        for asked_s, latency_s in _ask(load, texts[len(latencies_s) % len(texts)]):
            if asked_s >= begin_s:
                latencies_s.append(latency_s)
    os.kill(worker, signal.SIGKILL)
    os.waitpid(worker, 0)
    # What goes by between two requests is not the bus's time.
    return Sample.of_latencies(latencies_s, sum(latencies_s))


def _ask(load: Load, text: str) -> Iterator[tuple[float, float]]:
    """As often as one session may on its own account: when it asked, and how long it took."""
    with closing(Peer(load.socket_path, "Kim")) as asker:
        for _ in range(CONSULTATION_REQUESTS):
            asked_s = time.perf_counter()
            sent = asker.use(
                "send", to=["Sam"], body=text, kind="request", idempotency_key=new_id()
            )
            collected = asker.use(
                "collect", message_id=sent["message_id"], timeout=PEER_COLLECT_SECONDS
            )
            answered_s = time.perf_counter()
            if collected["outcome"] != "complete":
                raise SystemExit(f"no answer: {collected}")
            asker.has_shown([one["message_id"] for one in collected["answers"]])
            yield asked_s, answered_s - asked_s


def _work(load: Load, teller: socket.socket) -> NoReturn:
    worker = Peer(load.socket_path, "Sam")
    teller.sendall(b"!")
    while True:
        claimed = worker.use("wait", timeout=PEER_WAIT_SECONDS)
        if claimed["delivery"] is not None:
            worker.use(
                "reply",
                claimed["token"],
                delivery_id=claimed["delivery"]["delivery_id"],
                body=claimed["delivery"]["envelope"]["body"],
                idempotency_key=new_id(),
            )


if __name__ == "__main__":
    print(encode(asdict(run(Load(**decode_trusted(sys.argv[1]))))).decode())
