"""Many at once, slow ones and ones that vanish: all are served, and nothing of them is left."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from agentbus.limits import MIB
from agentbus.processes import open_files
from tests.bus_fixture import ThrowAwayBus
from tests.eventually import eventually
from tests.talk.raw_http import connect, head_of
from tests.talk.serving import Serving, client

CALLS = 200
SLOW = 20

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")


def _children(pid: int) -> list[str]:
    tasks = Path(f"/proc/{pid}/task")
    return [child for task in tasks.iterdir() for child in (task / "children").read_text().split()]


def _resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _sockets(pid: int) -> int:
    return sum(str(path).startswith("socket:") for path in open_files(pid))


def test_many_at_once_leave_nothing_behind() -> None:
    with ThrowAwayBus(talk_peers="*") as bus, Serving(bus, "worker") as worker:
        pid = worker.process.pid
        asking = client(bus)

        def ask(number: int) -> str:
            return asking.ask("worker", f"question {number} " + "x" * 10_000).text[:20].split()[1]

        def wave() -> None:
            with ExitStack() as crowd:
                for _ in range(SLOW):
                    crowd.enter_context(_slow(worker.port))
                with ThreadPoolExecutor(CALLS) as threads:
                    answers = list(threads.map(ask, range(CALLS)))
            assert answers == [str(number) for number in range(CALLS)]

        quiet = (_sockets(pid), len(_children(pid)))
        wave()  # threads and buffers that are kept have their size after it
        resident_bytes = _resident_bytes(pid)
        wave()
        eventually(
            lambda: (_sockets(pid), len(_children(pid))) == quiet,
            what=f"as before: {quiet} sockets and children",
        )
        assert _resident_bytes(pid) - resident_bytes < 16 * MIB


def _slow(port: int) -> socket.socket:
    """A client that never sends all of its question."""
    connected = connect(port)
    connected.sendall(head_of(1000))
    return connected
