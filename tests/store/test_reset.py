"""Reset: everything goes but the counters that must never go back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agentbus.errors import StaleAttachmentError
from agentbus.ids import Sequence
from agentbus.limits import KIB
from agentbus.store import creation
from agentbus.store.connection import DatabaseUnusable
from agentbus.store.reset import reset_database
from tests.store.bus import Bus

PROJECT = Path(__file__).parents[2]


def filled(bus: Bus) -> None:
    sam = bus.attach()
    bus.attach("Kim", "c2")
    bus.done(sam.make("plans", "memory"))
    bus.store.apply([sam.send("x", channel=c, operation_id=c) for c in ("plans", "general")])
    bus.clock.advance(hours=bus.config.message_retention_hours)
    bus.prune("messages_by_age")


def test_a_reset_leaves_an_empty_bus_whose_counters_go_on(bus: Bus) -> None:
    empty_bytes = bus.store.logical_bytes
    filled(bus)
    old_id = bus.store.bus_id
    sam = bus.attach()
    bus.close()
    result = reset_database(bus.path, "full", bus.clock.wall_us())
    store = bus.reopen()
    assert (store.bus_id, store.last_sequence, store.last_generation) == (result.bus_id, 2, 3)
    assert store.bus_id != old_id
    assert store.logical_bytes == empty_bytes
    reader = bus.reader()
    assert reader.counts() == {
        "messages": 0,
        "agents": 0,
        "sessions": 0,
        "channels": 1,
        "subscriptions": 0,
        "receipts": 0,
        "paused_deliveries": 0,
    }
    (general,) = reader.channels()
    assert (general.channel, general.newest, general.removed_through) == ("general", 0, 0)
    assert reader.removed_ranges(general.channel_id, Sequence(0)) == []
    reader.close()
    assert isinstance(bus.refused(sam.send()), StaleAttachmentError)
    new = bus.attach()
    assert new.bound.resumed is False
    assert new.bound.generation == 4
    (row,) = new.bound.subscriptions
    assert (row.handed_off, row.subscription_id) == (2, 3)
    assert bus.done(new.send("x", operation_id="general")).result["sequence"] == 3


def test_a_reset_of_nothing_makes_an_empty_bus(tmp_path: Path) -> None:
    path = tmp_path / "bus.sqlite3"
    result = reset_database(path, "full", 1)
    bus = Bus(tmp_path)
    assert bus.store.bus_id == result.bus_id
    bus.close()


def test_a_reset_that_fails_changes_nothing(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(bus)
    before = bus.store.statistics()
    old_id = bus.store.bus_id
    bus.close()
    monkeypatch.setattr(creation, "_INSERT_META", "INSERT INTO nowhere VALUES (?, ?)")
    with pytest.raises(DatabaseUnusable, match="nowhere"):
        reset_database(bus.path, "full", 1)
    bus.reopen()
    assert bus.store.bus_id == old_id
    assert bus.store.last_sequence == before.last_sequence
    assert bus.store.logical_bytes == before.logical_bytes
    assert bus.reader().counts()["messages"] == 1


_RESET_WITH_SMALL_FILES = """
import resource, sys
from pathlib import Path
from agentbus.store.connection import CommitUncertain
from agentbus.store.reset import reset_database

resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    reset_database(Path(sys.argv[1]), "full", 1)
except CommitUncertain as error:
    print(error)
"""


def test_a_reset_whose_commit_fails_says_that_nobody_knows(bus: Bus) -> None:
    filled(bus)
    old_id = bus.store.bus_id
    bus.close()
    # The log takes a mark, and not all pages of a reset.
    command = [sys.executable, "-c", _RESET_WITH_SMALL_FILES, str(bus.path), str(32 * KIB)]
    ended = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=30)
    assert "did not say whether the bus was emptied (disk I/O error)" in ended.stdout, ended.stderr
    assert "run agentbus reset again" in ended.stdout
    bus.reopen()
    assert bus.store.bus_id == old_id
    assert bus.reader().counts()["messages"] == 1


def test_a_reset_removes_the_text_from_the_log_of_writes(bus: Bus) -> None:
    bus.done(bus.attach().send("secret words"))
    bus.close()
    reset_database(bus.path, "full", 1)
    wal = bus.path.with_name(bus.path.name + "-wal")
    assert not wal.exists() or wal.stat().st_size == 0
