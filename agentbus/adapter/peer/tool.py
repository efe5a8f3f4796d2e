"""What a client sees of the tool `peer`: its words, its schema, and the check of a call.

Derived from protocol/peer.py, so that no operation or argument can be missing here. Knows no SDK,
does no I/O; pure, any thread.

The schema names the operations but not their arguments: sixteen shapes would take more room in a
model's context than the rest of the tools, so the description lists them and `parse_peer` checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from agentbus.errors import ValidationError
from agentbus.protocol.fields import describe
from agentbus.protocol.peer import (
    PEER_OPERATIONS,
    PeerOperation,
    parse_peer,
    required_arguments,
)

NAME: Final = "peer"
TITLE: Final = "Peer"

_WORDS: Final = (
    "Agentbus: work directly with other agents. Ask with send kind=request and read the answers "
    "with collect; wait claims what was sent to you: a request ends with one reply, anything else "
    "with ack as soon as it is read; "
    "progress shows that you are at it. Choose a new idempotency_key per message, the same one for "
    "a repeat. Operations and their args (? is optional):\n"
)

_HINTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "discover": "who is there now",
        "send": 'to is a list of agent or session ids, or ["*"]; kind info|request|response|ack; '
        "reply_to a claimed message is its reply",
        "recent": "newest first; reply_to: answers to your message",
        "collect": "waits for answers to your request; timeout 0-45 s; repeatable",
        "agents": "all known",
        "describe": "what you know",
        "status": "per recipient",
        "requests": "yours; state awaiting|overdue|unanswered",
        "human": "asks a person; stop meanwhile",
        "wait": "claims your next delivery; timeout 0-50 s",
        "ack": "finishes without an answer",
        "reply": "ack=false: partial, keep working",
        "checkpoint": "before a risky step; action_type read|write|external|destructive",
        "memory_context": "one of them; metadata for a memory",
    }
)


def _line(operation: type[PeerOperation]) -> str:
    required = required_arguments(operation)
    names = [key if key in required else f"{key}?" for key in operation.FIELDS]
    hint = _HINTS.get(operation.NAME)
    return f"{operation.NAME}({', '.join(names)})" + (f": {hint}" if hint else "")


DESCRIPTION: Final = _WORDS + "\n".join(_line(operation) for operation in PEER_OPERATIONS.values())

INPUT_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "op": {"type": "string", "enum": list(PEER_OPERATIONS)},
        "args": {"type": "object", "description": "Of this op; may be left out."},
    },
    "required": ["op"],
    "additionalProperties": False,
}

RESULTS: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "delivery": ["object", "null"],
        "message_id": "string",
        "agents": "array",
        "messages": "array",
        "deliveries": "array",
        "requests": "array",
        "answers": "array",
        "outcome": "string",
        "status": "string",
        "pending": ["integer", "object"],
    }
)
"""The members that tell operations apart; the rest is in the reference. `pending` is a number;
in the result of `collect` it is who has not answered."""


def parse_peer_call(arguments: Any) -> PeerOperation:
    """The operation of `{op, args}`. Raises ValidationError that a model can act on."""
    if not isinstance(arguments, dict):
        raise ValidationError(f"peer: the arguments must be an object, not {describe(arguments)}")
    unknown = arguments.keys() - {"op", "args"}
    if unknown:
        raise ValidationError(
            f"peer: unknown argument {min(unknown, key=str)!r:.60}; known: op, args, and inside "
            "args what the op takes"
        )
    return parse_peer(arguments.get("op"), arguments.get("args"))
