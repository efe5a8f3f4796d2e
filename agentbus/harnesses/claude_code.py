"""Claude Code: a hook announces each call by its tool use id, and says whose it is.

Without hooks there is only the environment of the process, which was right at its start.
"""

from __future__ import annotations

from agentbus.harnesses.evidence import Call, Evidence, Harness, Limits, nothing, text_of

# Up to 50,000 characters of a result are shown to the model; a call has a limit of 1e8 ms, and a
# server that says nothing is given up after 30 minutes.
_LIMITS = Limits(result_characters=40_000, call_seconds=1800)


def _limits(call: Call) -> Limits:
    return _LIMITS


def _environment(call: Call) -> Evidence | None:
    conversation = text_of(call.env, "CLAUDE_CODE_SESSION_ID")
    return Evidence(conversation, "environment") if conversation else None


def _tool_use(call: Call) -> str | None:
    return text_of(call.meta, "claudecode/toolUseId")


HARNESS = Harness(
    client="claude-code",
    application="claude-code",
    limits=_limits,
    turn_metadata=nothing,
    environment=_environment,
    tool_use=_tool_use,
    runs_commands=True,
    caution=(
        "This conversation is known from the environment in which its MCP server was started. "
        "After /clear or /resume in the same window the old identity may stay in place until "
        "the server is started again. `agentbus-admin install claude-code` installs the hooks "
        "that tell each conversation and each subagent apart."
    ),
)
