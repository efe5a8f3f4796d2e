"""Codex as the installer leaves it: every conversation and every subagent is who it is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentbus.limits import ATTACHMENT_EXPIRY_SECONDS
from tests.adapter.adapter_process import AdapterProcess
from tests.bus_fixture import ThrowAwayBus
from tests.harness.command_lines import Adapter
from tests.harness.fake_model import Call, OwnCall
from tests.harness.fake_openai import FakeOpenAI
from tests.harness.installed_codex import InstalledCodex
from tests.harness.processes import adapters
from tests.harness.terminal import ERASE_LINE

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


def test_clear_begins_a_session_while_the_old_one_lingers_and_can_be_resumed(
    bus: ThrowAwayBus, codex: InstalledCodex
) -> None:
    terminal = codex.terminal()
    before = codex.model.script(Call("whoami"), "one is done")
    terminal.type_line(before.prompt)
    old = before.result(0)
    terminal.wait_for("Worked for")
    assert len(adapters(bus)) == 1

    cleared = terminal.mark()
    terminal.type_line("/clear")
    terminal.wait_for("permissions: YOLO mode", cleared)
    after = codex.model.script(Call("whoami"), "two is done")
    terminal.type_line(after.prompt)
    new = after.result(0)
    assert new["conversation"] != old["conversation"]
    assert new["session_id"] != old["session_id"]
    assert new["identity_source"] == "turn_metadata"
    assert len(adapters(bus)) == 2  # Codex keeps the old thread, and so its server
    terminal.wait_for("Worked for", cleared)

    terminal.type_line("/resume")
    terminal.wait_on_screen("1 / 2")  # both have been loaded
    terminal.type_until(old["conversation"], "1 / 1", ERASE_LINE)
    terminal.type("\r")
    resumed = codex.model.script(Call("whoami"), "three is done")
    terminal.type_line(resumed.prompt)
    assert resumed.result(0)["session_id"] == old["session_id"]
    assert resumed.result(0)["conversation"] == old["conversation"]


def test_a_subagent_is_a_child_of_its_root_thread_and_has_a_name_of_its_own(
    codex: InstalledCodex,
) -> None:
    child = codex.model.script(Call("whoami"), "child is done")
    parent = codex.model.script(
        Call("whoami"),
        OwnCall("spawn_agent", {"message": child.prompt}),
        lambda script: child.result(0) and Call("whoami"),
        "done",
    )
    conversation = codex.run(parent).conversation
    root, sub = parent.result(0), child.result(0)
    assert (root["conversation"], root.get("child")) == (conversation, None)
    assert sub["conversation"] == conversation
    assert sub["child"] not in (None, conversation)
    assert sub["session_id"] != root["session_id"]
    assert sub["display_name"] == "Kim-subagent"
    assert sub["identity_source"] == "turn_metadata"


def test_a_resumed_conversation_takes_its_session_from_an_old_server_that_is_idle(
    bus: ThrowAwayBus, codex: InstalledCodex
) -> None:
    fresh = codex.model.script(Call("whoami"), "done")
    first = codex.run(fresh).conversation
    with AdapterProcess(
        bus.environment, bus.config_path, agent="Kim", client_name="codex-mcp-client"
    ) as lingering:
        lingering.initialize()
        old = lingering.use("whoami", meta={"threadId": first, "sessionId": first})
        assert old["session_id"] == fresh.result(0)["session_id"]

        # Each is repeated by the adapter for about as long as the old server has to have been idle.
        resumed = codex.model.script(Call("whoami"), Call("whoami"), "done")
        began_s = time.monotonic()
        codex.run(resumed, "resume", first)
        assert time.monotonic() - began_s > ATTACHMENT_EXPIRY_SECONDS - 10
        new = resumed.result(1)
        assert new["session_id"] == old["session_id"]
        assert new["generation"] > old["generation"]
