"""The text index of SQLite: made, kept with every change, made anew, left behind."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agentbus.rules.query import query_of
from agentbus.store import fts
from agentbus.store.connection import DatabaseUnusable
from agentbus.store.fts import TextSearch, require_fts5
from agentbus.store.reader import NO_END
from agentbus.store.reset import reset_database
from tests.store.bus import Bus

HOURS = 3600.0


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    bus = Bus(tmp_path)
    yield bus
    bus.close()


def use_index(bus: Bus, rows: int = 100) -> int:
    """Begin to use the index; how many slices it took to make it."""
    slices = 0
    if bus.store.text_index.begin():
        slices = 1
        while bus.store.text_index.fill(rows):
            slices += 1
    return slices


def find(bus: Bus, text: str) -> list[int]:
    with closing(TextSearch(bus.path)) as search:
        return list(search.find(query_of(text=text), NO_END, 1000, 5.0))


def test_what_was_there_before_is_indexed_slice_by_slice(bus: Bus) -> None:
    sam = bus.attach()
    sent = [bus.done(sam.send(f"word{n} all")).result["sequence"] for n in range(25)]
    assert use_index(bus, rows=10) == 4
    assert find(bus, "all") == sent[::-1]
    assert find(bus, "word7") == [sent[7]]


def test_a_complete_index_is_kept_over_a_restart(bus: Bus) -> None:
    sam = bus.attach()
    use_index(bus)
    first = bus.done(sam.send("before")).result["sequence"]
    bus.reopen()
    assert use_index(bus) == 0
    second = bus.done(bus.attach().send("after before")).result["sequence"]
    assert find(bus, "before") == [second, first]


def test_an_index_that_was_left_half_made_is_made_anew(bus: Bus) -> None:
    sam = bus.attach()
    sent = [bus.done(sam.send(f"word {n}")).result["sequence"] for n in range(25)]
    assert bus.store.text_index.begin()
    assert bus.store.text_index.fill(10)
    bus.reopen()
    assert use_index(bus) > 0
    assert find(bus, "word") == sent[::-1]


def test_an_index_of_other_rules_is_made_anew(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    bus.done(bus.attach().send("word"))
    with monkeypatch.context() as patch:
        patch.setattr(fts, "DOCUMENT_VERSION", "0 of earlier rules")
        use_index(bus)
    bus.reopen()
    assert use_index(bus) > 0
    assert len(find(bus, "word")) == 1


def test_a_run_with_another_engine_leaves_no_index_behind(bus: Bus) -> None:
    sam = bus.attach()
    use_index(bus)
    bus.done(sam.send("first"))
    bus.reopen().text_index.abandon()
    bus.done(bus.attach().send("second"))
    with closing(sqlite3.connect(bus.path)) as file:
        names = [row[0] for row in file.execute("SELECT name FROM sqlite_master")]
    assert not [name for name in names if name.startswith("text_index")]
    bus.reopen()
    use_index(bus)
    assert find(bus, "first") + find(bus, "second") == [1, 2]


def test_a_run_with_redis_has_nothing_that_slows_a_send(bus: Bus) -> None:
    bus.store.text_index.abandon()
    connection = bus.store._connection
    assert connection.execute("SELECT name FROM sqlite_temp_master").fetchall() == []


def test_what_is_rolled_back_is_not_found(bus: Bus) -> None:
    sam = bus.attach()
    use_index(bus)
    outcomes = bus.store.apply(
        [sam.send("kept one"), sam.send("word", channel="nowhere"), sam.send("kept two")]
    )
    assert [type(outcome).__name__ for outcome in outcomes] == ["Done", "Refused", "Done"]
    assert find(bus, "kept") == [2, 1]
    assert find(bus, "word") == []


def test_nothing_is_left_of_removed_messages(bus: Bus) -> None:
    sam = bus.attach()
    use_index(bus)
    bus.done(sam.make("facts", "memory"))
    for number in range(50):
        bus.done(sam.send(f"old{number} fooBar 你好 café 🚀", tags=(f"tag{number}",)))
    memory_id = bus.done(sam.send("fact one", "facts")).result["message_id"]
    bus.done(sam.edit(memory_id, "fact two"))
    bus.done(sam.delete(memory_id))
    bus.clock.advance(bus.config.message_retention_hours * HOURS + 1)
    bus.prune("messages_by_age")
    with closing(sqlite3.connect(bus.path)) as file:
        file.execute(
            "CREATE VIRTUAL TABLE temp.terms USING fts5vocab('main', 'text_index', 'instance')"
        )
        assert file.execute("SELECT term, doc FROM terms").fetchall() == []
        file.execute("INSERT INTO text_index(text_index) VALUES ('integrity-check')")


def test_the_index_does_not_count_against_the_budget(bus: Bus) -> None:
    sam = bus.attach()
    use_index(bus)
    for _ in range(10):
        bus.done(sam.send("word " * 100))
    before = bus.store.logical_bytes
    assert bus.reopen().logical_bytes == before


def test_a_search_keeps_no_read_transaction_open(bus: Bus) -> None:
    sam = bus.attach()
    use_index(bus)
    bus.done(sam.send("word"))
    with closing(TextSearch(bus.path)) as search:
        assert search.find(query_of(text="wo*"), NO_END, 10, 5.0)
        bus.done(sam.send("more"))
        busy, *_ = bus.store._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    assert busy == 0


def test_a_reset_leaves_no_words_behind(bus: Bus) -> None:
    sam = bus.attach()
    use_index(bus)
    bus.done(sam.send("veryRareWord"))
    bus.store.close()
    reset_database(bus.path, "full", bus.clock.wall_us())
    bus.store = bus._open()
    assert use_index(bus) > 0
    assert find(bus, "veryRareWord") == []
    bus.done(bus.attach().send("new"))
    assert len(find(bus, "new")) == 1


def test_a_sqlite_without_text_search_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    require_fts5()
    monkeypatch.setattr(fts, "_CREATE", fts._CREATE.replace("fts5(", "fts77("))
    with pytest.raises(
        DatabaseUnusable, match=r"cannot search text \(no such module: fts77\).*pip"
    ):
        require_fts5()
