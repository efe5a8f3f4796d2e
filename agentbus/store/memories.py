"""The ledger's answers to edits and deletions of memories.

Owns the revisions of a memory: one row each, exactly one of a living memory without a tombstone, a
deleted one has none. An edit tombstones the live row and inserts the next, a deletion only
tombstones; content stays until the purge. Both take a sequence of their own, so that the newest
sequence always tells whether something changed. Runs on the ledger's thread.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from peewee import SQL, fn

from agentbus.encoding import decode_trusted
from agentbus.envelope import Body, body_of, check_size, encode_envelope
from agentbus.errors import NotFoundError
from agentbus.failpoints import reach
from agentbus.ids import ChannelId, MessageId, Sequence, SessionId
from agentbus.limits import MEMORY_CHANGES
from agentbus.rules.memories import revised
from agentbus.store.changes import (
    Done,
    MemoryChange,
    MemoryRemoved,
    MemoryRevised,
    RemoveMemory,
    ReviseMemory,
    SubscriptionRow,
)
from agentbus.store.receipts import admit
from agentbus.store.schema import LIVE_MEMORY, PLACE, TOMBSTONE, Channel, Message, insert_text, text
from agentbus.store.sending import thread_of
from agentbus.store.work import Work

_INSERT_REVISION = insert_text(Message)
_SELECT_LIVE = text(
    Message.select(
        Message.sequence,
        Message.revision,
        Message.channel,
        Channel.name,
        Message.position,
        Message.session,
        Message.envelope,
    )
    .join(Channel, on=(Channel.id == Message.channel))
    .where((Message.message_id == PLACE) & LIVE_MEMORY)
)
_END = text(
    Message.update({Message.tombstoned_at_us: PLACE, Message.ended_sequence: PLACE}).where(
        Message.sequence == PLACE
    )
)
_SELECT_CHANGED = text(
    Message.select(
        Message.sequence, Message.message_id, Message.revision, Message.sent_at_us, Message.envelope
    )
    .where(
        (Message.channel == PLACE)
        & (Message.position <= PLACE)
        & (Message.sequence > PLACE)
        & (Message.revision > SQL("1"))
        & LIVE_MEMORY
    )
    .order_by(Message.sequence.desc())
    .limit(PLACE)
)
_Later = Message.alias("later")
LAST_OF_DELETED = TOMBSTONE & ~fn.EXISTS(
    _Later.select(SQL("1")).where(
        (_Later.message_id == Message.message_id) & (_Later.revision > Message.revision)
    )
)
"""The last revision of a memory that was deleted: there is a tombstone and nothing after it."""

_SELECT_DELETED = text(
    Message.select(
        Message.ended_sequence, Message.message_id, Message.revision, Message.tombstoned_at_us
    )
    .where(
        (Message.channel == PLACE)
        & (Message.position <= PLACE)
        & (Message.ended_sequence > PLACE)
        & LAST_OF_DELETED
    )
    .order_by(Message.ended_sequence.desc())
    .limit(PLACE)
)


@dataclass(frozen=True, slots=True)
class _Live:
    """The live revision of a memory. `session_id` created it."""

    sequence: Sequence
    revision: int
    channel_id: ChannelId
    channel: str
    position: Sequence
    session_id: SessionId
    envelope: bytes


def revise_memory(work: Work, change: ReviseMemory) -> Done:
    """Make the next revision, once per session and operation id; whoever comes last wins."""
    admission = admit(work, change)
    if isinstance(admission, Done):
        return admission
    memory_id = MessageId(change.operation.memory_id)
    live = _require_live(work, memory_id)
    before: dict[str, Any] = decode_trusted(live.envelope)
    body = _revised_body(work, body_of(before), change)
    sequence = Sequence(work.counters.last_sequence + 1)
    revision = live.revision + 1
    envelope = encode_envelope(
        message_id=memory_id,
        revision=revision,
        sequence=sequence,
        channel=live.channel,
        channel_kind="memory",
        sender=change.sender,
        sent_at_us=work.now_us,
        body=body,
    )
    check_size(envelope, work.config.max_message_kib)
    answer: dict[str, Any] = {
        "memory_id": memory_id,
        "revision": revision,
        "sequence": sequence,
        "operation_id": change.operation_id,
        "replaced": {
            "revision": live.revision,
            "sender": {key: before["sender"][key] for key in ("display_name", "agent")},
            "sent_at": before["sent_at"],
        },
    }

    # Nothing is refused from here on.
    work.execute(_END, (work.now_us, sequence, live.sequence))
    reach("during_memory_edit")
    work.insert(
        _INSERT_REVISION,
        (
            sequence,
            memory_id,
            revision,
            live.channel_id,
            live.position,
            live.session_id,
            work.now_us,
            body.thread,
            body.reply_to,
            True,
            None,
            None,
            envelope,
        ),
    )
    admission.record(work, change, answer)
    work.counters.last_sequence = sequence
    work.changing(live.channel_id).newest = sequence
    fact = MemoryRevised(
        channel_id=live.channel_id,
        channel=live.channel,
        memory_id=memory_id,
        position=live.position,
        sequence=sequence,
        revision=revision,
        sent_at_us=work.now_us,
        sender=change.sender,
        body=body,
        envelope=envelope,
    )
    answer["duplicate"] = False
    return Done(answer, (fact,))


def remove_memory(work: Work, change: RemoveMemory) -> Done:
    """End a memory, once per session and operation id."""
    admission = admit(work, change)
    if isinstance(admission, Done):
        return admission
    memory_id = MessageId(change.operation.memory_id)
    live = _require_live(work, memory_id)
    sequence = Sequence(work.counters.last_sequence + 1)
    answer: dict[str, Any] = {
        "memory_id": memory_id,
        "revision": live.revision,
        "operation_id": change.operation_id,
    }
    work.execute(_END, (work.now_us, sequence, live.sequence))
    admission.record(work, change, answer)
    work.counters.last_sequence = sequence
    work.changing(live.channel_id).retained -= 1
    fact = MemoryRemoved(
        channel_id=live.channel_id,
        channel=live.channel,
        memory_id=memory_id,
        position=live.position,
        sequence=sequence,
        revision=live.revision,
        sender=change.sender,
    )
    answer["duplicate"] = False
    return Done(answer, (fact,))


def memory_changes(
    work: Work, subscriptions: tuple[SubscriptionRow, ...], since: Sequence
) -> tuple[MemoryChange, ...]:
    """The newest changes after `since`, oldest first, of memories that these have passed.

    A memory that a subscription has not reached yet is delivered as it then is, and so not named.
    """
    found: list[tuple[Sequence, MemoryChange]] = []
    for row in subscriptions:
        if row.kind != "memory" or row.expired_at_us is not None:
            continue
        place = (row.channel_id, row.handed_off, since, MEMORY_CHANGES)
        for sequence, memory_id, revision, sent_at_us, envelope in work.execute(
            _SELECT_CHANGED, place
        ):
            change = MemoryChange(row.channel, memory_id, revision, sent_at_us, envelope)
            found.append((sequence, change))
        for sequence, memory_id, revision, ended_at_us in work.execute(_SELECT_DELETED, place):
            change = MemoryChange(row.channel, memory_id, revision, ended_at_us, None)
            found.append((sequence, change))
    found.sort(key=lambda pair: pair[0])
    return tuple(change for _, change in found[-MEMORY_CHANGES:])


def _require_live(work: Work, memory_id: MessageId) -> _Live:
    work.flush()
    row = work.execute(_SELECT_LIVE, (memory_id,)).fetchone()
    if row is None:
        raise no_memory(memory_id)
    return _Live(*row)


def no_memory(memory_id: str) -> NotFoundError:
    """What a get, edit or deletion of that id answers when it is no living memory."""
    return NotFoundError(
        f"there is no memory {memory_id!r}: it was deleted, never was, or is a message of an "
        "ordinary channel; search or history of a memory channel shows those that live"
    )


def _revised_body(work: Work, body: Body, change: ReviseMemory) -> Body:
    """The body after the edit; a new target of `reply_to` brings its thread where there is none."""
    changes = change.operation.changes()
    revision = revised(body, changes, change.depth)
    if revision.thread is None and "thread" not in changes and changes.get("reply_to"):
        return replace(revision, thread=thread_of(work, changes["reply_to"]))
    return revision
