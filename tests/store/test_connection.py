"""Opening: modes, pragmas, odd paths, files that are not ours."""

from __future__ import annotations

import sqlite3
import stat
from pathlib import Path
from typing import Any, Literal

import pytest

from agentbus.clock import SystemClock
from agentbus.ids import Sequence
from agentbus.store.connection import DatabaseUnusable, open_reader, open_writer
from agentbus.store.ledger import LedgerStore
from agentbus.store.reader import Reader
from agentbus.store.schema import SCHEMA_VERSION
from tests.store.bus import Bus, config


def pragma(connection: sqlite3.Connection, name: str) -> Any:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]


@pytest.mark.parametrize(("synchronous", "level"), [("full", 2), ("normal", 1)])
def test_the_writer_logs_ahead_and_syncs_as_configured(
    tmp_path: Path, synchronous: Literal["full", "normal"], level: int
) -> None:
    connection = open_writer(tmp_path / "bus.sqlite3", synchronous)
    assert pragma(connection, "journal_mode") == "wal"
    assert pragma(connection, "synchronous") == level
    assert pragma(connection, "wal_autocheckpoint") > 0
    assert pragma(connection, "journal_size_limit") > 0
    connection.close()


def test_the_files_are_private_also_if_the_database_was_not(tmp_path: Path) -> None:
    bus = Bus(tmp_path)
    bus.close()
    bus.path.chmod(0o644)
    bus = Bus(tmp_path)
    bus.attach()
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    assert modes == dict.fromkeys(("bus.sqlite3", "bus.sqlite3-wal", "bus.sqlite3-shm"), 0o600)
    bus.close()


@pytest.mark.parametrize(
    "name", ["a b", "what?mode=memory", "50%25", "#1", "ünïcödé", "file:x", "'\"", "a\nb"]
)
def test_any_folder_name_works(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    bus = Bus(folder)
    bus.done(bus.attach().send())
    reader = bus.reader()
    assert reader.last_sequence() == 1
    reader.close()
    bus.close()
    assert [file.name for file in folder.iterdir()] == ["bus.sqlite3"]
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_a_relative_path_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = LedgerStore(Path("bus.sqlite3"), config(tmp_path), SystemClock())
    store.close()
    open_reader(Path("bus.sqlite3")).close()


def refusal(path: Path) -> str:
    with pytest.raises(DatabaseUnusable) as refused:
        LedgerStore(path, config(path.parent), SystemClock())
    assert str(path) in str(refused.value)
    return str(refused.value)


def test_a_file_that_is_no_database_is_refused_untouched(tmp_path: Path) -> None:
    path = tmp_path / "bus.sqlite3"
    text = b"Dear diary, this is no database at all. " * 200
    path.write_bytes(text)
    assert "file is not a database" in refusal(path)
    assert path.read_bytes() == text


def test_another_programs_database_is_refused_untouched(tmp_path: Path) -> None:
    path = tmp_path / "bus.sqlite3"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE bookmarks (url)")
    other.close()
    before = path.read_bytes()
    assert "not one of agentbus" in refusal(path)
    assert path.read_bytes() == before
    with pytest.raises(DatabaseUnusable, match="not one of agentbus"):
        open_reader(path)


@pytest.mark.parametrize("version", [0, SCHEMA_VERSION + 1, 99, None, "x", 2.5])
def test_a_schema_of_another_version_is_refused(bus: Bus, version: Any) -> None:
    connection = bus.store._connection
    if version is None:
        connection.execute("DELETE FROM meta WHERE key = 'schema_version'")
    else:
        connection.execute("UPDATE meta SET value = ? WHERE key = 'schema_version'", (version,))
    bus.close()
    message = refusal(bus.path)
    assert f"schema version {'(none)' if version is None else version}, this program" in message
    assert f"knows {SCHEMA_VERSION}" in message
    assert ("newer agentbus" in message) is (version in (SCHEMA_VERSION + 1, 99))


def test_a_damaged_database_is_refused(bus: Bus) -> None:
    bus.done(bus.attach().send("x" * 50_000))
    bus.close()
    data = bytearray(bus.path.read_bytes())
    data[4096 : len(data)] = b"\xff" * (len(data) - 4096)
    bus.path.write_bytes(data)
    assert "damaged" in refusal(bus.path)


def test_a_missing_folder_is_refused_with_advice(tmp_path: Path) -> None:
    message = refusal(tmp_path / "nowhere" / "bus.sqlite3")
    assert "No such file" in message
    assert "data_directory" in message


def test_a_folder_in_the_files_place_is_refused(tmp_path: Path) -> None:
    assert "Is a directory" in refusal(tmp_path)


def test_a_reader_needs_a_bus(tmp_path: Path) -> None:
    path = tmp_path / "bus.sqlite3"
    with pytest.raises(DatabaseUnusable, match="cannot be opened"):
        open_reader(path)
    assert not path.exists()
    path.touch()
    with pytest.raises(DatabaseUnusable, match="no bus yet"):
        open_reader(path)


def test_a_new_bus_has_general_and_an_identity_of_its_own(tmp_path: Path) -> None:
    ids = set()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        bus = Bus(tmp_path / name)
        ids.add(bus.store.bus_id)
        assert [row.channel for row in bus.reader().channels()] == ["general"]
        assert (bus.store.last_sequence, bus.store.last_generation) == (0, 0)
        assert bus.reopen().bus_id in ids
        bus.close()
    assert len(ids) == 2


def test_closing_folds_the_log_into_the_file_although_a_reader_is_open(tmp_path: Path) -> None:
    bus = Bus(tmp_path)
    bus.done(bus.attach().send("kept"))
    reader = Reader(bus.path)
    log = next(tmp_path.glob("*-wal"))
    assert log.stat().st_size > 0
    bus.close()
    assert log.stat().st_size == 0
    assert [message.sequence for message in reader.scan(Sequence(0), 10)] == [1]
    reader.close()
