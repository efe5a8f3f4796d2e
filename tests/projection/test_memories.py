"""Memories against a real Redis: one place for life, one text, no gap."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from agentbus.ids import ChannelId, MessageId, Sequence, SessionId
from agentbus.limits import MIB
from agentbus.projection import keys
from agentbus.projection.errors import ProjectionError
from agentbus.projection.search import ensure_index
from agentbus.projection.streams import (
    READ_ENTRIES,
    MemoryRemoval,
    MemoryRevision,
    StreamEntry,
    StreamReader,
    StreamWriter,
)
from agentbus.rules.documents import SearchDocument, document_of
from tests.projection.test_search import by_word
from tests.redis_fixture import BUS_ID, PrivateRedis, need_search, private_redis, set_mark

CHANNEL = ChannelId(7)
START = Sequence(0)


def memory_id(position: int) -> MessageId:
    return MessageId(f"memory-{position}")


def document(content: str, **fields: str) -> SearchDocument:
    session_id = SessionId("session")
    return document_of(
        channels=["facts"],
        sender="Sam",
        session_id=session_id,
        sent_at_ms=1,
        content=content,
        subject=fields.get("subject"),
    )


def creation(position: int, content: str = "") -> StreamEntry:
    return StreamEntry(
        channel_id=CHANNEL,
        sequence=Sequence(position),
        session_id=SessionId("session"),
        envelope=content.encode() or b"first %d" % position,
        document=document(content, subject="headline") if content else None,
        memory=memory_id(position),
    )


def revision(position: int, sequence: int, content: str) -> MemoryRevision:
    return MemoryRevision(
        memory_id(position),
        Sequence(position),
        Sequence(sequence),
        content.encode(),
        document(content),
    )


def removal(position: int) -> MemoryRemoval:
    return MemoryRemoval(CHANNEL, memory_id(position), Sequence(position))


@pytest.fixture
def writer(redis_server: PrivateRedis) -> StreamWriter:
    writer = StreamWriter(redis_server.client, search=False)
    set_mark(writer, BUS_ID, START)
    return writer


@pytest.fixture
def reader(redis_server: PrivateRedis) -> Iterator[StreamReader]:
    with closing(redis_server.server.connect()) as client:
        yield StreamReader(client)


def read(reader: StreamReader, after: int = 0) -> list[tuple[int, bytes]]:
    found = reader.read(CHANNEL, Sequence(after), 1000, MIB)
    assert found.holes == ()
    return [(entry.sequence, entry.envelope) for entry in found.entries]


def test_a_memory_stands_where_it_was_created_with_its_current_text(
    writer: StreamWriter, reader: StreamReader
) -> None:
    writer.project([creation(1), creation(2), creation(3)], Sequence(3))
    assert reader.read(CHANNEL, START, 10, MIB).entries == [creation(n) for n in (1, 2, 3)]
    writer.project([revision(2, 4, "second")], Sequence(4))
    assert read(reader) == [(1, b"first 1"), (2, b"second"), (3, b"first 3")]
    assert read(reader, after=2) == [(3, b"first 3")]


def test_a_deleted_memory_leaves_no_gap_and_no_key(
    redis_server: PrivateRedis, writer: StreamWriter, reader: StreamReader
) -> None:
    writer.project([creation(1), creation(2)], Sequence(2))
    writer.project([revision(1, 3, "second"), removal(1)], Sequence(4))
    assert read(reader) == [(2, b"first 2")]
    assert redis_server.client.exists(keys.memory(memory_id(1))) == 0
    writer.project([removal(2)], Sequence(5))
    assert read(reader) == []
    assert redis_server.client.keys("r:*") == []


def test_a_memory_that_goes_while_it_is_read_is_passed_over(
    redis_server: PrivateRedis, writer: StreamWriter, reader: StreamReader
) -> None:
    writer.project([creation(n) for n in range(1, 4)], Sequence(3))
    redis_server.client.delete(keys.memory(memory_id(3)))  # as between the range and its memories
    found = reader.read(CHANNEL, START, 10, MIB)
    assert [entry.sequence for entry in found.entries] == [1, 2]
    assert (found.through, found.more) == (3, False)


def test_a_redis_that_is_emptied_while_it_is_read_has_no_deleted_memories(
    redis_server: PrivateRedis, writer: StreamWriter, reader: StreamReader
) -> None:
    writer.project([creation(1)], Sequence(1))
    redis_server.client.delete(keys.MARKER, keys.memory(memory_id(1)))
    with pytest.raises(ProjectionError):
        reader.read(CHANNEL, START, 10, MIB)


def test_many_memories_are_read_in_pages_whatever_is_missing(
    redis_server: PrivateRedis, writer: StreamWriter, reader: StreamReader
) -> None:
    last = READ_ENTRIES * 2 + 1
    writer.project([creation(n) for n in range(1, last + 1)], Sequence(last))
    for position in range(1, READ_ENTRIES + 1):
        redis_server.client.delete(keys.memory(memory_id(position)))
    found = reader.read(CHANNEL, START, 1000, MIB)
    assert [entry.sequence for entry in found.entries] == [*range(READ_ENTRIES + 1, last + 1)]
    page = reader.read(CHANNEL, START, READ_ENTRIES, MIB)
    assert (len(page.entries), page.through, page.more) == (READ_ENTRIES, READ_ENTRIES * 2, True)


def test_restating_what_is_there_changes_nothing(
    writer: StreamWriter, reader: StreamReader
) -> None:
    changes = [creation(1), creation(3), revision(1, 4, "second")]
    writer.project(changes, Sequence(4))
    before = read(reader)
    writer.restate([creation(1, "second"), creation(3), creation(5), removal(2)])
    assert read(reader) == [*before, (5, b"first 5")]


def test_search_finds_the_current_text_of_a_memory_and_no_other() -> None:
    need_search()
    with private_redis(search_engine="redis") as running:
        ensure_index(running.client)
        writer = StreamWriter(running.client, search=True)
        writer.project([creation(1, "apples"), creation(2, "pears")], Sequence(2))
        assert by_word(running, "headline") == [2, 1]
        writer.project([revision(1, 3, "plums")], Sequence(3))
        assert by_word(running, "apples") == []
        assert by_word(running, "headline") == [2]
        assert by_word(running, "plums") == [1]
        writer.project([removal(1)], Sequence(4))
        assert by_word(running, "plums") == []
        assert running.client.keys("m:*") == [b"m:2"]
