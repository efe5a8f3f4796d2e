"""Inboxes on a real ledger: who waits, who gets what, who is told."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from actors.inbox import COUNTS_PAUSE_S
from actors.inbox_messages import AskCancelled, DeliveryArrived, PeerWaiting
from actors.messages import Submit
from agentbus.errors import StaleAttachmentError, UnavailableError
from agentbus.ids import AgentId
from agentbus.store.peer.changes import Claimed, ListOpenDeliveries
from tests.actors.post import WITHIN_S, PostOffice, is_open, nothing, state
from tests.probe import Probe, settle
from tests.store.peers import Peer

LEASE_S = 30
LONG_MS = 600_000


def counts(watcher: Probe) -> list[int]:
    """How much waited each time that the watcher was told of it."""
    return [one.count for one in watcher.received() if isinstance(one, PeerWaiting)]


# --- waits ---


def test_a_look_without_time_brings_what_is_there_or_nothing(
    post: PostOffice, sam: Peer, kim: Peer
) -> None:
    nothing(post.ask(kim))
    sam.send("Kim", body="hello")
    assert post.claim(kim)["envelope"]["body"] == "hello"


def test_a_wait_is_answered_by_what_arrives(post: PostOffice, sam: Peer, kim: Peer) -> None:
    wait = post.ask(kim, LONG_MS)
    post.settle()
    assert is_open(wait)
    sam.send("Kim", body="hello")
    assert post.claimed(kim, wait)["envelope"]["body"] == "hello"


def test_a_wait_ends_with_its_time(post: PostOffice, kim: Peer) -> None:
    wait = post.ask(kim, 5_000)
    post.pass_time(4.9)
    assert is_open(wait)
    post.pass_time(0.2)
    nothing(wait)


def test_waits_are_served_in_the_order_in_which_they_came(
    post: PostOffice, sam: Peer, kim: Peer
) -> None:
    other = Peer(post, "Kim", "Kim-2")
    first, second = post.ask(other, LONG_MS), post.ask(kim, LONG_MS)
    post.settle()
    sam.send("Kim", body="one")
    delivery_id = post.claimed(other, first)["delivery_id"]
    sam.send("Kim", body="two")
    post.settle()
    assert is_open(second), "one delivery to the agent is in work at a time"
    other.do("ack", delivery_id)
    assert post.claimed(kim, second)["envelope"]["body"] == "two"


def test_a_wait_says_what_keeps_it_from_a_delivery(post: PostOffice, sam: Peer, kim: Peer) -> None:
    other = Peer(post, "Kim", "Kim-2")
    sam.send("Kim")
    held = post.claim(other)["delivery_id"]
    sam.send("Kim")
    blocked = nothing(post.ask(kim)).blocked
    assert blocked is not None
    assert held in blocked


def test_a_delivery_to_one_session_passes_over_the_others(
    post: PostOffice, sam: Peer, kim: Peer
) -> None:
    other = Peer(post, "Kim", "Kim-2")
    first, second = post.ask(kim, LONG_MS), post.ask(other, LONG_MS)
    sam.send(other.session_id, body="for you")
    assert post.claimed(other, second)["envelope"]["body"] == "for you"
    post.settle()
    assert is_open(first)


def test_a_session_never_gets_what_it_sent_to_its_own_agent(post: PostOffice, kim: Peer) -> None:
    other = Peer(post, "Kim", "Kim-2")
    own, others = post.ask(kim, LONG_MS), post.ask(other, LONG_MS)
    kim.send("Kim", body="to the other me")
    assert post.claimed(other, others)["envelope"]["body"] == "to the other me"
    post.settle()
    assert is_open(own)


def test_a_second_wait_of_a_session_ends_the_first(post: PostOffice, sam: Peer, kim: Peer) -> None:
    first = post.ask(kim, LONG_MS)
    second = post.ask(kim, LONG_MS)
    nothing(first)
    sam.send("Kim")
    post.claimed(kim, second)


def test_a_cancelled_wait_takes_nothing(post: PostOffice, sam: Peer, kim: Peer) -> None:
    wait = post.ask(kim, LONG_MS)
    post.inbox(kim).tell(AskCancelled(kim.speaker.attachment, post.last_ask))
    nothing(wait)
    sent = sam.send("Kim")
    post.settle()
    (row,) = post.reader().status(sam.agent_id, sent["message_id"], {})["deliveries"]
    assert row["state"] == "queued"


def test_what_a_claim_brought_for_nobody_is_given_to_the_next_wait(
    post: PostOffice, sam: Peer, kim: Peer
) -> None:
    sam.send("Kim", body="once")
    with Probe() as watcher:
        post.open(kim, watcher)
        nothing_yet = post.ask(kim, LONG_MS)
        # The claim is under way; its answer comes after this.
        post.inbox(kim).tell(AskCancelled(kim.speaker.attachment, post.last_ask))
        first: Claimed = nothing_yet.get(WITHIN_S)
        post.settle()
        if first.delivery is None:  # as a rule; else the claim was quicker than the cancellation
            told = [one.count for one in watcher.received() if isinstance(one, PeerWaiting)]
            assert told[-1] == 1, "the session is told that it has something"
        again = post.claim(kim)
    assert (again["envelope"]["body"], again["attempt"]) == ("once", 1)


class _Busy:
    """A reply in whose setting the ledger's thread stays until it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()

    def set(self, value: Any) -> None:
        self.let_go.wait(WITHIN_S)

    def set_exception(self, error: BaseException) -> None:
        self.set(error)


def test_a_wait_for_one_delivery_is_not_given_what_the_wait_before_it_claimed(
    post: PostOffice, sam: Peer, kim: Peer
) -> None:
    sam.send("Kim", body="another")
    busy = _Busy()
    post.ledger.tell(Submit(ListOpenDeliveries(AgentId("nobody")), busy))
    first = post.ask(kim, LONG_MS)
    second = post.ask(kim, only="lapsed")
    nothing(first)
    settle(post.inbox(kim), within=WITHIN_S)
    busy.let_go.set()
    nothing(second)
    again = post.claim(kim)
    assert (again["envelope"]["body"], again["attempt"]) == ("another", 1)


def test_the_end_of_an_attachment_ends_its_wait(post: PostOffice, sam: Peer, kim: Peer) -> None:
    wait = post.ask(kim, LONG_MS)
    post.leave(kim)
    with pytest.raises(StaleAttachmentError):
        wait.get(WITHIN_S)
    kim.attach()
    anew = post.ask(kim, LONG_MS)
    sam.send("Kim")
    post.claimed(kim, anew)


def test_a_wait_hears_that_the_bus_recovers(post: PostOffice, sam: Peer, kim: Peer) -> None:
    post.fence()
    with pytest.raises(UnavailableError):
        post.ask(kim, LONG_MS).get(WITHIN_S)
    post.unfence()
    nothing(post.ask(kim))


def test_a_parked_wait_outlasts_a_recovery(post: PostOffice, sam: Peer, kim: Peer) -> None:
    wait = post.ask(kim, LONG_MS)
    post.settle()
    post.fence()
    post.unfence()
    sam.send("Kim")
    post.claimed(kim, wait)


def test_many_waits_and_many_deliveries_meet(post: PostOffice, sam: Peer) -> None:
    """Each delivery once, whatever the order of arrivals and waits."""
    others = [Peer(post, "Kim", f"Kim-{n}") for n in range(4)]
    bodies = {f"m{n}" for n in range(20)}
    waits = {other.session_id: post.ask(other, LONG_MS) for other in others}
    for body in sorted(bodies):
        post.submit(sam.sending("Kim", body=body))
    got: list[str] = []
    while len(got) < len(bodies):
        for other in others:
            if is_open(waits[other.session_id]):
                continue
            taken = post.claimed(other, waits[other.session_id])
            got.append(taken["envelope"]["body"])
            other.do("ack", taken["delivery_id"])
            waits[other.session_id] = post.ask(other, LONG_MS)
        post.settle()
    assert sorted(got) == sorted(bodies)


def test_an_inbox_that_fails_is_replaced_and_knows_everything(
    post: PostOffice, sam: Peer, kim: Peer
) -> None:
    sam.ask("Kim")
    held = post.claim(kim)["delivery_id"]
    wait = post.ask(Peer(post, "Kim", "Kim-2"), LONG_MS)
    post.settle()
    before = post.inbox(kim)
    before.tell("no message that it knows")
    with pytest.raises(UnavailableError):
        wait.get(WITHIN_S)
    while post.inbox(kim) == before or not post.crashes:
        post.settle()
    post.pass_time(LEASE_S)
    assert state(post, held) == "queued"
    assert len(post.crashes) == 1
    post.crashes.clear()


# --- what is told ---


def test_a_session_is_told_how_much_waits_for_it(post: PostOffice, sam: Peer, kim: Peer) -> None:
    other = Peer(post, "Kim", "Kim-2")
    with Probe() as mine, Probe() as others:

        def told(watcher: Probe) -> int:
            post.pass_time(COUNTS_PAUSE_S)
            return counts(watcher)[-1]

        post.open(kim, mine)
        post.open(other, others)
        assert (told(mine), told(others)) == (0, 0)
        sam.send("Kim")
        sam.send("Kim")
        assert (told(mine), told(others)) == (2, 2)
        held = post.claim(kim)["delivery_id"]
        assert (told(mine), told(others)) == (2, 0), "held, and the next; the other has to wait"
        sam.send(other.session_id)
        assert (told(mine), told(others)) == (2, 1)
        kim.do("human", held)
        assert (told(mine), told(others)) == (0, 1), "a person has to decide first"


def test_of_a_burst_a_session_hears_the_beginning_and_the_end(
    post: PostOffice, sam: Peer, kim: Peer
) -> None:
    with Probe() as watcher:
        post.open(kim, watcher)
        post.pass_time(COUNTS_PAUSE_S)
        for _ in range(20):
            sam.send("Kim")
        post.settle()
        assert counts(watcher) == [0, 1]
        post.pass_time(COUNTS_PAUSE_S)
        assert counts(watcher) == [0, 1, 20]
        post.pass_time(10 * COUNTS_PAUSE_S)
        assert counts(watcher) == [0, 1, 20], "nothing new is nothing to tell"


def test_who_waits_elsewhere_hears_of_arrivals_and_of_freed_recipients(
    post: PostOffice, sam: Peer, kim: Peer
) -> None:
    sam.send("Kim")
    assert post.waits.expect(DeliveryArrived, WITHIN_S) == DeliveryArrived(kim.agent_id, None)
    sam.send(kim.session_id)
    arrived = post.waits.expect(DeliveryArrived, WITHIN_S)
    assert arrived == DeliveryArrived(kim.agent_id, kim.session_id)
    held = post.claim(kim)["delivery_id"]
    post.settle()
    post.waits.expect_nothing_of(DeliveryArrived, through=(post.inbox(kim),))
    kim.do("ack", held)
    assert post.waits.expect(DeliveryArrived, WITHIN_S) == DeliveryArrived(kim.agent_id, freed=True)
