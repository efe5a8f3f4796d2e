"""Adapters that are killed, stopped or thrown away: what the daemon and the next one make of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agentbus.encoding import decode_trusted, encode_line
from agentbus.limits import (
    ATTACHMENT_EXPIRY_SECONDS,
    CONNECTION_OUT_BUFFER_BYTES,
    HEARTBEAT_SECONDS,
)
from tests.adapter.adapter_process import AdapterProcess
from tests.bus_fixture import ThrowAwayBus, stop_daemon
from tests.eventually import PATIENCE_S, eventually
from tests.integration.in_process import InProcessBus, in_process_bus
from tests.signals import freeze


@contextmanager
def adapter(bus: ThrowAwayBus, agent: str, session: str) -> Iterator[AdapterProcess]:
    with AdapterProcess(bus.environment, bus.config_path, agent=agent, session=session) as one:
        one.initialize()
        yield one


def in_flight(bus: ThrowAwayBus) -> int:
    """Requests that have no answer yet, without the one that asks."""
    with bus.client() as client:
        status = client.request("status", {}, PATIENCE_S)
        return int(status["transport"]["in_flight_now"]) - 1


def attached(bus: ThrowAwayBus, agent: str) -> bool:
    with bus.client() as client:
        sessions = client.request("sessions", {}, 10.0)["sessions"]
    return agent in [row["agent"] for row in sessions]


def test_one_killed_while_it_waits_leaves_no_wait_and_moves_nothing(bus: ThrowAwayBus) -> None:
    kim = bus.attach("Kim")
    with adapter(bus, "Waiter", "wait") as waiter:
        waiter.use("receive")
        eventually(lambda: in_flight(bus) == 0, what="no report of it is under way any more")
        waiter.call("receive", wait_seconds=40)
        eventually(lambda: in_flight(bus) == 1, what="the wait")
        waiter.process.kill()
        eventually(lambda: not attached(bus, "Waiter"), what="its attachment has ended")
        assert in_flight(bus) == 0
    sent = kim.call("send", channel="general", content="for whoever comes")
    with adapter(bus, "Waiter", "wait") as successor:
        (message,) = successor.use("receive", wait_seconds=10)["messages"]
        assert message["message_id"] == sent["message_id"]
        assert "redelivered" not in message


def test_one_killed_in_the_middle_of_a_result_has_handed_nothing_off(bus: ThrowAwayBus) -> None:
    kim = bus.attach("Kim")
    contents = [f"{number} " + "x" * 30_000 for number in range(8)]
    with adapter(bus, "Reader", "read") as reader:
        reader.use("receive")
        for content in contents:
            kim.call("send", channel="general", content=content)
        reader.call("receive", wait_seconds=10, count=8, max_kib=512)
        assert reader.read_bytes(1000)  # the rest stands in a full pipe
        reader.process.kill()
    with adapter(bus, "Reader", "read") as successor:
        received: list[dict[str, Any]] = []
        while len(received) < len(contents):
            messages = successor.use("receive", wait_seconds=10, count=8, max_kib=512)["messages"]
            assert messages, "something was taken for handed off"
            received += messages
        assert [message["content"] for message in received] == contents


@pytest.fixture
def clocked_bus() -> Iterator[InProcessBus]:
    with in_process_bus(send_messages_per_second=10_000, send_kib_per_second=65_536) as bus:
        yield bus


def test_a_stopped_one_costs_bounded_memory_delays_nobody_and_lapses(
    clocked_bus: InProcessBus,
) -> None:
    bus = clocked_bus
    environment = {**os.environ, "AGENTBUS_RUNTIME_DIR": str(bus.paths.directory)}
    kim = bus.attach("Kim")
    with AdapterProcess(environment, bus.config.path, agent="Frozen", session="f") as frozen:
        frozen.initialize()
        frozen.use("receive")
        freeze(frozen.process.pid)
        contents = [f"{number} " + "x" * 20_000 for number in range(400)]
        for content in contents:
            kim.call("send", channel="general", content=content)
        listener = bus.system._listener
        assert listener is not None
        queued_bytes = eventually(lambda: listener.statistics().queued_bytes_now)
        assert queued_bytes <= CONNECTION_OUT_BUFFER_BYTES
        for _ in range(int(ATTACHMENT_EXPIRY_SECONDS // HEARTBEAT_SECONDS) + 2):
            bus.clock.advance(HEARTBEAT_SECONDS)
            kim.client.request("heartbeat", {}, PATIENCE_S)
        eventually(lambda: listener.statistics().connections_now == 1, what="its connection closed")
        eventually(lambda: listener.statistics().queued_bytes_now == 0, what="its output dropped")
        frozen.process.send_signal(signal.SIGCONT)
        received: list[str] = []
        while len(received) < len(contents):
            result = frozen.use("receive", wait_seconds=10, count=100, max_kib=2048)
            assert result["messages"], result
            received += [message["content"] for message in result["messages"]]
        assert received == contents


def test_a_hundred_conversations_leave_no_descriptor_thread_or_process(bus: ThrowAwayBus) -> None:
    assert bus.daemon is not None
    process = Path(f"/proc/{bus.daemon.pid}")

    def held() -> tuple[int, int]:
        return len(list((process / "fd").iterdir())), len(list((process / "task").iterdir()))

    def come_and_go(round_: int) -> None:
        sessions = [bus.attach(f"C{number}", conversation=f"{round_}") for number in range(24)]
        for session in sessions:
            session.call("send", channel="general", content="here")
        for session in sessions:
            session.close()
        eventually(lambda: not any(attached(bus, f"C{number}") for number in range(24)))

    come_and_go(0)
    descriptors, threads = held()
    with adapter(bus, "Last", "l") as one, adapter(bus, "Killed", "k") as other:
        one.use("whoami")
        other.use("whoami")
        other.process.kill()
        one.close_write()
        assert one.wait_exit(10.0) == 0
    for round_ in range(1, 5):
        come_and_go(round_)
    eventually(
        lambda: held()[0] <= descriptors and held()[1] <= threads,
        what=f"{descriptors} descriptors and {threads} threads again",
    )
    children = (process / "task" / process.name / "children").read_text().split()
    assert len(children) <= 1, "more than its Redis"


def test_the_end_of_a_harness_with_all_its_processes_leaves_the_daemon_and_no_pipe() -> None:
    """A harness kills the process group of its servers; whoever waits for their output is told."""
    bus = ThrowAwayBus()
    harness = subprocess.Popen(
        [sys.executable, "-m", "agentbus", "mcp", "--agent", "Sam", "--config", bus.config_path],
        env=bus.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        with harness:
            assert harness.stdin is not None
            assert harness.stdout is not None
            hello = {
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": {"name": "tester", "version": "1"},
            }
            call = {"name": "send", "arguments": {"channel": "general", "content": "kept"}}
            for number, (method, params) in enumerate(
                [("initialize", hello), ("tools/call", call)]
            ):
                frame = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
                harness.stdin.write(encode_line(frame))
                harness.stdin.flush()
                answer = decode_trusted(harness.stdout.readline())
                assert "result" in answer, answer
            os.killpg(harness.pid, signal.SIGKILL)
            # The end of both, held by nobody.
            assert harness.communicate(timeout=PATIENCE_S) == (b"", b"")
        assert bus.state() == "ready"
        kept = bus.attach("Kim").call("history", channel="general")["messages"]
        assert [message["content"] for message in kept] == ["kept"]
    finally:
        stop_daemon(bus.runtime)
        bus.close()
