"""Late replies, what sessions were shown, and what an inbox looks after."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentbus.errors import StaleAttachmentError
from agentbus.store.changes import Done
from agentbus.store.peer.changes import (
    AbandonLease,
    ListOpenDeliveries,
    MarkReplyLate,
    MarkShown,
)
from tests.store.bus import Bus
from tests.store.peers import (
    Peer,
    deliveries,
    delivery,
    require_exact_accounting,
    token_of,
    told,
)


@pytest.fixture
def bus(tmp_path: Path) -> Any:
    bus = Bus(tmp_path)
    yield bus
    require_exact_accounting(bus)
    counted = bus.store.logical_bytes
    assert bus.reopen().logical_bytes == counted
    bus.close()


def mark(bus: Bus, delivery_id: Any, reply_state: Any, **fields: Any) -> Done:
    return bus.done(MarkReplyLate(delivery_id, reply_state, **fields))


def notices(peer: Peer) -> list[tuple[str, str, str]]:
    return [(one["delivery_id"], one["reply_state"], one["cause"]) for one in peer.wait().notices]


def test_a_reply_becomes_overdue_then_unanswered_and_never_goes_back(
    bus: Bus, ann: Peer, bob: Peer
) -> None:
    ann.ask("Bob")
    (row,) = deliveries(bus)
    (view,) = told(mark(bus, row.id, "overdue", reached=False))
    assert (view.reply_state, view.awaits_reply) == ("overdue", True)
    assert delivery(bus, row.id).cause == "undelivered"
    again = mark(bus, row.id, "overdue")
    assert (again.result, again.facts) == (False, ())
    (view,) = told(mark(bus, row.id, "unanswered"))
    assert (view.reply_state, view.awaits_reply) == ("unanswered", False)
    assert delivery(bus, row.id).cause == "unclaimed"
    for state in ("overdue", "unanswered"):
        assert mark(bus, row.id, state).result is False
    assert bob.claim()["delivery_id"] == row.id  # the work itself goes on


def test_what_is_replied_cancelled_or_unknown_is_never_late(bus: Bus, ann: Peer, bob: Peer) -> None:
    ann.ask("Bob")
    ann.send("Bob")
    request, note = deliveries(bus)
    bob.do("reply", bob.claim()["delivery_id"])
    for delivery_id in (request.id, note.id, "no-such"):
        outcome = mark(bus, delivery_id, "overdue")
        assert (outcome.result, outcome.facts) == (False, ())


def test_a_notice_is_given_to_each_session_until_it_was_shown_it(
    bus: Bus, ann: Peer, bob: Peer
) -> None:
    ann.ask("Bob")
    (row,) = deliveries(bus)
    mark(bus, row.id, "overdue")
    expected = [(row.id, "overdue", "unclaimed")]
    assert notices(ann) == expected
    assert notices(ann) == expected  # nothing says that the first one arrived
    shown = MarkShown(ann.speaker.attachment, (), ((row.id, "overdue"),))
    bus.done(shown)
    bus.done(shown)
    assert notices(ann) == []
    other = Peer(bus, "Ann", "Ann-2")
    assert notices(other) == expected
    mark(bus, row.id, "unanswered")
    assert notices(ann) == [(row.id, "unanswered", "unclaimed")]
    assert notices(bob) == []


def test_a_response_that_was_shown_is_not_given_again(bus: Bus, ann: Peer, bob: Peer) -> None:
    ann.ask("Bob")
    bob.do("reply", bob.claim()["delivery_id"])
    response = deliveries(bus)[-1]
    assert response.recipient_session == ann.session_id
    outcome = bus.done(MarkShown(ann.speaker.attachment, (response.message_id,)))
    (view,) = told(outcome)
    assert (view.delivery_id, view.state) == (response.id, "acked")
    assert ann.wait().delivery is None
    assert told(bus.done(MarkShown(ann.speaker.attachment, (response.message_id,)))) == []


def test_a_response_that_is_held_is_not_finished_by_being_shown(
    bus: Bus, ann: Peer, bob: Peer
) -> None:
    ann.ask("Bob")
    bob.do("reply", bob.claim()["delivery_id"])
    held = ann.claim()
    assert "already_presented" not in ann.claim()
    bus.done(MarkShown(ann.speaker.attachment, (held["envelope"]["id"],)))
    assert delivery(bus, held["delivery_id"]).state == "leased"
    again = ann.claim()
    assert again["already_presented"] is True
    assert again["envelope"]["body"] == held["envelope"]["body"]
    bus.done(AbandonLease(*token_of(bus, held["delivery_id"])))
    assert ann.claim()["already_presented"] is True
    ann.do("ack", held["delivery_id"])


def test_only_what_an_agent_got_or_asked_is_kept_as_shown(bus: Bus, ann: Peer, bob: Peer) -> None:
    request = ann.ask("Bob")["message_id"]
    bob.do("reply", bob.claim()["delivery_id"])
    row, response = deliveries(bus)
    before = bus.store.logical_bytes
    bus.done(
        MarkShown(bob.speaker.attachment, (response.message_id, request), ((row.id, "overdue"),))
    )
    bus.done(MarkShown(ann.speaker.attachment, (request, "no-such")))  # type: ignore[arg-type]
    bus.done(MarkShown(ann.speaker.attachment, (), ((row.id, "replied"), ("x", "overdue"))))  # type: ignore[arg-type]
    assert bus.store.logical_bytes == before


def test_an_attachment_that_was_replaced_marks_nothing(bus: Bus, ann: Peer, bob: Peer) -> None:
    ann.ask("Bob")
    bob.do("reply", bob.claim()["delivery_id"])
    old = ann.speaker.attachment
    ann.attach()
    refused = bus.refused(MarkShown(old, (deliveries(bus)[-1].message_id,)))
    assert isinstance(refused, StaleAttachmentError)
    assert ann.claim()["envelope"]["kind"] == "response"


def test_an_inbox_looks_after_open_work_and_awaited_replies(bus: Bus, ann: Peer, bob: Peer) -> None:
    def open_of(peer: Peer) -> list[Any]:
        views = bus.done(ListOpenDeliveries(peer.agent_id)).result
        return [view.delivery_id for view in views]

    ann.ask("Bob")
    ann.send("Bob")
    bob.send("Ann")
    request, note, back = deliveries(bus)
    assert open_of(ann) == [request.id, back.id]
    assert open_of(bob) == [request.id, note.id]
    bob.do("ack", bob.claim()["delivery_id"])
    assert open_of(ann) == [request.id, back.id]  # still awaited
    assert open_of(bob) == [note.id]
    mark(bus, request.id, "unanswered")
    ann.do("ack", ann.claim()["delivery_id"])
    assert open_of(ann) == []
