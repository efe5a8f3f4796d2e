"""Tells the daemon that hooks speak, so that a person can see whether they work.

Owns when each was last passed on: a hook that speaks before every tool call is told once a minute.
The daemon learns the event only; whose it was is between the hook and this adapter. Used in the
thread of the event loop, which waits for nothing here.
"""

from __future__ import annotations

import asyncio
from typing import Final

from agentbus.adapter.evidence import HookEvent
from agentbus.adapter.link import Link
from agentbus.harnesses import harness_of

EVERY_S: Final = 60.0
EVENTS: Final = 64
"""More kinds than any harness has; what comes beyond that is told every time anew."""


class HookReports:
    """For what came as a call of the hidden tool; a command hook tells the daemon itself."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._told_at_s: dict[str, float] = {}

    def spoke(self, client_name: str | None, event: HookEvent) -> None:
        """A hook of the harness spoke just now."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._told_at_s.get(event.event, -EVERY_S) < EVERY_S:
            return
        if len(self._told_at_s) >= EVENTS:
            self._told_at_s.clear()
        self._told_at_s[event.event] = now_s
        self._link.tell(
            "hook",
            {
                "application": harness_of(client_name or "unknown").application,
                "event": event.event,
                "conversation": event.conversation,
            },
        )
