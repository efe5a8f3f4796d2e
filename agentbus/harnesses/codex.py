"""Codex: every call carries the ids of its thread and of the root thread in its metadata."""

from __future__ import annotations

from typing import Any

from agentbus.encoding import decode_strict
from agentbus.errors import ValidationError
from agentbus.harnesses.evidence import Call, Evidence, Harness, Limits, nothing, text_of

_CALL_SECONDS = 300
_CAREFUL = Limits(result_characters=10_000, call_seconds=_CALL_SECONDS)
_ROOMY = Limits(result_characters=40_000, call_seconds=_CALL_SECONDS)

_ROOMY_MODELS = ("gpt-5",)
"""Beginnings of the names of models that are shown about 48,000 characters of a result. Others are
shown about 12,000, cut in the middle."""


_ROLES = {"thread_spawn": "subagent"}
"""Kinds of subagents whose names would mean nothing to anybody."""


def _turn(call: Call) -> dict[str, Any]:
    turn = call.meta.get("x-codex-turn-metadata")
    if isinstance(turn, str):  # as the header of the same name has it
        try:
            turn = decode_strict(turn)
        except ValidationError:
            return {}
    return turn if isinstance(turn, dict) else {}


def _limits(call: Call) -> Limits:
    model = text_of(_turn(call), "model")
    return _ROOMY if model is not None and model.startswith(_ROOMY_MODELS) else _CAREFUL


def _turn_metadata(call: Call) -> Evidence | None:
    turn = _turn(call)
    thread = text_of(call.meta, "threadId") or text_of(turn, "thread_id")
    root = text_of(call.meta, "sessionId") or text_of(turn, "session_id") or thread
    if thread is None or root is None:
        return None
    if thread == root:
        return Evidence(root, "turn_metadata")
    kind = text_of(turn, "subagent_kind")
    return Evidence(
        root,
        "turn_metadata",
        child=thread,
        parent_conversation=text_of(turn, "parent_thread_id") or root,
        role=text_of(turn, "agent_role") or (_ROLES.get(kind, kind) if kind else None),
    )


def _wake(conversation: str, text: str) -> list[str]:
    return ["codex", "queue", "--thread", conversation, "--message", text]


HARNESS = Harness(
    client="codex-mcp-client",
    application="codex",
    limits=_limits,
    turn_metadata=_turn_metadata,
    environment=nothing,
    wake=_wake,
    runs_commands=True,
)
