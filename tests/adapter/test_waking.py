"""An idle conversation is woken by its harness's own command, once, for what is new."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentbus.adapter.binding import Binder
from agentbus.adapter.waking import WAKE_TEXT, polling_hint
from tests.adapter.adapter_process import AdapterProcess
from tests.bus_fixture import ThrowAwayBus
from tests.eventually import eventually
from tests.redis_fixture import executable_script

THREAD = {"threadId": "t1", "sessionId": "t1"}


class Codex:
    """An adapter as Codex starts it, and a `codex` that writes down what it is told."""

    def __init__(self, bus: ThrowAwayBus, folder: Path) -> None:
        self.bus = bus
        self.log = folder / "queued"
        executable_script(folder, f'echo "$@" >> {self.log}', "codex")
        path = f"{folder}:{os.environ['PATH']}"
        self.adapter = AdapterProcess(
            bus.environment,
            bus.config_path,
            agent="Rob",
            client_name="codex-mcp-client",
            extra_environment={"PATH": path},
        )
        self.adapter.initialize()

    def use(self, tool: str, **arguments: Any) -> Any:
        return self.adapter.use(tool, meta=THREAD, **arguments)

    def hook(self, event: str, **changes: Any) -> None:
        told = {"application": "codex", "event": event, "conversation": "t1"}
        with self.bus.client() as client:
            client.request("hook", {**told, "harness_pid": os.getpid(), **changes}, 10.0)

    def queued(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def wait_arrived(self, count: int) -> None:
        """Until so many wait in the adapter: what is sent is there a moment after its receipt."""
        eventually(lambda: self.use("whoami")["pending"] == count, what="all is here")

    def receive_all(self, count: int) -> None:
        self.wait_arrived(count)
        assert len(self.use("receive")["messages"]) == count


@pytest.fixture
def codex(tmp_path: Path) -> Iterator[Codex]:
    with ThrowAwayBus() as bus:
        codex = Codex(bus, tmp_path)
        yield codex
        codex.adapter.close()


def test_a_stopped_conversation_is_woken_once_and_armed_by_its_next_stop(codex: Codex) -> None:
    codex.use("receive")
    kim = codex.bus.attach("Kim")
    kim.call("send", channel="general", content="while it works")
    codex.receive_all(1)
    assert codex.queued() == []
    codex.hook("Stop")
    kim.call("send", channel="general", content="--flag; $(touch pwned)")
    eventually(lambda: len(codex.queued()) == 1, what="woken")
    kim.call("send", channel="general", content="more")
    assert codex.queued() == [f"queue --thread t1 --message {WAKE_TEXT}"]
    codex.receive_all(2)
    codex.hook("Stop")
    kim.call("send", channel="general", content="again")
    eventually(lambda: len(codex.queued()) == 2, what="woken again")


def test_a_prompt_a_childs_stop_and_another_process_wake_nobody(codex: Codex) -> None:
    codex.use("receive")
    kim = codex.bus.attach("Kim")
    codex.hook("Stop", child="child-1")
    codex.hook("Stop", harness_pid=1)
    codex.hook("Stop", conversation="t2")
    kim.call("send", channel="general", content="one")
    codex.wait_arrived(1)
    codex.hook("Stop")
    codex.hook("UserPromptSubmit")
    kim.call("send", channel="general", content="two")
    codex.wait_arrived(2)
    codex.hook("Stop")  # both wait already: that is for the Stop hook to say
    kim.call("send", channel="general", content="three")
    eventually(lambda: len(codex.queued()) == 1, what="woken by what is new")


def test_a_command_that_fails_or_is_missing_is_nobodys_trouble(
    codex: Codex, tmp_path: Path
) -> None:
    codex.use("receive")
    kim = codex.bus.attach("Kim")
    executable_script(tmp_path, f"echo failed >> {codex.log}; exit 3", "codex")
    codex.hook("Stop")
    kim.call("send", channel="general", content="one")
    eventually(lambda: codex.queued() == ["failed"], what="woken")
    (tmp_path / "codex").unlink()
    codex.hook("Stop")
    kim.call("send", channel="general", content="two")
    codex.receive_all(2)


@pytest.mark.parametrize(
    ("client_name", "meta", "may_wait"),
    [
        ("claude-code", {}, True),
        ("codex-mcp-client", THREAD, True),
        ("codex-mcp-client", {**THREAD, "threadId": "child"}, False),
        ("gemini-cli-mcp-client", {}, True),
        ("opencode", {}, True),
        ("somebody", {}, False),
    ],
)
def test_only_who_has_a_shell_and_a_conversation_of_its_own_is_told_to_wait_with_a_command(
    client_name: str, meta: dict[str, str], may_wait: bool
) -> None:
    caller = Binder(None, {}).caller(client_name, meta)
    command = f"`agentbus wait --session {caller.binding.identity.conversation}`"
    assert (command in polling_hint(caller)) == may_wait
