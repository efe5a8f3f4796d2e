"""The ledger's answer to an attach: agent and session rows, a generation, a display name.

Owns which rows a native identity belongs to. Never decides whether somebody may attach: that is the
registrar's, before this is asked. Runs on the ledger's thread.
"""

from __future__ import annotations

from agentbus.encoding import encode
from agentbus.ids import AgentId, Generation, Sequence, SessionId, new_id
from agentbus.limits import DEFAULT_CHANNEL
from agentbus.rules.names import child_name, main_name
from agentbus.store.accounting import row_bytes
from agentbus.store.changes import (
    BindSession,
    Done,
    Fact,
    MemoryChange,
    SessionBound,
    SubscriptionOpened,
    SubscriptionRow,
)
from agentbus.store.memories import memory_changes
from agentbus.store.schema import PLACE, Agent, Session, insert_text, text
from agentbus.store.subscribing import insert_subscription, rows_of_session
from agentbus.store.work import Work

_SELECT_AGENT = text(Agent.select(Agent.id, Agent.capabilities).where(Agent.name == PLACE))
_UPDATE_CAPABILITIES = text(Agent.update({Agent.capabilities: PLACE}).where(Agent.id == PLACE))
_SELECT_SESSION = text(
    Session.select(
        Session.id,
        Session.parent,
        Session.role,
        Session.display_name,
        Session.repository,
        Session.seen_sequence,
    ).where(
        (Session.agent == PLACE)
        & (Session.application == PLACE)
        & (Session.conversation == PLACE)
        & (Session.child == PLACE)
    )
)
_SELECT_NAME = text(Session.select(Session.display_name).where(Session.id == PLACE))
_INSERT_AGENT = insert_text(Agent)
_INSERT_SESSION = insert_text(Session)
_UPDATE_SESSION = text(
    Session.update(
        {
            Session.parent: PLACE,
            Session.role: PLACE,
            Session.display_name: PLACE,
            Session.repository: PLACE,
            Session.generation: PLACE,
            Session.last_seen_us: PLACE,
            Session.used_sequence: Session.seen_sequence,  # its last result may be lost
        }
    ).where(Session.id == PLACE)
)


def bind_session(work: Work, change: BindSession) -> Done:
    """Find or create the session and make the next generation its current one."""
    identity = change.identity
    agent_id = _agent(work, change.agent, change.capabilities)
    key = (agent_id, identity.application, identity.conversation, identity.child or "")
    known = work.execute(_SELECT_SESSION, key).fetchone()
    work.counters.last_generation = generation = Generation(work.counters.last_generation + 1)
    facts: list[Fact] = []
    if known is None:
        session_id = SessionId(new_id())
        parent, role, repository = change.parent, change.role, change.repository
        name = _display_name(work, change, parent, role, repository, change.preferred_name)
        work.insert(
            _INSERT_SESSION,
            (
                session_id,
                *key,
                parent,
                role,
                name,
                repository,
                generation,
                work.now_us,
                work.now_us,
                work.counters.last_sequence,
                work.counters.last_sequence,
            ),
        )
        general = work.require_channel(DEFAULT_CHANNEL)
        row = insert_subscription(work, session_id, general, work.counters.last_sequence)
        facts.append(SubscriptionOpened(session_id, row))
        subscriptions: tuple[SubscriptionRow, ...] = (row,)
        changes: tuple[MemoryChange, ...] = ()
    else:
        session_id = SessionId(known[0])
        # What this attach does not know stays as an earlier one said it.
        parent = change.parent or known[1]
        role = change.role or known[2]
        repository = change.repository or known[4]
        name = _display_name(
            work, change, parent, role, repository, known[3], change.preferred_name
        )
        after = (parent, role, name, repository)
        work.execute(_UPDATE_SESSION, (*after, generation, work.now_us, session_id))
        work.counters.logical_bytes += row_bytes(after) - row_bytes(known[1:5])
        subscriptions = rows_of_session(work, session_id, facts)
        changes = memory_changes(work, subscriptions, since=Sequence(known[5]))
    work.staged.generations[session_id] = generation
    return Done(
        SessionBound(
            session_id=session_id,
            agent_id=agent_id,
            agent=change.agent,
            identity=identity,
            display_name=name,
            repository=repository,
            generation=generation,
            resumed=known is not None,
            subscriptions=subscriptions,
            memory_changes=changes,
        ),
        tuple(facts),
    )


def _agent(work: Work, name: str, capabilities: tuple[str, ...] | None) -> AgentId:
    labels = None if capabilities is None else encode(list(capabilities)).decode()
    row = work.execute(_SELECT_AGENT, (name,)).fetchone()
    if row is None:
        agent_id = AgentId(new_id())
        work.insert(_INSERT_AGENT, (agent_id, name, work.now_us, None, labels or "[]"))
        return agent_id
    agent_id, known = AgentId(row[0]), row[1]
    if labels is not None and labels != known:
        work.execute(_UPDATE_CAPABILITIES, (labels, agent_id))
        work.counters.logical_bytes += row_bytes((labels,)) - row_bytes((known,))
    return agent_id


def _display_name(
    work: Work,
    change: BindSession,
    parent: str | None,
    role: str | None,
    repository: str | None,
    *wanted: str | None,
) -> str:
    if change.identity.child is None:
        return main_name(change.agent, change.names_in_use, *wanted)
    row = work.execute(_SELECT_NAME, (parent,)).fetchone() if parent is not None else None
    parent_name = row[0] if row is not None else change.agent
    return child_name(parent_name, role, repository, change.names_in_use, *wanted)
