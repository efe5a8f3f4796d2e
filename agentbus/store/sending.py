"""The ledger's answer to a send: a repeat gets its first receipt, a new one becomes a message.

Owns what of a message is decided inside the transaction (channel, thread, size), all of it before
the first row is written. Runs on the ledger's thread.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from peewee import SQL

from agentbus.envelope import Body
from agentbus.errors import ValidationError
from agentbus.rules.jobs import JOB_CHANNEL_PREFIX
from agentbus.store.appending import append_message, draft_message
from agentbus.store.changes import Done, SendMessage
from agentbus.store.receipts import admit
from agentbus.store.schema import PLACE, Channel, Message, text
from agentbus.store.work import ChannelState, Work

_SELECT_THREAD = text(
    Message.select(Message.thread)
    .join(Channel, on=(Channel.id == Message.channel))
    .where((Message.message_id == PLACE) & (Channel.kind != SQL("'inbox'")))
    .order_by(Message.revision.desc())
    .limit(SQL("1"))
)


def send_message(work: Work, change: SendMessage) -> Done:
    """Append a message, once per session and operation id."""
    admission = admit(work, change)
    if isinstance(admission, Done):
        return admission
    channel = _require_open(work, change.operation.channel)
    body = _body(work, change)
    draft = draft_message(work, channel.name, channel.kind, change.sender, body)
    answer: dict[str, Any] = {
        "message_id": draft.message_id,
        "sequence": draft.sequence,
        "operation_id": change.operation_id,
    }

    # Nothing is refused from here on.
    fact = append_message(work, draft, channel.channel_id)
    admission.record(work, change, answer)
    answer["duplicate"] = False
    return Done(answer, (fact,))


def _require_open(work: Work, name: str) -> ChannelState:
    if name.startswith(JOB_CHANNEL_PREFIX):
        raise ValidationError(
            f"{name!r}: names that begin with {JOB_CHANNEL_PREFIX} hold the events of jobs, which "
            "only the job itself emits; send to another channel"
        )
    return work.require_channel(name)


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
