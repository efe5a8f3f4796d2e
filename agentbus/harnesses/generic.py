"""Any other MCP client: no evidence of a conversation, and limits that every known client keeps."""

from __future__ import annotations

from agentbus.harnesses.evidence import Call, Harness, Limits, nothing
from agentbus.limits import WAIT_UNKNOWN_CLIENT_SECONDS

SPARE_SECONDS = 10.0
"""How long before a client gives a call up its answer should be on the way."""

_LIMITS = Limits(result_characters=10_000, call_seconds=WAIT_UNKNOWN_CLIENT_SECONDS + SPARE_SECONDS)


def _limits(call: Call) -> Limits:
    return _LIMITS


def harness(client_name: str) -> Harness:
    """A harness of which only the name is known."""
    return Harness(
        client=client_name,
        application=client_name,
        limits=_limits,
        turn_metadata=nothing,
        environment=nothing,
    )
