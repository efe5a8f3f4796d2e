"""A direct message as rows: one message, one delivery for each recipient.

Owns the inbox channels of the recipients, made when there are none yet (the message goes to that of
the first one), and the start of a request's reply tracking. Who may send what to whom has been
decided before. Runs on the ledger's thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentbus.envelope import Body, PeerKind, Recipient
from agentbus.errors import ConflictError
from agentbus.identity import SenderBinding
from agentbus.ids import ChannelId, DeliveryId, MessageId, new_id
from agentbus.limits import INBOX_PREFIX, PEER_UNANSWERED_SECONDS
from agentbus.store.appending import Draft, append_message, draft_message
from agentbus.store.changes import ChannelMade, Fact
from agentbus.store.peer import deliveries
from agentbus.store.peer.deliveries import DeliveryRow
from agentbus.store.subscribing import insert_channel
from agentbus.store.work import Work

SECOND_US = 1_000_000


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
    """A letter that fits, as a message; nothing of it is written yet."""

    letter: Letter
    draft: Draft


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
    return Posting(letter, draft_message(work, channel, "inbox", letter.sender, body, message_id))


def post(work: Work, posting: Posting) -> tuple[list[DeliveryRow], list[Fact]]:
    """Write message and deliveries; the rows of these, in the order of the recipients."""
    letter = posting.letter
    facts: list[Fact] = []
    channel_id, *_ = [open_inbox(work, one.agent, facts) for one in letter.recipients]
    facts.append(append_message(work, posting.draft, channel_id))
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
    assert posting.draft.body.thread is not None
    row = DeliveryRow(
        id=delivery_id,
        message_id=posting.draft.message_id,
        sequence=posting.draft.sequence,
        kind=letter.kind,
        thread=posting.draft.body.thread,
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
