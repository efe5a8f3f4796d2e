"""How much a session may ask of others while it works on something, and whom it may not ask.

Owns the rows of consultations and the walk over what work is done for whom. Runs on the ledger's
thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from agentbus.envelope import Recipient
from agentbus.ids import SessionId
from agentbus.limits import CONSULTATION_REQUESTS
from agentbus.rules.peer import (
    budget_spent,
    consultation_left_us,
    cycle,
    deadline_passed,
)
from agentbus.store.peer.deliveries import DeliveryRow, load
from agentbus.store.schema import PLACE, Consultation, insert_text, text
from agentbus.store.work import Work

_INSERT = insert_text(Consultation)
_SELECT = text(
    Consultation.select(Consultation.requests, Consultation.started_at_us).where(
        (Consultation.session == PLACE) & (Consultation.delivery == PLACE)
    )
)
_UPDATE = text(
    Consultation.update({Consultation.requests: PLACE, Consultation.started_at_us: PLACE}).where(
        (Consultation.session == PLACE) & (Consultation.delivery == PLACE)
    )
)

ROOT = ""
"""Stands for no delivery: what a session does on its own account."""


@dataclass(frozen=True, slots=True)
class Charge:
    """One request more of a session's budget, allowed and not written yet."""

    session_id: SessionId
    scope: str
    requests: int
    started_at_us: int
    is_first: bool

    def write(self, work: Work) -> None:
        if self.is_first:
            work.insert(_INSERT, (self.session_id, self.scope, self.requests, self.started_at_us))
        else:  # only numbers change: the row is as large as before
            work.execute(_UPDATE, (self.requests, self.started_at_us, self.session_id, self.scope))


def charge(work: Work, session_id: SessionId, held: DeliveryRow | None) -> Charge:
    """Leave for one more request. Raises when the budget or its time is spent."""
    if held is not None and held.state == "paused":
        held = None  # nobody works on it: what is asked meanwhile is for something else
    scope = held.id if held is not None else ROOT
    deadline_us = held.deadline_us if held is not None else None
    found = work.execute(_SELECT, (session_id, scope)).fetchone()
    requests, started_at_us = found or (0, work.now_us)
    left_us = consultation_left_us(started_at_us, deadline_us, work.now_us)
    if left_us <= 0:
        if held is not None:
            raise deadline_passed()
        requests, started_at_us = 0, work.now_us  # the time of one's own account begins anew
    elif requests >= CONSULTATION_REQUESTS:
        raise budget_spent(requests, left_us / 1_000_000)
    return Charge(session_id, scope, requests + 1, started_at_us, found is None)


def require_no_cycle(work: Work, held: DeliveryRow | None, recipients: Iterable[Recipient]) -> None:
    """Refuse a request to an agent that waits, directly or through others, for this very work.

    The chain goes from request to request; who has sent anything else does not wait for an answer.
    """
    waiting = set()
    while held is not None and held.kind == "request":
        waiting.add(held.sender_agent)
        held = load(work, held.parent) if held.parent is not None else None
    for recipient in recipients:
        if recipient.agent_id in waiting:
            raise cycle(recipient.agent)
