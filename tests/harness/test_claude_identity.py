"""Claude Code as installed: every call is whose it is, whatever a window goes through.

One process carries many conversations over time and several at once; only hooks tell them apart.
"""

from __future__ import annotations

import os
import signal
import uuid
from typing import Any

import pytest

from tests.bus_fixture import ThrowAwayBus
from tests.eventually import eventually
from tests.harness.fake_model import Call, Script
from tests.harness.installed_claude import InstalledClaudeCode
from tests.harness.peer import Peer
from tests.harness.processes import adapters

pytestmark = [pytest.mark.harness, pytest.mark.timeout(120)]

GONE_WITHIN_S = 20.0
WAIT_S = 30


@pytest.fixture
def claude(installed_claude: InstalledClaudeCode) -> InstalledClaudeCode:
    return installed_claude


@pytest.fixture(autouse=True)
def work(lee: Peer) -> None:
    """A channel that nobody has subscribed."""
    lee.call("create_channel", name="work", kind="ordinary")


def begin(claude: InstalledClaudeCode) -> Script:
    """A conversation that subscribes `work`; its last call tells who it is."""
    return claude.model.script(Call("subscribe", channel="work"), Call("whoami"), "begun")


def look(claude: InstalledClaudeCode) -> Script:
    """Who it is now, what it receives, and that nothing comes twice."""
    return claude.model.script(Call("whoami"), Call("receive"), Call("receive"), "looked")


def assert_is(me: dict[str, Any], conversation: str, name: str = "Sam") -> None:
    assert (me["conversation"], me["identity_source"]) == (conversation, "hook")
    assert (me["you"], me["agent"], me["application"]) == (name, "Sam", "claude-code")
    assert "child" not in me
    assert "notices" not in me


def channels(me: dict[str, Any]) -> list[str]:
    return [row["channel"] for row in me["subscriptions"]]


def received(looked: Script) -> list[str]:
    """Of both calls: a message that came twice is there twice."""
    return [message["content"] for step in (1, 2) for message in looked.result(step)["messages"]]


def names(bus: ThrowAwayBus) -> list[str]:
    """Who is attached, peers apart."""
    with bus.client() as client:
        live = client.request("sessions", {}, 10.0)["sessions"]
    return sorted(name for one in live if not (name := one["display_name"]).startswith("Lee"))


def test_fresh_resumed_continued_and_forked_conversations(
    claude: InstalledClaudeCode, lee: Peer
) -> None:
    first = str(uuid.uuid4())
    fresh = begin(claude)
    assert claude.run(fresh, "--session-id", first).conversation == first
    assert_is(fresh.result(1), first)

    told = []
    for options in (["--resume", first], ["--continue"]):
        lee.send("work", options[0])
        again = look(claude)
        claude.run(again, *options)
        assert_is(again.result(0), first)
        assert channels(again.result(0)) == ["general", "work"]
        assert received(again) == [options[0]]
        told.append(again.context)
    # The hook at the start says nothing where the daemon takes longer than it may.
    assert any("You are Sam there." in context for context in told)
    assert any("1 message waits on work; call receive." in context for context in told)

    lee.send("work", "for the first only")
    forked = look(claude)
    fork = claude.run(forked, "--resume", first, "--fork-session").conversation
    assert fork != first
    assert_is(forked.result(0), fork)
    assert channels(forked.result(0)) == ["general"]
    assert received(forked) == []


def test_a_cleared_conversation_is_a_new_session_and_the_old_one_can_be_resumed(
    bus: ThrowAwayBus, claude: InstalledClaudeCode, lee: Peer
) -> None:
    streamed = claude.converse()
    begun = begin(claude)
    streamed.turn(begun.prompt)
    before = streamed.conversation
    assert_is(begun.result(1), before)
    [adapter] = adapters(bus)

    lee.send("general", "before the end")
    streamed.turn("/clear")
    eventually(lambda: names(bus) == [], GONE_WITHIN_S, what="its end has closed the attachment")
    lee.send("work", "meanwhile")

    cleared = look(claude)
    streamed.turn(cleared.prompt)
    after = streamed.conversation
    assert after != before
    assert_is(cleared.result(0), after)
    assert channels(cleared.result(0)) == ["general"]
    assert received(cleared) == []
    assert list(adapters(bus)) == [adapter]
    assert streamed.end() == 0

    resumed = look(claude)
    claude.run(resumed, "--resume", before)
    assert_is(resumed.result(0), before)
    assert resumed.result(0)["session_id"] == begun.result(1)["session_id"]
    assert received(resumed) == ["before the end", "meanwhile"]


def test_a_window_is_cleared_resumed_and_compacted(
    bus: ThrowAwayBus, claude: InstalledClaudeCode, lee: Peer
) -> None:
    window = claude.terminal()

    def run(script: Script) -> dict[str, Any]:
        window.type_line(script.prompt)
        script.wait_answers(script.steps)
        return script.result(script.steps - 2)

    first = run(begin(claude))
    before = first["conversation"]
    assert_is(first, before)

    window.type_line("/clear")
    eventually(lambda: names(bus) == [], GONE_WITHIN_S, what="its end has closed the attachment")
    lee.send("work", "one")
    cleared = look(claude)
    run(cleared)
    assert cleared.result(0)["conversation"] != before
    assert_is(cleared.result(0), cleared.result(0)["conversation"])
    assert channels(cleared.result(0)) == ["general"]
    assert received(cleared) == []

    window.type_line(f"/resume {before}")
    eventually(lambda: names(bus) == [], GONE_WITHIN_S, what="it has left the cleared one")
    resumed = look(claude)
    run(resumed)
    assert_is(resumed.result(0), before)
    assert resumed.result(0)["session_id"] == first["session_id"]
    assert received(resumed) == ["one"]

    mark = window.mark()
    window.type_line("/compact")
    window.wait_for("Compacted", mark)
    lee.send("work", "two")
    compacted = look(claude)
    run(compacted)
    assert_is(compacted.result(0), before)
    assert compacted.result(0)["generation"] == resumed.result(0)["generation"]
    assert received(compacted) == ["two"]

    window.type_line("/exit")
    assert window.wait_ended() == 0


def test_an_adapter_that_crashed_is_started_again_as_whom_it_was(
    bus: ThrowAwayBus, claude: InstalledClaudeCode, lee: Peer
) -> None:
    streamed = claude.converse()
    begun = begin(claude)
    streamed.turn(begun.prompt)
    streamed.turn("/clear")  # so that the environment of a server would name the wrong one
    again = begin(claude)
    streamed.turn(again.prompt)
    me = again.result(1)

    [crashed] = adapters(bus)
    os.kill(crashed, signal.SIGKILL)
    eventually(lambda: names(bus) == [], GONE_WITHIN_S, what="the daemon has noticed")
    lee.send("work", "meanwhile")

    looked = look(claude)
    streamed.turn(looked.prompt)
    assert_is(looked.result(0), me["conversation"])
    assert looked.result(0)["session_id"] == me["session_id"]
    assert looked.result(0)["generation"] > me["generation"]
    assert received(looked) == ["meanwhile"]
    assert list(adapters(bus)) != [crashed]


def test_a_parent_and_two_children_in_the_background_are_three(
    bus: ThrowAwayBus, claude: InstalledClaudeCode, lee: Peer
) -> None:
    children = [
        claude.model.script(
            Call("whoami"),
            Call("receive", wait_seconds=WAIT_S),
            Call("send", channel="general", content=f"child {n}"),
            "done",
        )
        for n in (1, 2)
    ]
    parent = claude.model.script(
        *(claude.spawn(child) for child in children),
        Call("whoami"),
        Call("receive", wait_seconds=WAIT_S),
        Call("send", channel="general", content="parent"),
        "done",
    )
    streamed = claude.converse()
    streamed.say(parent.prompt)
    sam = parent.result(2)
    assert_is(sam, sam["conversation"])
    family = [child.result(0) for child in children]
    for child in family:
        assert (child["conversation"], child["identity_source"]) == (sam["conversation"], "hook")
        assert child["agent"] == "Sam"
        assert child["you"].startswith("Sam")
        assert child["you"].startswith("Sam-general-purpose"), child
    print(family, sam)
    assert len({one["child"] for one in family}) == 2
    assert len({one["session_id"] for one in (sam, *family)}) == 3
    assert names(bus) == sorted(one["you"] for one in (sam, *family))

    # All three wait at the same time, and each is given the message once.
    lee.send("general", "to all")
    for script, step in ((parent, 3), (children[0], 1), (children[1], 1)):
        first, *_ = script.result(step)["messages"]
        assert first["content"] == "to all"
    sent = {
        "parent": (parent.result(4), sam),
        "child 1": (children[0].result(2), family[0]),
        "child 2": (children[1].result(2), family[1]),
    }
    told = {
        row["content"]: row["sender"]["display_name"]
        for row in lee.call("history", channel="general")["messages"]
    }
    for content, (_, who) in sent.items():
        assert told[content] == who["you"]

    eventually(
        lambda: names(bus) == [sam["you"]], GONE_WITHIN_S, what="the children have left early"
    )
    assert streamed.end() == 0
