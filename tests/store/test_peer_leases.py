"""Claims, tokens, attempts, windows, checkpoints, pauses: who holds a delivery, and until when."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentbus.errors import BusError, ConflictError, NotFoundError, ValidationError
from agentbus.ids import DeliveryId, LeaseToken
from agentbus.limits import PEER_ATTEMPTS
from agentbus.rules.peer import DELIVERY_UNAVAILABLE, HUMAN_REQUIRED, STALE_LEASE
from agentbus.store.changes import Done, Refused
from agentbus.store.peer.changes import AbandonLease, CloseWindow, ExtendLease
from tests.store.bus import Bus
from tests.store.peers import (
    Peer,
    deliveries,
    delivery,
    intervention,
    require_exact_accounting,
    token_of,
    told,
)

pytestmark = pytest.mark.usefixtures("exact_accounting")

WINDOW_US = 600_000_000
LEASE_US = 30_000_000
HELD_OPS = ("reply", "progress", "checkpoint", "human", "ack")


@pytest.fixture
def second(bus: Bus, ann: Peer) -> Peer:
    """Another session of Ann."""
    return Peer(bus, "Ann", "second")


def abandon(bus: Bus, delivery_id: str) -> Done:
    return bus.done(AbandonLease(*token_of(bus, delivery_id)))


def pausing(outcome: Done) -> BusError:
    """The error of an operation that was committed as a pause."""
    assert outcome.result is None
    assert outcome.error is not None
    assert outcome.error.reason == HUMAN_REQUIRED
    return outcome.error


def is_stale(error: BusError) -> bool:
    return isinstance(error, ConflictError) and (error.reason, error.status, error.state) == (
        STALE_LEASE,
        409,
        "lapsed",
    )


# --- claims ---


def test_an_empty_inbox_gives_nothing_and_blames_nothing(bus: Bus, ann: Peer) -> None:
    claimed = ann.wait()
    assert (claimed.delivery, claimed.token, claimed.notices, claimed.blocked) == (
        None,
        None,
        (),
        None,
    )


def test_a_claim_shows_the_delivery_but_not_its_token(bus: Bus, sam: Peer, ann: Peer) -> None:
    request = sam.ask("Ann", body="please", capability="review", thread_id="t")
    claimed = ann.wait()
    assert claimed.delivery is not None
    row = delivery(bus, claimed.delivery["delivery_id"])
    now_us = bus.clock.wall_us()
    assert (row.token, row.holder, row.attempt) == (claimed.token, ann.session_id, 1)
    assert (row.lease_expires_us, row.deadline_us) == (now_us + LEASE_US, now_us + WINDOW_US)
    envelope = claimed.delivery.pop("envelope")
    assert claimed.delivery == {
        "delivery_id": request["recipients"][0]["delivery_id"],
        "lease_expires_at": "2027-01-15T08:00:30.000Z",
        "attempt": 1,
        "state": "leased",
        "processing_deadline": "2027-01-15T08:10:00.000Z",
        "extension_count": 0,
    }
    assert envelope == {
        "id": request["message_id"],
        "from": {
            "agent": "Sam",
            "agent_id": sam.agent_id,
            "session_id": sam.session_id,
            "display_name": "Sam",
        },
        "to": [{"agent": "Ann", "agent_id": ann.agent_id}],
        "kind": "request",
        "thread_id": "t",
        "ts": now_us // 1000,
        "body": "please",
        "parts": [],
        "correlation_id": request["message_id"],
        "depth": 0,
        "capability": "review",
    }


def test_work_comes_in_the_order_in_which_it_was_sent(bus: Bus, sam: Peer, ann: Peer) -> None:
    for body in "abc":
        sam.send("Ann", body=body)
    got = []
    for _ in "abc":
        one = ann.claim()
        got.append(one["envelope"]["body"])
        ann.do("ack", one["delivery_id"])
    assert got == list("abc")
    assert ann.wait().delivery is None


def test_a_session_gets_what_it_holds_again_with_a_fresh_token(
    bus: Bus, sam: Peer, ann: Peer
) -> None:
    sam.ask("Ann")
    sam.ask("Ann")
    first = ann.claim()
    old = ann.token
    bus.clock.advance(10)
    again = ann.claim()
    assert again["delivery_id"] == first["delivery_id"]
    assert (again["attempt"], ann.token == old) == (1, False)
    assert again["processing_deadline"] == first["processing_deadline"]
    assert delivery(bus, first["delivery_id"]).lease_expires_us == bus.clock.wall_us() + LEASE_US
    assert is_stale(ann.refused("ack", first["delivery_id"], token=old))
    ann.do("ack", first["delivery_id"])


def test_a_new_generation_of_a_session_gets_it_again_without_another_attempt(
    bus: Bus, sam: Peer, ann: Peer
) -> None:
    sam.ask("Ann")
    first = ann.claim()
    ann.attach()
    again = ann.claim()
    assert (again["delivery_id"], again["attempt"]) == (first["delivery_id"], 1)
    bus.reopen()
    ann.attach()
    assert ann.claim()["attempt"] == 1


def test_what_one_session_of_an_agent_holds_keeps_back_what_is_for_the_agent(
    bus: Bus, sam: Peer, ann: Peer, second: Peer
) -> None:
    first = sam.ask("Ann")["recipients"][0]["delivery_id"]
    assert second.claim()["delivery_id"] == first
    assert ann.wait().blocked is None  # nothing else is there
    sam.ask("Ann")
    blocked = ann.wait()
    assert blocked.delivery is None
    assert blocked.blocked is not None
    assert first in blocked.blocked
    own = sam.ask(ann.session_id)["recipients"][0]["delivery_id"]
    assert ann.claim()["delivery_id"] == own
    second.do("ack", first)
    assert second.claim()["delivery_id"] != own


def test_what_is_for_one_session_keeps_nothing_back_and_no_other_gets_it(
    bus: Bus, sam: Peer, ann: Peer, second: Peer
) -> None:
    own = sam.ask(ann.session_id)["recipients"][0]["delivery_id"]
    assert second.wait().delivery is None
    shared = sam.ask("Ann")["recipients"][0]["delivery_id"]
    assert ann.claim()["delivery_id"] == own
    assert second.claim()["delivery_id"] == shared
    ann.do("ack", own)
    assert ann.wait().delivery is None


def test_a_lapsed_lease_goes_to_whoever_comes_with_one_attempt_more(
    bus: Bus, sam: Peer, ann: Peer, second: Peer
) -> None:
    sam.ask("Ann")
    first = ann.claim()
    outcome = abandon(bus, first["delivery_id"])
    assert outcome.result is True
    assert [(view.state, view.token) for view in told(outcome)] == [("queued", None)]
    bus.clock.advance(60)
    got = second.claim()
    assert (got["delivery_id"], got["attempt"]) == (first["delivery_id"], 2)
    assert got["processing_deadline"] != first["processing_deadline"]
    for op in HELD_OPS:
        assert is_stale(ann.refused(op, first["delivery_id"])), op
    second.do("reply", got["delivery_id"])


def test_what_lapsed_in_the_hands_of_a_session_comes_before_older_work(
    bus: Bus, sam: Peer, ann: Peer, second: Peer
) -> None:
    older = sam.ask("Ann")["recipients"][0]["delivery_id"]
    own = sam.ask(ann.session_id)["recipients"][0]["delivery_id"]
    assert second.claim()["delivery_id"] == older
    assert ann.claim()["delivery_id"] == own
    for delivery_id in (own, older):
        abandon(bus, delivery_id)
    assert ann.claim()["delivery_id"] == own, "its answer would have nothing to go to"
    ann.do("reply", own)
    assert ann.claim()["delivery_id"] == older


def test_a_claim_of_one_delivery_brings_no_other(
    bus: Bus, sam: Peer, ann: Peer, second: Peer
) -> None:
    first, later = (sam.ask("Ann")["recipients"][0]["delivery_id"] for _ in range(2))
    claims = [replace(ann.claiming(), only=DeliveryId(one)) for one in (later, first)]
    refused, got = (bus.done(claim).result for claim in claims)
    assert (refused.delivery, refused.token) == (None, None)
    assert got.delivery["delivery_id"] == first
    assert bus.done(replace(second.claiming(), only=DeliveryId(first))).result.delivery is None
    assert delivery(bus, first).token == claims[1].token


def test_a_lapsed_lease_claimed_again_by_the_same_attachment_goes_on_as_it_was(
    bus: Bus, sam: Peer, ann: Peer
) -> None:
    sam.ask("Ann")
    first = ann.claim()
    ann.do("progress", first["delivery_id"])
    before = delivery(bus, first["delivery_id"])
    abandon(bus, first["delivery_id"])
    assert is_stale(ann.refused("reply", first["delivery_id"]))
    bus.clock.advance(60)
    again = ann.claim()
    assert (again["attempt"], again["extension_count"]) == (1, 1)
    assert delivery(bus, first["delivery_id"]).deadline_us == before.deadline_us
    ann.attach()
    abandon(bus, first["delivery_id"])
    assert ann.claim()["attempt"] == 2


def test_a_message_for_an_agent_and_its_session_comes_as_two(
    bus: Bus, sam: Peer, ann: Peer
) -> None:
    sam.send("Ann", ann.session_id)
    for _ in range(2):
        ann.do("ack", ann.claim()["delivery_id"])
    assert ann.wait().delivery is None


# --- fencing ---


@pytest.mark.parametrize("op", HELD_OPS)
def test_only_the_token_in_force_does_anything(
    bus: Bus, sam: Peer, ann: Peer, second: Peer, op: str
) -> None:
    sam.ask("Ann")
    got = ann.claim()["delivery_id"]
    before = delivery(bus, got)
    assert is_stale(bus.refused(second.held(op, got)))  # without one
    assert is_stale(second.refused(op, got, token=ann.token))  # another session's
    assert is_stale(ann.refused(op, got, token=LeaseToken("invented")))
    assert isinstance(sam.refused(op, got, token=ann.token), NotFoundError)  # not its recipient
    assert isinstance(ann.refused(op, "never-was"), NotFoundError)
    assert delivery(bus, got) == before
    ann.do(op, got)


def test_changes_of_an_older_lease_change_nothing(bus: Bus, sam: Peer, ann: Peer) -> None:
    sam.ask("Ann")
    got = DeliveryId(ann.claim()["delivery_id"])
    old = token_of(bus, got)
    deadline_us = delivery(bus, got).deadline_us
    assert deadline_us is not None
    ann.claim()
    token = token_of(bus, got)[1]
    before = delivery(bus, got)
    for change in (
        AbandonLease(*old),
        ExtendLease(*old, 5),
        CloseWindow(*old, deadline_us),
        CloseWindow(got, token, deadline_us - 1),
        AbandonLease(DeliveryId("never-was"), token),
        ExtendLease(DeliveryId("never-was"), token, 5),
        CloseWindow(DeliveryId("never-was"), token, deadline_us),
    ):
        outcome = bus.done(change)
        assert (outcome.result, outcome.facts) == (False, ())
    assert delivery(bus, got) == before
    assert bus.done(ExtendLease(got, token, 5)).result is True
    assert delivery(bus, got).lease_expires_us == 5
    ann.do("ack", got)
    for change in (
        AbandonLease(got, token),
        ExtendLease(got, token, 6),
        CloseWindow(got, token, 0),
    ):
        assert bus.done(change).result is False


def test_a_lapse_in_the_batch_of_the_answer_is_either_before_it_or_after(
    bus: Bus, sam: Peer, ann: Peer
) -> None:
    sam.ask("Ann")
    got = ann.claim()["delivery_id"]
    lapse = AbandonLease(*token_of(bus, got))
    replied, stale = bus.store.apply([ann.held("reply", got), lapse])
    assert isinstance(replied, Done)
    assert isinstance(stale, Done)
    assert stale.result is False
    sam.ask("Ann")
    got = ann.claim()["delivery_id"]
    reply = ann.held("reply", got, idempotency_key="late")
    lapsed, refused = bus.store.apply([AbandonLease(*token_of(bus, got)), reply])
    assert isinstance(lapsed, Done)
    assert isinstance(refused, Refused)
    assert is_stale(refused.error)
    assert delivery(bus, got).reply_state == "awaiting"
    ann.claim()
    assert ann.do("reply", got, idempotency_key="late")["duplicate"] is False


# --- what is over ---


def test_an_ack_is_repeated_by_any_session_of_the_recipient(
    bus: Bus, sam: Peer, ann: Peer, second: Peer
) -> None:
    sam.send("Ann")
    got = ann.claim()["delivery_id"]
    assert ann.do("ack", got) == {"delivery_id": got, "state": "acked", "duplicate": False}
    ann.attach()
    for session in (ann, second):
        outcome = bus.done(session.held("ack", got))
        assert outcome.result == {"delivery_id": got, "state": "acked", "duplicate": True}
        assert not outcome.charged
    assert isinstance(sam.refused("ack", got), NotFoundError)


@pytest.mark.parametrize("op", ["reply", "progress", "checkpoint", "human"])
def test_finished_work_takes_no_more(bus: Bus, sam: Peer, ann: Peer, op: str) -> None:
    sam.ask("Ann")
    got = ann.claim()["delivery_id"]
    ann.do("ack", got)
    error = ann.refused(op, got)
    assert isinstance(error, ConflictError)
    assert (error.reason, error.state, error.status) == (DELIVERY_UNAVAILABLE, "unavailable", 409)
    assert error.detail == {"delivery_id": got, "delivery_state": "acked"}


def test_a_committed_reply_has_its_receipt_whatever_became_of_the_lease(
    bus: Bus, sam: Peer, ann: Peer
) -> None:
    sam.ask("Ann")
    got = ann.claim()["delivery_id"]
    partial = ann.do("reply", got, ack=False, idempotency_key="k", body="b")
    abandon(bus, got)
    assert ann.do("reply", got, ack=False, idempotency_key="k", body="b") == (
        partial | {"duplicate": True}
    )


# --- attempts ---


def test_the_fifth_abandoned_attempt_asks_a_person(bus: Bus, sam: Peer, ann: Peer) -> None:
    got = sam.ask("Ann")["recipients"][0]["delivery_id"]
    for attempt in range(1, PEER_ATTEMPTS + 1):
        claimer = Peer(bus, "Ann", f"session {attempt}")
        assert claimer.claim()["attempt"] == attempt
        (view,) = told(abandon(bus, got))
        assert view.state == ("paused" if attempt == PEER_ATTEMPTS else "queued")
    asked = intervention(bus, got)
    assert (asked.source, asked.version, asked.action) == ("attempts", 1, None)
    assert asked.stop_status == "stopped_unconfirmed"
    sam.ask("Ann")
    blocked = ann.wait().blocked
    assert blocked is not None
    assert got in blocked
    assert "person" in blocked


# --- the window ---


def test_progress_moves_the_deadline_once_for_each_key(bus: Bus, sam: Peer, ann: Peer) -> None:
    sam.ask("Ann")
    got = ann.claim()["delivery_id"]
    bus.clock.advance(100)
    first = ann.do("progress", got, idempotency_key="k")
    assert first == {"status": "leased", "extension_count": 1, "duplicate": False}
    assert delivery(bus, got).deadline_us == bus.clock.wall_us() + WINDOW_US
    before = delivery(bus, got)
    bus.clock.advance(100)
    assert ann.do("progress", got, idempotency_key="k") == first | {"duplicate": True}
    ann.bus.done(ExtendLease(*token_of(bus, got), bus.clock.wall_us()))
    assert delivery(bus, got)._replace(lease_expires_us=0, changed_at_us=0) == before._replace(
        lease_expires_us=0, changed_at_us=0
    )


@pytest.mark.parametrize("maximum", [0, 1, 6])
@pytest.mark.parametrize("op", ["progress", "checkpoint"])
def test_one_extension_too_many_pauses_and_says_so(tmp_path: Path, maximum: int, op: str) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    bus = Bus(folder, peer_max_extensions=maximum)
    sam, ann = Peer(bus, "Sam"), Peer(bus, "Ann")
    sam.ask("Ann")
    got = ann.claim()["delivery_id"]
    for extensions in range(1, maximum + 1):
        assert ann.do(op, got)["extension_count"] == extensions
    change = ann.held(op, got)
    outcome = bus.done(change)
    error = pausing(outcome)
    assert [view.state for view in told(outcome)] == ["paused"]
    asked = intervention(bus, got)
    assert error.detail == {"delivery_id": got, "intervention_id": asked.id}
    assert (asked.source, asked.stop_status) == ("extensions", "pause_observed")
    repeat = bus.refused(change)  # written once; there is no receipt of it
    assert repeat.reason == HUMAN_REQUIRED
    require_exact_accounting(bus)
    bus.close()


def test_a_window_that_ends_pauses_and_its_holder_hears_it_at_its_next_call(
    bus: Bus, sam: Peer, ann: Peer
) -> None:
    sam.ask("Ann")
    got = DeliveryId(ann.claim()["delivery_id"])
    row = delivery(bus, got)
    assert row.token is not None
    assert row.deadline_us is not None
    outcome = bus.done(CloseWindow(got, row.token, row.deadline_us))
    assert outcome.result is True
    assert [(view.state, view.token) for view in told(outcome)] == [("paused", None)]
    assert intervention(bus, got).stop_status == "pause_requested"
    pausing(bus.done(ann.held("progress", got)))
    assert intervention(bus, got).stop_status == "pause_observed"
    for op in HELD_OPS:
        error = ann.refused(op, got)
        assert (error.reason, error.state, error.status) == (HUMAN_REQUIRED, "paused", 409)
    assert "paused" in str(ann.wait().blocked)
    assert intervention(bus, got).stop_status == "adapter_stop_confirmed"
    assert ann.refused("ack", got).reason == HUMAN_REQUIRED
    assert intervention(bus, got).stop_status == "adapter_stop_confirmed"
    assert intervention(bus, got).version == 1


def test_another_sessions_call_is_not_the_holders_word(
    bus: Bus, sam: Peer, ann: Peer, second: Peer
) -> None:
    sam.ask("Ann")
    sam.ask("Ann")
    got = DeliveryId(ann.claim()["delivery_id"])
    row = delivery(bus, got)
    assert row.token is not None
    assert row.deadline_us is not None
    bus.done(CloseWindow(got, row.token, row.deadline_us))
    assert second.refused("ack", got).reason == HUMAN_REQUIRED
    assert "person" in str(second.wait().blocked)
    assert intervention(bus, got).stop_status == "pause_requested"


# --- checkpoint and human ---


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"confidence": 0.75},
        {"confidence": 1},
        {"action_type": "read"},
        {"action_type": "write"},
        {"missing_information": []},
    ],
)
def test_a_checkpoint_that_may_go_on_is_like_progress(
    bus: Bus, sam: Peer, ann: Peer, args: dict[str, Any]
) -> None:
    sam.ask("Ann")
    got = ann.claim()["delivery_id"]
    assert ann.do("checkpoint", got, **args) == {
        "status": "leased",
        "extension_count": 1,
        "duplicate": False,
    }


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        ({"confidence": 0.7499}, "confidence 0.7499 is below 0.75"),
        ({"confidence": 0}, "confidence 0 is below 0.75"),
        ({"action_type": "external"}, "the action is external"),
        ({"action_type": "destructive"}, "the action is destructive"),
        ({"missing_information": ["which one"]}, "information is missing"),
        ({"conflicting_results": True}, "results conflict"),
        ({"request_human": True}, "the agent asks for a person"),
        (
            {"confidence": 0.5, "action_type": "external", "request_human": True},
            "confidence 0.5 is below 0.75; the action is external; the agent asks for a person",
        ),
    ],
)
def test_a_checkpoint_that_may_not_asks_a_person(
    bus: Bus, sam: Peer, ann: Peer, args: dict[str, Any], reason: str
) -> None:
    sam.ask("Ann")
    got = ann.claim()["delivery_id"]
    change = ann.held("checkpoint", got, proposed_action="drop it", **args)
    answer = bus.done(change).result
    asked = intervention(bus, got)
    assert answer == {
        "status": "paused",
        "delivery_id": got,
        "intervention_id": asked.id,
        "reason": reason,
        "duplicate": False,
    }
    assert (asked.source, asked.reason, asked.stop_status) == (
        "checkpoint",
        reason,
        "pause_observed",
    )
    assert '"proposed_action":"drop it"' in asked.detail
    row = delivery(bus, got)
    assert (row.state, row.token, row.holder, row.deadline_us) == (
        "paused",
        None,
        ann.session_id,
        None,
    )
    assert row.extensions == 0
    assert bus.done(change).result == answer | {"duplicate": True}
    assert ann.refused("progress", got).reason == HUMAN_REQUIRED


def test_an_agent_asks_a_person_itself(bus: Bus, sam: Peer, ann: Peer) -> None:
    sam.ask("Ann")
    got = ann.claim()["delivery_id"]
    answer = ann.do("human", got, reason="which of the two?")
    asked = intervention(bus, got)
    assert (answer["status"], answer["intervention_id"]) == ("paused", asked.id)
    assert (asked.source, asked.reason) == ("human", "which of the two?")
    assert ann.refused("human", got).detail == {"delivery_id": got, "intervention_id": asked.id}


# --- answers ---


def test_reply_to_can_only_repeat_what_is_answered_anyway(bus: Bus, sam: Peer, ann: Peer) -> None:
    request = sam.ask("Ann")
    got = ann.claim()["delivery_id"]
    assert isinstance(ann.refused("reply", got, reply_to="another"), ValidationError)
    ann.do("reply", got, reply_to=request["message_id"])
    assert len(deliveries(bus)) == 2
