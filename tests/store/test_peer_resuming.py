"""What a claim brings beside the work: a person's decision, late replies, what was seen before."""

from __future__ import annotations

from typing import Any

import pytest

from agentbus.ids import DeliveryId, InterventionId, MessageId
from agentbus.store.peer.changes import AbandonLease, Decide, MarkReplyLate, MarkShown
from tests.store.bus import Bus
from tests.store.peers import (
    Peer,
    delivery,
    intervention,
    token_of,
    told,
)

pytestmark = pytest.mark.usefixtures("exact_accounting")


def decide(bus: Bus, delivery_id: str, action: Any, text: str | None = None, **more: Any) -> None:
    asked = intervention(bus, delivery_id)
    bus.done(Decide(InterventionId(asked.id), asked.version, action, "a person", text, **more))


# --- decisions ---


def test_approval_begins_anew_and_without_text_shows_nothing(
    bus: Bus, sam: Peer, ann: Peer
) -> None:
    sam.ask("Ann")
    got = ann.claim()["delivery_id"]
    ann.do("progress", got)
    ann.attach()
    bus.done(AbandonLease(*token_of(bus, got)))
    assert ann.claim()["attempt"] == 2
    ann.do("human", got, reason="may I?")
    decide(bus, got, "approve")
    bus.clock.advance(3600)
    again = ann.claim()
    assert (again["attempt"], again["extension_count"]) == (1, 0)
    assert delivery(bus, got).deadline_us == bus.clock.wall_us() + 600_000_000
    assert again["intervention"] == {
        "intervention_id": intervention(bus, got).id,
        "source": "human",
        "reason": "may I?",
        "action": "approve",
    }
    assert "resume_context" not in again
    assert again["envelope"]["parts"] == []


@pytest.mark.parametrize("action", ["approve", "redirect", "nudge"])
@pytest.mark.parametrize("op", ["reply", "progress", "checkpoint", "human", "ack", "send"])
def test_instructions_are_shown_until_they_were_certainly_seen(
    bus: Bus, sam: Peer, ann: Peer, action: Any, op: str
) -> None:
    request = sam.ask("Ann")["message_id"]
    got = ann.claim()["delivery_id"]
    ann.do("human", got)
    decide(bus, got, action, "carefully")
    assert ann.bus.refused(ann.held("ack", got)).reason == "STALE_LEASE"
    for _ in range(2):  # the first answer may have been lost
        again = ann.claim()
        context = again["resume_context"]
        assert context == {
            "intervention_id": intervention(bus, got).id,
            "action": action,
            "instructions": "carefully",
            "decided_by": "a person",
            "decided_at": "2027-01-15T08:00:00.000Z",
        }
        assert again["envelope"]["parts"] == [{"type": "caura_human_decision", **context}]
    if op == "send":
        ann.send("Sam", kind="response", reply_to=request, ack=False)
    else:
        ann.do(op, got)
    if delivery(bus, got).state == "leased":
        assert "resume_context" not in ann.claim()
    if op == "human":
        decide(bus, got, "approve")
        assert "resume_context" not in ann.claim()


def test_reassigned_work_is_anothers_with_its_instructions_and_tracking(
    bus: Bus, sam: Peer, ann: Peer
) -> None:
    kim = Peer(bus, "Kim")
    sam.ask("Ann")
    got = ann.claim()["delivery_id"]
    ann.do("human", got)
    decide(bus, got, "reassign", "for you", to="Kim")
    assert ann.wait().blocked is None
    again = kim.claim()
    assert again["resume_context"]["instructions"] == "for you"
    assert (again["attempt"], again["delivery_id"] == got) == (1, False)
    kim.do("reply", again["delivery_id"])
    assert delivery(bus, again["delivery_id"]).reply_state == "replied"
    assert delivery(bus, got).reply_state is None


# --- responses that were seen ---


def test_a_response_that_was_shown_is_finished_on_the_way(bus: Bus, sam: Peer, ann: Peer) -> None:
    """However it was shown; an unseen one after it is given."""
    sam.ask("Ann")
    ann.do("reply", ann.claim()["delivery_id"], ack=False, body="seen")
    ann.do("reply", ann.claim()["delivery_id"], body="unseen")
    first = sam.claim()
    bus.done(AbandonLease(*token_of(bus, first["delivery_id"])))
    bus.done(MarkShown(sam.speaker.attachment, (MessageId(first["envelope"]["id"]),)))
    outcome = bus.done(sam.claiming())
    assert outcome.result.delivery["envelope"]["body"] == "unseen"
    assert delivery(bus, first["delivery_id"]).state == "acked"
    assert told(outcome)[-1].state == "leased"


def test_a_request_that_was_shown_is_still_work(bus: Bus, sam: Peer, ann: Peer) -> None:
    request = sam.ask("Ann")["message_id"]
    bus.done(MarkShown(ann.speaker.attachment, (MessageId(request),)))
    assert ann.claim()["envelope"]["id"] == request


# --- late replies ---


def test_a_late_reply_is_told_once_in_each_state_to_each_session(
    bus: Bus, sam: Peer, ann: Peer
) -> None:
    other = Peer(bus, "Sam", "another")
    got = DeliveryId(sam.ask("Ann")["recipients"][0]["delivery_id"])
    assert sam.wait().notices == ()
    for state in ("overdue", "unanswered"):
        bus.done(MarkReplyLate(got, state))
        for session in (sam, other):
            (notice,) = session.wait().notices
            assert (notice["delivery_id"], notice["reply_state"]) == (got, state)
            assert notice["recipient"] == {"agent": "Ann", "agent_id": ann.agent_id}
            assert session.wait().notices == (notice,)  # until it was certainly shown
            bus.done(MarkShown(session.speaker.attachment, (), ((got, state),)))
            assert session.wait().notices == ()
    assert ann.wait().notices == ()
    (notice,) = Peer(bus, "Sam", "new").wait().notices
    assert notice["reply_state"] == "unanswered"


@pytest.mark.parametrize("state", ["awaiting", "overdue", "unanswered"])
def test_an_answer_after_the_due_time_is_kept_as_a_late_one(
    bus: Bus, sam: Peer, ann: Peer, state: Any
) -> None:
    sam.ask("Ann")
    got = DeliveryId(ann.claim()["delivery_id"])
    if state != "awaiting":
        bus.done(MarkReplyLate(got, state))
    first = ann.do("reply", got, ack=False)["message_id"]
    ann.do("reply", got)
    row = delivery(bus, got)
    expected: dict[str, tuple[str, str | None, str | None]] = {
        "awaiting": ("replied", first, None),
        "overdue": ("replied", first, first),
        "unanswered": ("unanswered", None, first),
    }
    assert (row.reply_state, row.reply_message_id, row.late_reply_message_id) == expected[state]
    assert (row.state, row.cause) == ("acked", None)
    assert sam.wait().notices == ()
    assert Peer(bus, "Sam", "another").wait().notices == (), "nobody is told that none came"
    (told_of,) = bus.reader().status(sam.agent_id, row.message_id, {})["deliveries"]
    assert (told_of["cause"], told_of["late"]) == (None, state != "awaiting")
