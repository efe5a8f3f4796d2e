"""What the hooks of the harness said to this process: which conversation, which child, which call.

Owns a bounded memory of it, and the reading of a hook's fields. Never trusts more than that a hook
of the own harness spoke: a field of the wrong kind counts as absent, since a refused hook would
disturb the harness and help nobody. Used in the thread of the event loop.

A hook speaks in one of two ways: as a call of the hidden tool `agentbus_hook` of this server, just
before the tool call that it announces, or as a command that tells the daemon, which passes it on to
the adapters of the same harness process.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from agentbus.errors import ValidationError
from agentbus.harnesses import Evidence
from agentbus.harnesses.evidence import text_of
from agentbus.protocol.fields import check_name

HOOK_TOOL: Final = "agentbus_hook"
"""Not in the list of tools: hooks call it by name, models never see it."""

TEXT_CHARACTERS: Final = 256
"""Of what is remembered by the thousand: a longer role is cut, a longer id of a call is none."""

TOOL_USES: Final = 4096
"""Announced tool calls that are remembered: many more than a harness has under way."""


@dataclass(frozen=True, slots=True)
class HookEvent:
    """One event. `conversation` and `child` are the harness's own ids."""

    event: str
    conversation: str
    child: str | None = None
    role: str | None = None
    tool_use: str | None = None

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> HookEvent | None:
        """From what a hook gave; None where it names no event or no conversation."""
        event, conversation = text_of(fields, "event"), text_of(fields, "session_id")
        child, tool_use = text_of(fields, "agent_id"), text_of(fields, "tool_use_id")
        if event is None or conversation is None:
            return None
        try:
            conversation = check_name(conversation)
            child = None if child is None else check_name(child)
        except ValidationError:  # ids that the bus could not carry
            return None
        role = text_of(fields, "agent_type")
        role = None if role is None else role[:TEXT_CHARACTERS]
        if tool_use is not None and len(tool_use) > TEXT_CHARACTERS:
            tool_use = None
        return cls(event, conversation, child, role, tool_use)

    def evidence(self) -> Evidence:
        """Whose event it is."""
        if self.child is None:
            return Evidence(self.conversation, "hook")
        return Evidence(
            self.conversation,
            "hook",
            child=self.child,
            parent_conversation=self.conversation,
            role=self.role,
        )


class HookMemory:
    """The newest evidence of this process, and that of each announced tool call."""

    def __init__(self) -> None:
        self._tool_uses: OrderedDict[str, Evidence] = OrderedDict()
        self.newest: Evidence | None = None
        """Of a main conversation: a child's events say nothing about who speaks next."""

    def saw(self, event: HookEvent) -> None:
        """Remember what the event proves."""
        evidence = event.evidence()
        if event.tool_use is not None:
            self._tool_uses[event.tool_use] = evidence
            if len(self._tool_uses) > TOOL_USES:
                self._tool_uses.popitem(last=False)
        if event.child is None and event.event != "SessionEnd":
            self.newest = evidence

    def of_tool_use(self, tool_use: str | None) -> Evidence | None:
        """Whose call it is, if a hook announced it."""
        return None if tool_use is None else self._tool_uses.get(tool_use)
