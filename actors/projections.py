"""What facts and rows become in Redis.

Owns the translation from the ledger's vocabulary to the projection's, for what has just been
committed and for what is read again from SQLite. Writes nothing. Runs on the projector's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from agentbus.ids import Sequence
from agentbus.limits import MIB
from agentbus.projection.streams import MemoryRemoval, MemoryRevision, Projection, StreamEntry
from agentbus.rules.documents import SearchDocument, document_of_envelope, document_of_message
from agentbus.store.changes import MemoryRemoved, MemoryRevised, MessageAppended, StoredMessage
from agentbus.store.reader import Reader

PAGE_ROWS = 1000
PAGE_BYTES = 4 * MIB
"""About what one page and the batch made of it hold: a few tens of milliseconds for either end, so
that progress and a stop come often, and Redis answers well within its time limit."""

FIRST_PAGE_ROWS = 16
"""Until the size of the messages is known."""

ContentFact = MessageAppended | MemoryRevised | MemoryRemoved
"""Facts that one call projects together, in their order."""


def projection_of(fact: ContentFact, *, search: bool) -> Projection:
    """Of what has just been committed. `search`: with the document for the index."""
    match fact:
        case MessageAppended():
            return StreamEntry(
                fact.channel_id,
                fact.sequence,
                fact.sender.session_id,
                fact.envelope,
                _document(fact) if search else None,
                fact.message_id if fact.channel_kind == "memory" else None,
            )
        case MemoryRevised():
            return MemoryRevision(
                fact.memory_id,
                fact.position,
                fact.sequence,
                fact.envelope,
                _document(fact) if search else None,
            )
        case MemoryRemoved():
            return MemoryRemoval(fact.channel_id, fact.memory_id, fact.position)


def messages(store: Reader, after: Sequence, *, search: bool) -> Iterator[list[StreamEntry]]:
    """Every ordinary message after a sequence, in commit order."""
    for rows in _pages(store.scan, after, _sequence):
        yield [_entry(row, search) for row in rows]


def messages_by_channel(store: Reader, *, search: bool) -> Iterator[list[StreamEntry]]:
    """Every ordinary message, channel by channel in sequence order, channels in use first.

    Many small channels share a batch.
    """
    batch: list[StreamEntry] = []
    size_bytes = 0
    for channel_id in store.channels_read_first():
        for rows in _pages(partial(store.scan_channel, channel_id), Sequence(0), _sequence):
            batch += [_entry(row, search) for row in rows]
            size_bytes += sum(len(row.envelope) for row in rows)
            if len(batch) >= PAGE_ROWS or size_bytes >= PAGE_BYTES:
                yield batch
                batch, size_bytes = [], 0
    if batch:
        yield batch


def memories(store: Reader, after: Sequence, *, search: bool) -> Iterator[list[Projection]]:
    """Every living memory created after a sequence, each channel by position."""
    for channel_id in store.memory_channels():
        for rows in _pages(partial(store.scan_memories, channel_id), after, _position):
            yield [change for row in rows for change in _memory(row, search)]


def memory_changes(store: Reader, after: Sequence, *, search: bool) -> Iterator[list[Projection]]:
    """What became of memories after a sequence: new ones, revised ones, deleted ones."""
    yield from memories(store, after, search=search)
    yield [_revision(row, search) for row in store.revised_memories(after)]
    yield [
        MemoryRemoval(row.channel_id, row.memory_id, row.position)
        for row in store.deleted_memories(after)
    ]


def _pages(
    fetch: Callable[[Sequence, int], list[StoredMessage]],
    after: Sequence,
    place: Callable[[StoredMessage], Sequence],
) -> Iterator[list[StoredMessage]]:
    """All rows after a place, in pages that are small where the messages are large."""
    limit = FIRST_PAGE_ROWS
    while rows := fetch(after, limit):
        yield rows
        if len(rows) < limit:
            return
        after = place(rows[-1])
        mean_bytes = sum(len(row.envelope) for row in rows) // len(rows)
        # Not more than twice as many at once: the next ones may be larger than these.
        limit = max(1, min(PAGE_ROWS, limit * 2, PAGE_BYTES // max(1, mean_bytes)))


def _sequence(row: StoredMessage) -> Sequence:
    return row.sequence


def _position(row: StoredMessage) -> Sequence:
    return row.position


def _entry(row: StoredMessage, search: bool) -> StreamEntry:
    document = document_of_envelope(row.envelope) if search else None
    return StreamEntry(row.channel_id, row.sequence, row.session_id, row.envelope, document)


def _memory(row: StoredMessage, search: bool) -> list[Projection]:
    """A living memory: its entry, and its document, which has the sequence of the live revision."""
    entry = StreamEntry(
        row.channel_id, row.position, row.session_id, row.envelope, memory=row.message_id
    )
    return [entry, _revision(row, search)]


def _revision(row: StoredMessage, search: bool) -> MemoryRevision:
    document = document_of_envelope(row.envelope) if search else None
    return MemoryRevision(row.message_id, row.position, row.sequence, row.envelope, document)


def _document(fact: MessageAppended | MemoryRevised) -> SearchDocument:
    return document_of_message(
        fact.body,
        channel=fact.channel,
        sender=fact.sender.agent,
        session_id=fact.sender.session_id,
        sent_at_ms=fact.sent_at_us // 1000,
    )
