"""Who can be written to, what each works on, and where work waits: reads for daemon and directory.

Owns these queries. Presence is no business of the store: who is attached now is the caller's to
know. The rules of `Reader` hold: one thread, short transactions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from peewee import SQL, fn

from agentbus.encoding import decode_trusted, encode
from agentbus.ids import AgentId, DeliveryId, SessionId
from agentbus.limits import HUMAN_PREFIX, JOBS_AGENT, TALK_PREFIX
from agentbus.store.reader import Reader
from agentbus.store.schema import IS_OPEN, IS_UNANSWERED, PLACE, Agent, Delivery, Session, text

_AGENTS = text(
    Agent.select(
        Agent.id,
        Agent.name,
        Agent.description,
        Agent.capabilities,
        Session.select(fn.COALESCE(fn.MAX(Session.last_seen_us), SQL("0"))).where(
            Session.agent == Agent.id
        ),
    )
    .where(
        (fn.SUBSTR(Agent.name, SQL("1"), SQL(str(len(HUMAN_PREFIX)))) != PLACE)
        & (Agent.name != PLACE)
        & (fn.SUBSTR(Agent.name, SQL("1"), SQL(str(len(TALK_PREFIX)))) != PLACE)
    )
    .order_by(Agent.name)
)
_SESSIONS = text(
    Session.select(
        Session.agent,
        Session.id,
        Session.display_name,
        Session.application,
        Session.child,
        Session.repository,
    )
    .where(Session.id.in_(SQL("(SELECT value FROM json_each(?))")))
    .order_by(Session.created_at_us, Session.id)
)
_AT_WORK = text(
    Delivery.select(Delivery.holder, Delivery.state).where(
        IS_OPEN & Delivery.state.in_((SQL("'leased'"), SQL("'paused'")))
    )
)
_OPEN_OF_AGENT = text(
    Delivery.select(
        Delivery.state,
        Delivery.holder,
        Delivery.recipient_session,
        Delivery.sender_session,
        Delivery.id,
        Delivery.changed_at_us,
    ).where((Delivery.recipient_agent == PLACE) & IS_OPEN)
)
_IN_INBOXES = text(
    Delivery.select(Delivery.recipient_agent)
    .where(IS_OPEN)
    .union(
        Delivery.select(Delivery.sender_agent).where(
            IS_UNANSWERED & Delivery.reply_state.in_((SQL("'awaiting'"), SQL("'overdue'")))
        )
    )
)


@dataclass(frozen=True, slots=True)
class SessionCard:
    """A session that is attached, and whether it holds work or waits for a person."""

    session_id: SessionId
    display_name: str
    application: str
    child: str
    repository: str | None
    leased: bool
    paused: bool


@dataclass(frozen=True, slots=True)
class AgentCard:
    """An agent as the directory has it; `sessions` are those asked for. Times in microseconds."""

    agent_id: AgentId
    agent: str
    description: str | None
    capabilities: tuple[str, ...]
    last_seen_us: int
    sessions: tuple[SessionCard, ...]


@dataclass(frozen=True, slots=True)
class WaitingWork:
    """What `wait` would give a session: something new, or what it holds already.

    `claimable`: deliveries, each with when it last changed, so that one which comes again is told
    from one which was there before.
    """

    claimable: frozenset[tuple[DeliveryId, int]]
    holds: bool


class DirectoryReader(Reader):
    """See the module's text. Open one per thread."""

    def directory(self, attached: Iterable[SessionId]) -> list[AgentCard]:
        """All agents by name, each with its attached sessions, but those that the daemon issues:
        people, callers over talk, emitters of jobs."""
        sessions: defaultdict[AgentId, list[SessionCard]] = defaultdict(list)
        with self._snapshot():
            at_work = set(self._all(_AT_WORK))
            for agent_id, session_id, *rest in self._all(_SESSIONS, among(attached)):
                at = ((session_id, state) in at_work for state in ("leased", "paused"))
                sessions[agent_id].append(SessionCard(session_id, *rest, *at))
            rows = self._all(_AGENTS, HUMAN_PREFIX, JOBS_AGENT, TALK_PREFIX)
        return [
            AgentCard(
                agent_id,
                name,
                description,
                tuple(decode_trusted(capabilities)),
                last_seen_us,
                tuple(sessions[agent_id]),
            )
            for agent_id, name, description, capabilities, last_seen_us in rows
        ]

    def waiting_work(self, agent_id: AgentId, session_id: SessionId) -> WaitingWork:
        """By the rule of claims: work of one's own blocks everything else, and work that is
        addressed to the agent blocks what is addressed so too, whoever has it."""
        rows = self._all(_OPEN_OF_AGENT, agent_id)
        claimed = [row for row in rows if row[0] != "queued"]
        if any(holder == session_id for _, holder, *_ in claimed):
            return WaitingWork(
                frozenset(), holds=("leased", session_id) in {row[:2] for row in claimed}
            )
        busy = any(recipient is None for _, _, recipient, *_ in claimed)
        claimable = frozenset(
            (delivery_id, changed_at_us)
            for state, _, recipient, sender, delivery_id, changed_at_us in rows
            if state == "queued"
            and sender != session_id
            and (recipient == session_id or (recipient is None and not busy))
        )
        return WaitingWork(claimable, holds=False)

    def inboxes_in_use(self) -> tuple[AgentId, ...]:
        """Agents that have something open, or wait for a reply: whose inboxes have timers."""
        return tuple(AgentId(row[0]) for row in self._all(_IN_INBOXES))


def among(values: Iterable[str | int]) -> str:
    """As the parameter of `json_each`."""
    return encode(list(values)).decode()
