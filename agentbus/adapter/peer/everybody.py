"""Whom `*` in the recipients of a send stands for; it never reaches the daemon.

Everybody in the directory whom `peer_allow` lets this user's agents write to, but the sender
itself and people. Used in the thread of the event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from agentbus.config import Config
from agentbus.errors import DiscoveryDisabledError, ValidationError
from agentbus.limits import PEER_PAGE_MAX, PEER_RECIPIENTS
from agentbus.protocol.peer import PeerAgents, PeerOperation
from agentbus.rules.peer import is_person, nobody

Ask = Callable[[PeerOperation], Awaitable[dict[str, Any]]]


async def everybody(ask: Ask, config: Config, own_agent: str) -> tuple[str, ...]:
    """Their agent ids, in the order of the directory.

    Raises DiscoveryDisabledError, NotFoundError where there is nobody, ValidationError where there
    are more than one send may have.
    """
    if not config.discovery_enabled:
        raise DiscoveryDisabledError(
            'peer send: "*" needs the agent directory, which is switched off (discovery_enabled); '
            "name the agents in to"
        )
    allowed = config.peer_allow
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = await ask(PeerAgents(cursor=cursor, limit=PEER_PAGE_MAX))
        for row in page["agents"]:
            name = row["agent"]
            if name == own_agent or is_person(name):
                continue
            if allowed == "*" or name in allowed:
                found.append(row["agent_id"])
        if len(found) > PEER_RECIPIENTS:
            raise ValidationError(
                f'peer send: "*" stands for more than the {PEER_RECIPIENTS} agents that one send '
                "may have; name those who matter in to"
            )
        cursor = page.get("next_cursor")
        if not page.get("has_more") or cursor is None:
            break
    if not found:
        raise nobody(allowed_only=allowed != "*")
    return tuple(found)
