"""Conversations and children that one adapter process carries, told apart by hooks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.adapter.adapter_process import AdapterProcess
from tests.bus_fixture import ThrowAwayBus
from tests.eventually import eventually


@pytest.fixture(scope="module")
def bus() -> Iterator[ThrowAwayBus]:
    with ThrowAwayBus() as bus:
        yield bus


@pytest.fixture
def claude(bus: ThrowAwayBus) -> Iterator[AdapterProcess]:
    with AdapterProcess(
        bus.environment,
        bus.config_path,
        client_name="claude-code",
        extra_environment={"CLAUDE_CODE_SESSION_ID": "at-start"},
    ) as adapter:
        adapter.initialize()
        yield adapter


def hook(adapter: AdapterProcess, event: str, session: str, **fields: str) -> None:
    answered = adapter.use("agentbus_hook", event=event, session_id=session, **fields)
    assert answered == {}


def use(adapter: AdapterProcess, tool_use: str, tool: str, **arguments: Any) -> Any:
    return adapter.use(tool, meta={"claudecode/toolUseId": tool_use}, **arguments)


def names(bus: ThrowAwayBus) -> list[str]:
    with bus.client() as client:
        live = client.request("sessions", {}, 10.0)["sessions"]
    return sorted(one["display_name"] for one in live)


def test_parent_and_two_children_speak_with_their_own_names(
    bus: ThrowAwayBus, claude: AdapterProcess
) -> None:
    for tool_use, child, role in (("t1", "", ""), ("t2", "a", "reviewer"), ("t3", "b", "tester")):
        hook(claude, "PreToolUse", "family", tool_use_id=tool_use, agent_id=child, agent_type=role)
    asked = [claude.call("whoami", meta={"claudecode/toolUseId": f"t{n}"}) for n in (3, 1, 2)]
    answers = {}
    for _ in asked:
        message = claude.receive()
        answers[message["id"]] = message["result"]["structuredContent"]
    tester, sam, reviewer = (answers[request] for request in asked)
    assert (sam["you"], sam.get("child"), sam["identity_source"]) == ("Sam", None, "hook")
    assert (reviewer["child"], reviewer["conversation"]) == ("a", "family")
    assert reviewer["you"].startswith("Sam-reviewer")
    assert tester["you"].startswith("Sam-tester")
    hook(claude, "SubagentStop", "family", agent_id="a", agent_type="reviewer")
    hook(claude, "SubagentStop", "family", agent_id="b", agent_type="")  # a compaction
    eventually(
        lambda: len(names(bus)) == 2 and not any("reviewer" in name for name in names(bus)),
        what="the child's attachment is closed",
    )


def test_a_cleared_conversation_is_a_new_session_with_the_old_name(
    bus: ThrowAwayBus, claude: AdapterProcess
) -> None:
    hook(claude, "PreToolUse", "before-clear", tool_use_id="t1")
    use(claude, "t1", "create_channel", name="cleared", kind="ordinary")
    hook(claude, "PreToolUse", "before-clear", tool_use_id="t2")
    first = use(claude, "t2", "subscribe", channel="cleared")
    with bus.client() as harness:  # its command hook
        ended = {"application": "claude-code", "event": "SessionEnd"}
        harness.request("hook", {**ended, "conversation": "before-clear"}, 10.0)
    hook(claude, "UserPromptSubmit", "after-clear")
    hook(claude, "PreToolUse", "after-clear", tool_use_id="t3")
    second = use(claude, "t3", "whoami")
    assert second["you"] == first["you"]
    assert second["conversation"] == "after-clear"
    assert [row["channel"] for row in second["subscriptions"]] == ["general"]
    hook(claude, "PreToolUse", "before-clear", tool_use_id="t4")
    resumed = use(claude, "t4", "whoami")
    assert [row["channel"] for row in resumed["subscriptions"]] == ["general", "cleared"]


def test_the_environment_is_believed_until_a_hook_speaks(claude: AdapterProcess) -> None:
    doubtful = claude.use("whoami")
    assert doubtful["identity_source"] == "environment"
    assert "agentbus-admin install claude-code" in doubtful["notices"][0]["message"]
    hook(claude, "UserPromptSubmit", "at-start")
    proven = claude.use("whoami")
    assert proven["identity_source"] == "hook"
    assert "notices" not in proven


def test_the_hidden_tool_is_not_listed_and_takes_anything(claude: AdapterProcess) -> None:
    claude.request("tools/list", request_id="tools")
    listed = [tool["name"] for tool in claude.receive()["result"]["tools"]]
    assert "agentbus_hook" not in listed
    for arguments in ({}, {"event": 1}, {"event": "Stop", "session_id": "x" * 500}):
        assert claude.use("agentbus_hook", **arguments) == {}
    assert claude.use("whoami")["you"]


def test_the_daemon_knows_which_hooks_speak(bus: ThrowAwayBus, claude: AdapterProcess) -> None:
    claude.use("whoami")
    hook(claude, "UserPromptSubmit", "spoken")

    def heard() -> set[tuple[str, str]]:
        with bus.client() as client:
            hooks = client.request("status", {}, 10.0)["hooks"]
        return {(one["application"], one["event"]) for one in hooks}

    eventually(lambda: ("claude-code", "UserPromptSubmit") in heard())
