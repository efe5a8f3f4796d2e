"""What the marker decides, and that replay and rebuild end with the same Redis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from agentbus.ids import BusId, ChannelId, Sequence, SessionId
from agentbus.limits import MIB
from agentbus.projection import keys
from agentbus.projection.connection import execute
from agentbus.projection.errors import ProjectionError
from agentbus.projection.rebuild import (
    Rebuild,
    Replay,
    UpToDate,
    clear,
    needs,
    rebuild,
    replay,
)
from agentbus.projection.search import ensure_index
from agentbus.projection.streams import StreamEntry, StreamReader, StreamWriter
from agentbus.rules.documents import document_of
from tests.redis_fixture import BUS_ID, PrivateRedis

ONE, TWO = ChannelId(1), ChannelId(2)
START = Sequence(0)


def entry(sequence: int, channel_id: ChannelId = ONE) -> StreamEntry:
    session_id = SessionId("session")
    document = document_of(
        channel="general", sender="Sam", session_id=session_id, sent_at_ms=1, content="x"
    )
    return StreamEntry(channel_id, Sequence(sequence), session_id, b"{}", document)


def stream(redis_server: PrivateRedis, channel_id: ChannelId) -> tuple[list[int], int]:
    found = StreamReader(redis_server.client).read(channel_id, Sequence(0), 10_000, MIB)
    return [one.sequence for one in found.entries], found.removed_through


@pytest.fixture
def writer(redis_server: PrivateRedis) -> StreamWriter:
    if redis_server.info.search:
        ensure_index(redis_server.client)
    return StreamWriter(redis_server.client, search=redis_server.info.search)


def test_an_empty_redis_needs_a_rebuild(redis_server: PrivateRedis) -> None:
    assert isinstance(needs(redis_server.client, BUS_ID, Sequence(0), START), Rebuild)


def test_the_marker_decides(redis_server: PrivateRedis, writer: StreamWriter) -> None:
    client = redis_server.client
    writer.mark(BUS_ID, Sequence(10))
    assert needs(client, BUS_ID, Sequence(10), START) == UpToDate()
    assert needs(client, BUS_ID, Sequence(12), START) == Replay(after=Sequence(10))
    writer.project([entry(11)], Sequence(11))
    assert needs(client, BUS_ID, Sequence(12), START) == Replay(after=Sequence(11))
    assert isinstance(needs(client, BUS_ID, Sequence(9), START), Rebuild)
    assert isinstance(needs(client, BusId("another"), Sequence(11), START), Rebuild)
    assert needs(client, BUS_ID, Sequence(12), Sequence(11)) == Replay(after=Sequence(11))
    assert isinstance(needs(client, BUS_ID, Sequence(12), Sequence(12)), Rebuild)
    client.hset(keys.MARKER, keys.MARKER_LAYOUT, "0")
    assert isinstance(needs(client, BUS_ID, Sequence(11), START), Rebuild)


def test_projecting_without_a_mark_is_no_complete_projection(
    redis_server: PrivateRedis, writer: StreamWriter
) -> None:
    writer.project([entry(1)], Sequence(1))
    assert isinstance(needs(redis_server.client, BUS_ID, Sequence(1), START), Rebuild)


def test_a_rebuild_fills_streams_marks_and_the_marker(
    redis_server: PrivateRedis, writer: StreamWriter
) -> None:
    source = iter([[entry(4), entry(9)], [entry(3, TWO), entry(5, TWO)]])
    seen: list[tuple[int, int]] = []
    rebuild(
        writer,
        BUS_ID,
        source,
        Sequence(9),
        {TWO: Sequence(2)},
        4,
        lambda done, total: seen.append((done, total)),
    )
    assert stream(redis_server, ONE) == ([4, 9], 0)
    assert stream(redis_server, TWO) == ([3, 5], 2)
    assert seen == [(2, 4), (4, 4)]
    assert needs(redis_server.client, BUS_ID, Sequence(9), START) == UpToDate()


def test_a_rebuild_that_dies_halfway_starts_from_nothing_again(
    redis_server: PrivateRedis, writer: StreamWriter
) -> None:
    def source() -> Iterator[list[StreamEntry]]:
        yield [entry(1)]
        raise ProjectionError("killed here")

    with pytest.raises(ProjectionError, match="killed here"):
        rebuild(writer, BUS_ID, source(), Sequence(2), {}, 2, lambda done, total: None)
    assert isinstance(needs(redis_server.client, BUS_ID, Sequence(2), START), Rebuild)
    clear(redis_server.client)
    assert redis_server.client.dbsize() == 0
    if redis_server.info.search:
        assert not execute(redis_server.client, "FT._LIST")
        ensure_index(redis_server.client)
    rebuild(
        writer,
        BUS_ID,
        iter([[entry(1), entry(2)]]),
        Sequence(2),
        {},
        2,
        lambda done, total: None,
    )
    assert stream(redis_server, ONE) == ([1, 2], 0)


def test_a_replay_adds_what_is_missing_and_makes_up_for_removals(
    redis_server: PrivateRedis, writer: StreamWriter
) -> None:
    writer.mark(BUS_ID, Sequence(0))
    writer.project([entry(1), entry(2, TWO), entry(3)], Sequence(3))
    replay(
        writer,
        iter([]),
        iter([[entry(3), entry(4)], [], [entry(6, TWO)]]),
        Sequence(8),
        {ONE: Sequence(1)},
        3,
        lambda done, total: None,
    )
    assert stream(redis_server, ONE) == ([3, 4], 1)
    assert stream(redis_server, TWO) == ([2, 6], 0)
    assert needs(redis_server.client, BUS_ID, Sequence(8), START) == UpToDate()
    if redis_server.info.search:
        documents = sorted(redis_server.client.keys("m:*"))
        assert documents == [b"m:2", b"m:3", b"m:4", b"m:6"]


def test_removals_of_thousands_are_made_up_for(
    redis_server: PrivateRedis, writer: StreamWriter
) -> None:
    writer.mark(BUS_ID, Sequence(0))
    writer.project([entry(n) for n in range(1, 2502)], Sequence(2501))
    nothing: Iterator[Any] = iter([])
    removed = {ONE: Sequence(2500)}
    replay(writer, nothing, nothing, Sequence(2501), removed, 0, lambda done, total: None)
    assert stream(redis_server, ONE) == ([2501], 2500)
