"""What is known about each harness: the evidence it gives of its conversations, and its limits.

One module per harness; nothing about a harness stands anywhere else. A harness is recognised by the
name that its MCP client gives. Pure: no I/O, any thread.
"""

from __future__ import annotations

from agentbus.harnesses import claude_code, codex, gemini, generic, opencode
from agentbus.harnesses.evidence import Call, Evidence, Harness, Limits

__all__ = ["Call", "Evidence", "Harness", "Limits", "harness_of", "wake_command"]

_BY_CLIENT: dict[str, Harness] = {
    harness.client: harness
    for harness in (claude_code.HARNESS, codex.HARNESS, gemini.HARNESS, opencode.HARNESS)
}


def harness_of(client_name: str) -> Harness:
    """The harness whose MCP client calls itself so; a generic one for all others."""
    return _BY_CLIENT.get(client_name) or generic.harness(client_name)


def wake_command(application: str, conversation: str, text: str) -> list[str] | None:
    """What begins a turn of an idle conversation; None where the harness has no such command."""
    for harness in _BY_CLIENT.values():
        if harness.application == application and harness.wake is not None:
            return harness.wake(conversation, text)
    return None
