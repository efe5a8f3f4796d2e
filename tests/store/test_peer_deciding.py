"""A person decides about paused work: each decision, once, about what was seen."""

from __future__ import annotations

from typing import Any

import pytest

from agentbus.errors import ConflictError, NotFoundError, ValidationError
from agentbus.limits import PEER_ACTION_CHARACTERS, PEER_ATTEMPTS
from agentbus.store.changes import ChannelMade, PruneSlice
from agentbus.store.peer.changes import AbandonLease, CloseWindow, Decide
from tests.store.bus import Bus
from tests.store.peers import (
    Peer,
    deliveries,
    delivery,
    intervention,
    token_of,
    told,
)

pytestmark = pytest.mark.usefixtures("exact_accounting")

WHO = "human:kim"


@pytest.fixture
def paused(ann: Peer, bob: Peer) -> str:
    """A request to Bob that rests because he has asked for a person."""
    ann.ask("Bob", body="drop the table?")
    delivery_id: str = bob.claim()["delivery_id"]
    bob.do("human", delivery_id)
    return delivery_id


def deciding(bus: Bus, delivery_id: str, action: Any, **fields: Any) -> Decide:
    fields = {"version": 1, **fields}
    return Decide(intervention(bus, delivery_id).id, action=action, decided_by=WHO, **fields)


def decided(bus: Bus, delivery_id: str, action: Any, **fields: Any) -> dict[str, Any]:
    answer: dict[str, Any] = bus.done(deciding(bus, delivery_id, action, **fields)).result
    return answer


def test_plain_approval_lets_the_work_go_on_anew_with_nothing_to_show(
    bus: Bus, bob: Peer, paused: str
) -> None:
    question = intervention(bus, paused)
    outcome = bus.done(deciding(bus, paused, "approve"))
    assert outcome.result == {
        "intervention_id": question.id,
        "delivery_id": paused,
        "version": 2,
        "action": "approve",
        "state": "queued",
    }
    (view,) = told(outcome)
    assert (view.delivery_id, view.state, view.attempt, view.extensions) == (paused, "queued", 0, 0)
    bus.clock.advance(seconds=50)
    claimed = bob.claim()
    assert (claimed["delivery_id"], claimed["attempt"]) == (paused, 1)
    assert claimed["extension_count"] == 0
    assert claimed["processing_deadline"] == "2027-01-15T08:10:50.000Z"
    assert "resume_context" not in claimed
    assert claimed["envelope"]["parts"] == []


@pytest.mark.parametrize("action", ["approve", "redirect", "nudge"])
def test_instructions_are_shown_with_the_work_until_they_are_followed(
    bus: Bus, bob: Peer, paused: str, action: str
) -> None:
    decided(bus, paused, action, instructions="  on the copy only\n")
    claimed = bob.claim()
    assert claimed["resume_context"] == {
        "intervention_id": intervention(bus, paused).id,
        "action": action,
        "instructions": "on the copy only",
        "decided_by": WHO,
        "decided_at": "2027-01-15T08:00:00.000Z",
    }
    (part,) = claimed["envelope"]["parts"]
    assert part["type"] == "caura_human_decision"
    bob.do("progress", paused)
    assert "resume_context" not in bob.claim()


@pytest.mark.parametrize(("action", "state"), [("reject", "rejected"), ("cancel", "cancelled")])
@pytest.mark.parametrize(("instructions", "added"), [(None, ""), ("no", ": no")])
def test_an_end_is_final_and_its_asker_hears_why(
    bus: Bus, bob: Peer, paused: str, action: str, state: str, instructions: Any, added: str
) -> None:
    outcome = bus.done(deciding(bus, paused, action, instructions=instructions))
    assert outcome.result["state"] == state
    row = delivery(bus, paused)
    assert (row.state, row.reply_state) == (state, "cancelled")
    assert row.cancelled_reason == state + added
    (view,) = told(outcome)
    assert not view.is_open
    assert not view.awaits_reply
    assert bob.wait().delivery is None
    refused = bob.refused("reply", paused)
    assert (refused.status, refused.state) == (409, "unavailable")


def test_what_was_answered_in_part_stays_answered_when_the_work_is_cancelled(
    bus: Bus, ann: Peer, bob: Peer
) -> None:
    ann.ask("Bob")
    delivery_id = bob.claim()["delivery_id"]
    bob.do("reply", delivery_id, ack=False)
    bob.do("human", delivery_id)
    decided(bus, delivery_id, "cancel")
    row = delivery(bus, delivery_id)
    assert (row.state, row.reply_state) == ("cancelled", "replied")
    assert row.reply_message_id is not None


def test_work_that_is_no_request_ends_without_any_tracking(bus: Bus, ann: Peer, bob: Peer) -> None:
    ann.send("Bob")
    delivery_id = bob.claim()["delivery_id"]
    bob.do("human", delivery_id)
    decided(bus, delivery_id, "reject")
    assert delivery(bus, delivery_id).reply_state is None


def test_reassigned_work_is_a_new_delivery_with_the_same_dues_and_the_instructions(
    bus: Bus, ann: Peer, bob: Peer, paused: str
) -> None:
    cid = Peer(bus, "Cid")
    before = delivery(bus, paused)
    outcome = bus.done(deciding(bus, paused, "reassign", to="Cid", instructions="read the log"))
    new_id = outcome.result["reassigned_to"]
    assert [one.channel for one in outcome.facts if isinstance(one, ChannelMade)] == ["@Cid"]
    assert (outcome.result["delivery_id"], outcome.result["state"]) == (paused, "reassigned")
    old, new = delivery(bus, paused), delivery(bus, new_id)
    assert (old.state, old.reply_state) == ("reassigned", None)
    assert (new.state, new.reply_state, new.reassigned_from) == ("queued", "awaiting", paused)
    assert (new.recipient_agent, new.recipient_session) == (cid.agent_id, None)
    assert (new.reply_due_us, new.unanswered_us) == (before.reply_due_us, before.unanswered_us)
    assert (new.message_id, new.sequence) == (before.message_id, before.sequence)
    assert [view.delivery_id for view in told(outcome)] == [paused, new_id]
    assert bob.refused("ack", paused).state == "unavailable"
    assert bob.wait().delivery is None
    claimed = cid.claim()
    assert (claimed["delivery_id"], claimed["attempt"]) == (new_id, 1)
    assert claimed["envelope"]["body"] == "drop the table?"
    assert claimed["resume_context"]["instructions"] == "read the log"
    cid.do("reply", new_id)
    assert delivery(bus, new_id).reply_state == "replied"
    assert ann.claim()["correlation"]["matches_sent_request"] is True


def test_work_may_be_reassigned_again_and_to_one_session(bus: Bus, bob: Peer, paused: str) -> None:
    one, other = Peer(bus, "Cid"), Peer(bus, "Cid", "Cid-2")
    first = decided(bus, paused, "reassign", to=other.session_id)["reassigned_to"]
    assert one.wait().delivery is None
    assert other.claim()["delivery_id"] == first
    other.do("human", first)
    second = decided(bus, first, "reassign", to="Bob")["reassigned_to"]
    assert delivery(bus, second).reassigned_from == first
    assert bob.claim()["delivery_id"] == second


def test_paused_work_keeps_later_work_back_until_it_is_decided(
    bus: Bus, ann: Peer, bob: Peer, paused: str
) -> None:
    ann.send("Bob", body="later")
    other = Peer(bus, "Bob", "Bob-2")
    for peer in (bob, other):
        claimed = peer.wait()
        assert claimed.delivery is None
        assert claimed.blocked is not None
        assert paused in claimed.blocked
    assert intervention(bus, paused).stop_status == "adapter_stop_confirmed"
    decided(bus, paused, "cancel")
    assert other.claim()["envelope"]["body"] == "later"


def test_approval_gives_all_attempts_and_extensions_again(bus: Bus, ann: Peer, bob: Peer) -> None:
    ann.ask("Bob")
    for _ in range(PEER_ATTEMPTS):
        bob.attach()
        delivery_id = bob.claim()["delivery_id"]
        bus.done(AbandonLease(*token_of(bus, delivery_id)))
    assert intervention(bus, delivery_id).source == "attempts"
    decided(bus, delivery_id, "approve")
    for attempt in range(1, PEER_ATTEMPTS + 1):
        bob.attach()
        assert bob.claim()["attempt"] == attempt
        assert delivery(bus, delivery_id).state == "leased"
        bus.done(AbandonLease(*token_of(bus, delivery_id)))
    assert delivery(bus, delivery_id).state == "paused"


def test_each_pause_is_a_question_of_its_own(bus: Bus, ann: Peer, bob: Peer) -> None:
    ann.ask("Bob")
    delivery_id = bob.claim()["delivery_id"]
    row = delivery(bus, delivery_id)
    assert row.token is not None
    assert row.deadline_us is not None
    bus.done(CloseWindow(row.id, row.token, row.deadline_us))
    first = intervention(bus, delivery_id)
    assert (first.source, first.stop_status) == ("window", "pause_requested")
    decided(bus, delivery_id, "nudge", instructions="say something")
    bob.claim()
    bob.do("human", delivery_id)
    second = intervention(bus, delivery_id)
    assert second.id != first.id
    stale = bus.refused(Decide(first.id, 2, "cancel", WHO))
    assert isinstance(stale, ConflictError)
    assert "was decided before, by human:kim: nudge" in stale.message
    decided(bus, delivery_id, "approve")


# --- what is refused ---


def test_only_what_was_seen_is_decided_and_only_once(bus: Bus, paused: str) -> None:
    for version in (0, 2):
        refused = bus.refused(deciding(bus, paused, "approve", version=version))
        assert isinstance(refused, ConflictError)
        assert (refused.status, refused.reason) == (409, "VERSION_CHANGED")
        assert "look at it again" in refused.message
    change = deciding(bus, paused, "approve")
    first, second = bus.store.apply([change, change])
    assert first.result["version"] == 2  # type: ignore[union-attr]
    assert second.error.reason == "VERSION_CHANGED"  # type: ignore[union-attr]


@pytest.mark.parametrize("below", [1, 0])
@pytest.mark.parametrize("action", ["approve", "redirect", "reassign"])
def test_instructions_have_a_limit(bus: Bus, paused: str, action: str, below: int) -> None:
    Peer(bus, "Cid")
    to = "Cid" if action == "reassign" else None
    text = "x" * (PEER_ACTION_CHARACTERS + 1)
    refused = bus.refused(deciding(bus, paused, action, instructions=text, to=to))
    assert isinstance(refused, ValidationError)
    assert "at most 4000 characters, these have 4001" in refused.message
    decided(bus, paused, action, instructions=text[below + 1 :], to=to)


@pytest.mark.parametrize("action", ["redirect", "nudge"])
@pytest.mark.parametrize("instructions", [None, "", " \n"])
def test_some_decisions_need_instructions(
    bus: Bus, paused: str, action: str, instructions: Any
) -> None:
    refused = bus.refused(deciding(bus, paused, action, instructions=instructions))
    assert isinstance(refused, ValidationError)
    assert f"{action} needs instructions" in refused.message
    assert delivery(bus, paused).state == "paused"


@pytest.mark.parametrize(
    ("action", "to", "problem"),
    [
        ("reassign", None, "needs to"),
        ("reassign", "nobody", "no agent or session 'nobody'"),
        ("reassign", "Bob", "has this work already"),
        ("reassign", "ann's session", "sent this work itself"),
        ("approve", "Cid", "to goes with reassign"),
    ],
)
def test_work_is_reassigned_to_somebody_else_who_is_there(
    bus: Bus, ann: Peer, paused: str, action: str, to: str | None, problem: str
) -> None:
    Peer(bus, "Cid")
    before = deliveries(bus)
    to = ann.session_id if to == "ann's session" else to
    refused = bus.refused(deciding(bus, paused, action, to=to))
    assert isinstance(refused, ValidationError | NotFoundError)
    assert problem in refused.message
    assert deliveries(bus) == before


def test_an_unknown_question_is_not_found(bus: Bus) -> None:
    refused = bus.refused(Decide("no-such", 1, "approve", WHO))  # type: ignore[arg-type]
    assert isinstance(refused, NotFoundError)


def test_there_is_nothing_to_decide_about_work_that_fell_to_retention(
    bus: Bus, paused: str
) -> None:
    change = deciding(bus, paused, "approve")
    bus.clock.advance(hours=bus.config.message_retention_hours)
    bus.done(PruneSlice("messages_by_age", 500))
    refused = bus.refused(change)
    assert isinstance(refused, ConflictError)
    assert "is cancelled" in refused.message
