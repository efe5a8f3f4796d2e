"""The registry of served instances: who is in it, how one leaves it, and who may use a name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from actors.base import FutureReply
from actors.messages import TalkAsked
from actors.talk_registry import PROOF_SECONDS, PROOFS, Conversation, TalkRegistry
from agentbus.envelope import Recipient
from agentbus.errors import ConflictError, NotFoundError, UnavailableError
from agentbus.ids import AgentId, SessionId
from agentbus.limits import ATTACHMENT_EXPIRY_SECONDS
from agentbus.protocol.talk import (
    TalkAsk,
    TalkCaller,
    TalkFind,
    TalkGone,
    TalkList,
    TalkRequest,
    TalkResult,
    TalkServe,
)
from tests.actors.stage import RecordingLink
from tests.clock import FakeClock
from tests.probe import Probe

WORKER = TalkServe("worker", 4000, 100, "mark", "agentbus", "secret")


class Desk:
    """A registry; `agents` has each agent's live conversations. The test plays the talk desk."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.agents: dict[str, list[Conversation]] = {}
        self.desk = Probe()
        self.registry = TalkRegistry(
            clock, lambda agent: self.agents.get(agent, []), self.desk.address
        )
        self.link = RecordingLink(clock.monotonic_s())

    def ask(
        self, request: TalkRequest, link: RecordingLink | None = None, pid: int | None = 1
    ) -> dict[str, Any]:
        reply = FutureReply()
        self.registry.take(TalkAsked(request, link or self.link, pid, reply))
        answer: dict[str, Any] = reply.get(0.0)
        return answer

    def hand_on(self, request: TalkRequest, link: RecordingLink | None = None) -> Any:
        """What the talk desk is told of a request that it has to answer."""
        reply = FutureReply()
        self.registry.take(TalkAsked(request, link or self.link, 1, reply))
        return self.desk.expect(object)

    def is_served(self, instance: str = "worker") -> bool:
        shown = [entry["instance"] for entry in self.ask(TalkList())["instances"]]
        return instance in shown

    def proof(self, caller: str, *pids: int, pid: int | None = 1) -> Any:
        return self.ask(TalkFind("worker", caller, pids), pid=pid)["session"]

    def may_be(self, instance: str, session: str | None) -> Any:
        return self.ask(TalkCaller(instance, session))["may_be"]

    def live(self, agent: str, session: str, *pids: int) -> None:
        """A conversation of the agent begins."""
        conversation = Conversation(AgentId(f"id of {agent}"), SessionId(session), frozenset(pids))
        self.agents.setdefault(agent, []).append(conversation)


@pytest.fixture
def desk(clock: FakeClock) -> Iterator[Desk]:
    desk = Desk(clock)
    desk.ask(WORKER)
    yield desk
    desk.desk.stop()


def test_instance_is_found_with_its_secret_and_listed_without(desk: Desk) -> None:
    found = desk.ask(TalkFind("worker", "reviewer", ()))
    assert found == {
        "port": 4000,
        "pid": 100,
        "started": "mark",
        "kind": "agentbus",
        "secret": "secret",
        "session": None,
    }
    (shown,) = desk.ask(TalkList())["instances"]
    assert shown.keys() == {"instance", "port", "pid", "started", "kind", "updated_at"}


def test_what_nobody_serves_is_not_found(desk: Desk) -> None:
    with pytest.raises(NotFoundError, match="nobody serves other"):
        desk.ask(TalkFind("other", "reviewer", ()))


def test_sign_of_life_renews_the_entry(desk: Desk) -> None:
    desk.clock.advance(5.0)
    desk.ask(replace(WORKER, port=4001))
    assert desk.ask(TalkFind("worker", "reviewer", ()))["port"] == 4001


def test_name_in_use_is_refused_to_another_process(desk: Desk) -> None:
    other = RecordingLink(desk.clock.monotonic_s())
    with pytest.raises(ConflictError, match="process 100 on port 4000"):
        desk.ask(replace(WORKER, pid=101), other)
    desk.link.close("its process ended")
    desk.ask(replace(WORKER, pid=101), other)


def test_entry_ends_with_its_connection(desk: Desk) -> None:
    desk.registry.disconnected(RecordingLink())
    assert desk.is_served()
    desk.registry.disconnected(desk.link)
    assert not desk.is_served()


def test_silent_process_is_no_longer_found(desk: Desk) -> None:
    desk.clock.advance(ATTACHMENT_EXPIRY_SECONDS)
    assert desk.is_served()
    desk.clock.advance(0.1)
    assert not desk.is_served()


def test_only_the_process_that_did_not_answer_is_forgotten(desk: Desk) -> None:
    desk.ask(TalkGone("worker", 99))
    desk.ask(TalkGone("other", 100))
    assert desk.is_served()
    desk.ask(TalkGone("worker", 100))
    assert not desk.is_served()
    desk.ask(WORKER)
    assert desk.is_served(), "it lives after all and has said so"


def test_free_name_needs_no_proof(desk: Desk) -> None:
    assert desk.may_be("reviewer", None) is True
    assert desk.may_be("reviewer", "nonsense") is True


def test_served_name_needs_the_proof_of_its_holder(desk: Desk) -> None:
    assert desk.may_be("worker", None) is False
    assert desk.may_be("worker", "nonsense") is False
    desk.ask(replace(WORKER, instance="other", pid=200))
    other = desk.proof("other", 7, 200)
    assert desk.may_be("other", other) is True
    assert desk.may_be("worker", other) is False


def test_process_that_serves_a_name_and_what_it_started_hold_it(desk: Desk) -> None:
    assert desk.proof("worker", 5, 6) is None
    assert desk.may_be("worker", desk.proof("worker", 5, 100)) is True
    assert desk.may_be("worker", desk.proof("worker", pid=100)) is True
    assert desk.proof("worker", pid=None) is None


def test_live_conversation_of_the_agent_holds_its_name_and_asks_from_what_it_works_on(
    desk: Desk,
) -> None:
    desk.live("worker", "s1", 300, 301)
    desk.live("worker", "s2", 301)
    desk.live("worker", "s3", 302)
    told = desk.hand_on(TalkCaller("worker", desk.proof("worker", 301)))
    assert told.sessions == ("s1", "s2")
    # A name that nobody serves is anybody's, but who proves to be a conversation is known.
    desk.live("reviewer", "s4", 400)
    assert desk.may_be("reviewer", None) is True
    assert desk.hand_on(TalkCaller("reviewer", desk.proof("reviewer", 400))).sessions == ("s4",)


def test_question_goes_to_the_agent_that_is_there(desk: Desk) -> None:
    ask = TalkAsk("worker", "talk:reviewer", "Verified?", 1, "k", "d", 1000)
    told = desk.hand_on(ask)
    assert (told.ask, told.recipient, told.link) == (ask, None, desk.link)
    desk.live("worker", "s1", 300)
    assert desk.hand_on(ask).recipient == Recipient("worker", AgentId("id of worker"))


def test_question_is_taken_from_the_connection_that_serves_alone(desk: Desk) -> None:
    ask = TalkAsk("worker", "talk:reviewer", "Verified?", 1, "k", "d", 1000)
    for request, link in ((ask, RecordingLink()), (replace(ask, instance="other"), desk.link)):
        with pytest.raises(UnavailableError, match="not served by this connection"):
            desk.ask(request, link)


def test_result_is_asked_of_the_desk(desk: Desk) -> None:
    assert desk.hand_on(TalkResult("m"), RecordingLink()).message_id == "m"


def test_proof_ends_after_its_time(desk: Desk) -> None:
    proof = desk.proof("worker", 100)
    desk.clock.advance(PROOF_SECONDS - 0.1)
    desk.link.last_seen_s = desk.clock.monotonic_s()
    assert desk.may_be("worker", proof) is True
    desk.clock.advance(0.2)
    assert desk.may_be("worker", proof) is False


def test_only_so_many_proofs_are_kept(desk: Desk) -> None:
    first, second = desk.proof("worker", 100), desk.proof("worker", 100)
    for _ in range(PROOFS - 1):
        desk.proof("worker", 100)
    assert desk.may_be("worker", first) is False
    assert desk.may_be("worker", second) is True
