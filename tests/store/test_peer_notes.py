"""Deliveries that are no requests: nobody waits for what becomes of them, so no person is asked."""

from __future__ import annotations

import pytest

from agentbus.ids import DeliveryId
from agentbus.limits import PEER_ATTEMPTS
from agentbus.rules.peer import STALE_LEASE
from agentbus.store.changes import Done
from agentbus.store.peer.changes import AbandonLease, CloseWindow
from tests.store.bus import Bus
from tests.store.peers import (
    Peer,
    delivery,
    intervention,
    token_of,
    told,
)

pytestmark = pytest.mark.usefixtures("exact_accounting")

KINDS = ("info", "ack", "response")


def note(sam: Peer, ann: Peer, kind: str) -> None:
    """A message to Ann that is no request."""
    if kind == "response":
        ann.ask("Sam")
        sam.do("reply", sam.claim()["delivery_id"])
    else:
        sam.send("Ann", kind=kind)


def close_window(bus: Bus, got: DeliveryId) -> Done:
    row = delivery(bus, got)
    assert row.token is not None
    assert row.deadline_us is not None
    return bus.done(CloseWindow(got, row.token, row.deadline_us))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("attempts", [1, PEER_ATTEMPTS, PEER_ATTEMPTS + 1])
def test_what_is_no_request_waits_again_after_its_window_and_nobody_is_asked(
    bus: Bus, sam: Peer, ann: Peer, kind: str, attempts: int
) -> None:
    note(sam, ann, kind)
    for attempt in range(1, attempts + 1):
        if attempt > 1:
            ann.attach()
        got = DeliveryId(ann.claim()["delivery_id"])
        assert (delivery(bus, got).kind, delivery(bus, got).attempt) == (kind, attempt)
        outcome = close_window(bus, got)
        assert outcome.result is True
        assert [(view.state, view.token) for view in told(outcome)] == [("queued", None)]
    row = delivery(bus, got)
    assert (row.intervention, row.deadline_us, row.lease_expires_us) == (None, None, None)
    assert ann.refused("ack", got).reason == STALE_LEASE
    again = ann.claim()  # by the same attachment: no new attempt, but a whole window
    assert (again["delivery_id"], again["attempt"]) == (got, attempts)
    window_us = bus.config.peer_window_seconds * 1_000_000
    assert delivery(bus, got).deadline_us == bus.clock.wall_us() + window_us
    assert ann.do("ack", got)["state"] == "acked"


def test_a_note_that_nobody_acknowledged_keeps_no_other_session_back(
    bus: Bus, sam: Peer, ann: Peer
) -> None:
    second = Peer(bus, "Ann", "second")
    sam.send("Ann")
    asked = sam.ask("Ann")
    got = DeliveryId(ann.claim()["delivery_id"])
    close_window(bus, got)
    assert second.claim()["delivery_id"] == got
    second.do("ack", got)
    assert second.claim()["envelope"]["id"] == asked["message_id"]
    assert ann.do("ack", got)["state"] == "acked"


@pytest.mark.parametrize("kind", KINDS)
def test_what_every_session_dies_of_asks_a_person_whatever_its_kind(
    bus: Bus, sam: Peer, ann: Peer, kind: str
) -> None:
    note(sam, ann, kind)
    for _ in range(PEER_ATTEMPTS):
        ann.attach()
        got = DeliveryId(ann.claim()["delivery_id"])
        assert delivery(bus, got).state == "leased"
        bus.done(AbandonLease(*token_of(bus, got)))
    assert delivery(bus, got).state == "paused"
    assert intervention(bus, got).source == "attempts"
