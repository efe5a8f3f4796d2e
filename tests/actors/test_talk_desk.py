"""Questions over talk on a real ledger with real inboxes: sent, answered, repeated, given up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors.base import FutureReply, start_actor, stop_actor
from actors.messages import ReadinessChanged
from actors.talk_desk import TalkDeskActor, TalkNeighbours
from actors.talk_desk_messages import DelegationAsked, DepthAsked, ResultAsked
from agentbus.envelope import Recipient
from agentbus.errors import ConflictError, NotFoundError, TooLargeError, UnavailableError
from agentbus.ids import RecoveryEpoch, SessionId
from agentbus.limits import CONSULTATION_REQUESTS
from agentbus.protocol.talk import TalkAsk
from agentbus.store.peer.delegations import DelegationReader
from tests.actors.post import WITHIN_S, PostOffice, post_office
from tests.actors.stage import RecordingLink
from tests.eventually import eventually
from tests.probe import settle
from tests.store.peers import Peer, deliveries

ASK = TalkAsk("Kim", "talk:Sam", "Verified?", 1, "k1", "d1", 60_000)


class Desk:
    """The desk under test; the test plays the registrar, the servers and the agents."""

    def __init__(self, post: PostOffice) -> None:
        self.post = post
        self.link = RecordingLink()
        neighbours = TalkNeighbours(post.ledger, post.inboxes, post.timer, dict)
        self.actor = TalkDeskActor(lambda: DelegationReader(post.path), neighbours, post.clock)
        self.address = start_actor(self.actor)

    def ask(self, ask: TalkAsk, agent: Peer | None) -> FutureReply:
        recipient = None if agent is None else Recipient(agent.agent, agent.agent_id)
        reply = FutureReply()
        self.address.tell(DelegationAsked(ask, recipient, self.link, reply))
        return reply

    def sent(self, ask: TalkAsk, agent: Peer | None) -> str:
        """The id of the message that it has become."""
        message_id: str = self.ask(ask, agent).get(WITHIN_S)["message_id"]
        settle(self.address)
        return message_id

    def told(self, delegation_id: str = "d1") -> dict[str, Any]:
        """What the server hears in the end."""

        def found() -> list[dict[str, Any]]:
            frames = self.link.frames
            outcomes = [frame["params"] for frame in frames if frame["method"] == "talk_answered"]
            return [one for one in outcomes if one["delegation_id"] == delegation_id]

        (outcome,) = eventually(found, what=f"the outcome of {delegation_id}")
        return outcome

    def nothing_is_told(self) -> None:
        self.post.settle()
        settle(self.address)
        assert not self.link.frames

    def result(self, message_id: str) -> Any:
        reply = FutureReply()
        self.address.tell(ResultAsked(message_id, reply))
        return reply.get(WITHIN_S)

    def depth(self, *sessions: SessionId) -> Any:
        reply = FutureReply()
        self.address.tell(DepthAsked(sessions, reply))
        return reply.get(WITHIN_S)["depth"]


@pytest.fixture
def desk(post: PostOffice) -> Iterator[Desk]:
    desk = Desk(post)
    yield desk
    stop_actor(desk.address, WITHIN_S)


def test_question_is_a_request_and_its_first_answer_is_told(
    desk: Desk, post: PostOffice, kim: Peer
) -> None:
    message_id = desk.sent(replace(ASK, depth=2), kim)
    desk.nothing_is_told()
    delivery = post.claim(kim)
    envelope = delivery["envelope"]
    assert (envelope["id"], envelope["body"]) == (message_id, "Verified?")
    assert (envelope["kind"], envelope["depth"]) == ("request", 2)
    assert envelope["from"]["agent"] == "talk:Sam"
    kim.do("reply", delivery["delivery_id"], body="Nearly.", ack=False)
    answered = {"message_id": message_id, "state": "answered", "text": "Nearly."}
    assert desk.told() == {"delegation_id": "d1", **answered}
    kim.do("reply", delivery["delivery_id"], body="Now.")
    assert desk.result(message_id) == answered


def test_agent_that_is_not_there_is_not_asked(desk: Desk, post: PostOffice, kim: Peer) -> None:
    with pytest.raises(NotFoundError, match="no session of Kim is attached"):
        desk.ask(ASK, None).get(WITHIN_S)
    assert not deliveries(post)


def test_repeat_of_a_key_is_the_same_question(desk: Desk, post: PostOffice, kim: Peer) -> None:
    message_id = desk.sent(ASK, kim)
    kim.do("reply", post.claim(kim)["delivery_id"], body="Yes.")
    # The time is another one, the depth may be, and nobody is there any more.
    again = replace(ASK, delegation_id="d2", depth=2, within_ms=1000)
    assert desk.sent(again, None) == message_id
    assert desk.told("d2")["text"] == "Yes."
    with pytest.raises(ConflictError, match="used for another prompt"):
        desk.ask(replace(ASK, prompt="Really?"), kim).get(WITHIN_S)
    assert len(deliveries(post)) == 2, "the request and its answer"


def test_keys_are_of_one_caller_at_one_instance(
    desk: Desk, post: PostOffice, sam: Peer, kim: Peer
) -> None:
    asks = (ASK, replace(ASK, sender="talk:Ann"), replace(ASK, instance="Sam"))
    sent = {desk.sent(ask, sam if ask.instance == "Sam" else kim) for ask in asks}
    assert len(sent) == 3


def test_question_that_nobody_answers_in_time_goes_on(
    desk: Desk, post: PostOffice, kim: Peer
) -> None:
    message_id = desk.sent(ASK, kim)
    post.pass_time(59.9)
    desk.nothing_is_told()
    post.pass_time(0.2)
    assert desk.told()["state"] == "pending"
    assert desk.told()["delivery_state"] == "queued"
    kim.do("reply", post.claim(kim)["delivery_id"], body="Late.")
    assert desk.result(message_id)["text"] == "Late."


def test_question_without_time_tells_how_it_stands(desk: Desk, kim: Peer) -> None:
    desk.sent(replace(ASK, within_ms=0), kim)
    assert desk.told()["state"] == "pending"


def test_result_is_of_questions_alone(desk: Desk, sam: Peer, kim: Peer) -> None:
    asked = sam.ask("Kim")
    for message_id in (asked["message_id"], "nothing"):
        with pytest.raises(NotFoundError, match="no question over talk"):
            desk.result(message_id)


def test_callers_have_no_budget_and_no_list_of_peers(tmp_path: Path) -> None:
    with post_office(tmp_path, peer_allow=["Nobody"]) as post:
        desk, kim = Desk(post), Peer(post, "Kim")
        for number in range(CONSULTATION_REQUESTS + 1):
            desk.sent(replace(ASK, key=f"k{number}"), kim)
        assert len(deliveries(post)) == CONSULTATION_REQUESTS + 1
        stop_actor(desk.address, WITHIN_S)


def test_prompt_that_no_message_holds_is_refused(tmp_path: Path) -> None:
    with post_office(tmp_path, max_message_kib=1) as post:
        desk, kim = Desk(post), Peer(post, "Kim")
        with pytest.raises(TooLargeError):
            desk.ask(replace(ASK, prompt="x" * 1000), kim).get(WITHIN_S)
        assert not deliveries(post)
        stop_actor(desk.address, WITHIN_S)


def test_depth_is_that_of_the_deepest_work_in_hand(
    desk: Desk, post: PostOffice, sam: Peer, kim: Peer
) -> None:
    sessions = (sam.session_id, kim.session_id)
    assert desk.depth(*sessions) == 0
    sam.ask("Kim")
    delivery_id = post.claim(kim)["delivery_id"]
    assert desk.depth(*sessions) == 1
    desk.sent(replace(ASK, instance="Sam", depth=2), sam)
    assert desk.depth(*sessions) == 1, "it is not in hand yet"
    post.claim(sam)
    assert desk.depth(*sessions) == 3
    assert desk.depth(kim.session_id) == 1
    kim.do("ack", delivery_id)
    assert desk.depth(kim.session_id) == 0


def test_while_the_bus_recovers_nothing_is_sent(desk: Desk, post: PostOffice, kim: Peer) -> None:
    desk.sent(ASK, kim)
    post.fence()
    with pytest.raises(UnavailableError):
        desk.ask(replace(ASK, key="k2"), kim).get(WITHIN_S)
    post.unfence()
    assert desk.sent(replace(ASK, key="k2"), kim)


def test_inbox_that_is_made_anew_is_watched_again(desk: Desk, post: PostOffice, kim: Peer) -> None:
    message_id = desk.sent(ASK, kim)
    delivery_id = post.claim(kim)["delivery_id"]
    asker = next(row.sender_agent for row in deliveries(post) if row.message_id == message_id)
    inbox = post.inboxes.address(asker)
    inbox.tell("nonsense")  # type: ignore[arg-type]  # which fails it
    eventually(lambda: not inbox.alive)
    post.crashes.clear()
    desk.address.tell(ReadinessChanged("ready", RecoveryEpoch(1), 200))
    settle(desk.address)
    kim.do("reply", delivery_id, body="Yes.")
    assert desk.told()["text"] == "Yes."


def test_desk_that_stops_tells_how_it_stands(post: PostOffice, kim: Peer) -> None:
    desk = Desk(post)
    desk.sent(ASK, kim)
    stop_actor(desk.address, WITHIN_S)
    assert desk.told()["state"] == "pending"
