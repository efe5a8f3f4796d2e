"""Whom a direct message is for: from what a sender wrote to agents and sessions.

Owns the order in which a word is looked up (session id, agent id, agent name) and who may be
written to. Runs on the ledger's thread.
"""

from __future__ import annotations

from collections.abc import Iterable

from agentbus.envelope import Recipient
from agentbus.errors import ValidationError
from agentbus.identity import SenderBinding
from agentbus.ids import AgentId, SessionId
from agentbus.protocol.peer import EVERYBODY
from agentbus.rules.peer import is_person, no_recipient, not_allowed, not_to_people
from agentbus.store.schema import PLACE, Agent, Session, text
from agentbus.store.work import Work

_SELECT_SESSION = text(
    Session.select(Agent.name, Agent.id, Session.id)
    .join(Agent, on=(Agent.id == Session.agent))
    .where(Session.id == PLACE)
)
_SELECT_AGENT = text(Agent.select(Agent.name, Agent.id).where(Agent.id == PLACE))
_SELECT_AGENT_NAMED = text(Agent.select(Agent.name, Agent.id).where(Agent.name == PLACE))


def find_recipient(work: Work, word: str) -> Recipient | None:
    """A session by its id, an agent by its id or its name."""
    row = work.execute(_SELECT_SESSION, (word,)).fetchone()
    if row is not None:
        return Recipient(row[0], AgentId(row[1]), SessionId(row[2]))
    for sql in (_SELECT_AGENT, _SELECT_AGENT_NAMED):
        row = work.execute(sql, (word,)).fetchone()
        if row is not None:
            return Recipient(row[0], AgentId(row[1]))
    return None


def resolve(work: Work, words: Iterable[str], sender: SenderBinding) -> tuple[Recipient, ...]:
    """The recipients in the order given. Raises for one that is unknown, named twice or oneself."""
    found: dict[Recipient, str] = {}
    for word in words:
        if word == EVERYBODY:
            raise ValidationError(
                'peer send: "*" is replaced before a message is sent; name the recipients'
            )
        recipient = find_recipient(work, word)
        if recipient is None:
            raise no_recipient(word, sender.agent)
        if recipient.session_id == sender.session_id:
            raise ValidationError(
                f"peer send: {word!r} is this session itself; do the work, or ask another"
            )
        if recipient in found:
            raise ValidationError(
                f"peer send: {found[recipient]!r} and {word!r} in to are the same recipient"
            )
        found[recipient] = word
    return tuple(found)


def require_allowed(work: Work, recipients: Iterable[Recipient], sender: SenderBinding) -> None:
    """Nobody writes to people of their own accord. `peer_allow` is about whom agents may write to;
    people are not bound by it."""
    allowed = work.config.peer_allow
    for recipient in recipients:
        if is_person(recipient.agent):
            raise not_to_people(recipient.agent)
        if allowed != "*" and recipient.agent not in allowed and not is_person(sender.agent):
            raise not_allowed(recipient.agent)


def agent_name(work: Work, agent_id: AgentId) -> str:
    """The name of an agent that is known to be there."""
    row = work.execute(_SELECT_AGENT, (agent_id,)).fetchone()
    return str(row[0])
