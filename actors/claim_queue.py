"""What waits in an inbox, and for whom: the picture after which its inbox claims and counts.

Owns counts, kept with each change, so that neither a long queue nor many sessions cost anything.
Only a picture: the ledger decides who gets what. Pure; belongs to the inbox's turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from agentbus.ids import AgentId, DeliveryId, SessionId
from agentbus.store.peer.changes import DeliveryView


class ClaimQueue:
    """The open deliveries to one agent.

    One that is addressed to the agent is in work at a time, and of those addressed to a session one
    for each session. A session does not get what it sent itself.
    """

    def __init__(self, agent_id: AgentId) -> None:
        self._agent_id = agent_id
        self._queued: dict[DeliveryId, DeliveryView] = {}
        self._in_work: dict[DeliveryId, DeliveryView] = {}  # leased or paused
        self._for_all = 0
        self._for_all_from: Counter[SessionId] = Counter()  # by the session that sent it
        self._for_session: Counter[SessionId] = Counter()

    def load(self, views: Iterable[DeliveryView]) -> None:
        """These are all that there are."""
        for counted in (self._queued, self._in_work, self._for_all_from, self._for_session):
            counted.clear()
        self._for_all = 0
        for view in views:
            self.follow(view)

    def follow(self, view: DeliveryView) -> bool:
        """A delivery as it is now; True if there may be more to claim than before."""
        if view.recipient_agent != self._agent_id:
            return False
        before = self._queued.pop(view.delivery_id, None)
        if before is not None:
            self._count(before, -1)
        was_in_work = self._in_work.pop(view.delivery_id, None) is not None
        if view.state == "queued":
            self._queued[view.delivery_id] = view
            self._count(view, 1)
            return before is None
        if view.is_open:
            self._in_work[view.delivery_id] = view
            return False
        return was_in_work and bool(self._queued)

    def can_claim(self, session_id: SessionId) -> bool:
        own = self._held_by(session_id)
        if own is not None:
            return own.state == "leased"
        if self._for_session[session_id]:
            return True
        return self._is_free() and self._for_all > self._for_all_from[session_id]

    def waiting(self, session_id: SessionId) -> int:
        """What it holds, and what it can claim now or when it is done with that.

        Nothing of it, while what it held waits for a person, or what others hold keeps it away.
        """
        own = self._held_by(session_id)
        if own is not None and own.state == "paused":
            return 0
        count = self._for_session[session_id] + (own is not None)
        if self._is_free() or (own is not None and own.recipient_session is None):
            count += self._for_all - self._for_all_from[session_id]
        return count

    def _held_by(self, session_id: SessionId) -> DeliveryView | None:
        held = [view for view in self._in_work.values() if view.holder == session_id]
        return next((view for view in held if view.state == "leased"), held[0] if held else None)

    def _is_free(self) -> bool:
        return all(view.recipient_session is not None for view in self._in_work.values())

    def _count(self, view: DeliveryView, change: int) -> None:
        if view.recipient_session is not None:
            counts, session_id = self._for_session, view.recipient_session
        else:
            self._for_all += change
            counts, session_id = self._for_all_from, view.sender_session
        counts[session_id] += change
        if not counts[session_id]:
            del counts[session_id]
