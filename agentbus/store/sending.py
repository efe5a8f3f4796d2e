"""The ledger's answer to a send: a repeat gets its first receipt, a new one becomes a message.

Owns the order of the checks inside the transaction (attachment, receipt, rate, channel, size), all
of them before the first row is written. Runs on the ledger's thread.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from peewee import SQL

from agentbus.encoding import decode_trusted, encode
from agentbus.envelope import Body, check_size, encode_envelope
from agentbus.errors import ConflictError, RateLimitedError
from agentbus.ids import MessageId, Sequence, new_id
from agentbus.rules.retention import end_us
from agentbus.store.accounting import row_bytes
from agentbus.store.changes import Done, MessageAppended, SendMessage
from agentbus.store.schema import PLACE, Message, Receipt, insert_text, text
from agentbus.store.work import Work

_SELECT_RECEIPT = text(
    Receipt.select(
        Receipt.fingerprint, Receipt.result, Receipt.accepted_at_us, Receipt.expires_at_us
    ).where((Receipt.session == PLACE) & (Receipt.operation_id == PLACE))
)
_SELECT_THREAD = text(
    Message.select(Message.thread)
    .where(Message.message_id == PLACE)
    .order_by(Message.revision.desc())
    .limit(SQL("1"))
)
_INSERT_MESSAGE = insert_text(Message)
_INSERT_RECEIPT = insert_text(Receipt)
_REPLACE_RECEIPT = insert_text(Receipt, replace=True)


def send_message(work: Work, change: SendMessage) -> Done:
    """Append a message, once per session and operation id."""
    operation = change.operation
    session_id = change.attachment.session_id
    work.require_current(change.attachment)
    earlier = work.execute(_SELECT_RECEIPT, (session_id, change.operation_id)).fetchone()
    if earlier is not None:
        fingerprint, result, _, expires_at_us = earlier
        if expires_at_us > work.now_us:
            return _repeat(change, fingerprint, result)
    if not change.rate_ok:
        raise RateLimitedError(
            "this session's send rate is used up; wait, then send again with the same operation id",
            retry_after_ms=change.retry_after_ms,
        )
    channel = work.require_channel(operation.channel)
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
    work.insert(
        _INSERT_MESSAGE,
        (
            sequence,
            message_id,
            1,
            channel.channel_id,
            session_id,
            work.now_us,
            body.thread,
            body.reply_to,
            channel.kind == "memory",
            None,
            envelope,
        ),
    )
    receipt = (
        session_id,
        change.operation_id,
        change.fingerprint,
        encode(answer),
        work.now_us,
        end_us(work.now_us, work.config.dedup_retention_hours),
    )
    if earlier is None:
        work.insert(_INSERT_RECEIPT, receipt)
    else:
        work.counters.logical_bytes -= row_bytes((session_id, change.operation_id, *earlier))
        work.insert(_REPLACE_RECEIPT, receipt)
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


def _repeat(change: SendMessage, fingerprint: bytes, result: bytes) -> Done:
    if fingerprint != change.fingerprint:
        raise ConflictError(
            f"operation id {change.operation_id!r} was already used by this session for a "
            "different call; repeat that call unchanged, or use a new operation id"
        )
    return Done({**decode_trusted(result), "duplicate": True}, charged=False)


def _body(work: Work, change: SendMessage) -> Body:
    """The body as sent; without a thread of its own it joins that of the message it answers."""
    body = change.operation.body()
    thread = body.thread
    if thread is None and body.reply_to is not None:
        # A target that is not retained, or never was, is a valid one without a thread.
        row = work.execute(_SELECT_THREAD, (body.reply_to,)).fetchone()
        thread = row[0] if row is not None else None
    if thread is body.thread and change.depth == body.depth:
        return body
    return replace(body, thread=thread, depth=change.depth)
