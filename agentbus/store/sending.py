"""The ledger's answer to a send: a repeat gets its first receipt, a new one becomes a message.

Owns what of a message is decided inside the transaction (channel, thread, size), all of it before
the first row is written. Runs on the ledger's thread.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from peewee import SQL

from agentbus.envelope import Body, check_size, encode_envelope
from agentbus.ids import MessageId, Sequence, new_id
from agentbus.store.bulk import BulkInsert
from agentbus.store.changes import Done, MessageAppended, SendMessage
from agentbus.store.receipts import admit
from agentbus.store.schema import PLACE, Channel, Message, insert_text, text
from agentbus.store.work import Work

_SELECT_THREAD = text(
    Message.select(Message.thread)
    .join(Channel, on=(Channel.id == Message.channel))
    .where((Message.message_id == PLACE) & (Channel.kind != SQL("'inbox'")))
    .order_by(Message.revision.desc())
    .limit(SQL("1"))
)
INSERT_MESSAGE = insert_text(Message)
_GATHER_MESSAGE = BulkInsert(Message)


def send_message(work: Work, change: SendMessage) -> Done:
    """Append a message, once per session and operation id."""
    admission = admit(work, change)
    if isinstance(admission, Done):
        return admission
    channel = work.require_channel(change.operation.channel)
    body = _body(work, change)
    sequence = Sequence(work.counters.last_sequence + 1)
    message_id = MessageId(new_id())
    envelope = encode_envelope(
        message_id=message_id,
        revision=1,
        sequence=sequence,
        channel=channel.name,
        channel_kind=channel.kind,
        sender=change.sender,
        sent_at_us=work.now_us,
        body=body,
    )
    check_size(envelope, work.config.max_message_kib)
    answer: dict[str, Any] = {
        "message_id": message_id,
        "sequence": sequence,
        "operation_id": change.operation_id,
    }

    # Nothing is refused from here on.
    work.gather(
        _GATHER_MESSAGE,
        (
            sequence,
            message_id,
            1,
            channel.channel_id,
            sequence,
            change.attachment.session_id,
            work.now_us,
            body.thread,
            body.reply_to,
            channel.kind == "memory",
            None,
            None,
            envelope,
        ),
    )
    admission.record(work, change, answer)
    work.counters.last_sequence = sequence
    changing = work.changing(channel.channel_id)
    changing.newest = sequence
    changing.retained += 1
    fact = MessageAppended(
        channel_id=channel.channel_id,
        channel=channel.name,
        channel_kind=channel.kind,
        sequence=sequence,
        message_id=message_id,
        sent_at_us=work.now_us,
        sender=change.sender,
        body=body,
        envelope=envelope,
    )
    answer["duplicate"] = False
    return Done(answer, (fact,))


def thread_of(work: Work, message_id: str) -> str | None:
    """The thread of a message that all may read; a direct one has none here, nor what is gone."""
    work.flush()
    row = work.execute(_SELECT_THREAD, (message_id,)).fetchone()
    return row[0] if row is not None else None


def _body(work: Work, change: SendMessage) -> Body:
    """The body as sent; without a thread of its own it joins that of the message it answers."""
    body = change.operation.body()
    thread = body.thread
    if thread is None and body.reply_to is not None:
        thread = thread_of(work, body.reply_to)
    if thread is body.thread and change.depth == body.depth:
        return body
    return replace(body, thread=thread, depth=change.depth)
