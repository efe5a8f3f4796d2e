"""The log does not outgrow its readers: ours are waited for, another process is named."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentbus.errors import UnavailableError
from agentbus.limits import KIB, MIB
from agentbus.store import write_ahead_log
from agentbus.store.changes import Done, Outcome, Refused
from agentbus.store.reader import Reader
from tests.eventually import eventually
from tests.store.bus import Bus, Speaker

BATCH = 64
READERS = 3


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sixteenth of everything, and no waiting for the next try."""
    for name in ("EMPTY_BYTES", "HELD_BYTES", "STEP_BYTES"):
        monkeypatch.setattr(write_ahead_log, name, getattr(write_ahead_log, name) // 16)
    monkeypatch.setattr(write_ahead_log, "FULL_BYTES", 8 * MIB)
    monkeypatch.setattr(write_ahead_log, "WAL_CHECKPOINT_PAGES", 250)
    monkeypatch.setattr(write_ahead_log, "RETRY_S", 0.0)


def small(bus: Bus) -> Speaker:
    bus.store._connection.execute("PRAGMA wal_autocheckpoint = 250").fetchall()
    bus.store._connection.execute(f"PRAGMA journal_size_limit = {MIB}").fetchall()
    return bus.attach()


def log_bytes(bus: Bus) -> int:
    return bus.store.statistics().log_bytes


def send_batch(bus: Bus, speaker: Speaker, content: str = "x" * 400) -> list[Outcome]:
    outcomes = bus.store.apply([speaker.send(content) for _ in range(BATCH)])
    bus.store.attend_to_log()
    return outcomes


def grow_until(bus: Bus, speaker: Speaker, size_bytes: int) -> None:
    while log_bytes(bus) < size_bytes:
        assert all(isinstance(outcome, Done) for outcome in send_batch(bus, speaker, "x" * 8000))


@contextmanager
def outside_reader(path: Path) -> Iterator[int]:
    """Another process in a read transaction; its id."""
    program = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('BEGIN');"
        "c.execute('SELECT COUNT(*) FROM messages').fetchall(); print('!', flush=True); input()"
    )
    reader = subprocess.Popen(
        [sys.executable, "-c", program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert reader.stdin is not None
    assert reader.stdout is not None
    try:
        assert reader.stdout.readline() == b"!\n"
        yield reader.pid
    finally:
        reader.kill()
        reader.communicate()


def test_the_log_stays_small_although_there_is_always_one_who_reads(bus: Bus) -> None:
    speaker = small(bus)
    send_batch(bus, speaker)
    stop, reads = threading.Event(), []

    def read() -> None:
        reader = Reader(bus.path)
        general = reader.channel("general")
        assert general is not None
        while not stop.is_set():
            reads.append(len(reader.history(general.channel_id, count=50).messages))
        reader.close()

    threads = [threading.Thread(target=read) for _ in range(READERS)]
    for thread in threads:
        thread.start()
    largest_bytes = written_bytes = 0
    try:
        eventually(lambda: len(reads) > READERS)
        while written_bytes < 8 * write_ahead_log.EMPTY_BYTES:
            assert all(isinstance(outcome, Done) for outcome in send_batch(bus, speaker))
            written_bytes += BATCH * 2 * KIB
            largest_bytes = max(largest_bytes, log_bytes(bus))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert largest_bytes < write_ahead_log.HELD_BYTES
    assert bus.store.statistics().log_obstacle is None


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests in which no waiting helps."""
    monkeypatch.setattr(write_ahead_log, "PATIENCE_MS", 10)


@pytest.mark.usefixtures("impatient")
def test_a_process_that_keeps_reading_is_named_and_its_end_empties_the_log(
    bus: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    speaker = small(bus)
    send_batch(bus, speaker)
    with outside_reader(bus.path) as pid:
        grow_until(bus, speaker, write_ahead_log.HELD_BYTES + MIB)
        obstacle = bus.store.statistics().log_obstacle
        assert obstacle is not None
        if sys.platform == "linux":
            assert f"process {pid} (" in obstacle
        assert caplog.text.count("has grown") == 1
    send_batch(bus, speaker)
    assert log_bytes(bus) < write_ahead_log.EMPTY_BYTES
    assert bus.store.statistics().log_obstacle is None
    assert "empty again" in caplog.text
    for _ in range(100):  # and SQLite's own checkpoints go on
        send_batch(bus, speaker)
        assert log_bytes(bus) < write_ahead_log.EMPTY_BYTES


@pytest.mark.usefixtures("impatient")
def test_a_full_log_refuses_and_still_answers_reads(bus: Bus) -> None:
    speaker = small(bus)
    send_batch(bus, speaker)
    with outside_reader(bus.path):
        grow_until(bus, speaker, write_ahead_log.FULL_BYTES)
        full_bytes, last = log_bytes(bus), bus.store.last_sequence
        for _ in range(3):
            for outcome in send_batch(bus, speaker):
                assert isinstance(outcome, Refused)
                assert isinstance(outcome.error, UnavailableError)
                assert "keeps reading" in outcome.error.message
        assert log_bytes(bus) == full_bytes
        assert bus.reader().last_sequence() == bus.store.last_sequence == last
    assert all(isinstance(outcome, Done) for outcome in send_batch(bus, speaker))
    assert log_bytes(bus) < write_ahead_log.EMPTY_BYTES


@pytest.mark.usefixtures("impatient")
def test_a_stop_beside_another_reader_says_that_the_log_stays(
    bus: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    speaker = small(bus)
    send_batch(bus, speaker)
    with outside_reader(bus.path):
        send_batch(bus, speaker)
        bus.store.close()
        assert "stays beside the database" in caplog.text
    assert bus.reopen().last_sequence == 2 * BATCH
