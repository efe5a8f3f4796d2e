"""What people read about directed work: interventions, answers to them, requests of all agents.

Owns these queries. Rows become what the commands show, times as text; nothing is kept. The rules of
`Reader` hold: one thread, short transactions. Whoever asks here is the user who owns the bus, so
nothing is left out because of who sent it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from peewee import JOIN, SQL, fn

from agentbus.encoding import decode_trusted
from agentbus.envelope import rfc3339
from agentbus.errors import NotFoundError
from agentbus.limits import RESULT_BYTES
from agentbus.protocol.people import UNANSWERED_STATES, RequestState
from agentbus.store.peer.changes import ReplyCause
from agentbus.store.peer.deliveries import DeliveryRow
from agentbus.store.peer.directory import among
from agentbus.store.peer.reading import Attached, cause_with
from agentbus.store.reader import Reader
from agentbus.store.schema import (
    PLACE,
    Agent,
    Delivery,
    Intervention,
    Message,
    Presented,
    Session,
    text,
)

Row: TypeAlias = tuple[Any, ...]

EXCERPT_CHARACTERS = 200
"""Of a request's text in a list of many."""

_SENDER: Any = Agent.alias("sender")
_RECIPIENT: Any = Agent.alias("recipient")
_HOLDER: Any = Session.alias("holder")

_COLUMNS = (
    Intervention.id,
    Intervention.version,
    Intervention.source,
    Intervention.reason,
    Intervention.detail,
    Intervention.stop_status,
    Intervention.created_at_us,
    Intervention.action,
    Intervention.instructions,
    Intervention.decided_by,
    Intervention.decided_at_us,
    Intervention.told,
    Delivery.id,
    Delivery.message_id,
    Delivery.kind,
    Delivery.thread,
    Delivery.state,
    Delivery.attempt,
    Delivery.extensions,
    _SENDER.name,
    _RECIPIENT.name,
    _HOLDER.display_name,
    Message.envelope,
)
_INTERVENTIONS = (
    Intervention.select(*_COLUMNS)
    .join(Delivery, on=(Delivery.id == Intervention.delivery))
    .join(_SENDER, JOIN.LEFT_OUTER, on=(_SENDER.id == Delivery.sender_agent))
    .join(_RECIPIENT, JOIN.LEFT_OUTER, on=(_RECIPIENT.id == Delivery.recipient_agent))
    .join(_HOLDER, JOIN.LEFT_OUTER, on=(_HOLDER.id == Delivery.holder))
    .join(Message, JOIN.LEFT_OUTER, on=(Message.message_id == Delivery.message_id))
)
_OPEN = text(
    _INTERVENTIONS.where(Intervention.action.is_null() & (Delivery.state == SQL("'paused'")))
    .order_by(Intervention.created_at_us, Intervention.id)
    .limit(PLACE)
)
_DECIDED = text(
    _INTERVENTIONS.where(Intervention.action.is_null(False))
    .order_by(Intervention.decided_at_us.desc(), Intervention.id.desc())
    .limit(PLACE)
)
_INTERVENTION = text(
    _INTERVENTIONS.where((Intervention.id == PLACE) | (Intervention.delivery == PLACE))
    .order_by(Intervention.created_at_us.desc(), Intervention.id.desc())
    .limit(SQL("1"))
)

_SEEN = fn.EXISTS(
    Presented.select(SQL("1"))
    .join(Session, on=(Session.id == Presented.session))
    .where((Session.agent == _RECIPIENT.id) & (Presented.message_id == Delivery.message_id))
)
_REPLIES = text(
    Delivery.select(Delivery.id, Delivery.message_id, Delivery.kind, _SEEN, Message.envelope)
    .join(_RECIPIENT, on=(_RECIPIENT.id == Delivery.recipient_agent))
    .join(Message, on=(Message.message_id == Delivery.message_id))
    .where(_RECIPIENT.name == PLACE)
    .order_by(Delivery.sequence.desc())
    .limit(PLACE)
)

_AGENT_NAMED = text(Agent.select(SQL("1")).where(Agent.name == PLACE))
_DELIVERY_COLUMNS = tuple(getattr(Delivery, name) for name in DeliveryRow._fields)
_REQUESTS = text(
    Delivery.select(
        *_DELIVERY_COLUMNS, _SENDER.name, _RECIPIENT.name, _HOLDER.display_name, Message.envelope
    )
    .join(_SENDER, JOIN.LEFT_OUTER, on=(_SENDER.id == Delivery.sender_agent))
    .join(_RECIPIENT, JOIN.LEFT_OUTER, on=(_RECIPIENT.id == Delivery.recipient_agent))
    .join(_HOLDER, JOIN.LEFT_OUTER, on=(_HOLDER.id == Delivery.holder))
    .join(Message, JOIN.LEFT_OUTER, on=(Message.message_id == Delivery.message_id))
    .where(
        Delivery.reply_state.in_(SQL("(SELECT value FROM json_each(?))"))
        & (SQL("? IS NULL") | (_SENDER.name == PLACE) | (_RECIPIENT.name == PLACE))
    )
    .order_by(Delivery.sequence.desc(), Delivery.id)
    .limit(PLACE)
)


class PeopleReader(Reader):
    """See the module's text. Open one per thread."""

    def open_interventions(self, limit: int) -> list[dict[str, Any]]:
        """Interventions that nobody has decided, the oldest first."""
        return [_intervention(row) for row in self._all(_OPEN, limit)]

    def decided_interventions(self, limit: int) -> list[dict[str, Any]]:
        """Interventions with their decisions, the newest first."""
        return [_intervention(row) for row in self._all(_DECIDED, limit)]

    def intervention(self, either_id: str) -> dict[str, Any] | None:
        """One intervention by its id, or the newest of the delivery of that id; with all texts."""
        rows = self._all(_INTERVENTION, either_id, either_id)
        return _whole(rows[0]) if rows else None

    def replies(self, person: str, limit: int) -> list[dict[str, Any]]:
        """What was sent to this person's agent, the newest first; `new` until it was shown.

        As many whole ones as one result holds, at least one.
        """
        replies: list[dict[str, Any]] = []
        left_bytes = RESULT_BYTES
        for *row, envelope in self._all(_REPLIES, person, limit):
            left_bytes -= len(envelope)
            if replies and left_bytes < 0:
                break
            replies.append(_reply((*row, envelope)))
        return replies

    def requests(
        self, state: RequestState | None, agent: str | None, limit: int, attached: Attached
    ) -> list[dict[str, Any]]:
        """Tracked requests, one row for each recipient, the newest first.

        Raises NotFoundError for an agent that is not known.
        """
        states = UNANSWERED_STATES if state is None else (state,)
        rows = self._all(_REQUESTS, among(states), agent, agent, agent, limit)
        if agent is not None and not rows and not self._all(_AGENT_NAMED, agent):
            raise NotFoundError(
                f"there is no agent {agent!r}; agentbus-admin sessions shows the names of those "
                "that are attached"
            )
        cause = cause_with(attached)
        return [_request(row, cause) for row in rows]


def _intervention(row: Row) -> dict[str, Any]:
    """What a list shows."""
    whole = _whole(row)
    return {key: value for key, value in whole.items() if key not in ("detail", "request")}


def _whole(row: Row) -> dict[str, Any]:
    (
        intervention_id, version, source, reason, detail, stop_status, created_at_us, action,
        instructions, decided_by, decided_at_us, told, delivery_id, message_id, kind, thread,
        state, attempt, extensions, sender, recipient, holder, envelope,
    ) = row  # fmt: skip
    decision = None
    if action is not None:
        decision = {
            "action": action,
            "instructions": instructions,
            "decided_by": decided_by,
            "decided_at": rfc3339(decided_at_us),
            "told": bool(told),
        }
    return {
        "intervention_id": intervention_id,
        "version": version,
        "delivery_id": delivery_id,
        "message_id": message_id,
        "kind": kind,
        "thread_id": thread,
        "from": sender,
        "to": recipient,
        "session": holder,
        "state": state,
        "attempt": attempt,
        "extension_count": extensions,
        "source": source,
        "reason": reason,
        "stop_status": stop_status,
        "created_at": rfc3339(created_at_us),
        "decision": decision,
        "detail": decode_trusted(detail),
        "request": _content(envelope),
    }


def _reply(row: Row) -> dict[str, Any]:
    delivery_id, message_id, kind, seen, envelope = row
    data: dict[str, Any] = decode_trusted(envelope)
    return {
        "message_id": message_id,
        "delivery_id": delivery_id,
        "kind": kind,
        "from": data["sender"]["agent"],
        "session": data["sender"]["display_name"],
        "reply_to": data.get("reply_to"),
        "thread_id": data.get("thread"),
        "sent_at": data["sent_at"],
        "body": data["content"],
        "new": not seen,
    }


def _request(row: Row, cause: Callable[[DeliveryRow], ReplyCause | None]) -> dict[str, Any]:
    delivery = DeliveryRow(*row[: len(_DELIVERY_COLUMNS)])
    sender, recipient, holder, envelope = row[len(_DELIVERY_COLUMNS) :]
    due_us, body = delivery.reply_due_us, _content(envelope)
    return {
        "message_id": delivery.message_id,
        "delivery_id": delivery.id,
        "from": sender,
        "to": recipient,
        "session": holder,
        "thread_id": delivery.thread,
        "delivery_state": delivery.state,
        "reply_state": delivery.reply_state,
        "cause": cause(delivery),
        "reply_due_at": None if due_us is None else rfc3339(due_us),
        "reply_message_id": delivery.reply_message_id,
        "late_reply_message_id": delivery.late_reply_message_id,
        "sent_at": rfc3339(delivery.created_at_us),
        "excerpt": None if body is None else body[:EXCERPT_CHARACTERS],
    }


def _content(envelope: bytes | None) -> str | None:
    """The text of a message; None when it is retained no more."""
    return None if envelope is None else str(decode_trusted(envelope)["content"])
