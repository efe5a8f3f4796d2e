"""Inboxes on a real ledger: waits, leases, windows, replies that are late, restarts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actors.base import FutureReply
from actors.delivery_clocks import RETRY_S
from actors.inbox_messages import (
    AskCancelled,
    DeliveryArrived,
    PeerWaiting,
    RequestAdvanced,
)
from agentbus.errors import ConflictError, StaleAttachmentError, UnavailableError
from agentbus.limits import PEER_ATTEMPTS, PEER_UNANSWERED_SECONDS
from agentbus.rules.peer import STALE_LEASE
from agentbus.store.peer.changes import Claimed
from tests.actors.post import WITHIN_S, PostOffice, post_office
from tests.probe import Probe
from tests.store.peers import Peer, delivery, intervention

LEASE_S, WINDOW_S, REPLY_S = 30, 600, 900
LONG_MS = 600_000
HOUR_US = 3600 * 1_000_000


@pytest.fixture
def post(tmp_path: Path) -> Iterator[PostOffice]:
    with post_office(tmp_path) as post:
        yield post


@pytest.fixture
def sam(post: PostOffice) -> Peer:
    return Peer(post, "Sam")


@pytest.fixture
def kim(post: PostOffice) -> Peer:
    return Peer(post, "Kim")


def nothing(reply: FutureReply) -> Claimed:
    """The answer of a wait that brought no delivery."""
    claimed: Claimed = reply.get(WITHIN_S)
    assert claimed.delivery is None
    return claimed


def is_open(reply: FutureReply) -> bool:
    try:
        reply.get(0)
    except TimeoutError:
        return True
    return False


def state(post: PostOffice, delivery_id: str) -> str:
    return str(delivery(post, delivery_id).state)


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


# --- leases ---


def test_a_lease_that_is_not_renewed_lapses(post: PostOffice, sam: Peer, kim: Peer) -> None:
    sam.send("Kim")
    held = post.claim(kim)["delivery_id"]
    post.pass_time(LEASE_S - 1)
    assert state(post, held) == "leased"
    post.pass_time(1)
    assert state(post, held) == "queued"
    other = Peer(post, "Kim", "Kim-2")
    assert post.claim(other)["attempt"] == 2


def test_a_lapsed_lease_wakes_the_next_wait(post: PostOffice, sam: Peer, kim: Peer) -> None:
    sam.send("Kim")
    held = post.claim(kim)["delivery_id"]
    other = Peer(post, "Kim", "Kim-2")
    wait = post.ask(other, LONG_MS)
    post.pass_time(LEASE_S)
    assert post.claimed(other, wait)["delivery_id"] == held


def test_a_renewed_lease_holds(post: PostOffice, sam: Peer, kim: Peer) -> None:
    sam.send("Kim")
    held = post.claim(kim)["delivery_id"]
    for _ in range(20):
        post.pass_time(2)
        post.renew(kim, held)
    post.pass_time(LEASE_S - 1)
    assert state(post, held) == "leased"
    post.pass_time(1)
    assert state(post, held) == "queued"


def test_renewals_reach_the_disk_in_time_but_not_each(
    post: PostOffice, sam: Peer, kim: Peer
) -> None:
    sam.send("Kim")
    held = post.claim(kim)["delivery_id"]
    seen: set[Any] = set()
    for _ in range(30):
        post.pass_time(2)
        post.renew(kim, held)
        post.settle()
        row = delivery(post, held)
        assert row.lease_expires_us is not None
        left_s = (row.lease_expires_us - post.clock.wall_us()) / 1_000_000
        assert left_s > LEASE_S / 2 - 2
        seen.add(row.lease_expires_us)
    assert len(seen) <= 6


def test_a_renewal_with_another_token_renews_nothing(
    post: PostOffice, sam: Peer, kim: Peer
) -> None:
    sam.send("Kim")
    held = post.claim(kim)["delivery_id"]
    stale, kim.token = kim.token, kim.token
    post.claim(kim)
    fresh, kim.token = kim.token, stale
    assert fresh != stale
    post.pass_time(LEASE_S - 1)
    post.renew(kim, held)
    post.pass_time(1)
    assert state(post, held) == "queued"


def test_a_token_is_stale_after_its_lease_has_lapsed(
    post: PostOffice, sam: Peer, kim: Peer
) -> None:
    """The holder paused; somebody else has the work. Nothing of its late answer gets through."""
    sent = sam.ask("Kim")
    held = post.claim(kim)["delivery_id"]
    post.pass_time(LEASE_S)
    other = Peer(post, "Kim", "Kim-2")
    assert post.claim(other)["delivery_id"] == held
    error = kim.refused("reply", held)
    assert isinstance(error, ConflictError)
    assert error.reason == STALE_LEASE
    other.do("reply", held, body="mine")
    (answered,) = post.reader().status(sam.agent_id, sent["message_id"], {})["deliveries"]
    assert (answered["state"], answered["reply_state"]) == ("acked", "replied")


def test_too_many_lapsed_leases_ask_a_person(post: PostOffice, sam: Peer) -> None:
    sam.send("Kim")
    held = ""
    for attempt in range(1, PEER_ATTEMPTS + 1):
        peer = Peer(post, "Kim", f"Kim-{attempt}")
        taken = post.claim(peer)
        held = taken["delivery_id"]
        assert taken["attempt"] == attempt
        assert state(post, held) == "leased"
        post.pass_time(LEASE_S)
    assert state(post, held) == "paused"
    assert intervention(post, held).source == "attempts"


def test_a_lapse_that_the_bus_cannot_take_is_tried_again(
    post: PostOffice, sam: Peer, kim: Peer
) -> None:
    sam.send("Kim")
    held = post.claim(kim)["delivery_id"]
    post.settle()
    post.fence()
    post.pass_time(LEASE_S)
    assert state(post, held) == "leased"
    post.unfence()
    post.pass_time(RETRY_S)
    assert state(post, held) == "queued"


def test_a_lease_that_is_renewed_while_the_bus_recovers_is_not_given_up(
    post: PostOffice, sam: Peer, kim: Peer
) -> None:
    sam.send("Kim")
    held = post.claim(kim)["delivery_id"]
    post.settle()
    post.fence()
    post.pass_time(LEASE_S)
    post.renew(kim, held)  # too late for the first attempt, in time for the next
    post.unfence()
    post.pass_time(RETRY_S)
    assert state(post, held) == "leased"
    kim.do("ack", held)


# --- windows ---


def test_work_that_says_nothing_is_paused(post: PostOffice, sam: Peer, kim: Peer) -> None:
    sam.send("Kim")
    held = post.claim(kim)["delivery_id"]
    for _ in range(WINDOW_S // 20 - 1):
        post.pass_time(20)
        post.renew(kim, held)
    assert state(post, held) == "leased"
    post.pass_time(20)
    assert state(post, held) == "paused"
    assert intervention(post, held).source == "window"


def test_progress_moves_the_window(post: PostOffice, sam: Peer, kim: Peer) -> None:
    sam.send("Kim")
    held = post.claim(kim)["delivery_id"]
    for _ in range(20):
        post.pass_time(20)
        post.renew(kim, held)
    kim.do("progress", held)
    for _ in range(WINDOW_S // 20 - 1):
        post.pass_time(20)
        post.renew(kim, held)
    assert state(post, held) == "leased"
    post.pass_time(20)
    assert state(post, held) == "paused"


def test_the_same_attachment_goes_on_in_the_window_that_it_had(
    post: PostOffice, sam: Peer, kim: Peer
) -> None:
    sam.send("Kim")
    held = post.claim(kim)["delivery_id"]
    post.pass_time(LEASE_S)
    assert state(post, held) == "queued"
    post.claim(kim)
    for _ in range((WINDOW_S - LEASE_S) // 10 - 1):
        post.pass_time(10)
        post.renew(kim, held)
    assert state(post, held) == "leased"
    post.pass_time(10)
    assert state(post, held) == "paused"


# --- replies ---


def test_a_reply_that_does_not_come_is_overdue_and_then_unanswered(
    post: PostOffice, sam: Peer, kim: Peer
) -> None:
    sent = sam.ask("Kim")

    def reply_state() -> Any:
        status = post.reader().status(sam.agent_id, sent["message_id"], {})
        return status["deliveries"][0]["reply_state"]

    post.pass_time(REPLY_S - 1)
    assert reply_state() == "awaiting"
    post.pass_time(1)
    assert reply_state() == "overdue"
    (notice,) = nothing(post.ask(sam)).notices
    assert (notice["message_id"], notice["reply_state"]) == (sent["message_id"], "overdue")
    post.pass_time(PEER_UNANSWERED_SECONDS - REPLY_S - 1)
    assert reply_state() == "overdue"
    post.pass_time(1)
    assert reply_state() == "unanswered"


def test_a_late_reply_ends_a_wait_with_its_notice(post: PostOffice, sam: Peer, kim: Peer) -> None:
    sam.ask("Kim")
    wait = post.ask(sam, 2 * REPLY_S * 1000)
    post.pass_time(REPLY_S)
    assert [notice["reply_state"] for notice in nothing(wait).notices] == ["overdue"]


def test_an_answered_request_is_never_late(post: PostOffice, sam: Peer, kim: Peer) -> None:
    sam.ask("Kim", expect_reply_within_seconds=60)
    held = post.claim(kim)["delivery_id"]
    kim.do("reply", held, ack=False)
    post.pass_time(59)
    post.renew(kim, held)
    post.pass_time(61)
    assert delivery(post, held).reply_state == "replied"


def test_whoever_collects_hears_of_each_change_of_the_request(
    post: PostOffice, sam: Peer, kim: Peer
) -> None:
    sent, other = sam.ask("Kim"), sam.ask("Kim")
    with Probe() as watcher:
        post.watch(sam, sent["message_id"], watcher)
        held = post.claim(kim)["delivery_id"]
        watcher.expect(RequestAdvanced, WITHIN_S)
        kim.do("reply", held)
        assert watcher.expect(RequestAdvanced, WITHIN_S).message_id == sent["message_id"]
        post.settle()
        told = [one for one in watcher.received() if isinstance(one, RequestAdvanced)]
        post.claim(kim)
        post.settle()
        now = [one for one in watcher.received() if isinstance(one, RequestAdvanced)]
    assert now == told, f"{other['message_id']} is nobody's"


# --- clocks ---


@pytest.mark.parametrize("jump_us", [HOUR_US, -HOUR_US], ids=["forwards", "back"])
def test_a_jump_of_the_wall_clock_moves_no_time(
    post: PostOffice, sam: Peer, kim: Peer, jump_us: int
) -> None:
    asked = sam.ask("Kim")
    held = post.claim(kim)["delivery_id"]
    post.settle()
    post.clock.set_wall(post.clock.wall_us() + jump_us)
    post.pass_time(LEASE_S - 1)
    assert state(post, held) == "leased"
    post.renew(kim, held)
    post.pass_time(LEASE_S - 1)
    assert state(post, held) == "leased"
    for _ in range((WINDOW_S - 2 * (LEASE_S - 1)) // 20):
        post.renew(kim, held)
        post.pass_time(20)
    assert state(post, held) == "leased"
    post.renew(kim, held)
    post.pass_time(2)
    assert state(post, held) == "paused", "the window of 600 s is over"
    status = post.reader().status(sam.agent_id, asked["message_id"], {})
    assert status["deliveries"][0]["reply_state"] == "awaiting"
    post.pass_time(REPLY_S - WINDOW_S - 1)
    assert delivery(post, held).reply_state == "awaiting"
    post.pass_time(1)
    assert delivery(post, held).reply_state == "overdue"


# --- restarts ---


def restart(post: PostOffice, *peers: Peer, away_s: float = 0) -> None:
    """The daemon ends, some time passes, it begins again and starts the inboxes that it needs."""
    post.stop()
    post.clock.advance(away_s)
    post.start()
    for agent_id in post.reader().inboxes_in_use():
        post.inboxes.address(agent_id)
    post.settle()
    for peer in peers:
        peer.attach()


def test_a_lease_outlasts_a_restart_and_is_whole_again(
    post: PostOffice, sam: Peer, kim: Peer
) -> None:
    sam.ask("Kim")
    held = post.claim(kim)["delivery_id"]
    post.settle()
    restart(post, away_s=2 * LEASE_S)
    other = Peer(post, "Kim", "Kim-2")
    nothing(post.ask(other))
    post.pass_time(LEASE_S - 1)
    assert state(post, held) == "leased"
    post.pass_time(1)
    assert state(post, held) == "queued"


def test_the_holder_goes_on_after_a_restart(post: PostOffice, sam: Peer, kim: Peer) -> None:
    sam.ask("Kim", body="once")
    first = post.claim(kim)
    restart(post, kim, sam)
    again = post.claim(kim)
    assert (again["delivery_id"], again["attempt"]) == (first["delivery_id"], 1)
    kim.do("reply", again["delivery_id"])
    nothing(post.ask(kim))
    assert post.claim(sam)["envelope"]["kind"] == "response"


@pytest.mark.parametrize(
    ("away_s", "left_s"), [(0, 500), (200, 300), (10_000, 0)], ids=["at once", "later", "too late"]
)
def test_a_window_goes_on_after_a_restart(
    post: PostOffice, sam: Peer, kim: Peer, away_s: int, left_s: int
) -> None:
    sam.ask("Kim")
    held = post.claim(kim)["delivery_id"]
    for _ in range(5):
        post.pass_time(20)
        post.renew(kim, held)
    restart(post, away_s=away_s)
    if left_s:
        for _ in range(left_s // 20 - 1):
            post.pass_time(20)
            post.renew(kim, held)
        assert state(post, held) == "leased"
        post.pass_time(20)
    else:
        post.pass_time(0.001)
    assert state(post, held) == "paused"


def test_a_wall_clock_that_was_set_back_gives_no_more_than_a_whole_window(
    post: PostOffice, sam: Peer, kim: Peer
) -> None:
    sam.ask("Kim")
    held = post.claim(kim)["delivery_id"]
    post.settle()
    post.clock.set_wall(post.clock.wall_us() - HOUR_US)
    restart(post)
    for _ in range(WINDOW_S // 20 - 1):
        post.pass_time(20)
        post.renew(kim, held)
    assert state(post, held) == "leased"
    post.pass_time(20)
    assert state(post, held) == "paused"


def test_a_reply_becomes_overdue_across_a_restart(post: PostOffice, sam: Peer, kim: Peer) -> None:
    sam.ask("Kim")
    held = post.claim(kim)["delivery_id"]
    kim.do("ack", held)
    post.pass_time(100)
    restart(post, away_s=100)
    post.pass_time(REPLY_S - 201)
    assert delivery(post, held).reply_state == "awaiting"
    post.pass_time(1)
    assert delivery(post, held).reply_state == "overdue"


def test_an_inbox_loads_when_the_bus_is_ready(post: PostOffice, sam: Peer, kim: Peer) -> None:
    sam.ask("Kim")
    held = post.claim(kim)["delivery_id"]
    post.settle()
    post.stop()
    post.start(ready=False)
    with Probe() as watcher:
        kim_inbox = post.inbox(kim)
        post.open(kim, watcher)
        post.pass_time(10 * LEASE_S)
        assert state(post, held) == "leased"
        watcher.expect_nothing_of(PeerWaiting, through=(kim_inbox,))
        post.unfence()
        post.pass_time(RETRY_S)
        assert watcher.expect(PeerWaiting, WITHIN_S).count == 1
    post.pass_time(LEASE_S - 1)
    assert state(post, held) == "leased"
    post.pass_time(1)
    assert state(post, held) == "queued"


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
            post.settle()
            counts = [one.count for one in watcher.received() if isinstance(one, PeerWaiting)]
            return counts[-1]

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
    assert post.waits.expect(DeliveryArrived, WITHIN_S) == DeliveryArrived(kim.agent_id, None)
