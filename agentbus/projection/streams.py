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
from typing import Any, NamedTuple, TypeAlias, assert_never

import redis

from agentbus.ids import BusId, ChannelId, MessageId, Sequence, SessionId
from agentbus.projection import keys
from agentbus.projection.connection import (
    Client,
    Command,
    Exchange,
    execute,
    execute_many,
)
from agentbus.projection.errors import EMPTIED, ProjectionError, redis_errors
from agentbus.projection.search import hash_fields
from agentbus.rules.documents import SearchDocument

READ_ENTRIES = 64
"""Entries fetched per round trip when a byte ceiling is given, so that it overshoots by little."""

DROP_ENTRIES = 1000
"""Entries of a dropped channel whose documents are removed per round trip."""

_NO_SUCH_KEY = "no such key"
_ALREADY_THERE = "equal or smaller than the target stream top item"


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """One message or memory as it lies in the stream of its channel.

    `sequence` is its place there: of a memory that of its creation, whatever revision is live.
    `envelope` is the encoded envelope, made once and handed on as it is. `document` is only needed
    for writing, and only where Redis is the search engine. `memory` names a memory.
    """

    channel_id: ChannelId
    sequence: Sequence
    session_id: SessionId
    envelope: bytes
    document: SearchDocument | None = None
    memory: MessageId | None = None


@dataclass(frozen=True, slots=True)
class MemoryRevision:
    """A memory has this envelope, of this sequence, from now on; its entry stays where it is."""

    memory_id: MessageId
    position: Sequence
    sequence: Sequence
    envelope: bytes
    document: SearchDocument | None = None


@dataclass(frozen=True, slots=True)
class MemoryRemoval:
    """A memory is gone, and its entry with it; that is no gap."""

    channel_id: ChannelId
    memory_id: MessageId
    position: Sequence


Projection: TypeAlias = StreamEntry | MemoryRevision | MemoryRemoval


class Hole(NamedTuple):
    """Entries above `after` are missing from a stream because they were removed; the last one that
    is missing is `through`. No entry that was read lies in a hole."""

    after: Sequence
    through: Sequence


@dataclass(frozen=True, slots=True)
class StreamSlice:
    """Consecutive entries of one channel, up to `through`: the last entry, the end of the last hole
    or, with neither, the cursor.

    A memory that was deleted while it was read is passed over. There is one hole at most for each
    round trip, since a removal is always of the oldest. `more` says that the ceiling, not the end
    of the stream, ended the slice.
    """

    entries: list[StreamEntry]
    through: Sequence
    holes: tuple[Hole, ...]
    more: bool


class StreamWriter:
    """Writes batches. With `search`, also the documents of entries that carry one."""

    def __init__(self, client: Client, *, search: bool) -> None:
        self._client = client
        self._search = search

    def project(self, changes: collections.abc.Sequence[Projection], through: Sequence) -> None:
        """Apply `changes` (in commit order) and record that all up to `through` is projected.

        Entries that a stream already has are left as they are.
        """
        commands = self._commands(changes)
        commands.append(("HSET", keys.MARKER, keys.MARKER_SEQUENCE, through))
        self._transact("project a batch", commands, tolerate=_ALREADY_THERE)

    def restate(self, changes: collections.abc.Sequence[Projection]) -> None:
        """Apply changes to memories that may be there already, marking nothing.

        New memories of one channel come in the order of their positions.
        """
        self._transact("restate memories", self._commands(changes), tolerate=_ALREADY_THERE)

    def begin_load(self, changes: collections.abc.Sequence[Projection]) -> Exchange:
        """Send `changes` of a rebuild, in any order of channels, marking nothing.

        They are there when `finish_load` returns; the next ones can be made in the meantime.
        """
        with redis_errors("load a batch"):
            return Exchange(self._client, self._commands(changes), atomic=True)

    def finish_load(self, exchange: Exchange) -> None:
        """The streams are known to be new, so an entry out of order within its channel is an error
        here: leaving it out would lose it."""
        with redis_errors("load a batch"):
            for reply in exchange.replies():
                if isinstance(reply, redis.RedisError):
                    raise reply

    def begin_mark(self, bus_id: BusId, through: Sequence) -> None:
        """Write down what `mark` will declare, as the first thing in an empty Redis."""
        with redis_errors("record what is to be projected"):
            self._client.hset(
                keys.MARKER_DRAFT,
                mapping={
                    keys.MARKER_BUS_ID: bus_id,
                    keys.MARKER_SEQUENCE: through,
                    keys.MARKER_LAYOUT: keys.LAYOUT,
                },
            )

    def mark(self) -> None:
        """Declare this Redis to be complete, as `begin_mark` said it.

        In one step that fails if Redis was emptied since: what was written before that is missing.
        """
        with redis_errors("record what is projected"):
            try:
                execute(self._client, "RENAME", keys.MARKER_DRAFT, keys.MARKER)
            except redis.ResponseError as error:
                if _NO_SUCH_KEY not in str(error):
                    raise
                raise ProjectionError(EMPTIED) from None

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

    def drop(self, channel_id: ChannelId, through: Sequence) -> None:
        """Forget a whole channel, of which `through` is the newest sequence."""
        self.remove_found(channel_id, through)
        commands: list[Command] = [
            ("UNLINK", keys.stream(channel_id)),
            ("HDEL", keys.REMOVED, channel_id),
        ]
        self._transact("drop a channel", commands)

    def _commands(self, changes: collections.abc.Sequence[Projection]) -> list[Command]:
        commands: list[Command] = []
        for change in changes:
            match change:
                case StreamEntry():
                    commands += self._entry_commands(change)
                case MemoryRevision(memory_id, position, sequence, envelope, document):
                    commands.append(("SET", keys.memory(memory_id), envelope))
                    # A field that the new revision lacks would stay in the hash.
                    commands += self._forget_commands([position])
                    commands += self._document_commands(position, sequence, document)
                case MemoryRemoval(channel_id, memory_id, position):
                    commands.append(("XDEL", keys.stream(channel_id), keys.entry_id(position)))
                    commands.append(("UNLINK", keys.memory(memory_id)))
                    commands += self._forget_commands([position])
                case _:
                    assert_never(change)
        return commands

    def _entry_commands(self, entry: StreamEntry) -> list[Command]:
        add: Command = ("XADD", keys.stream(entry.channel_id), keys.entry_id(entry.sequence))
        session: Command = (keys.ENTRY_SESSION, entry.session_id)
        if entry.memory is None:
            commands = [(*add, keys.ENTRY_ENVELOPE, entry.envelope, *session)]
        else:
            commands = [
                (*add, keys.ENTRY_MEMORY, entry.memory, *session),
                ("SET", keys.memory(entry.memory), entry.envelope),
            ]
        return commands + self._document_commands(entry.sequence, entry.sequence, entry.document)

    def _document_commands(
        self, position: Sequence, sequence: Sequence, document: SearchDocument | None
    ) -> list[Command]:
        if document is None or not self._search:
            return []
        return [("HSET", keys.document(position), *hash_fields(document, sequence))]

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
    """Reads from a cursor on. Never changes anything.

    Only from a Redis that is marked as filled: of one that somebody emptied, every cursor would see
    a stream that simply has no more, and pass over what is missing.
    """

    def __init__(self, client: Client) -> None:
        """The client is this reader's own from here on."""
        self._client = client

    def close(self) -> None:
        self._client.close()

    def read(
        self, channel_id: ChannelId, after: Sequence, count: int, max_bytes: int
    ) -> StreamSlice:
        """At most `count` entries after a cursor, and no more than `max_bytes` of envelopes.

        The first entry comes even if it alone is larger, so that no cursor ever wedges.
        """
        entries: list[StreamEntry] = []
        holes: tuple[Hole, ...] = ()
        size_bytes = 0
        through = after
        while True:
            wanted = min(count - len(entries), READ_ENTRIES)
            fetched = self._fetch(channel_id, through, wanted)
            for hole in fetched.holes:
                holes += (hole,)
                through = hole.through
            for entry in fetched.entries:
                size_bytes += len(entry.envelope)
                if entries and size_bytes > max_bytes:
                    return StreamSlice(entries, through, holes, more=True)
                entries.append(entry)
                through = entry.sequence
            through = fetched.through
            if not fetched.more or len(entries) >= count:
                return StreamSlice(entries, through, holes, fetched.more)

    def _fetch(self, channel_id: ChannelId, after: Sequence, count: int) -> StreamSlice:
        """At most `count` entries after a cursor, in one round trip, or two where there are
        memories among them."""
        # As one: a removal between range and mark would make entries that were read look missing.
        found, mark, is_marked = self._ask(
            [
                ("XRANGE", keys.stream(channel_id), keys.entry_id(after + 1), "+", "COUNT", count),
                ("HGET", keys.REMOVED, channel_id),
                ("HEXISTS", keys.MARKER, keys.MARKER_BUS_ID),
            ],
            atomic=True,
        )
        _require(is_marked)
        memories = self._memories(found)
        entries = [_entry(channel_id, entry, fields, memories) for entry, fields in found]
        removed = Sequence(int(mark or 0))
        return StreamSlice(
            [entry for entry in entries if entry is not None],
            keys.entry_sequence(found[-1][0]) if found else max(after, removed),
            (Hole(after, removed),) if removed > after else (),
            more=len(found) >= count,
        )

    def _memories(self, found: list[Any]) -> dict[bytes, bytes]:
        """Live envelopes of the memories among what was found in a stream, by id.

        Read after the stream, so it is the newest that is projected; a deleted one is missing, and
        so would all be of a Redis that was emptied meanwhile.
        """
        ids = [fields[1] for _, fields in found if fields[0] == keys.ENTRY_MEMORY]
        if not ids:
            return {}
        names = [keys.memory(MessageId(memory_id.decode())) for memory_id in ids]
        envelopes, is_marked = self._ask(
            [("MGET", *names), ("HEXISTS", keys.MARKER, keys.MARKER_BUS_ID)], atomic=False
        )
        _require(is_marked)
        return {
            memory_id: envelope
            for memory_id, envelope in zip(ids, envelopes, strict=True)
            if envelope is not None
        }

    def _ask(self, commands: list[Command], *, atomic: bool) -> list[Any]:
        with redis_errors("read streams"):
            replies = execute_many(self._client, commands, atomic=atomic)
            for reply in replies:
                if isinstance(reply, redis.RedisError):
                    raise reply
        return replies


def _require(is_marked: int) -> None:
    """What has no marker is empty or half filled: missing says nothing there."""
    if not is_marked:
        raise ProjectionError(EMPTIED)


def _entry(
    channel_id: ChannelId, entry: bytes, fields: list[bytes], memories: Mapping[bytes, bytes]
) -> StreamEntry | None:
    """The entry; None for a memory that has been deleted since."""
    name, value, _, session_id = fields  # as `_entry_commands` wrote them
    envelope: bytes | None = value
    memory: MessageId | None = None
    if name == keys.ENTRY_MEMORY:
        envelope = memories.get(value)
        memory = MessageId(value.decode())
    if envelope is None:
        return None
    return StreamEntry(
        channel_id=channel_id,
        sequence=keys.entry_sequence(entry),
        session_id=SessionId(session_id.decode()),
        envelope=envelope,
        memory=memory,
    )
