"""The one way in which a new message gets into a channel, whatever kind of channel it is.

Owns the next sequence, the encoding of the envelope, the row and the channel's counters. Never
decides who may send what. Runs on the ledger's thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentbus.envelope import Body, ChannelKind, check_size, encode_envelope
from agentbus.identity import SenderBinding
from agentbus.ids import ChannelId, MessageId, Sequence, new_id
from agentbus.store.bulk import BulkInsert
from agentbus.store.changes import MessageAppended
from agentbus.store.schema import Message
from agentbus.store.work import Work

_GATHER_MESSAGE = BulkInsert(Message)


@dataclass(frozen=True, slots=True)
class Draft:
    """A message that fits, with its bytes; nothing of it is written yet."""

    channel: str
    channel_kind: ChannelKind
    sequence: Sequence
    message_id: MessageId
    sender: SenderBinding
    body: Body
    envelope: bytes


def draft_message(
    work: Work,
    channel: str,
    channel_kind: ChannelKind,
    sender: SenderBinding,
    body: Body,
    message_id: MessageId | None = None,
) -> Draft:
    """The next message of the bus. Raises TooLargeError; writes nothing."""
    sequence = Sequence(work.counters.last_sequence + 1)
    message_id = message_id or MessageId(new_id())
    envelope = encode_envelope(
        message_id=message_id,
        revision=1,
        sequence=sequence,
        channel=channel,
        channel_kind=channel_kind,
        sender=sender,
        sent_at_us=work.now_us,
        body=body,
    )
    check_size(envelope, work.config.max_message_kib)
    return Draft(channel, channel_kind, sequence, message_id, sender, body, envelope)


def append_message(work: Work, draft: Draft, channel_id: ChannelId) -> MessageAppended:
    """Write it, with the others of the batch: whoever reads messages flushes first."""
    work.gather(
        _GATHER_MESSAGE,
        (
            draft.sequence,
            draft.message_id,
            1,
            channel_id,
            draft.sequence,
            draft.sender.session_id,
            work.now_us,
            draft.body.thread,
            draft.body.reply_to,
            draft.channel_kind == "memory",
            None,
            None,
            draft.envelope,
        ),
    )
    work.counters.last_sequence = draft.sequence
    channel = work.changing(channel_id)
    channel.newest = draft.sequence
    channel.retained += 1
    return MessageAppended(
        channel_id=channel_id,
        channel=draft.channel,
        channel_kind=draft.channel_kind,
        sequence=draft.sequence,
        message_id=draft.message_id,
        sent_at_us=work.now_us,
        sender=draft.sender,
        body=draft.body,
        envelope=draft.envelope,
    )
