"""The disk fails, the process dies, a change is poison: what is then true."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agentbus.errors import InternalError, UnavailableError, ValidationError
from agentbus.ids import Sequence
from agentbus.limits import MIB
from agentbus.store import ledger
from agentbus.store.changes import Done, Refused, SendMessage
from agentbus.store.reader import Reader
from agentbus.store.sending import send_message
from agentbus.store.work import Work
from tests import exhaustion
from tests.store.bus import Bus

PROJECT = Path(__file__).parents[2]
_SENDER = """
import sys
from pathlib import Path
from tests.store.bus import Bus
from agentbus.store.connection import CommitUncertain

bus = Bus(Path(sys.argv[1]))
sam = bus.attach()
try:
    (outcome,) = bus.store.apply([sam.send("once", operation_id="k")])
except CommitUncertain:
    try:
        bus.store.apply([sam.send("more")])
    except CommitUncertain:
        print("uncertain")
else:
    print(type(outcome).__name__, getattr(outcome, "error", None))
"""


def send_with_failpoint(folder: Path, failpoint: str) -> subprocess.CompletedProcess[str]:
    """One send in a process of its own, which has the failpoint set."""
    return subprocess.run(
        [sys.executable, "-c", _SENDER, str(folder)],
        cwd=PROJECT,
        env={**os.environ, "AGENTBUS_TEST_FAILPOINT": failpoint, "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.mark.parametrize(
    ("failpoint", "committed"),
    [("before_commit", False), ("commit", False), ("after_commit", True)],
)
def test_killed_around_the_commit_the_same_operation_id_answers_truly(
    tmp_path: Path, failpoint: str, committed: bool
) -> None:
    ended = send_with_failpoint(tmp_path, failpoint)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    bus = Bus(tmp_path)
    assert bus.store.last_sequence == (1 if committed else 0)
    sam = bus.attach()
    answer = bus.done(sam.send("once", operation_id="k")).result
    assert (answer["sequence"], answer["duplicate"]) == (1, committed)
    assert len(bus.reader().scan(Sequence(0), 9)) == 1
    bus.close()


@pytest.mark.parametrize(("failpoint", "committed"), [("commit", False), ("after_commit", True)])
def test_a_commit_that_raises_is_uncertain_and_ends_the_store(
    tmp_path: Path, failpoint: str, committed: bool
) -> None:
    ended = send_with_failpoint(tmp_path, f"{failpoint}:raise")
    assert ended.stdout.strip() == "uncertain", ended.stderr
    bus = Bus(tmp_path)
    answer = bus.done(bus.attach().send("once", operation_id="k")).result
    assert (answer["sequence"], answer["duplicate"]) == (1, committed)
    bus.close()


def test_a_failure_before_the_commit_is_unavailable(tmp_path: Path) -> None:
    ended = send_with_failpoint(tmp_path, "before_commit:raise")
    assert ended.stdout.startswith("Refused"), ended.stderr
    assert "failpoint before_commit" in ended.stdout
    bus = Bus(tmp_path)
    assert bus.store.last_sequence == 0
    bus.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB; needs the right to mount one."""
    if not exhaustion.CAN_MOUNT:
        pytest.skip("needs Linux and root to mount a small file system")
    folder = tmp_path / "disk"
    with exhaustion.small_disk(folder, MIB):
        yield folder


def test_a_full_disk_refuses_the_batch_and_room_lets_the_next_one_in(small_disk: Path) -> None:
    bus = Bus(small_disk)
    sam = bus.attach()
    sent = 0
    while True:
        outcomes = bus.store.apply([sam.send("x" * 30_000), sam.send("y" * 30_000)])
        if isinstance(outcomes[0], Refused):
            break
        sent += 2
        assert sent < 1000
    assert all(isinstance(outcome, Refused) for outcome in outcomes)
    error = outcomes[1].error  # type: ignore[union-attr]
    assert isinstance(error, UnavailableError)
    assert "disk is full" in error.message
    assert bus.store.last_sequence == sent > 0
    # Reads go on, and what is on disk is what was answered, also for who opens a copy now.
    reader = bus.reader()
    assert [row.sequence for row in reader.scan(Sequence(0), 1000)] == list(range(1, sent + 1))
    reader.close()
    copy = small_disk.parent / "copy"
    shutil.copytree(small_disk, copy)
    copied = Bus(copy)
    assert copied.store.last_sequence == sent
    copied.close()
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    assert bus.done(sam.send("x" * 30_000)).result["sequence"] == sent + 1
    counted = bus.store.logical_bytes
    assert bus.reopen().logical_bytes == counted
    assert bus.store.last_sequence == sent + 1
    bus.close()


def test_a_full_database_refuses_everything_until_there_is_room(bus: Bus) -> None:
    sam = bus.attach()
    bus.done(sam.send("first"))
    before = bus.store.statistics()
    connection = bus.store._connection
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    outcomes = bus.store.apply([sam.send("x" * 50_000), sam.make("plans"), sam.send("small")])
    assert [type(outcome) for outcome in outcomes] == [Refused] * 3
    assert isinstance(outcomes[2].error, UnavailableError)  # type: ignore[union-attr]
    after = bus.store.statistics()
    assert (after.last_sequence, after.logical_bytes) == (1, before.logical_bytes)
    assert after.failed_batches == 1
    connection.execute("PRAGMA max_page_count = 1000000")
    answers = bus.store.apply([sam.make("plans"), sam.send("x" * 50_000, channel="plans")])
    assert all(isinstance(answer, Done) for answer in answers)
    assert bus.store.last_sequence == 2


def test_a_lock_held_by_somebody_else_is_unavailable_not_uncertain(
    bus: Bus, tmp_path: Path
) -> None:
    sam = bus.attach()
    bus.store._connection.execute("PRAGMA busy_timeout = 20")
    other = sqlite3.connect(bus.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert isinstance(bus.refused(sam.send(operation_id="k")), UnavailableError)
    other.execute("ROLLBACK")
    other.close()
    assert bus.done(sam.send(operation_id="k")).result["sequence"] == 1


def test_a_change_that_fails_after_writing_does_not_undo_its_neighbours(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No handler does that, so one is made to: it writes everything, then refuses."""
    sam = bus.attach()
    before_bytes = bus.store.logical_bytes

    def refuse_late(work: Work, change: SendMessage) -> Done:
        done = send_message(work, change)
        if change.operation.content == "bad":
            raise ValidationError("too late")
        return done

    monkeypatch.setitem(ledger._HANDLERS, SendMessage, refuse_late)
    outcomes = bus.store.apply([sam.send("1"), sam.send("bad"), sam.make("plans"), sam.send("2")])
    assert [type(outcome) for outcome in outcomes] == [Done, Refused, Done, Done]
    assert outcomes[3].result["sequence"] == 2  # type: ignore[union-attr]
    assert bus.store.statistics().reruns == 1
    channel = bus.reader().channel("general")
    assert channel is not None
    assert (channel.retained, channel.newest) == (2, 2)
    counted = bus.store.logical_bytes
    assert counted > before_bytes
    assert bus.reopen().logical_bytes == counted


def test_a_poisonous_change_is_refused_alone_and_does_not_end_the_ledger(
    bus: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    sam = bus.attach()
    poison = replace(sam.send(), fingerprint=object())  # type: ignore[arg-type]
    outcomes = bus.store.apply([sam.send("1"), poison, sam.send("2")])
    assert [type(outcome) for outcome in outcomes] == [Done, Refused, Done]
    assert isinstance(outcomes[1].error, InternalError)  # type: ignore[union-attr]
    assert outcomes[2].result["sequence"] == 2  # type: ignore[union-attr]
    assert "SendMessage failed" in caplog.text
    assert bus.done(sam.send("3")).result["sequence"] == 3


def test_a_reader_sees_each_commit_of_an_open_writer(bus: Bus) -> None:
    sam = bus.attach()
    reader = Reader(bus.path)
    for sequence in range(1, 4):
        bus.done(sam.send())
        assert reader.last_sequence() == sequence
        assert len(reader.scan(Sequence(0), 9)) == sequence
    reader.close()


def test_an_uncommitted_batch_is_visible_to_nobody(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    sam = bus.attach()
    reader = Reader(bus.path)
    seen: list[int] = []

    def look(name: str) -> None:
        seen.append(len(reader.scan(Sequence(0), 9)))

    monkeypatch.setattr(ledger, "reach", look)
    bus.done(sam.send())
    assert seen == [0, 0, 1]  # before_commit, commit, after_commit
    reader.close()


def test_the_log_of_writes_stays_bounded(bus: Bus) -> None:
    sam = bus.attach()
    bus.store._connection.execute("PRAGMA wal_autocheckpoint = 50")
    wal = bus.path.with_name(bus.path.name + "-wal")
    sizes = []
    for _ in range(60):
        bus.store.apply([sam.send("x" * 20_000) for _ in range(10)])
        sizes.append(wal.stat().st_size)
    a_page = 4096 + 24  # the tables grow, and with them what a batch touches
    assert max(sizes[30:]) <= max(sizes[:30]) + 2 * a_page
    assert max(sizes) < 4_000_000 < bus.path.stat().st_size
