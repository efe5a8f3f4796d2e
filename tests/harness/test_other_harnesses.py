"""opencode and Gemini CLI, as the installer leaves them, attach and talk with each other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bus_fixture import ThrowAwayBus
from tests.harness.command_lines import Adapter
from tests.harness.fake_anthropic import FakeAnthropicOfOpencode
from tests.harness.fake_gemini import FakeGemini
from tests.harness.fake_model import Call
from tests.harness.installed_others import Gemini, Opencode
from tests.harness.processes import wait_no_adapter

pytestmark = [pytest.mark.harness, pytest.mark.timeout(180)]

WAIT_S = 40


@pytest.fixture
def opencode(bus: ThrowAwayBus, short_folder: Path) -> Iterator[Opencode]:
    with FakeAnthropicOfOpencode() as model:
        opencode = Opencode(model, short_folder / "o", Adapter(bus, "Alex"))
        yield opencode
        opencode.close()


@pytest.fixture
def gemini(bus: ThrowAwayBus, short_folder: Path) -> Iterator[Gemini]:
    with FakeGemini() as model:
        gemini = Gemini(model, short_folder / "g", Adapter(bus, "Toni"))
        yield gemini
        gemini.close()


def test_opencode_and_gemini_exchange_messages(
    bus: ThrowAwayBus, opencode: Opencode, gemini: Gemini
) -> None:
    asks = opencode.model.script(
        Call("whoami"),
        Call("receive", wait_seconds=WAIT_S),
        Call("send", channel="general", content="8443 \u00e9 \U0001f642"),
        "answered",
    )
    asking = opencode.start(asks)
    alex = asks.result(0)  # attached, so what is sent from now on is delivered to it
    assert (alex["application"], alex["identity_source"]) == ("opencode", "process")
    assert alex["display_name"] == "Alex"

    answers = gemini.model.script(
        Call("send", channel="general", content="which port?"),
        Call("receive", wait_seconds=WAIT_S),
        Call("whoami"),
        "done",
    )
    answering = gemini.start(answers)
    [question] = asks.result(1)["messages"]
    assert question["content"] == "which port?"
    assert question["sender"]["application"] == "gemini"
    [answer] = answers.result(1)["messages"]
    assert answer["content"] == "8443 \u00e9 \U0001f642"
    assert answer["sender"]["display_name"] == "Alex"

    toni = answers.result(2)
    assert (toni["display_name"], toni["identity_source"]) == ("Toni", "hook")
    assert toni["conversation"] == answering.finish().conversation
    asking.finish()
    wait_no_adapter(bus)
