"""Who is speaking: native conversation identities, and the attachments that carry them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agentbus.ids import AgentId, Generation, SessionId

IdentitySource = Literal["turn_metadata", "hook", "environment", "argument", "process"]
"""Where the conversation id came from; all but the first two are of lower assurance."""


@dataclass(frozen=True, slots=True)
class SessionIdentity:
    """The native identity of one conversation, or of one child (subagent) of it.

    `conversation` is the application's own resumable id; `child` its own id for a subagent.
    """

    application: str
    conversation: str
    child: str | None = None


@dataclass(frozen=True, slots=True)
class Attachment:
    """One session bound to one connection. `generation` fences off every earlier holder."""

    session_id: SessionId
    generation: Generation


@dataclass(frozen=True, slots=True)
class SenderBinding:
    """What the daemon writes into every envelope of an attachment; a caller cannot set it."""

    agent: str
    agent_id: AgentId
    session_id: SessionId
    application: str
    child: str | None
    display_name: str
    repository: str | None
