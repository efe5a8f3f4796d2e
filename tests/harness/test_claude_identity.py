"""Claude Code with the hooks that the installer writes: every call is whose it is."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bus_fixture import ThrowAwayBus
from tests.harness.command_lines import Adapter, InstalledClaudeCode
from tests.harness.fake_anthropic import FakeAnthropic
from tests.harness.fake_model import Call

pytestmark = [pytest.mark.harness, pytest.mark.timeout(180)]


@pytest.fixture
def claude(bus: ThrowAwayBus, short_folder: Path) -> Iterator[InstalledClaudeCode]:
    with FakeAnthropic() as model:
        claude = InstalledClaudeCode(model, short_folder, Adapter(bus, "Sam"))
        yield claude
        claude.close()


def test_fresh_resumed_continued_and_forked_conversations(claude: InstalledClaudeCode) -> None:
    first = str(uuid.uuid4())
    fresh = claude.model.script(
        Call("create_channel", name="work", kind="ordinary"),
        Call("subscribe", channel="work"),
        Call("whoami"),
        "done",
    )
    assert claude.run(fresh, "--session-id", first).conversation == first
    me = fresh.result(2)
    assert (me["conversation"], me["identity_source"]) == (first, "hook")
    assert (me["you"], me["agent"]) == ("Sam", "Sam")

    for options in (["--resume", first], ["--continue"]):
        again = claude.model.script(Call("whoami"), "done")
        claude.run(again, *options)
        resumed = again.result(0)
        assert (resumed["conversation"], resumed["identity_source"]) == (first, "hook"), options
        assert [row["channel"] for row in resumed["subscriptions"]] == ["general", "work"]

    forked = claude.model.script(Call("whoami"), "done")
    fork = claude.run(forked, "--resume", first, "--fork-session").conversation
    assert fork != first
    other = forked.result(0)
    assert (other["conversation"], other["identity_source"]) == (fork, "hook")
    assert [row["channel"] for row in other["subscriptions"]] == ["general"]
