"""What facts and rows become in Redis.

Owns the translation from the ledger's vocabulary to the projection's, for what has just been
committed and for what is read again from SQLite. Writes nothing. Runs on the projector's thread.
"""

from __future__ import annotations

from collections.abc import Iterator

from agentbus.ids import Sequence
from agentbus.projection.streams import MemoryRemoval, MemoryRevision, Projection, StreamEntry
from agentbus.rules.documents import SearchDocument, document_of_envelope, document_of_message
from agentbus.store.changes import MemoryRemoved, MemoryRevised, MessageAppended, StoredMessage
from agentbus.store.reader import Reader

PAGE_ROWS = 1000

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
    while rows := store.scan(after, PAGE_ROWS):
        yield [
            StreamEntry(
                row.channel_id,
                row.sequence,
                row.session_id,
                row.envelope,
                document_of_envelope(row.envelope) if search else None,
            )
            for row in rows
        ]
        after = rows[-1].sequence


def memories(store: Reader, after: Sequence, *, search: bool) -> Iterator[list[Projection]]:
    """Every living memory created after a sequence, each channel by position."""
    for channel_id in store.memory_channels():
        position = after
        while rows := store.scan_memories(channel_id, position, PAGE_ROWS):
            yield [change for row in rows for change in _memory(row, search)]
            position = rows[-1].position


def memory_changes(store: Reader, after: Sequence, *, search: bool) -> Iterator[list[Projection]]:
    """What became of memories after a sequence: new ones, revised ones, deleted ones."""
    yield from memories(store, after, search=search)
    yield [_revision(row, search) for row in store.revised_memories(after)]
    yield [
        MemoryRemoval(row.channel_id, row.memory_id, row.position)
        for row in store.deleted_memories(after)
    ]


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
