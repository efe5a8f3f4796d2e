"""The ledger's answer to a person: what becomes of paused work.

Owns which decision makes what of a delivery and of the request's tracking. A person decides about
what was seen: any other version is refused. Runs on the ledger's thread.
"""

from __future__ import annotations

from typing import Any, assert_never

from agentbus.envelope import Recipient
from agentbus.errors import ConflictError, NotFoundError, ValidationError
from agentbus.ids import DeliveryId, new_id
from agentbus.limits import PEER_ACTION_CHARACTERS
from agentbus.protocol.people import NEED_INSTRUCTIONS
from agentbus.rules.peer import VERSION_CHANGED, is_issued
from agentbus.store.changes import Done, Fact
from agentbus.store.peer import deliveries
from agentbus.store.peer.changes import Decide, DeliveryChanged
from agentbus.store.peer.deliveries import DeliveryRow
from agentbus.store.peer.interventions import InterventionRow, load_intervention, record_decision
from agentbus.store.peer.posting import open_inbox
from agentbus.store.peer.recipients import find_recipient
from agentbus.store.work import Work

_ANEW: dict[str, Any] = {
    "state": "queued",
    "token": None,
    "attempt": 0,
    "lease_expires_us": None,
    "deadline_us": None,
    "extensions": 0,
    "progressed_at_us": None,
}
"""Of work that goes on: whoever claims it has a whole working period and all attempts again."""


def decide(work: Work, change: Decide) -> Done:
    """Compare and set on the version. Raises NotFoundError, ConflictError or ValidationError."""
    instructions = _instructions(change)
    intervention = _intervention(work, change)
    row = deliveries.load(work, intervention.delivery)
    if row is None or row.state != "paused" or row.intervention != intervention.id:
        state = "gone" if row is None else row.state
        raise ConflictError(
            f"the delivery of intervention {intervention.id} is {state}: nothing is to be decided",
            reason=VERSION_CHANGED,
            status=409,
        )
    recipient = _new_recipient(work, change, row)

    # Nothing is refused from here on.
    record_decision(
        work, intervention, change.action, instructions=instructions, decided_by=change.decided_by
    )
    match change.action:
        case "approve" | "redirect" | "nudge":
            changed = [deliveries.change(work, row, **_ANEW)]
        case "reject":
            changed = [_close(work, row, "rejected", "rejected", instructions)]
        case "cancel":
            changed = [_close(work, row, "cancelled", "cancelled", instructions)]
        case "reassign":
            assert recipient is not None
            changed = _reassign(work, row, recipient)
        case _:
            assert_never(change.action)
    facts: list[Fact] = [DeliveryChanged(deliveries.view(one)) for one in changed]
    if recipient is not None:
        open_inbox(work, recipient.agent, facts)
    answer: dict[str, Any] = {
        "intervention_id": intervention.id,
        "delivery_id": row.id,
        "version": intervention.version + 1,
        "action": change.action,
        "state": changed[0].state,
    }
    if recipient is not None:
        answer["reassigned_to"] = changed[-1].id
    return Done(answer, tuple(facts))


def _instructions(change: Decide) -> str | None:
    """The text for the agent. A blank one is none."""
    instructions = (change.instructions or "").strip() or None
    if instructions is None and change.action in NEED_INSTRUCTIONS:
        raise ValidationError(f"human decide: {change.action} needs instructions for the agent")
    if instructions is not None and len(instructions) > PEER_ACTION_CHARACTERS:
        raise ValidationError(
            f"human decide: instructions must be at most {PEER_ACTION_CHARACTERS} characters, "
            f"these have {len(instructions)}"
        )
    return instructions


def _intervention(work: Work, change: Decide) -> InterventionRow:
    intervention = load_intervention(work, change.intervention_id)
    if intervention is None:
        raise NotFoundError(
            f"there is no intervention {change.intervention_id!r}; human list shows those there are"
        )
    if intervention.action is not None:
        raise ConflictError(
            f"intervention {intervention.id} was decided before, by {intervention.decided_by}: "
            f"{intervention.action}",
            reason=VERSION_CHANGED,
            status=409,
        )
    if intervention.version != change.version:
        raise ConflictError(
            f"intervention {intervention.id} is at version {intervention.version}, not "
            f"{change.version}: look at it again, then decide",
            reason=VERSION_CHANGED,
            status=409,
        )
    return intervention


def _new_recipient(work: Work, change: Decide, row: DeliveryRow) -> Recipient | None:
    """Who is to do the work in place of its recipient; None where it is not reassigned."""
    if change.action != "reassign":
        if change.to is not None:
            raise ValidationError(f"human decide: to goes with reassign, not with {change.action}")
        return None
    if change.to is None:
        raise ValidationError(
            "human decide: reassign needs to, the agent or session to do the work"
        )
    recipient = find_recipient(work, change.to)
    if recipient is None:
        raise NotFoundError(
            f"there is no agent or session {change.to!r}; agentbus-admin sessions lists them"
        )
    if (recipient.agent_id, recipient.session_id) == (row.recipient_agent, row.recipient_session):
        raise ValidationError(
            f"human decide: {change.to!r} has this work already; approve lets it go on"
        )
    if is_issued(recipient.agent):
        raise ValidationError(
            f"human decide: {change.to!r} is no agent, so no agent's work is given to it"
        )
    if recipient.session_id == row.sender_session:
        raise ValidationError(
            f"human decide: {change.to!r} sent this work itself, and never gets it"
        )
    return recipient


def _close(
    work: Work,
    row: DeliveryRow,
    state: str,
    reason: str,
    instructions: str | None,
) -> DeliveryRow:
    """The end of the work. Who has asked for it gets no reply, but hears why."""
    columns: dict[str, Any] = {
        "state": state,
        "cancelled_reason": reason if instructions is None else f"{reason}: {instructions}",
    }
    if row.reply_state in ("awaiting", "overdue", "unanswered"):
        columns["reply_state"] = "cancelled"
    return deliveries.change(work, row, **columns)


def _reassign(work: Work, row: DeliveryRow, recipient: Recipient) -> list[DeliveryRow]:
    """The old delivery is over; a new one of the same message has its reply tracking."""
    new = row._replace(
        id=DeliveryId(new_id()),
        recipient_agent=recipient.agent_id,
        recipient_session=recipient.session_id,
        reassigned_from=row.id,
        created_at_us=work.now_us,
        changed_at_us=work.now_us,
        holder=None,
        holder_generation=None,
        **_ANEW,
    )
    old = deliveries.change(work, row, state="reassigned", reply_state=None)
    deliveries.insert(work, new)
    return [old, new]
