"""The counter of logical bytes equals a recount, whatever has happened."""

from __future__ import annotations

import logging
import sqlite3
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentbus.ids import MessageId, Sequence
from agentbus.store.accounting import recount, row_bytes
from agentbus.store.changes import MoveCursors, PruneSlice
from tests.store.bus import Bus, Speaker

_TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=30)
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), _TEXTS, st.sampled_from(["general", "facts", "ä", "none"])),
        st.tuples(st.just("repeat"), st.sampled_from(["k1", "k2"]), _TEXTS),
        st.tuples(st.just("make"), st.sampled_from(["facts", "ä"])),
        st.tuples(st.just("subscribe"), st.sampled_from(["general", "facts", "ä"])),
        st.tuples(st.just("unsubscribe"), st.sampled_from(["general", "facts", "ä"])),
        st.tuples(st.just("attach"), st.sampled_from(["Sam", "Käte"]), st.none() | _TEXTS),
        st.tuples(st.just("edit"), st.integers(0, 3), _TEXTS),
        st.tuples(st.just("delete"), st.integers(0, 3)),
        st.tuples(st.just("renew")),
        st.tuples(st.just("advance"), st.integers(1, 80)),
        st.tuples(
            st.just("prune"),
            st.sampled_from(["messages_by_age", "tombstones", "receipts", "subscriptions"]),
            st.integers(1, 3),
            st.just(0),
        ),
        st.tuples(
            st.just("prune"),
            st.just("messages_by_capacity"),
            st.integers(1, 3),
            st.integers(1, 4000),  # bytes: a row or several
        ),
    ),
    min_size=10,
    max_size=40,
)


def _counted(bus: Bus) -> int:
    connection = sqlite3.connect(bus.path)
    try:
        return recount(connection)
    finally:
        connection.close()


def _memories(bus: Bus) -> list[MessageId]:
    """Ids of all memories there are rows of, dead ones included."""
    connection = sqlite3.connect(bus.path)
    try:
        sql = "SELECT DISTINCT message_id FROM messages WHERE memory ORDER BY position"
        return [row[0] for row in connection.execute(sql)]
    finally:
        connection.close()


def _step(bus: Bus, speaker: Speaker, step: tuple[object, ...]) -> Speaker:
    match step:
        case ("send", str(content), str(channel)):
            bus.store.apply([speaker.send(content, channel, thread="t" * len(channel))])
        case ("repeat", str(operation_id), str(content)):
            bus.store.apply([speaker.send(content, operation_id=operation_id)] * 2)
        case ("make", str(channel)):
            bus.store.apply([speaker.make(channel, "memory" if channel == "facts" else "ordinary")])
        case ("subscribe", str(channel)):
            bus.store.apply([speaker.subscribe(channel)])
        case ("unsubscribe", str(channel)):
            bus.store.apply([speaker.unsubscribe(channel)])
        case ("attach", str(agent), str() | None as repository):
            child = "k" if repository else None
            return bus.attach(agent, repository=repository, role=repository, child=child)
        case ("edit", int(number), str(content)):
            if found := _memories(bus):
                bus.store.apply([speaker.edit(found[number % len(found)], content, thread=content)])
        case ("delete", int(number)):
            if found := _memories(bus):
                bus.store.apply([speaker.delete(found[number % len(found)])])
        case ("renew",):
            rows = tuple(row.subscription_id for row in speaker.bound.subscriptions)
            bus.store.apply([MoveCursors(speaker.attachment, renewed=rows, expiry_confirmed=rows)])
        case ("advance", int(hours)):
            bus.clock.advance(hours=hours)
        case ("prune", what, int(max_rows), int(free_bytes)):
            bus.store.apply([PruneSlice(what, max_rows, free_bytes)])  # type: ignore[arg-type]
        case _:
            raise AssertionError(step)
    return speaker


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_STEPS)
def test_the_counter_equals_a_recount_after_any_operations(
    steps: list[tuple[object, ...]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        bus = Bus(Path(folder), sqlite_synchronous="normal")
        try:
            speaker = bus.attach()
            for step in steps:
                speaker = _step(bus, speaker, step)
            assert bus.store.logical_bytes == _counted(bus)
            reader = bus.reader()
            assert reader.logical_bytes() == bus.store.logical_bytes
            retained = {row.channel: row.retained for row in reader.channels()}
            memories = [
                memory
                for channel_id in reader.memory_channels()
                for memory in reader.scan_memories(channel_id, Sequence(0), 1000)
            ]
            messages = [*reader.scan(Sequence(0), 1000), *memories]
            assert sum(retained.values()) == len(messages)
            assert len({message.message_id for message in messages}) == len(messages)
            reader.close()
        finally:
            bus.close()


def test_bytes_count_as_utf_8_and_everything_else_as_eight() -> None:
    assert row_bytes(("abc", "äöü", "😀", b"\0\xff", 7, 2**60, True, None)) == 3 + 6 + 4 + 2 + 4 * 8


def test_a_wrong_counter_is_reported_and_corrected_at_start(
    bus: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    bus.done(bus.attach().send())
    right = bus.store.logical_bytes
    bus.store._connection.execute("UPDATE meta SET value = 5 WHERE key = 'logical_bytes'")
    with caplog.at_level(logging.WARNING):
        assert bus.reopen().logical_bytes == right
    assert "recorded 5 logical bytes" in caplog.text
    caplog.clear()
    assert bus.reopen().logical_bytes == right
    assert caplog.text == ""
