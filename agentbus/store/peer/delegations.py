"""What the daemon reads about questions over talk: whose a request is, how deep a caller works.

Owns these queries. The rules of `Reader` hold: one thread, short transactions.
"""

from __future__ import annotations

from collections.abc import Iterable

from peewee import SQL, fn

from agentbus.ids import AgentId, SessionId
from agentbus.limits import TALK_PREFIX
from agentbus.store.peer.directory import among
from agentbus.store.peer.reading import PeerReader
from agentbus.store.schema import IS_HELD, PLACE, Agent, Delivery, text

_DEPTH = text(
    Delivery.select(fn.MAX(Delivery.depth)).where(
        IS_HELD & Delivery.holder.in_(SQL("(SELECT value FROM json_each(?))"))
    )
)
_CALLER = text(
    Delivery.select(Delivery.sender_agent, Delivery.sender_session)
    .join(Agent, on=(Agent.id == Delivery.sender_agent))
    .where(
        (Delivery.message_id == PLACE)
        & (fn.SUBSTR(Agent.name, SQL("1"), SQL(str(len(TALK_PREFIX)))) == PLACE)
    )
    .limit(SQL("1"))
)


class DelegationReader(PeerReader):
    """See the module's text. Open one per thread."""

    def depth_of_work(self, sessions: Iterable[SessionId]) -> int | None:
        """Of the deepest work that one of these sessions does for others; None without any."""
        ((depth,),) = self._all(_DEPTH, among(sessions))
        return None if depth is None else int(depth)

    def caller(self, message_id: str) -> tuple[AgentId, SessionId] | None:
        """Who sent this, if it is a question over talk."""
        for agent_id, session_id in self._all(_CALLER, message_id, TALK_PREFIX):
            return AgentId(agent_id), SessionId(session_id)
        return None
