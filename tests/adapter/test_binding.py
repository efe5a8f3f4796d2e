"""From the evidence of a call to an identity."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

import pytest

from agentbus.adapter.binding import Binder, agent_name, checked_capabilities, repository_hint
from agentbus.errors import ValidationError
from agentbus.identity import SessionIdentity

CLAUDE_ENV = {"CLAUDE_CODE_SESSION_ID": "claude-1"}


def codex_meta(thread: str, session: str, **turn: Any) -> dict[str, Any]:
    return {
        "threadId": thread,
        "sessionId": session,
        "callId": "call-1",
        "x-codex-turn-metadata": {"thread_id": thread, "session_id": session, **turn},
    }


def test_codex_turn_metadata_names_the_conversation() -> None:
    binding = Binder(None, {}).caller("codex-mcp-client", codex_meta("t1", "t1")).binding
    assert binding.identity == SessionIdentity("codex", "t1")
    assert binding.source == "turn_metadata"
    assert binding.caution is None


def test_a_codex_child_is_bound_to_its_root_and_parent() -> None:
    meta = codex_meta("child", "root", parent_thread_id="parent", subagent_kind="thread_spawn")
    binding = Binder(None, {}).caller("codex-mcp-client", meta).binding
    assert binding.identity == SessionIdentity("codex", "root", "child")
    assert (binding.parent_conversation, binding.role) == ("parent", "subagent")


def test_codex_metadata_may_be_only_in_the_turn_or_be_encoded() -> None:
    binder = Binder(None, {})
    turn = {"x-codex-turn-metadata": '{"thread_id":"t","session_id":"s"}'}
    assert binder.caller("codex-mcp-client", turn).binding.identity.child == "t"


@pytest.mark.parametrize(
    "meta",
    [{}, {"threadId": 7}, {"threadId": ""}, {"x-codex-turn-metadata": "{"}, {"sessionId": "only"}],
)
def test_codex_metadata_that_names_no_thread_proves_nothing(meta: dict[str, Any]) -> None:
    assert Binder(None, {}).caller("codex-mcp-client", meta).binding.source == "process"


def test_turn_metadata_goes_before_the_argument() -> None:
    binder = Binder("given", CLAUDE_ENV)
    assert binder.caller("codex-mcp-client", codex_meta("t", "t")).binding.source == "turn_metadata"
    assert binder.caller("claude-code", {}).binding.source == "argument"


def test_claude_code_is_bound_by_its_environment_with_a_caution() -> None:
    binding = Binder(None, CLAUDE_ENV).caller("claude-code", {}).binding
    assert binding.identity == SessionIdentity("claude-code", "claude-1")
    assert binding.source == "environment"
    assert binding.caution is not None
    assert "/clear" in binding.caution


def test_the_environment_of_one_harness_does_not_name_the_conversation_of_another() -> None:
    # A Codex or a generic client that was started from within a Claude Code session.
    assert Binder(None, CLAUDE_ENV).caller("codex-mcp-client", {}).binding.source == "process"


def test_without_evidence_the_process_is_the_conversation_always_the_same() -> None:
    binder = Binder(None, {})
    first = binder.caller("opencode", {}).binding
    assert first.source == "process"
    assert first == binder.caller("opencode", {}).binding
    assert first.identity != Binder(None, {}).caller("opencode", {}).binding.identity
    assert first.identity.application == "opencode"


def test_a_client_without_a_name_is_still_served() -> None:
    assert Binder(None, {}).caller(None, {}).binding.identity.application == "unknown"


def test_an_id_that_cannot_be_one_is_refused_readably() -> None:
    with pytest.raises(ValidationError, match="--session must be 1 to 128 bytes"):
        Binder("", {})
    with pytest.raises(ValidationError, match="the conversation id"):
        Binder(None, {}).caller("codex-mcp-client", codex_meta("x" * 200, "x" * 200))


def test_ceilings_follow_the_client_and_its_model() -> None:
    binder = Binder(None, {})
    assert binder.caller("claude-code", {}).result_characters == 40_000
    known = codex_meta("t", "t", model="gpt-5.5")
    assert binder.caller("codex-mcp-client", known).result_characters == 40_000
    unknown = codex_meta("t", "t", model="some-model")
    assert binder.caller("codex-mcp-client", unknown).result_characters == 10_000
    assert binder.caller("codex-mcp-client", codex_meta("t", "t")).result_characters == 10_000
    assert binder.caller("whatever", {}).result_characters == 10_000


def test_waits_end_before_the_client_gives_up() -> None:
    binder = Binder(None, {})
    assert binder.caller("whatever", {}).wait_seconds == 50
    assert binder.caller("codex-mcp-client", {}).wait_seconds == 290
    assert binder.caller("claude-code", {}).wait_seconds > 300


def test_an_agent_is_called_as_given_or_as_its_folder() -> None:
    assert agent_name("Sam", Path("/code/tmi")) == "Sam"
    assert agent_name(None, Path("/code/tmi")) == "tmi"
    assert agent_name(None, Path("/")) == "agent"
    with pytest.raises(ValidationError, match="--agent"):
        agent_name("a\nb", Path("/code"))


def test_a_folder_name_is_made_fit_for_a_name() -> None:
    decomposed = unicodedata.normalize("NFD", "bücher")
    assert agent_name(None, Path("/x") / decomposed) == "bücher"
    long = agent_name(None, Path("/x") / ("ü" * 100))
    assert long == "ü" * 64
    assert agent_name(None, Path("/x/a\nb")) == "ab"
    assert agent_name(None, Path("/x/a\udcffb")) == "a?b"


def test_nobody_is_called_like_a_person_a_caller_or_an_inbox() -> None:
    for name in ("human:ada", "human:", "Human: ada", "talk:ada", "\uff20Sam", "@Sam", "@"):
        with pytest.raises(ValidationError, match="--agent must not begin with human: or talk: or"):
            agent_name(name, Path("/code"))
    assert agent_name(None, Path("/x/@human:@talk:ada")) == "ada"
    assert agent_name(None, Path("/x/\uff20 Human\uff1a ada")) == "ada"
    assert agent_name(None, Path("/x/@")) == "agent"
    assert agent_name("humane", Path("/code")) == "humane"


def test_capabilities_are_sorted_and_each_named_once() -> None:
    assert checked_capabilities(["review", "tests", "review"]) == ("review", "tests")
    assert checked_capabilities(["x" * 80, "y"]) == ("x" * 80, "y")
    fifty = [f"skill-{number}" for number in range(50)]
    assert len(checked_capabilities([*fifty, "skill-1"])) == 50
    for wrong in ([*fifty, "one more"], ["x" * 81], [""], ["a\x07b"]):
        with pytest.raises(ValidationError, match="--capability"):
            checked_capabilities(wrong)


def test_the_repository_is_the_folder_with_git_in_it(tmp_path: Path) -> None:
    root = tmp_path / "tmi"
    (root / ".git").mkdir(parents=True)
    (root / "src" / "deep").mkdir(parents=True)
    assert repository_hint(root / "src" / "deep") == "tmi"
    assert repository_hint(root) == "tmi"


def test_a_linked_worktree_is_called_as_its_repository(tmp_path: Path) -> None:
    worktree = tmp_path / "feature"
    worktree.mkdir()
    (worktree / ".git").write_text(f"gitdir: {tmp_path}/tmi/.git/worktrees/feature\n")
    assert repository_hint(worktree) == "tmi"
    (worktree / ".git").write_bytes(b"\xff\xfe")
    assert repository_hint(worktree) == "feature"
