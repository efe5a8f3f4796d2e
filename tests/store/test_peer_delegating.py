"""Questions over talk in the ledger: one request per caller and key, to who is there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agentbus.envelope import Recipient
from agentbus.errors import ConflictError, NotFoundError
from agentbus.protocol.peer import PeerSend
from agentbus.rules.receipts import digest
from agentbus.store.changes import MessageAppended
from agentbus.store.peer.changes import Delegate
from tests.store.bus import Bus, Speaker
from tests.store.peers import Peer, deliveries, require_exact_accounting


@pytest.fixture
def caller(bus: Bus) -> Speaker:
    return bus.attach("talk:Sam", "questions")


@pytest.fixture
def kim(bus: Bus) -> Peer:
    return Peer(bus, "Kim")


@pytest.fixture(autouse=True)
def _exact(bus: Bus) -> Iterator[None]:
    yield
    require_exact_accounting(bus)


def question(caller: Speaker, kim: Peer | None, prompt: str = "Verified?") -> Delegate:
    return Delegate(
        PeerSend(("Kim",), prompt, "k", "request", expect_reply_within_seconds=1),
        operation_id="k",
        fingerprint=digest(prompt.encode()),
        sender=caller.sender,
        attachment=caller.attachment,
        rate_ok=True,
        depth=2,
        recipient=None if kim is None else Recipient("Kim", kim.agent_id),
    )


def test_question_is_a_tracked_request_at_its_depth(bus: Bus, caller: Speaker, kim: Peer) -> None:
    outcome = bus.done(question(caller, kim))
    (row,) = deliveries(bus)
    assert outcome.result == {
        "message_id": row.message_id,
        "delivery_id": row.id,
        "duplicate": False,
    }
    assert (row.kind, row.depth, row.parent, row.reply_state) == ("request", 2, None, "awaiting")
    assert row.reply_due_us == row.created_at_us + 1_000_000
    assert [fact.channel for fact in outcome.facts if isinstance(fact, MessageAppended)] == ["@Kim"]


def test_who_is_not_there_is_refused_but_a_repeat_is_not(
    bus: Bus, caller: Speaker, kim: Peer
) -> None:
    assert isinstance(bus.refused(question(caller, None)), NotFoundError)
    assert not deliveries(bus)
    first = bus.done(question(caller, kim)).result
    assert bus.done(question(caller, None)).result == {**first, "duplicate": True}
    assert isinstance(bus.refused(question(caller, kim, "Really?")), ConflictError)
    assert len(deliveries(bus)) == 1


def test_answer_goes_to_the_caller_alone(bus: Bus, caller: Speaker, kim: Peer) -> None:
    asked = bus.done(question(caller, kim)).result
    kim.do("reply", kim.claim()["delivery_id"], body="Yes.")
    request, answer = deliveries(bus)
    assert request.reply_message_id == answer.message_id
    assert (answer.recipient_agent, answer.reply_to) == (
        caller.bound.agent_id,
        asked["message_id"],
    )
    assert answer.depth == 2
