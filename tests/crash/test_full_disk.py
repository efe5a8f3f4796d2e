"""No room for the database: nothing is accepted that is not stored, and room lets it go on."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentbus.errors import BusError, UnavailableError, UnknownOutcomeError
from agentbus.ids import new_id
from tests.bus_fixture import BusSession, ThrowAwayBus
from tests.crash.conversation import attempt

CAN_MOUNT = sys.platform == "linux" and os.geteuid() == 0 and shutil.which("mount") is not None

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


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    folder.mkdir(mode=0o700)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m,mode=0700", "agentbus-test", str(folder)],
        capture_output=True,
        text=True,
    )
    assert mounted.returncode == 0, mounted.stderr
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


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
                assert client.request("status", {}, 5.0)["store"]["messages"] == len(accepted)
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
