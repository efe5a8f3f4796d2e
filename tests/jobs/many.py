"""A job of many events over a broker: a parent that is killed in the middle, a reader that comes
late, and figures.

    python -m tests.jobs.many 100000

The suite runs the same with fewer events.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from agentbus.jobs.brokers import open_transport
from agentbus.jobs.events import decode_event, is_terminal
from tests.jobs.servers import Server, bus_server, nats_server, redis_server

TOOL = """
import sys
from agentbus.jobs import JobEmitter
from agentbus.jobs.brokers import open_transport
from agentbus.jobs.sinks.broker import BrokerSink
url, job_id, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with JobEmitter(BrokerSink(open_transport(url), job_id), job_id) as job:
    job.accepted("u")
    for number in range(count):
        job.progress("count", message=str(number))
    job.succeeded(count)
"""

PARENT = """
import sys, threading
from agentbus.jobs.brokers import open_transport
transport = open_transport(sys.argv[1])
for event in transport.follow(sys.argv[2], 0, threading.Event()):
    print(len(event), flush=True)
"""

SERVERS: dict[str, Callable[[], AbstractContextManager[Server]]] = {
    "agentbus": bus_server,
    "nats": nats_server,
    "redis": redis_server,
}


@dataclass(frozen=True, slots=True)
class Figures:
    """Events per second, and what the late reader saw of their order."""

    emitted_per_s: float
    read_per_s: float
    seqs: list[int]


def measure(url: str, count: int, within_s: float) -> Figures:
    """One job: its parent is killed after half of the events, then somebody else reads it all."""
    job_id = f"job-{uuid.uuid4()}"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, url, job_id], stdout=subprocess.PIPE)
    began_s = time.monotonic()
    tool = subprocess.Popen([sys.executable, "-c", TOOL, url, job_id, str(count)])
    assert parent.stdout is not None
    for _ in range(count // 2):
        assert parent.stdout.readline()
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert tool.wait(within_s) == 0
    emitted_s = time.monotonic() - began_s
    began_s = time.monotonic()
    seqs = _read(url, job_id, within_s)
    return Figures((count + 2) / emitted_s, len(seqs) / (time.monotonic() - began_s), seqs)


def _read(url: str, job_id: str, within_s: float) -> list[int]:
    stop = threading.Event()
    timer = threading.Timer(within_s, stop.set)
    timer.start()
    transport = open_transport(url)
    seqs = []
    try:
        for document in transport.follow(job_id, 0, stop):
            event = decode_event(document)
            seqs.append(event.seq)
            if is_terminal(event):
                break
    finally:
        timer.cancel()
        transport.close()
    return seqs


def main(count: int) -> int:
    complete = True
    for name, served in SERVERS.items():
        with served() as server:
            figures = measure(server.url, count, within_s=3600)
        in_order = figures.seqs == list(range(count + 2))
        complete = complete and in_order
        print(
            f"{name}: {count + 2} events, {figures.emitted_per_s:.0f}/s emitted (the start of two "
            f"processes included), {figures.read_per_s:.0f}/s read by a late reader, "
            f"{'complete and in order' if in_order else 'NOT complete and in order'}"
        )
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
