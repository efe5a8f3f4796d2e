"""The real Claude Code and Codex on one bus, with models that follow a script.

Everything but the models is what a user has: the command lines from npm, the installed `agentbus`,
and a daemon that the first adapter starts.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.bus_fixture import ROOT, ThrowAwayBus
from tests.harness.command_lines import ClaudeCode, Codex, CommandLine, Running
from tests.harness.fake_model import Call, Script
from tests.harness.processes import adapters, wait_no_adapter

pytestmark = [pytest.mark.harness, pytest.mark.timeout(120)]

WAIT_S = 30
QUESTION = "Which port does the service listen on? é 日本 🙂"
ANSWER = '8443 \\ "quoted"\nand a second line'


def _answer(script: Script) -> Call:
    """Reply to the message that the step before this one received."""
    question = script.result(1)["messages"][0]
    return Call("send", channel="general", content=ANSWER, reply_to=question["message_id"])


def test_claude_asks_codex_answers_and_claude_receives_the_answer(
    bus: ThrowAwayBus, claude: ClaudeCode, codex: Codex
) -> None:
    assert bus.state() is None, "a daemon runs before any adapter did"
    answers = codex.model.script(
        Call("whoami"), Call("receive", wait_seconds=WAIT_S), _answer, "answered"
    )
    answering = codex.start(answers)
    kim = answers.result(0)  # attached, so what is sent from now on is delivered to it

    asks = claude.model.script(
        Call("whoami"),
        Call("send", channel="general", content=QUESTION),
        Call("receive", wait_seconds=WAIT_S),
        "asked",
    )
    asking = claude.start(asks)

    sam, sent = asks.result(0), asks.result(1)
    [question] = answers.result(1)["messages"]
    assert question["content"] == QUESTION
    assert question["message_id"] == sent["message_id"]
    assert question["sequence"] == sent["sequence"]
    assert question["sender"]["display_name"] == sam["display_name"]
    assert question["sender"]["application"] == "claude-code"

    replied = answers.result(2)
    [answer] = asks.result(2)["messages"]
    assert answer["content"] == ANSWER
    assert answer["message_id"] == replied["message_id"]
    assert answer["reply_to"] == question["message_id"]
    assert answer["sequence"] > question["sequence"]
    assert answer["sender"]["display_name"] == kim["display_name"]
    assert answer["sender"]["application"] == "codex"
    assert "redelivered" not in question
    assert "redelivered" not in answer

    assert json.loads(asking.finish().output)["result"] == "asked"
    assert "answered" in answering.finish().output
    wait_no_adapter(bus)
    assert bus.state() == "ready"


def _claimed(script: Script, step: int) -> str:
    return str(script.result(step)["delivery"]["delivery_id"])


def _accept(script: Script) -> Call:
    """Say that the work which the step before this one claimed is begun."""
    args = {
        "delivery_id": _claimed(script, 1),
        "summary": "Looking it up.",
        "idempotency_key": "port-begun",
    }
    return Call("peer", op="progress", args=args)


def _deliver(script: Script) -> Call:
    args = {"delivery_id": _claimed(script, 1), "body": ANSWER, "idempotency_key": "port-answer"}
    return Call("peer", op="reply", args=args)


def _ask_whom_discover_found(script: Script) -> Call:
    [kim] = script.result(0)["agents"]
    args = {
        "to": [kim["agent_id"]],
        "body": QUESTION,
        "kind": "request",
        "idempotency_key": "port",
    }
    return Call("peer", op="send", args=args)


def _collect(script: Script) -> Call:
    args = {"message_id": script.result(1)["message_id"], "timeout": WAIT_S}
    return Call("peer", op="collect", args=args)


def test_claude_asks_codex_for_work_and_collects_what_codex_replies(
    claude: ClaudeCode, codex: Codex
) -> None:
    works = codex.model.script(
        Call("whoami"),
        Call("peer", op="wait", args={"timeout": WAIT_S}),
        _accept,
        _deliver,
        "worked",
    )
    working = codex.start(works)
    kim = works.result(0)  # attached, so that it is found

    asks = claude.model.script(
        Call("peer", op="discover"), _ask_whom_discover_found, _collect, "asked"
    )
    asking = claude.start(asks)

    [found] = asks.result(0)["agents"]
    assert (found["agent_id"], found["state"]) == (kim["agent_id"], "ready")
    assert [session["runtime"] for session in found["sessions"]] == ["codex"]
    sent = asks.result(1)
    claimed = works.result(1)["delivery"]
    assert claimed["envelope"]["body"] == QUESTION
    assert claimed["envelope"]["id"] == sent["message_id"]
    assert claimed["envelope"]["from"]["agent"] == "Sam"
    assert works.result(2)["status"] == "leased"
    replied = works.result(3)
    assert replied["acked"] == claimed["delivery_id"]

    collected = asks.result(2)
    assert collected["outcome"] == "complete"
    [answer] = collected["answers"]
    assert (answer["recipient"], answer["body"]) == ("Kim", ANSWER)
    assert answer["message_id"] == replied["message_id"]
    assert answer["late"] is False

    assert json.loads(asking.finish().output)["result"] == "asked"
    assert "worked" in working.finish().output


def test_whoami_in_claude_names_the_session_that_claude_was_given(claude: ClaudeCode) -> None:
    conversation = str(uuid.uuid4())
    script = claude.model.script(Call("whoami"), "done")
    ended = claude.run(script, "--session-id", conversation)

    me = script.result(0)
    assert ended.conversation == conversation
    assert me["conversation"] == conversation
    assert me["identity_source"] == "environment"
    assert me["application"] == "claude-code"
    assert (me["agent"], me["display_name"]) == ("Sam", "Sam")
    assert [notice["kind"] for notice in me["notices"]] == ["identity"]  # it may become wrong


def test_whoami_in_codex_names_its_thread(codex: Codex) -> None:
    script = codex.model.script(Call("whoami"), "done")
    ended = codex.run(script)

    me = script.result(0)
    assert me["conversation"] == ended.conversation
    assert me["identity_source"] == "turn_metadata"
    assert me["application"] == "codex"
    assert (me["agent"], me["display_name"]) == ("Kim", "Kim")
    assert "notices" not in me


def test_two_conversations_of_one_agent_are_two_sessions(claude: ClaudeCode) -> None:
    seen = []
    for _ in range(2):
        script = claude.model.script(Call("whoami"), "done")
        claude.run(script)
        seen.append(script.result(0))
    first, second = seen
    assert first["session_id"] != second["session_id"]
    assert first["conversation"] != second["conversation"]
    assert first["agent_id"] == second["agent_id"]


@pytest.fixture(params=["claude", "codex"])
def command_line(request: pytest.FixtureRequest) -> CommandLine:
    """Each of the two in turn."""
    chosen = request.getfixturevalue(request.param)
    assert isinstance(chosen, CommandLine)
    return chosen


def _resume(command_line: CommandLine, conversation: str) -> tuple[str, str]:
    return ("--resume" if isinstance(command_line, ClaudeCode) else "resume", conversation)


def test_a_resumed_conversation_keeps_its_session(command_line: CommandLine) -> None:
    before = command_line.model.script(Call("whoami"), "done")
    conversation = command_line.run(before).conversation
    after = command_line.model.script(Call("whoami"), "done")
    assert command_line.run(after, *_resume(command_line, conversation)).conversation == (
        conversation
    )

    was, is_ = before.result(0), after.result(0)
    for key in ("session_id", "conversation", "agent_id", "display_name"):
        assert is_[key] == was[key], key
    assert is_["generation"] > was["generation"]


def test_a_resumed_conversation_receives_what_it_had_not_been_handed_and_only_that(
    bus: ThrowAwayBus, command_line: CommandLine
) -> None:
    first = command_line.model.script(Call("whoami"), "done")
    conversation = command_line.run(first).conversation
    resume = _resume(command_line, conversation)

    with bus.attach("Lee") as lee:
        for content in ("one", "two"):
            lee.call("send", channel="general", content=content)
        # The call after the receive confirms what the receive handed over.
        second = command_line.model.script(Call("receive"), Call("whoami"), "done")
        command_line.run(second, *resume)
        assert _contents(second.result(0)) == [("one", False), ("two", False)]

        lee.call("send", channel="general", content="three")
        third = command_line.model.script(Call("receive"), "done")
        command_line.run(third, *resume)
        assert _contents(third.result(0)) == [("three", False)]


def test_a_resumed_conversation_sees_again_what_it_had_not_confirmed_and_it_is_marked(
    bus: ThrowAwayBus, command_line: CommandLine
) -> None:
    first = command_line.model.script(Call("whoami"), "done")
    conversation = command_line.run(first).conversation
    resume = _resume(command_line, conversation)

    with bus.attach("Lee") as lee:
        lee.call("send", channel="general", content="one")
        second = command_line.model.script(Call("receive"), "done")
        command_line.run(second, *resume)  # ends without another call
        lee.call("send", channel="general", content="two")

    third = command_line.model.script(Call("receive"), Call("receive"), "done")
    command_line.run(third, *resume)
    assert _contents(second.result(0)) == [("one", False)]
    assert _contents(third.result(0)) + _contents(third.result(1)) == [
        ("one", True),
        ("two", False),
    ]


def _contents(received: dict[str, Any]) -> list[tuple[str, bool]]:
    return [
        (message["content"], message.get("redelivered", False)) for message in received["messages"]
    ]


@pytest.mark.parametrize("kill", [Running.kill, Running.kill_group], ids=["alone", "group"])
def test_a_killed_command_line_leaves_no_adapter_and_the_daemon_goes_on(
    bus: ThrowAwayBus, command_line: CommandLine, kill: Callable[[Running], None]
) -> None:
    script = command_line.model.script(
        Call("whoami"), Call("receive", wait_seconds=WAIT_S), "never said"
    )
    running = command_line.start(script)
    script.result(0)
    daemon = bus.client().request("status", {}, 10.0)["pid"]
    [adapter] = adapters(bus)
    assert os.getpgid(daemon) not in (running.group, os.getpgid(adapter))
    assert os.getsid(daemon) not in (os.getsid(running.group), os.getsid(adapter))

    kill(running)

    wait_no_adapter(bus)
    with suppress(ProcessLookupError):  # nobody left in it
        os.killpg(running.group, signal.SIGKILL)
    assert bus.state() == "ready"
    assert bus.client().request("status", {}, 10.0)["pid"] == daemon


def _methods(log: Path) -> list[str]:
    return [message["method"] for message in _messages(log) if "method" in message]


def _messages(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_bytes().splitlines()]


def _record(command_line: CommandLine, *options: str) -> Path:
    """Put a recorder between the command line and its adapter."""
    log = command_line.folder / "sent.jsonl"
    recorder = ROOT / "tests" / "harness" / "wire_recorder.py"
    command_line.adapter = replace(
        command_line.adapter, before=(sys.executable, str(recorder), *options, str(log))
    )
    return log


def test_claude_speaks_the_era_without_initialize(claude: ClaudeCode) -> None:
    log = _record(claude)
    script = claude.model.script(Call("send", channel="general", content="hello"), "done")
    claude.run(script)

    assert script.result(0)["sequence"] >= 1
    methods = _methods(log)
    assert methods[0] == "server/discover"
    assert "initialize" not in methods
    [call] = [message for message in _messages(log) if message.get("method") == "tools/call"]
    version = call["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"]
    assert version == "2026-07-28"


def test_claude_works_in_the_era_of_initialize_too(claude: ClaudeCode) -> None:
    log = _record(claude, "--refuse-discover")
    script = claude.model.script(
        Call("send", channel="general", content="hello"), Call("whoami"), "done"
    )
    ended = claude.run(script)

    assert script.result(0)["sequence"] >= 1
    assert script.result(1)["conversation"] == ended.conversation
    assert script.result(1)["application"] == "claude-code"
    assert _methods(log)[:3] == ["server/discover", "initialize", "notifications/initialized"]


def test_codex_speaks_the_era_of_initialize(codex: Codex) -> None:
    log = _record(codex)
    script = codex.model.script(Call("send", channel="general", content="hello"), "done")
    codex.run(script)

    assert script.result(0)["sequence"] >= 1
    assert _methods(log)[:2] == ["initialize", "notifications/initialized"]
    assert _messages(log)[0]["params"]["protocolVersion"] == "2025-06-18"


def test_a_refused_call_tells_the_model_what_to_do(command_line: CommandLine) -> None:
    script = command_line.model.script(
        Call("send", channel="nowhere", content="hello"), Call("receive", count=0), "done"
    )
    command_line.run(script)
    unknown, invalid = script.result(0)["error"], script.result(1)["error"]
    assert (unknown["code"], unknown["retryable"]) == ("not_found", False)
    assert "nowhere" in unknown["message"]
    assert (invalid["code"], invalid["retryable"]) == ("validation", False)
    assert "count" in invalid["message"]
