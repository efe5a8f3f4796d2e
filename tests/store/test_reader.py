"""Read-only queries."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import astuple
from typing import Any

import pytest

from agentbus.encoding import decode_trusted
from agentbus.errors import UnavailableError
from agentbus.ids import ChannelId, MessageId, Sequence
from agentbus.store import binding, memories, pruning, receipts, sending, subscribing
from agentbus.store import reader as queries
from agentbus.store.changes import PruneSlice, RemovedRange, StoredMessage
from agentbus.store.reader import Reader
from tests.store.bus import Bus, Speaker


@pytest.fixture
def reader(bus: Bus) -> Iterator[Reader]:
    reader = bus.reader()
    yield reader
    reader.close()


@pytest.fixture
def sam(bus: Bus) -> Speaker:
    """Sequences 1 to 10: odd ones in `a`, even ones in `general`."""
    sam = bus.attach()
    bus.done(sam.make("a"))
    bus.store.apply([sam.send(str(n), channel=("general", "a")[n % 2]) for n in range(1, 11)])
    return sam


def channel_id(reader: Reader, name: str) -> ChannelId:
    row = reader.channel(name)
    assert row is not None
    return row.channel_id


def numbers(messages: list[StoredMessage]) -> list[int]:
    return [message.sequence for message in messages]


def test_channels_are_listed_by_name_and_prefix(bus: Bus, reader: Reader) -> None:
    sam = bus.attach()
    for name in ("zoo", "alpha", "al%ha", "äther", "ALPHA"):
        bus.done(sam.make(name))
    listed = [row.channel for row in reader.channels()]
    assert listed == ["ALPHA", "al%ha", "alpha", "general", "zoo", "äther"]
    assert [row.channel for row in reader.channels("al")] == ["al%ha", "alpha"]
    assert [row.channel for row in reader.channels("al%")] == ["al%ha"]
    assert [row.channel for row in reader.channels("ä")] == ["äther"]
    assert reader.channels("nothing") == []
    assert reader.channel("nothing") is None


def test_history_reads_forwards_from_a_sequence(sam: Speaker, reader: Reader) -> None:
    a = channel_id(reader, "a")
    page = reader.history(a, after=Sequence(3), count=2)
    assert (numbers(page.messages), page.more) == ([5, 7], True)
    page = reader.history(a, after=Sequence(7), count=1)
    assert (numbers(page.messages), page.more) == ([9], False)
    assert reader.history(a, after=Sequence(9), count=1).messages == []


def test_history_reads_backwards_but_answers_in_order(sam: Speaker, reader: Reader) -> None:
    a = channel_id(reader, "a")
    page = reader.history(a, count=2)
    assert (numbers(page.messages), page.more) == ([7, 9], True)
    page = reader.history(a, before=Sequence(7), count=9)
    assert (numbers(page.messages), page.more) == ([1, 3, 5], False)
    assert reader.history(a, before=Sequence(1), count=9).messages == []


def test_history_says_what_was_removed_within_the_page(bus: Bus, sam: Speaker) -> None:
    reader = bus.reader()
    bus.clock.advance(hours=bus.config.message_retention_hours)
    bus.prune("messages_by_age", 5)
    a = channel_id(reader, "a")
    whole = RemovedRange(Sequence(1), Sequence(5), "age")
    page = reader.history(a, after=Sequence(0), count=9)
    assert (numbers(page.messages), page.removed) == ([7, 9], [whole])
    assert reader.history(a, after=Sequence(5), count=9).removed == []
    assert reader.history(a, after=Sequence(2), count=9).removed == [
        RemovedRange(Sequence(3), Sequence(5), "age")
    ]
    newest = reader.history(a, count=1)
    assert (newest.more, newest.removed) == (True, [])
    assert reader.history(a, before=Sequence(4), count=1).removed == [
        RemovedRange(Sequence(1), Sequence(3), "age")
    ]
    reader.close()


def test_causes_that_take_turns_are_ranges_of_their_own_for_every_reader(bus: Bus) -> None:
    sam = bus.attach()
    bus.done(sam.make("a"))
    bus.store.apply([sam.send(channel=c) for c in ("a", "general") * 4])
    reader = bus.reader()
    bus.clock.advance(hours=bus.config.message_retention_hours)
    bus.prune("messages_by_age", 3)
    bus.done(PruneSlice("messages_by_capacity", 2, free_bytes=2**40))
    bus.done(PruneSlice("messages_by_capacity", 1, free_bytes=2**40))
    bus.prune("messages_by_age", 1)
    a, general = channel_id(reader, "a"), channel_id(reader, "general")
    in_a = [(1, 3, "age"), (5, 5, "capacity"), (7, 7, "age")]
    in_general = [(2, 2, "age"), (4, 6, "capacity")]

    def ranges(*arguments: Any) -> list[tuple[int, int, str]]:
        return [astuple(row) for row in reader.removed_ranges(*map(Sequence, arguments))]

    assert (ranges(a, 0), ranges(general, 0)) == (in_a, in_general)
    assert ranges(a, 2) == [(3, 3, "age"), *in_a[1:]]
    assert ranges(a, 3) == in_a[1:]
    assert ranges(a, 1, 5) == [(2, 3, "age"), (5, 5, "capacity")]
    assert ranges(general, 4, 5) == [(5, 5, "capacity")]
    page = reader.history(a, after=Sequence(0), count=9)
    assert ([astuple(row) for row in page.removed], page.oldest_retained) == (in_a, None)
    page = reader.history(general, before=Sequence(6), count=9)
    assert [astuple(row) for row in page.removed] == [(2, 2, "age"), (4, 5, "capacity")]
    assert page.oldest_retained == 8
    everywhere = reader.removed_anywhere(Sequence(2), Sequence(7))
    assert [(part.channel, *astuple(part.removed)) for part in everywhere] == [
        ("a", 3, 3, "age"),
        ("general", 4, 6, "capacity"),
        ("a", 5, 5, "capacity"),
    ]
    assert (reader.removed_through(), reader.lag(a, Sequence(0))) == (7, 0)


def test_removed_ranges_are_cut_to_what_a_cursor_missed(bus: Bus, sam: Speaker) -> None:
    reader = bus.reader()
    a = channel_id(reader, "a")
    assert reader.removed_ranges(a, Sequence(0)) == []
    bus.clock.advance(hours=bus.config.message_retention_hours)
    bus.prune("messages_by_age", 5)
    for after, expected in ((0, [(1, 5)]), (2, [(3, 5)]), (4, [(5, 5)]), (5, []), (9, [])):
        ranges = reader.removed_ranges(a, Sequence(after))
        assert [(row.from_sequence, row.to_sequence) for row in ranges] == expected
    reader.close()


def test_a_message_is_found_by_its_id(bus: Bus, reader: Reader) -> None:
    sam = bus.attach()
    answer = bus.done(sam.send("this one")).result
    stored = reader.message(answer["message_id"])
    assert stored is not None
    assert stored.session_id == sam.session_id
    assert decode_trusted(stored.envelope)["content"] == "this one"
    assert reader.message(MessageId("nothing")) is None


def test_lag_counts_what_is_retained_after_a_position(sam: Speaker, reader: Reader) -> None:
    a = channel_id(reader, "a")
    assert [reader.lag(a, Sequence(n)) for n in (0, 1, 2, 9, 10)] == [5, 4, 4, 0, 0]
    assert reader.lag(a, Sequence(0), limit=3) == 3


def test_a_scan_pages_over_all_channels_in_order(sam: Speaker, reader: Reader) -> None:
    assert numbers(reader.scan(Sequence(0), 4)) == [1, 2, 3, 4]
    assert numbers(reader.scan(Sequence(8), 4)) == [9, 10]
    assert reader.scan(Sequence(10), 4) == []


def test_counts_and_sessions_are_for_administration(bus: Bus, sam: Speaker, reader: Reader) -> None:
    bus.attach("Kim", "c2", child="k", parent=sam.session_id, role="review")
    assert reader.counts() == {
        "messages": 10,
        "agents": 2,
        "sessions": 2,
        "channels": 2,
        "subscriptions": 2,
        "receipts": 10,
        "paused_deliveries": 0,
    }
    first, second = reader.sessions()
    assert (first.agent, first.conversation, first.child) == ("Sam", "c1", "")
    assert (second.agent, second.child, second.parent) == ("Kim", "k", sam.session_id)
    assert second.display_name == "Sam-review"


@pytest.mark.parametrize("statement", ["DELETE FROM messages", "CREATE TABLE x (y)"])
def test_a_reader_cannot_write(reader: Reader, statement: str) -> None:
    with pytest.raises(sqlite3.OperationalError, match=r"readonly|read-only"):
        reader._connection.execute(statement)


def test_a_reader_keeps_no_transaction_open(bus: Bus, sam: Speaker, reader: Reader) -> None:
    reader.history(channel_id(reader, "a"), count=1)
    reader.counts()
    busy, logged, checkpointed = bus.store._connection.execute(
        "PRAGMA wal_checkpoint(TRUNCATE)"
    ).fetchone()
    assert (busy, logged, checkpointed) == (0, 0, 0)


def test_a_database_that_cannot_be_read_is_unavailable(bus: Bus, reader: Reader) -> None:
    bus.store._connection.execute("DROP TABLE receipts")
    with pytest.raises(UnavailableError, match="no such table"):
        reader.counts()
    assert reader.channel("general") is not None


def test_the_hot_queries_use_an_index(bus: Bus, reader: Reader) -> None:
    plans = {
        sql: " ".join(
            row[3]
            for row in reader._connection.execute(
                f"EXPLAIN QUERY PLAN {sql}", [0] * sql.count("?")
            ).fetchall()
        )
        for sql in (
            queries._OLDEST,
            queries._NEWEST,
            queries._MESSAGE,
            queries._SCAN,
            queries._LAG,
            queries._RANGES,
            subscribing.SELECT_OF_SESSION,
            queries._MEMORY,
            queries._SCAN_MEMORIES,
            queries._MEMORY_LAG,
            receipts._LOOK_UP._texts[64],
            memories._SELECT_LIVE,
            pruning._SELECT_TOMBSTONES,
            sending._SELECT_THREAD,
            pruning._SELECT_OLDEST,
            pruning._SELECT_LAST_RANGE,
            pruning._SELECT_EXPIRED_RECEIPTS,
            subscribing._SELECT_OF_CHANNEL,
            subscribing._SELECT_BY_ID,
            binding._SELECT_SESSION,
        )
    }
    for sql, plan in plans.items():
        assert "SEARCH" in plan, sql
        # What a scan may be of is the bounded subquery of a count.
        assert "SCAN t" not in plan.replace("SCAN t2", "SCAN (bounded)"), (sql, plan)
        if sql != subscribing.SELECT_OF_SESSION:
            assert "TEMP B-TREE" not in plan, (sql, plan)
