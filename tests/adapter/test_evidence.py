"""What hooks said, and whose call it is after that."""

from __future__ import annotations

from typing import Any

import pytest

from agentbus.adapter.binding import Binder, Binding
from agentbus.adapter.evidence import TEXT_CHARACTERS, TOOL_USES, HookEvent
from agentbus.identity import SessionIdentity

ENV = {"CLAUDE_CODE_SESSION_ID": "from-env"}


def saw(binder: Binder, event: str, session: str, **fields: str) -> None:
    read = HookEvent.read({"event": event, "session_id": session, **fields})
    assert read is not None
    binder.hooks.saw(read)


def call(binder: Binder, tool_use: str | None = None) -> Binding:
    meta = {} if tool_use is None else {"claudecode/toolUseId": tool_use}
    return binder.caller("claude-code", meta).binding


def test_the_hook_that_announced_a_call_says_whose_it_is() -> None:
    binder = Binder(None, ENV)
    saw(binder, "PreToolUse", "main", tool_use_id="t1", agent_id="", agent_type="")
    saw(binder, "PreToolUse", "main", tool_use_id="t2", agent_id="a", agent_type="reviewer")
    saw(binder, "PreToolUse", "main", tool_use_id="t3", agent_id="b", agent_type="tester")
    assert call(binder, "t2") == Binding(
        SessionIdentity("claude-code", "main", "a"), "hook", "main", "reviewer", proven=True
    )
    assert call(binder, "t3").identity.child == "b"
    assert call(binder, "t1").identity == SessionIdentity("claude-code", "main")
    assert call(binder, "t1").source == "hook"


def test_without_an_announcement_the_newest_main_conversation_is_taken() -> None:
    binder = Binder(None, ENV)
    assert call(binder).source == "environment"
    saw(binder, "UserPromptSubmit", "first")
    saw(binder, "UserPromptSubmit", "second")
    saw(binder, "SubagentStart", "second", agent_id="a", agent_type="tester")
    saw(binder, "SessionEnd", "first")
    newest = call(binder, "unknown")
    assert newest.identity == SessionIdentity("claude-code", "second")
    assert (newest.source, newest.proven) == ("hook", False)


def test_a_hook_goes_before_the_argument_and_the_environment() -> None:
    binder = Binder("given", ENV)
    assert call(binder).source == "argument"
    saw(binder, "UserPromptSubmit", "hooked")
    assert call(binder).identity.conversation == "hooked"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"event": "Stop"},
        {"session_id": "s"},
        {"event": "Stop", "session_id": ""},
        {"event": 1, "session_id": "s"},
        {"event": "Stop", "session_id": ["s"]},
        {"event": "Stop", "session_id": "x" * 129},
        {"event": "Stop", "session_id": "s", "agent_id": "line\nbreak"},
    ],
)
def test_what_names_no_event_or_conversation_is_nothing(fields: dict[str, Any]) -> None:
    assert HookEvent.read(fields) is None


def test_what_is_remembered_of_a_hook_is_short() -> None:
    event = HookEvent.read(
        {
            "event": "PreToolUse",
            "session_id": "c",
            "agent_type": "r" * 9999,
            "tool_use_id": "t" * 999,
        }
    )
    assert event is not None
    assert (len(event.role or ""), event.tool_use) == (TEXT_CHARACTERS, None)


def test_only_so_many_announced_calls_are_remembered() -> None:
    binder = Binder(None, {})
    for number in range(TOOL_USES + 1):
        saw(binder, "PreToolUse", "main", tool_use_id=f"t{number}", agent_id="a")
    assert call(binder, "t0").source == "process"
    assert call(binder, f"t{TOOL_USES}").source == "hook"
