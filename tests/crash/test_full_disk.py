"""No room on a disk: nothing is accepted that is not stored, and room lets the bus go on."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from agentbus.errors import BusError, UnavailableError, UnknownOutcomeError
from agentbus.ids import new_id
from agentbus.limits import KIB
from agentbus.transport.singleton import EXIT_DATABASE
from tests.bus_fixture import BusSession, ThrowAwayBus, stop_daemon
from tests.crash.conversation import attempt
from tests.eventually import PATIENCE_S, eventually
from tests.exhaustion import CAN_MOUNT, fill, small_disk
from tests.signals import kill

CONTENT = "x" * 30_000


@pytest.fixture
def bus() -> Iterator[ThrowAwayBus]:
    """Not started yet."""
    bus = ThrowAwayBus(send_messages_per_second=10_000, send_kib_per_second=65_536)
    yield bus
    bus.close()


def send(session: BusSession, operation_id: str) -> Any:
    return session.call("send", channel="general", content=CONTENT, operation_id=operation_id)


def send_until_refused(session: BusSession) -> tuple[list[str], str, BusError]:
    """What was accepted, then the operation id that was refused, and how."""
    accepted: list[str] = []
    for _ in range(500):
        operation_id = new_id()
        answer = attempt(lambda: send(session, operation_id))  # noqa: B023
        if isinstance(answer, BusError):
            return accepted, operation_id, answer
        accepted.append(answer["message_id"])
    raise AssertionError("the disk never was full")


def stored(session: BusSession) -> list[str]:
    page = session.call("history", channel="general", after=0, count=1000, max_kib=4096)
    return [message["message_id"] for message in page["messages"]]


@pytest.mark.skipif(not CAN_MOUNT, reason="needs Linux and root to mount a small file system")
def test_a_full_disk_refuses_sends_answers_readers_and_recovers_when_there_is_room(
    bus: ThrowAwayBus,
) -> None:
    with small_disk(bus.data_directory):
        ballast = bus.data_directory / "ballast"
        bus.start()
        try:
            ballast.write_bytes(b"\0" * 1_000_000)
            sender, reader = bus.attach("Sender"), bus.attach("Reader")
            accepted, refused_id, error = send_until_refused(sender)
            assert isinstance(error, UnavailableError), error
            assert "make room" in error.message
            assert error.retryable
            assert bus.state() == "ready"
            assert reader.call("history", channel="general", count=1)["messages"]
            with bus.client() as client:
                status = client.request("status", {}, PATIENCE_S)
                assert status["store"]["messages"] == len(accepted)
            again = attempt(lambda: send(sender, refused_id))
            assert isinstance(again, UnavailableError)
            ballast.unlink()
            answer = send(sender, refused_id)
            assert answer["duplicate"] is False
            assert stored(reader) == [*accepted, answer["message_id"]]
        finally:
            bus.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux to limit another process")
def test_a_file_that_may_not_grow_never_turns_into_a_false_success(bus: ThrowAwayBus) -> None:
    """Works without privileges: the write fails in the middle, at a place that SQLite chooses."""
    bus.start()
    assert bus.daemon is not None
    sender = bus.attach("Sender", conversation="s")
    unlimited = resource.prlimit(bus.daemon.pid, resource.RLIMIT_FSIZE)
    wal = next(bus.data_directory.glob("*.sqlite3-wal"))
    resource.prlimit(
        bus.daemon.pid, resource.RLIMIT_FSIZE, (wal.stat().st_size + 100_000, unlimited[1])
    )
    accepted, refused_id, error = send_until_refused(sender)
    assert isinstance(error, UnavailableError | UnknownOutcomeError), error
    if isinstance(error, UnknownOutcomeError):  # the ledger ends; the disk is read again
        assert bus.wait_ended() == 1
        bus.start()
        sender = bus.attach("Sender", conversation="s")
    else:
        resource.prlimit(bus.daemon.pid, resource.RLIMIT_FSIZE, unlimited)
    answer = send(sender, refused_id)
    assert stored(sender) == [*accepted, answer["message_id"]]


@pytest.mark.skipif(not CAN_MOUNT, reason="needs Linux and root to mount a small file system")
def test_a_log_without_room_costs_records_and_nothing_else(bus: ThrowAwayBus) -> None:
    bus.command.remove("--foreground")
    logs = bus.data_directory / "logs"
    bus.data_directory.mkdir()
    with small_disk(logs):
        bus.start()
        try:
            ballast = fill(logs)
            for number in range(20):  # each attach is a record
                bus.attach(f"A{number}").close()
            sender = bus.attach("Sender")
            assert send(sender, "k")["duplicate"] is False
            ballast.unlink()
            bus.attach("Late")
            log = logs / "daemon.log"
            eventually(lambda: "generation 22" in log.read_text(), what="records again")
        finally:
            assert bus.stop() == 0


@pytest.mark.skipif(not CAN_MOUNT, reason="needs Linux and root to mount a small file system")
def test_redis_without_room_for_its_files_is_replaced_when_there_is_room(
    bus: ThrowAwayBus,
) -> None:
    bus.runtime.directory.mkdir(mode=0o700)
    with small_disk(bus.runtime.directory):
        bus.start()
        try:
            sender = bus.attach("Sender")
            send(sender, "before")
            first = bus.redis_pid()
            assert first is not None
            ballast = fill(bus.runtime.directory)
            kill(first)
            refused = eventually(lambda: _refusal(sender), what="a refusal")
            assert isinstance(refused, UnavailableError), refused
            with bus.client() as client:
                status = client.request("status", {}, PATIENCE_S)
            assert status["state"] == "recovering"
            assert status["errors"]
            assert bus.daemon is not None
            assert bus.daemon.poll() is None
            ballast.unlink()
            bus.wait_ready()
            sender.wait_served()
            assert send(sender, "before")["duplicate"] is True
            assert bus.redis_pid() not in (None, first)
        finally:
            bus.stop()


def _refusal(session: BusSession) -> BusError | None:
    answer = attempt(lambda: send(session, new_id()))
    return answer if isinstance(answer, BusError) else None


@pytest.mark.skipif(not CAN_MOUNT, reason="needs Linux and root to mount a small file system")
@pytest.mark.parametrize("full", ["data", "run"])
def test_a_start_on_a_full_disk_is_refused_in_one_line_and_leaves_no_process(
    bus: ThrowAwayBus, full: str
) -> None:
    folder = {"data": bus.data_directory, "run": bus.runtime.directory}[full]
    with small_disk(folder, 64 * KIB):
        fill(folder)
        refused = subprocess.run(
            [*bus.command, "--config", str(bus.config_path)],
            env=bus.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=20,
        )
        assert refused.returncode == {"data": EXIT_DATABASE, "run": 2}[full], refused.stderr
        (line,) = refused.stderr.splitlines()[-1:]
        assert str(folder) in line
        assert "Traceback" not in refused.stderr
        assert bus.redis_pid() is None
    bus.start()
    assert send(bus.attach("Sender"), "k")["duplicate"] is False


def test_a_daemon_is_started_although_no_temporary_file_can_be_made(bus: ThrowAwayBus) -> None:
    """What it prints has no place then; it starts all the same."""
    program = (
        "import tempfile, sys, pathlib\n"
        "tempfile.tempdir = sys.argv[2]\n"
        "import os\n"
        "from agentbus.launch import ensure_daemon\n"
        "from agentbus.transport.singleton import runtime_directory\n"
        "paths = runtime_directory(os.environ, os.getuid())\n"
        "ensure_daemon(paths, pathlib.Path(sys.argv[1]), deadline_s=30).close()\n"
    )
    starter = [sys.executable, "-c", program, str(bus.config_path), "/nowhere"]
    try:
        subprocess.run(starter, env=bus.environment, check=True, timeout=40)
        bus.wait_ready()
    finally:
        stop_daemon(bus.runtime)
