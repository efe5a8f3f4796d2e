"""Inboxes on a real ledger: leases, windows, replies that are late, jumps of clocks, restarts."""

from __future__ import annotations

from typing import Any

import pytest

from actors.delivery_clocks import RETRY_S
from actors.inbox_messages import PeerWaiting, RequestAdvanced
from agentbus.errors import ConflictError
from agentbus.limits import PEER_ATTEMPTS, PEER_UNANSWERED_SECONDS
from agentbus.rules.peer import STALE_LEASE
from tests.actors.post import WITHIN_S, PostOffice, nothing, state
from tests.probe import Probe
from tests.store.peers import Peer, delivery, intervention

LEASE_S, WINDOW_S, REPLY_S = 30, 600, 900
LONG_MS = 600_000
HOUR_US = 3600 * 1_000_000


@pytest.fixture
def held(post: PostOffice, sam: Peer, kim: Peer) -> str:
    """A request of Sam's that Kim has claimed just now."""
    sam.ask("Kim")
    return str(post.claim(kim)["delivery_id"])


def keep(post: PostOffice, holder: Peer, held: str, seconds: float, *, every_s: float = 20) -> None:
    """Let time pass, while the holder's adapter renews its lease; the last time at the end."""
    while seconds > 0:
        step_s = min(every_s, seconds)
        post.pass_time(step_s)
        post.renew(holder, held)
        seconds -= step_s


# --- leases ---


def test_a_lease_that_is_not_renewed_lapses(post: PostOffice, held: str) -> None:
    post.pass_time(LEASE_S - 1)
    assert state(post, held) == "leased"
    post.pass_time(1)
    assert state(post, held) == "queued"
    other = Peer(post, "Kim", "Kim-2")
    assert post.claim(other)["attempt"] == 2


def test_a_lapsed_lease_wakes_the_next_wait(post: PostOffice, held: str) -> None:
    other = Peer(post, "Kim", "Kim-2")
    wait = post.ask(other, LONG_MS)
    post.pass_time(LEASE_S)
    assert post.claimed(other, wait)["delivery_id"] == held


def test_a_renewed_lease_holds(post: PostOffice, kim: Peer, held: str) -> None:
    keep(post, kim, held, 40, every_s=2)
    post.pass_time(LEASE_S - 1)
    assert state(post, held) == "leased"
    post.pass_time(1)
    assert state(post, held) == "queued"


def test_renewals_reach_the_disk_in_time_but_not_each(
    post: PostOffice, kim: Peer, held: str
) -> None:
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
    post: PostOffice, kim: Peer, held: str
) -> None:
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
    sessions = [Peer(post, "Kim", f"Kim-{n}") for n in range(PEER_ATTEMPTS)]
    sam.send("Kim")
    held = ""
    for attempt, peer in enumerate(sessions, start=1):
        taken = post.claim(peer)
        held = taken["delivery_id"]
        assert taken["attempt"] == attempt
        assert state(post, held) == "leased"
        post.pass_time(LEASE_S)
    assert state(post, held) == "paused"
    assert intervention(post, held).source == "attempts"


def test_a_lapse_that_the_bus_cannot_take_is_tried_again(post: PostOffice, held: str) -> None:
    post.settle()
    post.fence()
    post.pass_time(LEASE_S)
    assert state(post, held) == "leased"
    post.unfence()
    post.pass_time(RETRY_S)
    assert state(post, held) == "queued"


def test_a_lease_that_is_renewed_while_the_bus_recovers_is_not_given_up(
    post: PostOffice, kim: Peer, held: str
) -> None:
    post.settle()
    post.fence()
    post.pass_time(LEASE_S)
    post.renew(kim, held)  # too late for the first attempt, in time for the next
    post.unfence()
    post.pass_time(RETRY_S)
    assert state(post, held) == "leased"
    kim.do("ack", held)


# --- windows ---


def test_work_that_says_nothing_is_paused(post: PostOffice, kim: Peer, held: str) -> None:
    keep(post, kim, held, WINDOW_S - 20)
    assert state(post, held) == "leased"
    post.pass_time(20)
    assert state(post, held) == "paused"
    assert intervention(post, held).source == "window"


def test_progress_moves_the_window(post: PostOffice, kim: Peer, held: str) -> None:
    keep(post, kim, held, 400)
    kim.do("progress", held)
    keep(post, kim, held, WINDOW_S - 20)
    assert state(post, held) == "leased"
    post.pass_time(20)
    assert state(post, held) == "paused"


def test_the_same_attachment_goes_on_in_the_window_that_it_had(
    post: PostOffice, kim: Peer, held: str
) -> None:
    post.pass_time(LEASE_S)
    assert state(post, held) == "queued"
    post.claim(kim)
    keep(post, kim, held, WINDOW_S - LEASE_S - 10)
    assert state(post, held) == "leased"
    post.pass_time(10)
    assert state(post, held) == "paused"


def test_a_note_that_was_not_acknowledged_goes_to_who_waits_and_no_person_is_asked(
    post: PostOffice, sam: Peer, kim: Peer
) -> None:
    sam.send("Kim")
    held = post.claim(kim)["delivery_id"]
    other = Peer(post, "Kim", "other")
    parked = post.ask(other, 2 * LONG_MS)
    keep(post, kim, held, WINDOW_S - 20)
    assert delivery(post, held).holder == kim.session_id
    post.pass_time(20)
    given = post.claimed(other, parked)
    assert (given["delivery_id"], given["attempt"]) == (held, 2)
    assert delivery(post, held).intervention is None


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


@pytest.mark.parametrize(
    ("to", "there", "cause"),
    [
        ("Kim", "nobody", "undelivered"),
        ("Kim", "kim", "unclaimed"),
        ("Sam", "sam", "undelivered"),  # who never gets what it sent itself
        ("Sam", "both", "unclaimed"),
        ("session", "other", "undelivered"),
        ("session", "kim", "unclaimed"),
    ],
)
def test_a_notice_says_whether_somebody_was_there_to_take_the_request(
    post: PostOffice, sam: Peer, kim: Peer, to: str, there: str, cause: str
) -> None:
    other = Peer(post, "Kim", "Kim-2")
    post.attached = {
        "nobody": {},
        "sam": {sam.agent_id: {sam.session_id}},
        "both": {sam.agent_id: {sam.session_id, Peer(post, "Sam", "Sam-2").session_id}},
        "kim": {kim.agent_id: {kim.session_id}},
        "other": {kim.agent_id: {other.session_id}},
    }[there]
    sam.ask(kim.session_id if to == "session" else to)
    post.pass_time(REPLY_S)
    (notice,) = nothing(post.ask(sam)).notices
    assert notice["cause"] == cause


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
    post: PostOffice, kim: Peer, held: str, jump_us: int
) -> None:
    post.settle()
    post.clock.set_wall(post.clock.wall_us() + jump_us)
    post.pass_time(LEASE_S - 1)
    assert state(post, held) == "leased"
    post.renew(kim, held)
    post.pass_time(LEASE_S - 1)
    assert state(post, held) == "leased"
    post.renew(kim, held)
    keep(post, kim, held, WINDOW_S - 2 * (LEASE_S - 1) - 2)
    assert state(post, held) == "leased"
    post.pass_time(2)
    assert state(post, held) == "paused", "the window of 600 s is over"
    assert delivery(post, held).reply_state == "awaiting"
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


def test_a_lease_outlasts_a_restart_and_is_whole_again(post: PostOffice, held: str) -> None:
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
    post: PostOffice, kim: Peer, held: str, away_s: int, left_s: int
) -> None:
    keep(post, kim, held, 100)
    restart(post, away_s=away_s)
    if left_s:
        keep(post, kim, held, left_s - 20)
        assert state(post, held) == "leased"
        post.pass_time(20)
    else:
        post.pass_time(0.001)
    assert state(post, held) == "paused"


def test_a_wall_clock_that_was_set_back_gives_no_more_than_a_whole_window(
    post: PostOffice, kim: Peer, held: str
) -> None:
    post.settle()
    post.clock.set_wall(post.clock.wall_us() - HOUR_US)
    restart(post)
    keep(post, kim, held, WINDOW_S - 20)
    assert state(post, held) == "leased"
    post.pass_time(20)
    assert state(post, held) == "paused"


def test_a_reply_becomes_overdue_across_a_restart(post: PostOffice, kim: Peer, held: str) -> None:
    kim.do("ack", held)
    post.pass_time(100)
    restart(post, away_s=100)
    post.pass_time(REPLY_S - 201)
    assert delivery(post, held).reply_state == "awaiting"
    post.pass_time(1)
    assert delivery(post, held).reply_state == "overdue"


def test_an_inbox_loads_when_the_bus_is_ready(post: PostOffice, kim: Peer, held: str) -> None:
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
