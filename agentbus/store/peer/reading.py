"""What an agent may read of direct messages: those that it sent or got, and what became of them.

Owns these queries. Every one names the agent that asks and finds nothing else: to others a message
does not exist. Rows become what the tool shows. Nothing is claimed, renewed or marked here. The
rules of `Reader` hold: one thread, short transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any, TypeAlias

from peewee import SQL, fn

from agentbus.envelope import rfc3339
from agentbus.errors import ValidationError
from agentbus.ids import AgentId, MessageId, Sequence, SessionId
from agentbus.limits import PEER_THREADS, RESULT_BYTES
from agentbus.protocol.peer import PeerRecent, ReplyFilter
from agentbus.rules.peer import (
    ambiguous_delivery,
    consultation_left_us,
    is_issued,
    is_reached,
    no_agent,
    no_delivery,
    no_message,
    why_no_reply,
)
from agentbus.store.peer.changes import ReplyCause
from agentbus.store.peer.collected import Answer, Collected, answer_of, slots_of
from agentbus.store.peer.deliveries import DeliveryRow
from agentbus.store.peer.directory import DirectoryReader, among
from agentbus.store.peer.presenting import envelope_data
from agentbus.store.reader import NO_END
from agentbus.store.schema import (
    BY_SEQUENCE,
    IS_HELD,
    IS_UNANSWERED,
    PLACE,
    Agent,
    Consultation,
    Delivery,
    Intervention,
    Message,
    Presented,
    text,
)

Attached: TypeAlias = Mapping[AgentId, Set[SessionId]]
"""Who is attached now, by agent: the caller's knowledge, which no row has."""

MEMORY_SOURCE = "caura-bus"
"""What the other buses write into a memory's metadata as its origin."""

_ROWS = Delivery.select(*(getattr(Delivery, name) for name in DeliveryRow._fields))
_OF_MESSAGE = text(_ROWS.where(Delivery.message_id == PLACE).order_by(SQL("rowid")))
_DELIVERY = text(_ROWS.where(Delivery.id == PLACE))
_REQUESTS = text(
    _ROWS.where(
        (Delivery.sender_agent == PLACE)
        & IS_UNANSWERED
        & Delivery.reply_state.in_(SQL("(SELECT value FROM json_each(?))"))
    )
    .order_by(BY_SEQUENCE.desc(), SQL("rowid"))
    .limit(PLACE)
)
_ALL_REQUESTS = text(
    _ROWS.where((Delivery.sender_agent == PLACE) & Delivery.reply_state.is_null(False))
    .order_by(Delivery.sequence.desc(), SQL("rowid"))
    .limit(PLACE)
)
_NAMES = text(
    Agent.select(Agent.id, Agent.name).where(Agent.id.in_(SQL("(SELECT value FROM json_each(?))")))
)
_FIND_AGENT = text(
    Agent.select(Agent.id)
    .where((Agent.id == PLACE) | (Agent.name == PLACE))
    .order_by((Agent.id == PLACE).desc())
    .limit(SQL("1"))
)
_ENVELOPE = text(
    Message.select(Message.envelope, Message.sent_at_us).where(Message.message_id == PLACE)
)
_ENVELOPES = text(
    Message.select(Message.sequence, Message.envelope, Message.sent_at_us)
    .where(Message.sequence.in_(SQL("(SELECT value FROM json_each(?))")))
    .order_by(Message.sequence.desc())
)
_RESPONSES = text(
    Delivery.select(Delivery.message_id)
    .where(
        (Delivery.reply_to == PLACE)
        & (Delivery.kind == SQL("'response'"))
        & (SQL('+"t1"."recipient_agent"') == PLACE)
    )
    .distinct()
)
_IS_PRESENTED = text(
    Presented.select(SQL("1")).where((Presented.session == PLACE) & (Presented.message_id == PLACE))
)
_INTERVENTION = text(
    Intervention.select(
        Intervention.action, Intervention.decided_by, Intervention.decided_at_us
    ).where((Intervention.id == PLACE) & Intervention.action.is_null(False))
)
_HELD_DEADLINE = text(
    Delivery.select(Delivery.id, Delivery.deadline_us)
    .where(
        (Delivery.holder == PLACE)
        & IS_HELD
        & Delivery.state.in_((SQL("'leased'"), SQL("'queued'")))
    )
    .order_by(Delivery.state, Delivery.id)  # a lease counts more than what has lapsed
    .limit(SQL("1"))
)
_CONSULTATION = text(
    Consultation.select(Consultation.started_at_us).where(
        (Consultation.session == PLACE) & (Consultation.delivery == PLACE)
    )
)


def _recent(mine: Any, others: Any, *, by_reply: bool) -> str:
    """Sequences of messages on one side, newest first; a NULL filter lets everything through.

    The plus keeps SQLite from walking all of an agent's rows where the index of replies has few.
    """
    side = SQL(f'+"t1"."{mine.column_name}"') if by_reply else mine
    wanted = (side == PLACE) & (Delivery.sequence < PLACE)
    wanted &= SQL("? IS NULL") | (Delivery.thread == PLACE)
    wanted &= SQL("? IS NULL") | (others == PLACE)
    if by_reply:
        wanted &= Delivery.reply_to == PLACE
    newest = Delivery.select(Delivery.sequence).where(wanted).distinct()
    return text(newest.order_by(Delivery.sequence.desc()).limit(PLACE))


_SIDES = (
    (Delivery.recipient_agent, Delivery.sender_agent),
    (Delivery.sender_agent, Delivery.recipient_agent),
)
_RECENT = tuple(_recent(*side, by_reply=False) for side in _SIDES)
_RECENT_REPLIES = tuple(_recent(*side, by_reply=True) for side in _SIDES)

_OWN = (Delivery.recipient_agent == PLACE) | (Delivery.sender_agent == PLACE)
_THREADS = text(
    Delivery.select(
        Delivery.thread,
        fn.MAX(Delivery.sequence).alias("newest"),
        fn.COUNT(Delivery.sequence.distinct()),
    )
    .where(_OWN)
    .group_by(Delivery.thread)
    .order_by(SQL('"newest" DESC'))
    .limit(PLACE)
)
_OF_THREADS = text(
    Delivery.select(Delivery.thread, Delivery.sender_agent, Delivery.recipient_agent)
    .where(Delivery.thread.in_(SQL("(SELECT value FROM json_each(?))")) & _OWN)
    .distinct()
)


@dataclass(frozen=True, slots=True)
class RecentPage:
    """Messages, newest first."""

    messages: tuple[dict[str, Any], ...]
    next_cursor: str | None


class PeerReader(DirectoryReader):
    """See the module's text. Open one per thread."""

    def status(self, agent_id: AgentId, message_id: str, attached: Attached) -> dict[str, Any]:
        """The message, as far as it is retained, and its deliveries; a recipient sees its own."""
        with self._snapshot():
            rows = self._visible_rows(agent_id, message_id)
            names = self._names(rows)
            return {
                "message_id": message_id,
                "thread_id": rows[0].thread,
                "envelope": self._envelope(message_id),
                "deliveries": [_delivery_data(row, names, cause_with(attached)) for row in rows],
            }

    def requests(
        self, agent_id: AgentId, state: ReplyFilter | None, limit: int, attached: Attached
    ) -> list[dict[str, Any]]:
        """Own requests, answered or not, or those of one state: one row for each recipient, newest
        first."""
        with self._snapshot():
            if state is None:
                rows = self._rows(_ALL_REQUESTS, agent_id, limit)
            else:
                rows = self._rows(_REQUESTS, agent_id, among((state,)), limit)
            names = self._names(rows)
        cause = cause_with(attached)
        return [
            {
                "message_id": row.message_id,
                "thread_id": row.thread,
                "ts": row.created_at_us // 1000,
                **_delivery_data(row, names, cause),
            }
            for row in rows
        ]

    def recent(self, agent_id: AgentId, query: PeerRecent) -> RecentPage:
        """What the agent sent and got; as many whole messages as one result holds, at least one."""
        before = _position(query.before)
        with self._snapshot():
            other = None if query.agent_id is None else self._agent(query.agent_id)
            sequences = self._recent_sequences(agent_id, query, other, before)
            rows = self._all(_ENVELOPES, among(sequences))
            messages: list[dict[str, Any]] = []
            left_bytes, last = RESULT_BYTES, before
            for sequence, envelope, sent_at_us in rows:
                left_bytes -= len(envelope)
                if len(messages) == query.limit or (messages and left_bytes < 0):
                    return RecentPage(tuple(messages), str(last))
                messages.append(envelope_data(envelope, sent_at_us))
                last = sequence
            return RecentPage(tuple(messages), None)

    def threads(self, agent_id: AgentId) -> list[dict[str, Any]]:
        """The latest of this agent's threads, each with its newest message and the other agents."""
        with self._snapshot():
            latest = self._all(_THREADS, agent_id, agent_id, PEER_THREADS)
            found = self._all(_OF_THREADS, among(row[0] for row in latest), agent_id, agent_id)
            names = self._names_of({one for row in found for one in row[1:]})
            envelopes = {
                row[0]: envelope_data(*row[1:])
                for row in self._all(_ENVELOPES, among(row[1] for row in latest))
            }
        peers: dict[str, set[str]] = {row[0]: set() for row in latest}
        for thread, *agents in found:
            peers[thread].update(names[one] for one in agents if one != agent_id)
        return [
            {
                "thread_id": thread,
                "messages": count,
                "peers": sorted(peers[thread]),
                "newest": _headline(envelopes.get(sequence)),
            }
            for thread, sequence, count in latest
        ]

    def memory_context(
        self, agent_id: AgentId, delivery_id: str | None, message_id: str | None
    ) -> dict[str, Any]:
        """Where a memory about this delivery, or the only one of this message, comes from."""
        with self._snapshot():
            if delivery_id is not None:
                row = self._visible_delivery(agent_id, delivery_id)
            else:
                assert message_id is not None
                row = self._only_delivery(agent_id, message_id)
            envelope = self._envelope(row.message_id)
            if envelope is None:
                raise no_message(row.message_id)
            names = self._names([row])
            context: dict[str, Any] = {
                "source": MEMORY_SOURCE,
                "tenant_id": self.bus_id(),
                "thread_id": row.thread,
                "message_id": row.message_id,
                "delivery_id": row.id,
                "peer_agent_ids": sorted(
                    one
                    for one in {row.sender_agent, row.recipient_agent} - {agent_id}
                    if not is_issued(names[one])
                ),
                "kind": row.kind,
                "ts": envelope["ts"],
            }
            decision = self._all(_INTERVENTION, row.intervention)
        if decision:
            ((action, decided_by, decided_at_us),) = decision
            context["human_decision"] = {
                "intervention_id": row.intervention,
                "action": action,
                "decided_by": decided_by,
                "decided_at": rfc3339(decided_at_us),
            }
        return context

    def collected(
        self, agent_id: AgentId, session_id: SessionId, message_id: str, attached: Attached
    ) -> Collected:
        """What has become of a request of this agent's own; `session_id` is who would be shown."""
        with self._snapshot():
            rows = [row for row in self._all_rows(message_id) if row.sender_agent == agent_id]
            if not rows:
                raise no_message(message_id)
            if rows[0].kind != "request":
                raise ValidationError(
                    f"peer collect: {message_id!r} is no request, so nobody answers it; status "
                    "tells what became of it"
                )
            names = self._names(rows)
            late = {row.late_reply_message_id for row in rows}
            counted = {answer for row in rows if (answer := answer_of(row)) is not None}
            answers = {
                answer: self._answer(answer, session_id, late=answer in late) for answer in counted
            }
            responses = {row[0] for row in self._all(_RESPONSES, message_id, agent_id)}
        return Collected(
            message_id=MessageId(message_id),
            thread_id=rows[0].thread,
            slots=slots_of(
                rows,
                lambda row: row.recipient_session or names[row.recipient_agent],
                cause_with(attached),
                answers,
            ),
            excluded=len(responses - counted),
        )

    def consultation_seconds_left(self, session_id: SessionId, now_us: int) -> float:
        """How long this session may still ask others about what it works on."""
        with self._snapshot():
            held = self._all(_HELD_DEADLINE, session_id)
            scope, deadline_us = held[0] if held else ("", None)
            begun = self._all(_CONSULTATION, session_id, scope)
        left_us = consultation_left_us(begun[0][0] if begun else now_us, deadline_us, now_us)
        if left_us == 0 and not held:  # the time of one's own account begins anew
            left_us = consultation_left_us(now_us, None, now_us)
        return left_us / 1_000_000

    # --- rows ---

    def _visible_rows(self, agent_id: AgentId, message_id: str) -> list[DeliveryRow]:
        """The sender's are all, a recipient's its own. Raises for everybody else."""
        rows = [
            row
            for row in self._all_rows(message_id)
            if agent_id in (row.sender_agent, row.recipient_agent)
        ]
        if not rows:
            raise no_message(message_id)
        return rows

    def _visible_delivery(self, agent_id: AgentId, delivery_id: str) -> DeliveryRow:
        for row in self._rows(_DELIVERY, delivery_id):
            if agent_id in (row.sender_agent, row.recipient_agent):
                return row
        raise no_delivery(delivery_id)

    def _only_delivery(self, agent_id: AgentId, message_id: str) -> DeliveryRow:
        rows = self._visible_rows(agent_id, message_id)
        current = [row for row in rows if row.state != "reassigned"] or rows
        if len(current) > 1:
            raise ambiguous_delivery(message_id, len(current))
        return current[0]

    def _all_rows(self, message_id: str) -> list[DeliveryRow]:
        return self._rows(_OF_MESSAGE, message_id)

    def _rows(self, sql: str, *parameters: Any) -> list[DeliveryRow]:
        return [DeliveryRow(*row) for row in self._all(sql, *parameters)]

    def _recent_sequences(
        self, agent_id: AgentId, query: PeerRecent, other: AgentId | None, before: Sequence
    ) -> list[Sequence]:
        """One more than are wanted, to know whether there are."""
        values = [agent_id, before, query.thread_id, query.thread_id, other, other]
        sqls = _RECENT
        if query.reply_to is not None:
            sqls = _RECENT_REPLIES
            values.append(query.reply_to)
        found = {row[0] for sql in sqls for row in self._all(sql, *values, query.limit + 1)}
        return sorted(found, reverse=True)[: query.limit + 1]

    def _answer(self, message_id: MessageId, session_id: SessionId, *, late: bool) -> Answer:
        envelope = self._envelope(message_id)
        presented = bool(self._all(_IS_PRESENTED, session_id, message_id))
        if envelope is None:
            return Answer(message_id, {}, late, None, presented)
        return Answer(message_id, envelope["from"], late, envelope["body"], presented)

    def _envelope(self, message_id: str) -> dict[str, Any] | None:
        rows = self._all(_ENVELOPE, message_id)
        return envelope_data(*rows[0]) if rows else None

    def _agent(self, word: str) -> AgentId:
        rows = self._all(_FIND_AGENT, word, word, word)
        if not rows:
            raise no_agent(word)
        return AgentId(rows[0][0])

    def _names(self, rows: Iterable[DeliveryRow]) -> dict[AgentId, str]:
        agents = {one for row in rows for one in (row.sender_agent, row.recipient_agent)}
        return self._names_of(agents)

    def _names_of(self, agents: Iterable[AgentId]) -> dict[AgentId, str]:
        return dict(self._all(_NAMES, among(agents)))


def cause_with(attached: Attached) -> Callable[[DeliveryRow], ReplyCause | None]:
    """Why a reply is missing as it is now; the row only remembers what was when it became late."""

    def cause(row: DeliveryRow) -> ReplyCause | None:
        waits = row.reply_state in ("awaiting", "overdue", "unanswered")
        if not waits or answer_of(row) is not None:
            return row.cause
        sessions = attached.get(row.recipient_agent, frozenset())
        reached = is_reached(sessions, row.recipient_session, row.sender_session)
        return why_no_reply(row.state, row.attempt, row.progressed_at_us is not None, reached)

    return cause


def _delivery_data(
    row: DeliveryRow,
    names: Mapping[AgentId, str],
    cause: Callable[[DeliveryRow], ReplyCause | None],
) -> dict[str, Any]:
    return {
        "id": row.id,
        "recipient": _recipient_data(row, names[row.recipient_agent]),
        "state": row.state,
        "reply_state": row.reply_state,
        "reply_due_at": None if row.reply_due_us is None else rfc3339(row.reply_due_us),
        "cause": cause(row),
        "reply_message_id": row.reply_message_id,
        "late_reply_message_id": row.late_reply_message_id,
        "late": row.late_reply_message_id is not None,
        "reassigned_from": row.reassigned_from,
        "cancelled_reason": row.cancelled_reason,
    }


def _recipient_data(row: DeliveryRow, name: str) -> dict[str, Any]:
    data = {"agent": name, "agent_id": row.recipient_agent}
    if row.recipient_session is not None:
        data["session_id"] = row.recipient_session
    return data


def _headline(envelope: dict[str, Any] | None) -> dict[str, Any] | None:
    """A message without its text; None when it is retained no more."""
    if envelope is None:
        return None
    return {key: envelope[key] for key in ("id", "from", "kind", "ts")}


def _position(cursor: str | None) -> Sequence:
    """What `next_cursor` said; NO_END without one."""
    if cursor is None:
        return NO_END
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) <= 18):
        raise ValidationError(
            "peer recent: before is no cursor; give the next_cursor of the page before, unchanged"
        )
    return Sequence(int(cursor))
