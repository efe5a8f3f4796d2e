"""An older database becomes a current one: whole, at once, and with everything that was in it."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentbus.store import migrations
from agentbus.store.accounting import recount
from agentbus.store.changes import MoveCursors
from agentbus.store.connection import DatabaseUnusable
from agentbus.store.migrations import OLDEST_VERSION, STEPS
from agentbus.store.opening import close_bus, open_bus
from agentbus.store.schema import SCHEMA_VERSION
from tests.store.bus import Bus, Speaker
from tests.store.older import END_US, make_older
from tests.store.test_failures import PROJECT

_OPEN = """
import sys
from pathlib import Path
from agentbus.store.opening import close_bus, open_bus

close_bus(open_bus(Path(sys.argv[1]), "full", 1), in_order=True)
"""


@pytest.fixture
def version() -> int:
    """Of the old database; tests of all versions are given each of them."""
    return OLDEST_VERSION


@pytest.fixture
def old(tmp_path: Path, version: int) -> Path:
    path = tmp_path / "bus.sqlite3"
    make_older(path, version)
    return path


every_version = pytest.mark.parametrize("version", range(OLDEST_VERSION, SCHEMA_VERSION))


def version_of(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        (row,) = connection.execute("SELECT value FROM meta WHERE key = 'schema_version'")
    return int(row[0])


def layout_of(path: Path) -> list[Any]:
    """Tables and indexes with their columns, in the order that rows have them on disk."""
    with closing(sqlite3.connect(path)) as connection:
        items = connection.execute("SELECT type, name FROM sqlite_master ORDER BY 1, 2").fetchall()
        return [
            (kind, name, connection.execute(f'PRAGMA {kind}_xinfo("{name}")').fetchall())
            for kind, name in items
        ]


def open_with_failpoint(path: Path, failpoint: str) -> int:
    ended = subprocess.run(
        [sys.executable, "-c", _OPEN, str(path)],
        cwd=PROJECT,
        env={**os.environ, "AGENTBUS_TEST_FAILPOINT": failpoint, "PYTHONPATH": str(PROJECT)},
        timeout=30,
    )
    return ended.returncode


def test_every_version_since_the_oldest_has_its_step() -> None:
    assert sorted(STEPS) == list(range(OLDEST_VERSION + 1, SCHEMA_VERSION + 1))


@every_version
def test_an_old_database_gets_the_layout_of_a_new_one(old: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.sqlite3"
    for path in (old, new):
        close_bus(open_bus(path, "full", 1), in_order=True)
    assert version_of(old) == SCHEMA_VERSION
    assert layout_of(old) == layout_of(new)


@every_version
def test_the_accounting_of_a_migrated_database_is_exact(old: Path) -> None:
    connection = open_bus(old, "full", 1)
    (recorded,) = connection.execute("SELECT value FROM meta WHERE key = 'logical_bytes'")
    assert recorded[0] == recount(connection)
    close_bus(connection, in_order=True)


def test_the_old_database_stays_beside_the_new_one(old: Path) -> None:
    close_bus(open_bus(old, "full", 1), in_order=True)
    (kept,) = old.parent.glob(f"*.before-v{SCHEMA_VERSION}")
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert version_of(kept) == 1
    with closing(sqlite3.connect(kept)) as connection:
        assert connection.execute("SELECT COUNT(*) FROM messages").fetchone() == (4,)
    assert sorted(file.name for file in old.parent.iterdir()) == [old.name, kept.name]


def test_what_was_in_an_old_bus_is_in_the_new_one(old: Path) -> None:
    bus = Bus(old.parent)
    bus.clock.set_wall(END_US)
    sam = bus.attach("Sam", "c1", application="test")
    kim = bus.attach("Kim", "c2", application="test")
    assert (sam.bound.resumed, kim.bound.resumed) == (True, True)
    positions = {row.channel: (row.handed_off, row.confirmed) for row in kim.bound.subscriptions}
    assert positions == {"builds": (4, 4), "plans": (3, 3), "general": (3, 3)}
    repeat = bus.done(sam.send("hello", operation_id="hello")).result
    assert (repeat["sequence"], repeat["duplicate"]) == (7, True)
    (memory,) = bus.reader().scan_memories(bus.reader().memory_channels()[0], 0, 9)  # type: ignore[arg-type]
    assert memory.position == 6
    edit = bus.done(sam.edit(memory.message_id, "the port is 9090")).result
    assert (edit["revision"], edit["sequence"]) == (2, 8)
    assert bus.done(sam.send("go on")).result["sequence"] == 9
    counted = bus.store.logical_bytes
    assert bus.reopen().logical_bytes == counted
    bus.close()


@pytest.mark.parametrize("version", [3])
def test_agents_of_a_bus_before_direct_messages_are_there_and_can_be_described(old: Path) -> None:
    bus = Bus(old.parent)
    bus.clock.set_wall(END_US)
    kim = bus.attach("Kîm", "c2", application="test")
    assert kim.bound.resumed
    assert bus.done(kim.send("on")).result["sequence"] == 4
    with closing(sqlite3.connect(old)) as connection:
        agents = connection.execute("SELECT name, description, capabilities FROM agents ORDER BY 1")
        assert agents.fetchall() == [("Kîm", None, "[]"), ("Sam", None, "[]")]
        assert connection.execute("SELECT COUNT(*) FROM deliveries").fetchone() == (0,)
    counted = bus.store.logical_bytes
    assert bus.reopen().logical_bytes == counted
    bus.close()


@pytest.mark.parametrize("version", [2])
def test_a_session_of_an_old_bus_is_told_what_became_of_memories_until_it_has_seen_it(
    old: Path,
) -> None:
    bus = Bus(old.parent)

    def told() -> tuple[Speaker, list[tuple[int, bool]]]:
        kim = bus.attach("Kim", "c2", application="test")
        changes = kim.bound.memory_changes
        return kim, [(change.revision, change.envelope is not None) for change in changes]

    kim, first = told()
    assert first == [(2, True), (1, False)]
    assert told()[1] == first  # nothing says that anybody was shown it
    for _ in range(2):
        kim = told()[0]
        renewed = tuple(row.subscription_id for row in kim.bound.subscriptions)
        bus.done(MoveCursors(kim.attachment, renewed=renewed))
        bus.done(MoveCursors(kim.attachment, renewed=renewed))
    assert told()[1] == []
    bus.close()


@pytest.mark.parametrize(
    ("failpoint", "then"),
    [
        ("before_migration", 1),
        ("during_migration", 1),
        ("after_migration", 2),
        ("during_migration@2", 2),
        ("after_migration@2", 3),
        ("during_migration@3", 3),
        ("after_migration@3", 4),
    ],
)
def test_killed_at_any_point_the_database_is_of_one_version_and_the_next_start_goes_on(
    old: Path, failpoint: str, then: int
) -> None:
    assert open_with_failpoint(old, failpoint) == -signal.SIGKILL
    assert version_of(old) == then
    close_bus(open_bus(old, "full", 1), in_order=True)
    assert version_of(old) == SCHEMA_VERSION
    bus = Bus(old.parent)
    assert bus.reader().counts()["messages"] == 4
    bus.close()


def test_a_step_that_fails_leaves_the_old_database(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(connection: sqlite3.Connection) -> None:
        connection.execute("DROP TABLE receipts")
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setitem(migrations.STEPS, 2, fail)
    with pytest.raises(DatabaseUnusable, match="disk is full"):
        open_bus(old, "full", 1)
    monkeypatch.undo()
    assert version_of(old) == 1
    close_bus(open_bus(old, "full", 1), in_order=True)
    assert version_of(old) == SCHEMA_VERSION


def test_without_room_for_the_copy_nothing_is_changed(old: Path) -> None:
    blocked = old.with_name(f"{old.name}.before-v{SCHEMA_VERSION}.new")
    blocked.mkdir()
    with pytest.raises(DatabaseUnusable, match="cannot be opened"):
        open_bus(old, "full", 1)
    assert version_of(old) == 1
