"""A direct message as rows: one message, one delivery for each recipient.

Owns the inbox channels of the recipients, made when there are none yet (the message goes to that of
the first one), and the start of a request's reply tracking. Who may send what to whom has been
decided before. Runs on the ledger's thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentbus.envelope import Body, PeerKind, Recipient, check_size, encode_envelope
from agentbus.errors import ConflictError
from agentbus.identity import SenderBinding
from agentbus.ids import ChannelId, DeliveryId, MessageId, Sequence, new_id
from agentbus.limits import INBOX_PREFIX, PEER_UNANSWERED_SECONDS
from agentbus.store.changes import ChannelMade, Fact, MessageAppended
from agentbus.store.peer import deliveries
from agentbus.store.peer.deliveries import DeliveryRow
from agentbus.store.schema import Message, insert_text
from agentbus.store.subscribing import insert_channel
from agentbus.store.work import Work

SECOND_US = 1_000_000

_INSERT_MESSAGE = insert_text(Message)


@dataclass(frozen=True, slots=True)
class Letter:
    """What is to be sent. Without `thread` it begins one. `parent`: what its sender works on."""

    sender: SenderBinding
    recipients: tuple[Recipient, ...]
    kind: PeerKind
    content: str
    thread: str | None
    reply_to: str | None
    depth: int
    parent: DeliveryId | None
    capability: str | None = None
    reply_within_s: int | None = None


@dataclass(frozen=True, slots=True)
class Posting:
    """A letter that fits, with its bytes; nothing of it is written yet."""

    letter: Letter
    channel: str
    sequence: Sequence
    message_id: MessageId
    body: Body
    envelope: bytes


def prepare(work: Work, letter: Letter) -> Posting:
    """Encode the envelope. Raises TooLargeError; writes nothing."""
    message_id = MessageId(new_id())
    body = Body(
        content=letter.content,
        type=letter.kind,
        reply_to=letter.reply_to,
        thread=letter.thread or message_id,
        depth=letter.depth,
        recipients=letter.recipients,
        capability=letter.capability,
    )
    channel, _ = _inbox(work, letter.recipients[0].agent)
    sequence = Sequence(work.counters.last_sequence + 1)
    envelope = encode_envelope(
        message_id=message_id,
        revision=1,
        sequence=sequence,
        channel=channel,
        channel_kind="inbox",
        sender=letter.sender,
        sent_at_us=work.now_us,
        body=body,
    )
    check_size(envelope, work.config.max_message_kib)
    return Posting(letter, channel, sequence, message_id, body, envelope)


def post(work: Work, posting: Posting) -> tuple[list[DeliveryRow], list[Fact]]:
    """Write message and deliveries; the rows of these, in the order of the recipients."""
    letter, body = posting.letter, posting.body
    facts: list[Fact] = []
    channel_id, *_ = [open_inbox(work, one.agent, facts) for one in letter.recipients]
    work.insert(
        _INSERT_MESSAGE,
        (
            posting.sequence,
            posting.message_id,
            1,
            channel_id,
            posting.sequence,
            letter.sender.session_id,
            work.now_us,
            body.thread,
            body.reply_to,
            False,
            None,
            None,
            posting.envelope,
        ),
    )
    work.counters.last_sequence = posting.sequence
    channel = work.changing(channel_id)
    channel.newest = posting.sequence
    channel.retained += 1
    facts.append(
        MessageAppended(
            channel_id=channel_id,
            channel=posting.channel,
            channel_kind="inbox",
            sequence=posting.sequence,
            message_id=posting.message_id,
            sent_at_us=work.now_us,
            sender=letter.sender,
            body=body,
            envelope=posting.envelope,
        )
    )
    # Ids of one millisecond are in no order; sorted, they are in that of the recipients.
    ids = sorted(DeliveryId(new_id()) for _ in letter.recipients)
    rows = [
        _delivery(work, posting, recipient, delivery_id)
        for recipient, delivery_id in zip(letter.recipients, ids, strict=True)
    ]
    facts.extend(deliveries.insert(work, row) for row in rows)
    return rows, facts


def open_inbox(work: Work, agent: str, facts: list[Fact]) -> ChannelId:
    """The agent's inbox, made now when it has none: what is sent to it is read there, wherever it
    is stored."""
    name, channel_id = _inbox(work, agent)
    if channel_id is None:
        channel_id = insert_channel(work, name, "inbox").channel_id
        facts.append(ChannelMade(channel_id, name, "inbox"))
    return channel_id


def _inbox(work: Work, agent: str) -> tuple[str, ChannelId | None]:
    """Name and id of an agent's inbox; without id it has to be made.

    No client can make another channel of such a name, only an import could bring one.
    """
    name = INBOX_PREFIX + agent
    channel = work.channel(name)
    if channel is not None and channel.kind != "inbox":
        raise ConflictError(
            f"channel {name!r} is of kind {channel.kind}, so {agent!r} can have no inbox of that "
            "name; import this bus again without that channel, or write to another agent"
        )
    return name, channel.channel_id if channel is not None else None


def _delivery(
    work: Work, posting: Posting, recipient: Recipient, delivery_id: DeliveryId
) -> DeliveryRow:
    letter = posting.letter
    assert posting.body.thread is not None
    row = DeliveryRow(
        id=delivery_id,
        message_id=posting.message_id,
        sequence=posting.sequence,
        kind=letter.kind,
        thread=posting.body.thread,
        reply_to=letter.reply_to,
        depth=letter.depth,
        parent=letter.parent,
        sender_agent=letter.sender.agent_id,
        sender_session=letter.sender.session_id,
        recipient_agent=recipient.agent_id,
        recipient_session=recipient.session_id,
        reassigned_from=None,
        created_at_us=work.now_us,
        changed_at_us=work.now_us,
        state="queued",
        holder=None,
        holder_generation=None,
        token=None,
        attempt=0,
        lease_expires_us=None,
        deadline_us=None,
        extensions=0,
        progressed_at_us=None,
        intervention=None,
        reply_state=None,
        reply_due_us=None,
        unanswered_us=None,
        reply_message_id=None,
        late_reply_message_id=None,
        cause=None,
        cancelled_reason=None,
    )
    if letter.kind != "request":
        return row
    due_us = work.now_us + SECOND_US * (letter.reply_within_s or work.config.peer_reply_due_seconds)
    return row._replace(
        reply_state="awaiting",
        reply_due_us=due_us,
        # Who may take a week to answer is not given up after a day.
        unanswered_us=max(due_us, work.now_us + SECOND_US * PEER_UNANSWERED_SECONDS),
    )
