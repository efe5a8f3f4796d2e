"""An idle Claude Code, as installed, begins a turn when a message comes, and only then."""

from __future__ import annotations

from typing import Any

import pytest

from tests.bus_fixture import ThrowAwayBus
from tests.eventually import eventually
from tests.harness.fake_model import Call
from tests.harness.installed_claude import InstalledClaudeCode
from tests.harness.peer import Peer
from tests.harness.processes import wait_nothing_left

pytestmark = [pytest.mark.harness, pytest.mark.timeout(120)]

WITHIN_S = 20.0


@pytest.fixture
def claude(installed_claude: InstalledClaudeCode) -> InstalledClaudeCode:
    return installed_claude


def wait_idle(bus: ThrowAwayBus) -> None:
    """Until the hook of the stop has looked, found nothing new, and waits."""

    def waiting() -> bool:
        with bus.client() as client:
            return bool(client.request("status", {}, WITHIN_S)["waits"]["waiting"])

    eventually(waiting, WITHIN_S, what="the hook waits")


def contents(received: dict[str, Any]) -> list[str]:
    return [message["content"] for message in received["messages"]]


def test_an_idle_conversation_is_woken_once_for_each_message(
    bus: ThrowAwayBus, claude: InstalledClaudeCode, lee: Peer
) -> None:
    streamed = claude.converse()
    script = claude.model.script(
        Call("send", channel="general", content="my own wakes nobody, me least of all"),
        "idle",
        Call("receive"),
        "idle again",
        "ignored",  # it stops without a look at what it was woken for
        Call("receive"),
        "idle at last",
    )
    streamed.turn(script.prompt)
    wait_idle(bus)
    assert script.answers == 2

    lee.send("general", "one")
    script.wait_answers(4)
    assert contents(script.result(2)) == ["one"]
    assert "Agentbus: 1 message waits on general; call receive." in script.context
    wait_idle(bus)

    lee.send("general", "two")
    script.wait_answers(5)
    wait_idle(bus)  # it is not woken for the same message again
    assert script.answers == 5

    lee.send("general", "three")
    script.wait_answers(7)
    assert contents(script.result(5)) == ["two", "three"]
    wait_idle(bus)
    assert streamed.end() == 0
    assert script.answers == 7
    wait_nothing_left(bus, WITHIN_S)


def test_an_idle_window_is_woken(bus: ThrowAwayBus, claude: InstalledClaudeCode, lee: Peer) -> None:
    window = claude.terminal()
    script = claude.model.script(Call("whoami"), "idle", Call("receive"), "idle again")
    window.type_line(script.prompt)
    script.wait_answers(2)
    wait_idle(bus)

    lee.send("general", "one")
    script.wait_answers(4)
    assert contents(script.result(2)) == ["one"]
    window.wait_for("Stop hook feedback")
    wait_idle(bus)
    window.hang_up()
    window.wait_ended()
    wait_nothing_left(bus, WITHIN_S)
    assert script.answers == 4


def test_a_resumed_conversation_is_woken_before_it_has_used_the_bus(
    bus: ThrowAwayBus, claude: InstalledClaudeCode, lee: Peer
) -> None:
    before = claude.run(claude.model.script(Call("whoami"), "done")).conversation
    streamed = claude.converse("--resume", before)
    script = claude.model.script("idle", Call("receive"), "idle again")
    streamed.turn(script.prompt)
    wait_idle(bus)
    lee.send("general", "one")
    script.wait_answers(3)
    assert contents(script.result(1)) == ["one"]


def test_a_single_prompt_is_answered_without_waiting_for_messages(
    bus: ThrowAwayBus, claude: InstalledClaudeCode, lee: Peer
) -> None:
    lee.send("general", "before it came")
    script = claude.model.script(
        Call("whoami"), lambda _: _sent(lee), "the answer", "of a turn too many"
    )
    ended = claude.run(script)
    assert '"result":"the answer"' in ended.output
    assert script.answers == 3
    wait_nothing_left(bus, WITHIN_S)


def _sent(lee: Peer) -> Call:
    lee.send("general", "it does not look at this")
    return Call("list_channels")
