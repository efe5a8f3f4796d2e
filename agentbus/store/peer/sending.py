"""The ledger's answer to the operations `send` and `reply`.

Owns what a direct message may be when it answers something: an answer to work that the session
holds proves its lease, goes to whoever asked, and finishes the work unless told otherwise. All is
decided before the first row is written. Runs on the ledger's thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agentbus.envelope import Recipient
from agentbus.errors import ValidationError
from agentbus.identity import SenderBinding
from agentbus.protocol.peer import PeerReply, PeerSend
from agentbus.rules.peer import is_person, no_message, stale_lease, unavailable
from agentbus.store.changes import Done
from agentbus.store.peer import deliveries
from agentbus.store.peer.changes import PeerMutation
from agentbus.store.peer.consulting import Charge, charge, require_no_cycle
from agentbus.store.peer.deliveries import DeliveryRow
from agentbus.store.peer.interventions import instructions_followed
from agentbus.store.peer.leases import finish, prove_lease
from agentbus.store.peer.posting import Letter, Posting, post, prepare
from agentbus.store.peer.recipients import agent_name, require_allowed, resolve
from agentbus.store.peer.replies import answered_row, record_reply
from agentbus.store.receipts import Admission
from agentbus.store.sending import thread_of
from agentbus.store.work import Work


def send_peer(work: Work, change: PeerMutation, operation: PeerSend, admission: Admission) -> Done:
    """Send to agents or sessions; about work that the session holds, it is that work's reply."""
    sender, reply_to = change.sender, operation.reply_to
    rows = deliveries.of_message(work, reply_to) if reply_to is not None else []
    answering = next((row for row in rows if _is_held(row, change)), None)
    kind = operation.kind
    if answering is not None and answering.kind == "request" and kind == "info":
        kind = "response"  # as `reply` does it; else the work would end without the answer
    recipients = resolve(work, operation.to, sender)
    if answering is not None:
        proven = prove_lease(work, change, answering.id)
        if isinstance(proven, Done):
            return proven
        recipients = (_asker(work, operation, answering, recipients),)
    elif operation.ack is not None:
        raise ValidationError(
            "peer send: ack goes with the answer to a delivery that this session holds, and "
            f"{reply_to!r} is none; leave it out"
        )
    mine = [row for row in rows if row.recipient_agent == sender.agent_id]
    answered: DeliveryRow | None = None
    strangers: Iterable[Recipient] = recipients
    if kind == "response":
        assert reply_to is not None  # the operation itself requires it, or it is what is held
        _require_answerable(rows, mine, sender, reply_to)
        askers = {row.sender_agent for row in mine}
        strangers = [one for one in recipients if one.agent_id not in askers]
        if len(strangers) < len(recipients):
            answered = answered_row(mine, sender.session_id)
    require_allowed(work, strangers, sender)
    held = answering or deliveries.held_by(work, sender.session_id)
    charged: Charge | None = None
    if operation.kind == "request":
        require_no_cycle(work, held, recipients)
        if not is_person(sender.agent):  # who works on nothing for others
            charged = charge(work, sender.session_id, held)
    posting = prepare(
        work,
        Letter(
            sender=sender,
            recipients=recipients,
            kind=kind,
            content=operation.body,
            thread=operation.thread_id or _thread(work, rows, change, reply_to),
            reply_to=reply_to,
            depth=_depth(operation, held),
            parent=held.id if held is not None else None,
            capability=operation.capability,
            reply_within_s=operation.expect_reply_within_seconds,
        ),
    )

    # Nothing is refused from here on.
    if charged is not None:
        charged.write(work)
    finished = answering if operation.ack is not False else None
    return _posted(work, change, admission, posting, answered, answering, finished)


def reply_peer(
    work: Work, change: PeerMutation, operation: PeerReply, admission: Admission
) -> Done:
    """Answer whoever sent a held delivery."""
    row = prove_lease(work, change, operation.delivery_id)
    if isinstance(row, Done):
        return row
    if operation.reply_to not in (None, row.message_id):
        raise ValidationError(
            f"peer reply: reply_to is {operation.reply_to!r}, but the message of this delivery is "
            f"{row.message_id!r}; leave reply_to out"
        )
    posting = prepare(
        work,
        Letter(
            sender=change.sender,
            recipients=(_sender_of(work, row),),
            kind="response",
            content=operation.body,
            thread=row.thread,
            reply_to=row.message_id,
            depth=row.depth,
            parent=row.id,
        ),
    )
    finished = row if operation.ack else None
    return _posted(work, change, admission, posting, row, row, finished)


def _is_held(row: DeliveryRow, change: PeerMutation) -> bool:
    return row.is_open and row.holder == change.sender.session_id


def _sender_of(work: Work, row: DeliveryRow) -> Recipient:
    """The session that asked: another one of its agent would not know what about."""
    return Recipient(agent_name(work, row.sender_agent), row.sender_agent, row.sender_session)


def _asker(
    work: Work, operation: PeerSend, row: DeliveryRow, recipients: tuple[Recipient, ...]
) -> Recipient:
    asker = _sender_of(work, row)
    if (
        any(
            one.agent_id != asker.agent_id or one.session_id not in (None, asker.session_id)
            for one in recipients
        )
        or len(recipients) > 1
    ):
        raise ValidationError(
            "peer send: an answer to work that this session holds goes to its sender alone: give "
            f"to as [{asker.agent!r}], or leave reply_to out"
        )
    if operation.thread_id not in (None, row.thread):
        raise ValidationError(
            f"peer send: thread_id is {operation.thread_id!r}, but the answered work belongs to "
            f"{row.thread!r}; leave thread_id out"
        )
    return asker


def _require_answerable(
    rows: list[DeliveryRow], mine: list[DeliveryRow], sender: SenderBinding, reply_to: str
) -> None:
    """A response is to a message that this agent got or sent, and that is not taken from it."""
    if not mine:
        if any(row.sender_agent == sender.agent_id for row in rows):
            return
        raise no_message(reply_to)
    for row in mine:
        if row.state in ("leased", "paused") and row.holder != sender.session_id:
            raise stale_lease(row.id)
    if all(row.state in ("rejected", "cancelled", "reassigned") for row in mine):
        raise unavailable(mine[-1].id, mine[-1].state)


def _thread(
    work: Work, rows: list[DeliveryRow], change: PeerMutation, reply_to: str | None
) -> str | None:
    """The thread of what is answered, as far as this agent may see that."""
    if reply_to is None:
        return None
    agent_id = change.sender.agent_id
    for row in rows:
        if agent_id in (row.sender_agent, row.recipient_agent):
            return row.thread
    return thread_of(work, reply_to)


def _depth(operation: PeerSend, held: DeliveryRow | None) -> int:
    """How many delegations a message is away from work on somebody's own account."""
    if held is None:
        return 0
    return held.depth + 1 if operation.kind == "request" else held.depth


def _posted(
    work: Work,
    change: PeerMutation,
    admission: Admission,
    posting: Posting,
    answered: DeliveryRow | None,
    proven: DeliveryRow | None,
    finished: DeliveryRow | None,
) -> Done:
    """Write the message and what it means for the work it answers."""
    made, facts = post(work, posting)
    if answered is not None:
        replied, changes = record_reply(work, answered, posting.draft.message_id)
        facts += changes
        proven = replied if proven is not None and proven.id == replied.id else proven
        finished = replied if finished is not None and finished.id == replied.id else finished
    if proven is not None:
        instructions_followed(work, proven)
    answer: dict[str, Any] = {
        "message_id": posting.draft.message_id,
        "thread_id": posting.draft.body.thread,
        "recipients": [
            {
                "agent": one.agent,
                "agent_id": one.agent_id,
                **({"session_id": one.session_id} if one.session_id is not None else {}),
                "delivery_id": row.id,
            }
            for one, row in zip(posting.letter.recipients, made, strict=True)
        ],
        "status": "accepted",
    }
    if finished is not None:
        facts.append(finish(work, finished))
        answer["acked"] = finished.id
    admission.record(work, change, answer)
    return Done({**answer, "duplicate": False}, tuple(facts))
