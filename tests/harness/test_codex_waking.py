"""An idle Codex begins a turn when a message arrives, and only then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.bus_fixture import ThrowAwayBus
from tests.harness.command_lines import Adapter
from tests.harness.fake_model import Call
from tests.harness.fake_openai import FakeOpenAI
from tests.harness.installed_codex import InstalledCodex
from tests.harness.terminal import Terminal

pytestmark = [pytest.mark.harness, pytest.mark.timeout(180)]


@pytest.fixture
def codex(bus: ThrowAwayBus, short_folder: Path) -> Iterator[InstalledCodex]:
    with FakeOpenAI() as model:
        codex = InstalledCodex(model, short_folder, Adapter(bus, "Kim"))
        yield codex
        codex.close()


@pytest.mark.parametrize(
    "open_window",
    [InstalledCodex.terminal, InstalledCodex.terminal_with_daemon],
    ids=["one process", "with its daemon"],
)
def test_an_idle_window_is_woken_once_by_each_message_and_by_nothing_else(
    bus: ThrowAwayBus, codex: InstalledCodex, open_window: Callable[[InstalledCodex], Terminal]
) -> None:
    terminal = open_window(codex)
    # What follows words that end a turn is what the model does when it is woken.
    script = codex.model.script(
        *(Call("whoami"), "waiting"),
        *(Call("receive"), "took the first"),
        *(Call("receive"), "took the second"),
    )
    terminal.type_line(script.prompt)
    script.result(0)
    terminal.wait_for("Worked for")  # and its Stop hook has ended
    with bus.attach("Lee") as lee:
        for step, content in ((2, "one"), (4, "two")):
            assert script.answers == step
            since = terminal.mark()
            lee.call("send", channel="general", content=content)
            received = script.result(step)["messages"]
            assert [message["content"] for message in received] == [content]
            script.wait_answers(step + 2)
            terminal.wait_for("Worked for", since)
    assert script.answers == 6
