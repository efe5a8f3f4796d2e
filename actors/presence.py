"""Who is there, and would notice a request: read off the routes of the living, for the directory.

Owns no state. Which work a session holds is in the rows, not here. Any thread may ask.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from actors.messages import LiveSession
from actors.routes import Routes
from agentbus.clock import Clock
from agentbus.ids import AgentId, SessionId
from agentbus.limits import NOT_LISTENING_SECONDS


@dataclass(frozen=True, slots=True)
class Presence:
    """A live session that others may see. `listens`: it called lately, or would be woken."""

    session: LiveSession
    listens: bool


class Presences:
    """`is_waited_for`: whether somebody would wake the session (`agentbus wait`)."""

    def __init__(
        self, routes: Routes, clock: Clock, is_waited_for: Callable[[SessionId], bool]
    ) -> None:
        self._routes = routes
        self._clock = clock
        self._is_waited_for = is_waited_for

    def attached(self) -> dict[AgentId, set[SessionId]]:
        """All live sessions by agent, hidden ones too: their work reaches them."""
        attached: dict[AgentId, set[SessionId]] = {}
        for route in self._routes.live():
            sender = route.session.sender
            attached.setdefault(sender.agent_id, set()).add(sender.session_id)
        return attached

    def seen(self) -> dict[SessionId, Presence]:
        """Those that do not hide."""
        now_s = self._clock.monotonic_s()
        return {
            route.attachment.session_id: Presence(
                route.session,
                listens=route.waiting > 0
                or now_s - route.last_call_s < NOT_LISTENING_SECONDS
                or self._is_waited_for(route.attachment.session_id),
            )
            for route in self._routes.live()
            if route.session.presence
        }
