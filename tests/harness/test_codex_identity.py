"""Codex as the installer leaves it: every conversation and every subagent is who it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bus_fixture import ThrowAwayBus
from tests.harness.command_lines import Adapter
from tests.harness.fake_model import Call
from tests.harness.fake_openai import FakeOpenAI
from tests.harness.installed_codex import InstalledCodex

pytestmark = [pytest.mark.harness, pytest.mark.timeout(180)]


@pytest.fixture
def codex(bus: ThrowAwayBus, short_folder: Path) -> Iterator[InstalledCodex]:
    with FakeOpenAI() as model:
        codex = InstalledCodex(model, short_folder, Adapter(bus, "Kim"))
        yield codex
        codex.close()


def test_a_fork_is_a_new_session_and_a_resumed_conversation_the_old_one(
    codex: InstalledCodex,
) -> None:
    fresh = codex.model.script(
        Call("create_channel", name="work", kind="ordinary"),
        Call("subscribe", channel="work"),
        Call("whoami"),
        "done",
    )
    first = codex.run(fresh).conversation
    me = fresh.result(2)
    assert (me["conversation"], me["identity_source"]) == (first, "turn_metadata")

    again = codex.model.script(Call("whoami"), "done")
    assert codex.run(again, "resume", first).conversation == first
    assert again.result(0)["session_id"] == me["session_id"]
    assert [row["channel"] for row in again.result(0)["subscriptions"]] == ["general", "work"]

    forked = codex.model.script(Call("whoami"), "done")
    fork = codex.run(forked, "fork", first).conversation
    assert fork != first
    assert forked.result(0)["conversation"] == fork
    assert [row["channel"] for row in forked.result(0)["subscriptions"]] == ["general"]
