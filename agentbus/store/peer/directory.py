"""Who can be written to, what each works on, and where work waits: reads for daemon and directory.

Owns these queries. Presence is no business of the store: who is attached now is the caller's to
know. The rules of `Reader` hold: one thread, short transactions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from peewee import SQL, fn

from agentbus.encoding import decode_trusted, encode
from agentbus.ids import AgentId, DeliveryId, SessionId
from agentbus.limits import HUMAN_PREFIX, JOBS_AGENT, TALK_PREFIX
from agentbus.store.reader import Reader
from agentbus.store.schema import IS_OPEN, IS_UNANSWERED, PLACE, Agent, Delivery, Session, text

_IS_LISTED = (
    (fn.SUBSTR(Agent.name, SQL("1"), SQL(str(len(HUMAN_PREFIX)))) != PLACE)
    & (Agent.name != PLACE)
    & (fn.SUBSTR(Agent.name, SQL("1"), SQL(str(len(TALK_PREFIX)))) != PLACE)
)
_UNLISTED = (HUMAN_PREFIX, JOBS_AGENT, TALK_PREFIX)
"""What goes into the places of `_IS_LISTED`."""
_CAN = SQL('(? IS NULL OR EXISTS (SELECT 1 FROM json_each("t1"."capabilities") WHERE value = ?))')
_AGENTS = (
    Agent.select(
        Agent.id,
        Agent.name,
        Agent.description,
        Agent.capabilities,
        Session.select(fn.COALESCE(fn.MAX(Session.last_seen_us), SQL("0"))).where(
            Session.agent == Agent.id
        ),
    )
    .where(_IS_LISTED & (Agent.name > PLACE) & _CAN)
    .order_by(Agent.name)
)
_NEXT_AGENTS = text(_AGENTS.limit(PLACE))
_NEXT_OF_THESE = text(
    _AGENTS.where(Agent.id.in_(SQL("(SELECT value FROM json_each(?))"))).limit(PLACE)
)
_IS_AGENT = text(Agent.select(SQL("1")).where(_IS_LISTED & (Agent.name == PLACE)))
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
_IN_WORK = text(
    Delivery.select(
        Delivery.recipient_agent, Delivery.recipient_session, Delivery.holder, Delivery.state
    ).where(
        Delivery.recipient_agent.in_(SQL("(SELECT value FROM json_each(?))"))
        & IS_OPEN
        & Delivery.state.in_((SQL("'leased'"), SQL("'paused'")))
    )
)
_OPEN_OF_AGENT = text(
    Delivery.select(
        Delivery.state,
        Delivery.holder,
        Delivery.recipient_session,
        Delivery.sender_session,
        Delivery.kind,
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
    """An agent as the directory has it; `sessions` are those asked for. Times in microseconds.

    `in_work`: of what was sent to the agent as a whole one is leased or paused, in the hands of
    whichever session, so none of them is given another.
    """

    agent_id: AgentId
    agent: str
    description: str | None
    capabilities: tuple[str, ...]
    last_seen_us: int
    in_work: Literal["leased", "paused"] | None
    sessions: tuple[SessionCard, ...]


class DirectoryReader(Reader):
    """See the module's text. Open one per thread."""

    def directory(
        self,
        attached: Mapping[SessionId, AgentId],
        limit: int,
        *,
        after: str = "",
        capability: str | None = None,
        attached_only: bool = False,
    ) -> list[AgentCard]:
        """The next agents by name, each with its attached sessions, but those that the daemon
        issues: people, callers over talk, emitters of jobs. Fewer than `limit`: there are no more.
        """
        wanted = (*_UNLISTED, after, capability, capability)
        sessions: defaultdict[AgentId, list[SessionCard]] = defaultdict(list)
        with self._snapshot():
            if attached_only:
                rows = self._all(_NEXT_OF_THESE, *wanted, among(set(attached.values())), limit)
            else:
                rows = self._all(_NEXT_AGENTS, *wanted, limit)
            agents = {row[0] for row in rows}
            in_work = self._all(_IN_WORK, among(agents))
            theirs = [one for one, agent_id in attached.items() if agent_id in agents]
            held = {(holder, state) for _, _, holder, state in in_work}
            for agent_id, session_id, *rest in self._all(_SESSIONS, among(theirs)):
                has = ((session_id, state) in held for state in ("leased", "paused"))
                sessions[agent_id].append(SessionCard(session_id, *rest, *has))
        of_agents = {agent_id: state for agent_id, session, _, state in in_work if session is None}
        return [
            AgentCard(
                agent_id,
                name,
                description,
                tuple(decode_trusted(capabilities)),
                last_seen_us,
                of_agents.get(agent_id),
                tuple(sessions[agent_id]),
            )
            for agent_id, name, description, capabilities, last_seen_us in rows
        ]

    def is_agent(self, name: str) -> bool:
        """Whether the directory has an agent of this name."""
        return bool(self._all(_IS_AGENT, *_UNLISTED, name))

    def waiting_work(
        self, agent_id: AgentId, session_id: SessionId
    ) -> frozenset[tuple[DeliveryId, int]]:
        """What is new to a session: deliveries, each with when it last changed, so that one which
        comes again is told from one which was there before.

        By the rule of claims: work of one's own blocks everything else, and work that is addressed
        to the agent blocks what is addressed so too, whoever has it. But answers to what a session
        has asked meanwhile need no claim, as `collect` shows them: work of one's own blocks none.
        """
        rows = self._all(_OPEN_OF_AGENT, agent_id)
        claimed = [row for row in rows if row[0] != "queued"]
        works = any(holder == session_id for _, holder, *_ in claimed)
        busy = any(recipient is None for _, _, recipient, *_ in claimed)
        return frozenset(
            (delivery_id, changed_at_us)
            for state, _, recipient, sender, kind, delivery_id, changed_at_us in rows
            if state == "queued"
            and sender != session_id
            and (recipient == session_id or (recipient is None and not busy))
            and (kind == "response" or not works)
        )

    def inboxes_in_use(self) -> tuple[AgentId, ...]:
        """Agents that have something open, or wait for a reply: whose inboxes have timers."""
        return tuple(AgentId(row[0]) for row in self._all(_IN_INBOXES))


def among(values: Iterable[str | int]) -> str:
    """As the parameter of `json_each`."""
    return encode(list(values)).decode()
