"""Channels as Redis streams: what the projector writes and attachments read.

The stream id of a message is its commit sequence, `<sequence>-0`, so Redis itself refuses a message
that a stream already has, and writing twice is harmless. Every write is one MULTI: a reader never
sees half of it, and a failure leaves none of it behind.

`StreamWriter` belongs to the projector's thread. Each reading thread has a `StreamReader` of its
own, on its own connection.
"""

from __future__ import annotations

import collections.abc
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import redis

from agentbus.ids import BusId, ChannelId, Sequence, SessionId
from agentbus.projection import keys
from agentbus.projection.connection import Client, Command, execute, execute_many
from agentbus.projection.errors import redis_errors
from agentbus.projection.search import SearchDocument, hash_fields

READ_ENTRIES = 64
"""Entries fetched per round trip when a byte ceiling is given, so that it overshoots by little."""

DROP_ENTRIES = 1000
"""Entries of a dropped channel whose documents are removed per round trip."""

_ALREADY_THERE = "equal or smaller than the target stream top item"


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """One message as it lies in the stream of its channel.

    `envelope` is the encoded envelope, made once and handed on as it is. `document` is only needed
    for writing, and only where Redis is the search engine.
    """

    channel_id: ChannelId
    sequence: Sequence
    session_id: SessionId
    envelope: bytes
    document: SearchDocument | None = None


@dataclass(frozen=True, slots=True)
class StreamSlice:
    """Consecutive entries of one channel.

    `removed_through` was read after the entries and is at least what had been removed when they
    were read: entries between a cursor and the first of these are missing only if it says so.
    `more` says that the ceiling, not the end of the stream, ended the slice.
    """

    entries: list[StreamEntry]
    removed_through: Sequence
    more: bool


class StreamWriter:
    """Writes batches. With `search`, also the documents of entries that carry one."""

    def __init__(self, client: Client, *, search: bool) -> None:
        self._client = client
        self._search = search

    def project(self, entries: collections.abc.Sequence[StreamEntry], through: Sequence) -> None:
        """Append `entries` (in commit order) and record that all up to `through` is projected.

        Entries that a stream already has are left as they are.
        """
        commands = self._append_commands(entries)
        commands.append(("HSET", keys.MARKER, keys.MARKER_SEQUENCE, through))
        self._transact("project a batch", commands, tolerate=_ALREADY_THERE)

    def load(self, entries: collections.abc.Sequence[StreamEntry]) -> None:
        """Append `entries` during a rebuild, in any order of channels, marking nothing.

        The streams are known to be new, so an entry out of order within its channel is an error
        here: leaving it out would lose it.
        """
        self._transact("load a batch", self._append_commands(entries))

    def mark(self, bus_id: BusId, through: Sequence) -> None:
        """Declare this Redis to be the projection of `bus_id`, complete up to `through`."""
        with redis_errors("record what is projected"):
            self._client.hset(
                keys.MARKER,
                mapping={
                    keys.MARKER_BUS_ID: bus_id,
                    keys.MARKER_SEQUENCE: through,
                    keys.MARKER_LAYOUT: keys.LAYOUT,
                },
            )

    def set_removed(self, removed: Mapping[ChannelId, Sequence]) -> None:
        """Record removals that happened before this Redis was filled."""
        commands: list[Command] = [
            ("HSET", keys.REMOVED, channel_id, through) for channel_id, through in removed.items()
        ]
        self._transact("record removed entries", commands)

    def removed(self) -> dict[ChannelId, Sequence]:
        """Highest removed sequence of each channel that lost entries."""
        with redis_errors("report removed entries"):
            marks = self._client.hgetall(keys.REMOVED)
        return {ChannelId(int(key)): Sequence(int(value)) for key, value in marks.items()}

    def remove(
        self,
        channel_id: ChannelId,
        through: Sequence,
        documents: Iterable[Sequence],
    ) -> None:
        """Forget a channel's oldest entries up to `through`, and the documents of them.

        Trim and mark are one step for readers: whoever misses the entries sees the mark.
        """
        commands: list[Command] = [
            ("XTRIM", keys.stream(channel_id), "MINID", keys.entry_id(through + 1)),
            ("HSET", keys.REMOVED, channel_id, through),
        ]
        self._transact("remove entries", commands + self._forget_commands(documents))

    def remove_found(self, channel_id: ChannelId, through: Sequence) -> None:
        """`remove` for a caller that does not know which documents there are."""
        while True:
            with redis_errors("list entries to remove"):
                found = execute(
                    self._client,
                    *("XRANGE", keys.stream(channel_id), "-", keys.entry_id(through)),
                    *("COUNT", DROP_ENTRIES),
                )
            sequences = [keys.entry_sequence(entry) for entry, _ in found]
            last = len(sequences) < DROP_ENTRIES
            self.remove(channel_id, through if last else sequences[-1], sequences)
            if last:
                return

    def retract(self, channel_id: ChannelId, sequences: collections.abc.Sequence[Sequence]) -> None:
        """Forget single entries, such as superseded memory revisions, without leaving a gap."""
        if not sequences:
            return
        entries = [keys.entry_id(sequence) for sequence in sequences]
        commands: list[Command] = [("XDEL", keys.stream(channel_id), *entries)]
        self._transact("retract entries", commands + self._forget_commands(sequences))

    def drop(self, channel_id: ChannelId, through: Sequence) -> None:
        """Forget a whole channel, of which `through` is the newest sequence."""
        self.remove_found(channel_id, through)
        commands: list[Command] = [
            ("UNLINK", keys.stream(channel_id)),
            ("HDEL", keys.REMOVED, channel_id),
        ]
        self._transact("drop a channel", commands)

    def _append_commands(self, entries: collections.abc.Sequence[StreamEntry]) -> list[Command]:
        commands: list[Command] = []
        for entry in entries:
            commands.append(
                (
                    *("XADD", keys.stream(entry.channel_id), keys.entry_id(entry.sequence)),
                    *(keys.ENTRY_ENVELOPE, entry.envelope, keys.ENTRY_SESSION, entry.session_id),
                )
            )
            if self._search and entry.document is not None:
                fields = hash_fields(entry.document, entry.sequence)
                commands.append(("HSET", keys.document(entry.sequence), *fields))
        return commands

    def _forget_commands(self, documents: Iterable[Sequence]) -> list[Command]:
        names = [keys.document(sequence) for sequence in documents] if self._search else []
        return [("UNLINK", *names)] if names else []

    def _transact(
        self, doing: str, commands: list[Command], *, tolerate: str | None = None
    ) -> None:
        with redis_errors(doing):
            for reply in execute_many(self._client, commands, atomic=True):
                if isinstance(reply, redis.RedisError) and (
                    tolerate is None or tolerate not in str(reply)
                ):
                    raise reply


class StreamReader:
    """Reads from a cursor on. Never changes anything."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def read(
        self, channel_id: ChannelId, after: Sequence, count: int, max_bytes: int
    ) -> StreamSlice:
        """At most `count` entries after a cursor, and no more than `max_bytes` of envelopes.

        The first entry comes even if it alone is larger, so that no cursor ever wedges.
        """
        entries: list[StreamEntry] = []
        size_bytes = 0
        while True:
            wanted = min(count - len(entries), READ_ENTRIES)
            cursor = entries[-1].sequence if entries else after
            [(fetched, removed_through)] = self._fetch([(channel_id, cursor)], wanted)
            for entry in fetched:
                size_bytes += len(entry.envelope)
                if entries and size_bytes > max_bytes:
                    return StreamSlice(entries, removed_through, more=True)
                entries.append(entry)
            if len(fetched) < wanted:
                return StreamSlice(entries, removed_through, more=False)
            if len(entries) >= count:
                return StreamSlice(entries, removed_through, more=True)

    def read_many(
        self, cursors: collections.abc.Sequence[tuple[ChannelId, Sequence]], count: int
    ) -> list[StreamSlice]:
        """At most `count` entries after each cursor, in one round trip, in the order asked for."""
        return [
            StreamSlice(entries, removed_through, more=len(entries) >= count)
            for entries, removed_through in self._fetch(cursors, count)
        ]

    def _fetch(
        self, cursors: collections.abc.Sequence[tuple[ChannelId, Sequence]], count: int
    ) -> list[tuple[list[StreamEntry], Sequence]]:
        if not cursors:
            return []
        channel_ids = [channel_id for channel_id, _ in cursors]
        commands: list[Command] = [
            ("XRANGE", keys.stream(channel_id), keys.entry_id(after + 1), "+", "COUNT", count)
            for channel_id, after in cursors
        ]
        # After the ranges, so that no removal between the two goes unnoticed.
        commands.append(("HMGET", keys.REMOVED, *channel_ids))
        with redis_errors("read streams"):
            replies = execute_many(self._client, commands, atomic=False)
            for reply in replies:
                if isinstance(reply, redis.RedisError):
                    raise reply
        *ranges, marks = replies
        return [
            (
                [_entry(channel_id, entry, fields) for entry, fields in found],
                Sequence(int(mark or 0)),
            )
            for channel_id, found, mark in zip(channel_ids, ranges, marks, strict=True)
        ]


def _entry(channel_id: ChannelId, entry: bytes, fields: list[bytes]) -> StreamEntry:
    _, envelope, _, session_id = fields  # as `_append_commands` wrote them
    return StreamEntry(
        channel_id=channel_id,
        sequence=keys.entry_sequence(entry),
        session_id=SessionId(session_id.decode()),
        envelope=envelope,
    )
