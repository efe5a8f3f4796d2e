"""Streams against a real Redis: order, repetition, removal, bounds, failure."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from agentbus.ids import ChannelId, Sequence, SessionId
from agentbus.limits import MIB
from agentbus.projection import keys, streams
from agentbus.projection.connection import dataset_bytes
from agentbus.projection.errors import ProjectionError, ProjectionFullError
from agentbus.projection.streams import (
    READ_ENTRIES,
    StreamEntry,
    StreamReader,
    StreamSlice,
    StreamWriter,
)
from tests.eventually import PATIENCE_S, eventually
from tests.redis_fixture import BUS_ID, PrivateRedis, private_redis, set_mark
from tests.signals import freeze, kill

CHANNEL = ChannelId(7)
OTHER = ChannelId(8)
START = Sequence(0)


def entry(sequence: int, channel_id: ChannelId = CHANNEL, envelope: bytes = b"") -> StreamEntry:
    return StreamEntry(
        channel_id=channel_id,
        sequence=Sequence(sequence),
        session_id=SessionId("session"),
        envelope=envelope or b'{"n":%d}' % sequence,
    )


def batch(*sequences: int, channel_id: ChannelId = CHANNEL) -> list[StreamEntry]:
    return [entry(sequence, channel_id) for sequence in sequences]


def numbers(entries: list[StreamEntry]) -> list[int]:
    return [found.sequence for found in entries]


@pytest.fixture
def writer(redis_server: PrivateRedis) -> StreamWriter:
    return StreamWriter(redis_server.client, search=False)


@pytest.fixture
def reader(redis_server: PrivateRedis, writer: StreamWriter) -> Iterator[StreamReader]:
    set_mark(writer, BUS_ID, START)
    with closing(redis_server.server.connect()) as client:
        yield StreamReader(client)


def test_entries_come_back_as_they_were_written(writer: StreamWriter, reader: StreamReader) -> None:
    written = [entry(3, envelope=b'{"content":"\xe4\xbd\xa0"}'), entry(5)]
    writer.project(written, Sequence(5))
    assert reader.read(CHANNEL, START, 10, MIB).entries == written


def test_reading_starts_after_the_cursor(writer: StreamWriter, reader: StreamReader) -> None:
    writer.project(batch(1, 2, 5, 9), Sequence(9))
    assert numbers(reader.read(CHANNEL, Sequence(2), 10, MIB).entries) == [5, 9]
    assert numbers(reader.read(CHANNEL, Sequence(3), 10, MIB).entries) == [5, 9]
    assert reader.read(CHANNEL, Sequence(9), 10, MIB).entries == []


def test_a_channel_without_a_stream_reads_as_empty(reader: StreamReader) -> None:
    found = reader.read(CHANNEL, START, 10, MIB)
    assert (found.entries, found.holes, found.more) == ([], (), False)


def test_projecting_twice_changes_nothing(writer: StreamWriter, reader: StreamReader) -> None:
    writer.project(batch(1, 2), Sequence(2))
    writer.project(batch(1, 2), Sequence(2))
    writer.project(batch(1, 2, 3), Sequence(3))
    assert numbers(reader.read(CHANNEL, START, 10, MIB).entries) == [1, 2, 3]


def test_loading_out_of_order_is_an_error_and_not_a_loss(writer: StreamWriter) -> None:
    with pytest.raises(ProjectionError, match="equal or smaller"):
        writer.finish_load(writer.begin_load(batch(2, 1)))


def test_a_count_ends_the_slice(writer: StreamWriter, reader: StreamReader) -> None:
    every = range(1, 3 * READ_ENTRIES + 1)
    writer.project(batch(*every), Sequence(every[-1]))
    some = reader.read(CHANNEL, START, READ_ENTRIES + 1, MIB)
    assert numbers(some.entries) == list(range(1, READ_ENTRIES + 2))
    assert some.more
    rest = reader.read(CHANNEL, some.entries[-1].sequence, 1000, MIB)
    assert numbers(rest.entries) == list(range(READ_ENTRIES + 2, every[-1] + 1))
    assert not rest.more


def test_a_byte_ceiling_ends_the_slice_but_never_the_first_entry(
    writer: StreamWriter, reader: StreamReader
) -> None:
    writer.project([entry(n, envelope=b"x" * 1000) for n in (1, 2, 3)], Sequence(3))
    assert numbers(reader.read(CHANNEL, START, 10, 2000).entries) == [1, 2]
    assert numbers(reader.read(CHANNEL, START, 10, 1999).entries) == [1]
    first = reader.read(CHANNEL, START, 10, 1)
    assert numbers(first.entries) == [1]
    assert first.more


def test_removal_trims_and_leaves_a_mark(writer: StreamWriter, reader: StreamReader) -> None:
    writer.project([*batch(1, 2, 4), *batch(5, channel_id=OTHER)], Sequence(5))
    writer.remove(CHANNEL, Sequence(2), [Sequence(1), Sequence(2)])
    found = reader.read(CHANNEL, START, 10, MIB)
    assert (numbers(found.entries), found.holes) == ([4], ((0, 2),))
    assert reader.read(OTHER, START, 10, MIB).holes == ()
    assert writer.removed() == {CHANNEL: 2}


@pytest.mark.parametrize(
    ("after", "found", "holes"),
    [
        (0, [4, 6], ((0, 2),)),
        (1, [4, 6], ((1, 2),)),
        (2, [4, 6], ()),
        (3, [4, 6], ()),
        (4, [6], ()),
    ],
)
def test_a_hole_is_what_was_removed_above_the_cursor(
    writer: StreamWriter, reader: StreamReader, after: int, found: list[int], holes: object
) -> None:
    writer.project(batch(1, 2, 4, 6), Sequence(6))
    writer.remove(CHANNEL, Sequence(2), [])
    read = reader.read(CHANNEL, Sequence(after), 10, MIB)
    assert (numbers(read.entries), read.holes, read.through) == (found, holes, 6)


def test_where_all_is_removed_a_slice_ends_behind_the_hole(
    writer: StreamWriter, reader: StreamReader
) -> None:
    writer.project(batch(1, 2), Sequence(2))
    writer.remove(CHANNEL, Sequence(2), [])
    read = reader.read(CHANNEL, START, 10, MIB)
    assert (read.entries, read.holes, read.through, read.more) == ([], ((0, 2),), 2, False)


def test_what_is_removed_between_two_round_trips_is_a_hole_behind_what_was_read(
    writer: StreamWriter, reader: StreamReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "READ_ENTRIES", 2)
    writer.project(batch(1, 2, 3, 4, 5, 6), Sequence(6))
    writer.remove(CHANNEL, Sequence(1), [])
    fetch, trips = StreamReader._fetch, []

    def remove_after_the_first_trip(*arguments: Any) -> StreamSlice:
        if len(trips) == 1:
            writer.remove(CHANNEL, Sequence(5), [])
        trips.append(arguments)
        return fetch(*arguments)

    monkeypatch.setattr(StreamReader, "_fetch", remove_after_the_first_trip)
    read = reader.read(CHANNEL, START, 10, MIB)
    assert (numbers(read.entries), read.holes) == ([2, 3, 6], ((0, 1), (3, 5)))


def test_removed_entries_do_not_come_back_by_projecting_again(
    writer: StreamWriter, reader: StreamReader
) -> None:
    writer.project(batch(1, 2), Sequence(2))
    writer.remove(CHANNEL, Sequence(2), [])
    writer.project(batch(1, 2), Sequence(2))
    assert reader.read(CHANNEL, START, 10, MIB).entries == []


def test_a_dropped_channel_leaves_no_key(redis_server: PrivateRedis, writer: StreamWriter) -> None:
    writer.project(batch(1, 2), Sequence(2))
    writer.drop(CHANNEL, Sequence(2))
    assert redis_server.client.keys() == [keys.MARKER.encode()]


def test_a_full_redis_takes_none_of_a_batch_and_says_so(
    redis_server: PrivateRedis, writer: StreamWriter, reader: StreamReader
) -> None:
    writer.project(batch(1), Sequence(1))
    redis_server.client.config_set("maxmemory", 1)
    with pytest.raises(ProjectionFullError):
        writer.project(batch(2), Sequence(2))
    redis_server.client.config_set("maxmemory", 0)
    assert numbers(reader.read(CHANNEL, START, 10, MIB).entries) == [1]
    assert redis_server.client.hget(keys.MARKER, keys.MARKER_SEQUENCE) == b"1"


def test_the_dataset_grows_with_what_is_stored(redis_server: PrivateRedis) -> None:
    before = dataset_bytes(redis_server.client)
    StreamWriter(redis_server.client, search=False).project(
        [entry(1, envelope=b"x" * MIB)], Sequence(1)
    )
    # Redis counts the buffer that the entry came in as overhead for a moment, though it is data by
    # now, and counted some buffers of clients as data before.
    eventually(lambda: dataset_bytes(redis_server.client) > before + 0.9 * MIB)


def test_a_killed_redis_is_an_error_for_writers_and_readers(redis_server: PrivateRedis) -> None:
    writer = StreamWriter(redis_server.client, search=False)
    reader = StreamReader(redis_server.client)
    writer.project(batch(1), Sequence(1))
    kill(redis_server.info.pid)
    with pytest.raises(ProjectionError):
        writer.project(batch(2), Sequence(2))
    with pytest.raises(ProjectionError):
        reader.read(CHANNEL, START, 1, MIB)


def test_a_stopped_redis_is_an_error_in_bounded_time() -> None:
    with private_redis(command_s=1.0) as running:
        writer = StreamWriter(running.client, search=False)
        writer.project(batch(1), Sequence(1))
        freeze(running.info.pid)
        started_s = time.monotonic()
        with pytest.raises(ProjectionError, match="in time"):
            writer.project(batch(2), Sequence(2))
        with pytest.raises(ProjectionError, match="in time"):
            running.server.ping()
        assert time.monotonic() - started_s < PATIENCE_S
        assert running.server.alive()


def test_a_redis_that_was_emptied_is_not_read_as_if_there_were_no_more(
    redis_server: PrivateRedis, writer: StreamWriter, reader: StreamReader
) -> None:
    writer.project(batch(1, 2), Sequence(2))
    redis_server.client.flushall()
    writer.project(batch(3), Sequence(3))
    with pytest.raises(ProjectionError, match="emptied"):
        reader.read(CHANNEL, START, 10, MIB)
