"""Files that are damaged, cut, missing or somebody else's: the last good commit, or a refusal."""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import struct
from contextlib import closing
from pathlib import Path

import pytest

from agentbus.errors import InternalError
from agentbus.ids import ChannelId, Sequence
from agentbus.store import integrity
from agentbus.store.connection import DatabaseUnusable
from agentbus.store.log_check import look_at_log
from agentbus.store.opening import close_bus, open_bus
from tests.store.bus import Bus

PAGE = 4096
FRAME = 24 + PAGE
SENDS = 20


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """The files of a bus as a killed process leaves them: 20 commits, all in the log."""
    live = tmp_path / "live"
    live.mkdir()
    bus = Bus(live)
    sam = bus.attach()
    for number in range(SENDS):
        bus.done(sam.send(f"message {number}"))
    folder = tmp_path / "crashed"
    folder.mkdir()
    for suffix in ("", "-wal"):
        shutil.copy(f"{bus.path}{suffix}", folder)
    bus.close()
    return folder / bus.path.name


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """A bus that was closed in order, with some pages of everything."""
    bus = Bus(tmp_path)
    sam = bus.attach()
    bus.store.apply([sam.send(f"message {number} " + "x" * 300) for number in range(200)])
    bus.close()
    return bus.path


def log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 0x10]))


def sent(path: Path) -> int:
    """How many messages whoever opens the bus now finds."""
    bus = Bus(path.parent)
    found = len(bus.reader().scan(Sequence(0), 1000))
    bus.close()
    return found


def refusal(path: Path) -> str:
    """The text of the refusal; it comes again, and nothing in the folder was changed by it."""
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    texts = []
    for _ in range(2):
        with pytest.raises(DatabaseUnusable) as refused:
            open_bus(path, "full", 1)
        texts.append(str(refused.value))
    after = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) <= {f"{path.name}-shm", f"{path.name}-wal"}
    assert texts[0] == texts[1]
    assert "\n" not in texts[0]
    return texts[0]


# --- the log ---


def test_after_a_crash_everything_that_was_committed_is_there(crashed: Path) -> None:
    assert sent(crashed) == SENDS


def test_a_log_cut_at_any_place_gives_the_commits_before_the_cut(crashed: Path) -> None:
    whole = log_of(crashed).read_bytes()
    counts = []
    for size in (*range(0, len(whole), FRAME * 7 + 1111), 31, 32, 33, len(whole) - 1):
        folder = crashed.parent / str(size)
        folder.mkdir()
        shutil.copy(crashed, folder)
        log_of(folder / crashed.name).write_bytes(whole[:size])
        counts.append((size, sent(folder / crashed.name)))
    found = [count for _, count in sorted(counts)]
    assert found == sorted(found)
    assert found[0] == 0
    assert SENDS - 1 <= found[-1] <= SENDS


def test_a_torn_last_commit_is_left_out_and_the_log_says_so(
    crashed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flip(log_of(crashed), log_of(crashed).stat().st_size - 100)
    assert sent(crashed) == SENDS - 1
    assert "its last write is incomplete" in caplog.text


@pytest.mark.parametrize("part", ["page", "checksum", "salt"])
def test_damage_in_the_middle_of_the_log_is_refused_because_commits_follow(
    crashed: Path, part: str
) -> None:
    within = {"page": 24 + 1000, "checksum": 17, "salt": 9}[part]
    flip(log_of(crashed), 32 + 10 * FRAME + within)
    text = refusal(crashed)
    assert "commits behind that" in text
    assert f"mv {log_of(crashed)} {log_of(crashed)}.damaged" in text
    # What the text says gives the last good state that can be had without the log.
    log_of(crashed).rename(f"{log_of(crashed)}.damaged")
    log_of(crashed).touch()
    assert sent(crashed) == 0


def test_without_a_sync_at_each_commit_the_same_damage_may_be_a_loss_of_power(
    crashed: Path,
) -> None:
    flip(log_of(crashed), 32 + 10 * FRAME + 1000)
    assert look_at_log(crashed, every_commit_synced=False).torn
    close_bus(open_bus(crashed, "normal", 1), in_order=True)


@pytest.mark.parametrize("garbage", [b"\xa5" * 100_000, b"Dear diary\n" * 9, b"\0" * 32 + b"x"])
def test_a_log_that_is_garbage_is_refused(crashed: Path, garbage: bytes) -> None:
    log_of(crashed).write_bytes(garbage)
    assert "its header is not one of a write-ahead log" in refusal(crashed)


def test_a_log_that_was_lengthened_but_never_written_is_an_empty_one(crashed: Path) -> None:
    log_of(crashed).write_bytes(b"\0" * 50_000)
    assert sent(crashed) == 0


def test_frames_left_from_before_the_log_began_anew_are_no_damage(tmp_path: Path) -> None:
    bus = Bus(tmp_path)
    sam = bus.attach()
    for _ in range(SENDS):
        bus.done(sam.send())
    bus.store._connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
    bus.done(sam.send())
    folder = tmp_path / "copy"
    folder.mkdir()
    for suffix in ("", "-wal"):
        shutil.copy(f"{bus.path}{suffix}", folder)
    bus.close()
    assert not look_at_log(folder / bus.path.name, every_commit_synced=True).torn
    assert sent(folder / bus.path.name) == SENDS + 1


def test_a_log_that_disappeared_after_a_crash_is_not_passed_over(crashed: Path) -> None:
    log_of(crashed).unlink()
    text = refusal(crashed)
    assert "its log bus.sqlite3-wal is missing" in text
    assert f"touch {log_of(crashed)}" in text
    log_of(crashed).touch()
    assert sent(crashed) == 0


def test_without_its_index_the_log_is_read_all_the_same(crashed: Path) -> None:
    shm = crashed.with_name(f"{crashed.name}-shm")
    shm.write_bytes(b"\xff" * 32768)
    assert sent(crashed) == SENDS
    assert not shm.exists()


def test_a_log_without_its_database_is_refused(crashed: Path) -> None:
    crashed.unlink()
    assert "missing, but its log bus.sqlite3-wal is there" in refusal(crashed)
    assert not crashed.exists()


# --- the database ---


def test_a_file_of_no_bytes_is_refused_and_keeps_its_log(crashed: Path) -> None:
    os.truncate(crashed, 0)
    assert "it has no bytes" in refusal(crashed)
    log_of(crashed).unlink()
    assert "it has no bytes" in refusal(crashed)


@pytest.mark.parametrize("size", [1, 99, 100, 4095, 4096, 5 * PAGE, 5 * PAGE + 17, -1, -PAGE])
def test_a_file_that_was_cut_is_refused(closed: Path, size: int) -> None:
    os.truncate(closed, size % closed.stat().st_size)
    assert "damaged (" in refusal(closed)


def test_a_large_file_that_was_cut_is_refused_without_reading_it_whole(
    closed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(integrity, "ALWAYS_CHECKED_BYTES", 0)
    os.truncate(closed, closed.stat().st_size - PAGE)
    monkeypatch.setattr(integrity, "check_pages", None)
    assert "damaged (" in refusal(closed)


def test_a_flipped_byte_in_any_page_is_refused_or_changes_no_more_than_a_text(
    closed: Path,
) -> None:
    """In the text of a message it cannot be seen; anywhere else it must be."""
    whole = closed.read_bytes()
    refused = 0
    for page in range(len(whole) // PAGE):
        # The page's type, its count of cells, a pointer to a cell.
        for within in (0, 4, 9):
            if page == 0 and within < 100:
                within += 100
            closed.write_bytes(whole)
            flip(closed, page * PAGE + within)
            log_of(closed).unlink(missing_ok=True)
            try:
                assert sent(closed) == 200
            except DatabaseUnusable as error:
                assert "damaged (" in str(error)  # noqa: PT017
                refused += 1
    assert refused > len(whole) // PAGE


def test_an_index_that_lacks_a_row_is_refused(closed: Path) -> None:
    with closing(sqlite3.connect(closed)) as connection:
        connection.execute("PRAGMA writable_schema = 1")
        connection.execute(
            "UPDATE sqlite_master SET sql = sql || ' WHERE sequence < 150' "
            "WHERE name = 'messages_channel'"
        )
        connection.execute("PRAGMA writable_schema = RESET")
        connection.execute("REINDEX messages_channel")
        connection.execute("PRAGMA writable_schema = 1")
        connection.execute(
            "UPDATE sqlite_master SET sql = replace(sql, ' WHERE sequence < 150', '') "
            "WHERE name = 'messages_channel'"
        )
        connection.commit()
    assert "missing from index messages_channel" in refusal(closed)


@pytest.mark.parametrize(
    "key", ["last_sequence", "last_generation", "bus_id", "logical_bytes", "purged_through"]
)
def test_a_counter_that_is_missing_or_nothing_to_count_with_is_refused(
    closed: Path, key: str
) -> None:
    for change, problem in (
        ("UPDATE meta SET value = x'07' WHERE key = ?", "b'\\x07'"),
        ("DELETE FROM meta WHERE key = ?", "missing"),
    ):
        with closing(sqlite3.connect(closed)) as connection:
            connection.execute(change, (key,))
            connection.commit()
        assert f"its counter {key} is {problem}" in refusal(closed)
        log_of(closed).unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("DROP TABLE messages", "no such table: messages"),
        ("DROP TABLE receipts", "no such table: receipts"),
        ("ALTER TABLE sessions DROP COLUMN role", "no such column"),
    ],
)
def test_a_table_or_column_that_is_missing_is_damage(
    closed: Path, change: str, problem: str
) -> None:
    with closing(sqlite3.connect(closed)) as connection:
        connection.execute(change)
        connection.commit()
    text = refusal(closed)
    assert text.startswith(f"{closed}: damaged (")
    assert problem in text


@pytest.mark.parametrize("key", ["last_sequence", "last_generation"])
def test_a_counter_that_went_back_is_refused(closed: Path, key: str) -> None:
    with closing(sqlite3.connect(closed)) as connection:
        connection.execute("UPDATE meta SET value = 0 WHERE key = ?", (key,))
        connection.commit()
    assert f"its counter {key} is 0, below a row's" in refusal(closed)


def test_every_refusal_of_a_damaged_file_tells_both_ways_to_restore_it(closed: Path) -> None:
    os.truncate(closed, PAGE)
    text = refusal(closed)
    assert text.startswith(f"{closed}: damaged (")
    assert "a copy of both back" in text
    assert "agentbus-admin import FILE" in text


# --- when the file is read whole ---


def test_a_large_file_is_read_whole_only_when_its_last_user_did_not_end_in_order(
    closed: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(integrity, "ALWAYS_CHECKED_BYTES", 0)
    caplog.set_level(logging.INFO)
    for in_order, checked_next in ((True, False), (False, True), (True, False)):
        close_bus(open_bus(closed, "full", 1), in_order=in_order)
        caplog.clear()
        close_bus(open_bus(closed, "full", 1), in_order=True)
        assert ("whole, checked in" in caplog.text) is checked_next


def test_a_file_too_large_to_be_read_in_time_is_used_and_the_log_says_so(
    closed: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(integrity, "CHECK_SECONDS", -1.0)
    monkeypatch.setattr(integrity, "_PROGRESS_STEPS", 1)
    close_bus(open_bus(closed, "full", 1), in_order=True)
    assert "not checked whole" in caplog.text


def test_a_row_that_changed_its_size_has_the_file_read_whole(
    closed: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(integrity, "ALWAYS_CHECKED_BYTES", 0)
    caplog.set_level(logging.INFO)
    with closing(sqlite3.connect(closed)) as connection:
        connection.execute("UPDATE sessions SET display_name = 'Samuel'")
        connection.commit()
    Bus(closed.parent).close()
    assert "whole, checked in" in caplog.text
    assert "corrected" in caplog.text


# --- damage that is met while the bus runs ---


def test_damage_met_later_is_told_as_such_and_the_next_start_reads_the_file_whole(
    closed: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(integrity, "ALWAYS_CHECKED_BYTES", 0)
    bus = Bus(closed.parent)
    sam = bus.attach()
    bus.store._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    (root,) = bus.store._connection.execute(
        "SELECT rootpage FROM sqlite_master WHERE name = 'messages'"
    ).fetchone()
    with closed.open("r+b") as file:
        file.seek((root - 1) * PAGE)
        file.write(struct.pack(">B", 0xEE) * PAGE)
    reader = bus.reader()
    with pytest.raises(InternalError, match="the database is damaged"):
        reader.history(ChannelId(1), count=10)
    bus.store._connection.execute("PRAGMA cache_size = 0")
    bus.store._connection.execute("PRAGMA shrink_memory")
    refused = bus.refused(sam.send("x" * 10_000))
    assert isinstance(refused, InternalError)
    assert "run agentbus stop, then agentbus daemon" in refused.message
    bus.close()
    with pytest.raises(DatabaseUnusable, match=r"damaged \("):
        open_bus(closed, "full", 1)
