"""What may be asked of others while one works: depth, cycles, budget, and who answered what."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import pytest

from agentbus.errors import BusError, ConflictError, NotFoundError, ValidationError
from agentbus.ids import LeaseToken
from agentbus.limits import CONSULTATION_REQUESTS, CONSULTATION_SECONDS
from agentbus.rules.peer import (
    CONSULTATION_BUDGET,
    CONSULTATION_CYCLE,
    CONSULTATION_DEADLINE,
    DELIVERY_UNAVAILABLE,
    HUMAN_REQUIRED,
    STALE_LEASE,
)
from agentbus.store.peer.changes import AbandonLease, Claimed, Decide
from tests.store.bus import Bus
from tests.store.peers import (
    Peer,
    deliveries,
    delivery,
    token_of,
    told,
)

pytestmark = pytest.mark.usefixtures("exact_accounting")


def consultations(bus: Bus) -> dict[str, int]:
    """Requests by the delivery that they were asked for."""
    with closing(sqlite3.connect(bus.path)) as connection:
        return dict(connection.execute("SELECT delivery, requests FROM consultations").fetchall())


def is_cycle(error: BusError, agent: str) -> bool:
    return (error.reason, error.status) == (CONSULTATION_CYCLE, 409) and agent in error.message


def is_spent(error: BusError, reason: str) -> bool:
    return isinstance(error, ConflictError) and (error.reason, error.status) == (reason, 429)


# --- depth and parent ---


def test_depth_counts_requests_made_for_other_requests(
    bus: Bus, sam: Peer, ann: Peer, kim: Peer
) -> None:
    assert sam.ask("Ann")["status"] == "accepted"
    first = ann.claim()
    ann.ask("Kim")
    ann.send("Kim", kind="info")
    second = kim.claim()
    kim.do("reply", second["delivery_id"])
    assert kim.claim()["envelope"]["kind"] == "info"
    rows = deliveries(bus)
    assert [(row.kind, row.depth, row.parent) for row in rows] == [
        ("request", 0, None),
        ("request", 1, first["delivery_id"]),
        ("info", 0, first["delivery_id"]),
        ("response", 1, second["delivery_id"]),
    ]


def test_after_its_work_a_session_asks_on_its_own_account(
    bus: Bus, sam: Peer, ann: Peer, kim: Peer
) -> None:
    sam.ask("Ann")
    ann.do("ack", ann.claim()["delivery_id"])
    ann.ask("Kim")
    row = deliveries(bus)[-1]
    assert (row.depth, row.parent) == (0, None)


# --- cycles ---


def test_nobody_asks_whoever_waits_for_the_answer(bus: Bus, sam: Peer, ann: Peer) -> None:
    sam.ask("Ann")
    got = ann.claim()["delivery_id"]
    for word in ("Sam", sam.agent_id, sam.session_id):
        assert is_cycle(ann.refused_ask(word), "Sam")
    assert consultations(bus) == {"": 1}  # Sam's own; a refused one is not counted
    ann.send("Sam", kind="info")
    ann.do("reply", got, ack=False)
    ann.do("ack", got)
    ann.ask("Sam")


def test_nobody_asks_whoever_waits_through_others(
    bus: Bus, sam: Peer, ann: Peer, kim: Peer
) -> None:
    tom = Peer(bus, "Tom")
    sam.ask("Ann")
    ann.claim()
    ann.ask("Kim")
    kim.claim()
    for waiting in ("Sam", "Ann"):
        assert is_cycle(kim.refused_ask(waiting), waiting)
        assert is_cycle(kim.refused_ask("Tom", waiting), waiting)
    kim.ask("Tom")
    tom.claim()
    for waiting in ("Sam", "Ann", "Kim"):
        assert is_cycle(tom.refused_ask(waiting), waiting)


def test_a_work_that_rests_or_has_lapsed_still_makes_a_cycle(
    bus: Bus, sam: Peer, ann: Peer
) -> None:
    sam.ask("Ann")
    got = ann.claim()["delivery_id"]
    bus.done(AbandonLease(*token_of(bus, got)))
    assert is_cycle(ann.refused_ask("Sam"), "Sam")
    ann.claim()
    ann.do("human", got)
    assert is_cycle(ann.refused_ask("Sam"), "Sam")


def test_only_requests_are_waited_for(bus: Bus, sam: Peer, ann: Peer, kim: Peer) -> None:
    sam.send("Ann", kind="info")
    info = ann.claim()["delivery_id"]
    ann.ask("Sam")
    sam.do("reply", sam.claim()["delivery_id"])
    ann.do("ack", info)
    ann.claim()  # the response, which Sam waits for nothing of
    ann.ask("Sam")
    # Kim waits for Ann's work, but not for what Ann's notice makes Sam do.
    kim.ask("Ann", key="k")


def test_the_chain_ends_at_what_was_no_request(bus: Bus, sam: Peer, ann: Peer, kim: Peer) -> None:
    sam.ask("Ann")
    ann.claim()
    ann.send("Kim", kind="info")
    kim.claim()
    kim.ask("Sam")


def test_sessions_of_one_agent_ask_each_other_but_not_back(bus: Bus, sam: Peer) -> None:
    other = Peer(bus, "Sam", "another")
    sam.ask("Sam")
    other.claim()
    assert is_cycle(other.refused_ask("Sam"), "Sam")


# --- budget ---


def test_a_task_may_ask_four_times_and_its_answers_cost_nothing(
    bus: Bus, sam: Peer, ann: Peer, kim: Peer
) -> None:
    sam.ask("Ann")
    got = ann.claim()["delivery_id"]
    for n in range(CONSULTATION_REQUESTS):
        ann.ask("Kim", key=f"k{n}")
        ann.ask("Kim", key=f"k{n}")  # the same again
        ann.send("Kim", kind="info")
    error = ann.refused_ask("Kim", key="k4")
    assert is_spent(error, CONSULTATION_BUDGET)
    assert error.detail == {"consultation_seconds_left": CONSULTATION_SECONDS}
    assert "4 requests" in error.message
    assert ann.ask("Kim", key="k3")["duplicate"] is True
    assert consultations(bus) == {"": 1, got: CONSULTATION_REQUESTS}
    assert ann.do("reply", got)["status"] == "accepted"
    ann.ask("Kim", key="k4")  # on its own account now
    assert consultations(bus) == {"": 1, got: CONSULTATION_REQUESTS} | {"": 1}


def test_a_request_to_many_is_one(bus: Bus, sam: Peer, ann: Peer, kim: Peer) -> None:
    sam.ask("Ann", "Kim")
    assert consultations(bus) == {"": 1}


@pytest.mark.parametrize(("offset_us", "allowed"), [(-1, True), (0, False), (1, False)])
def test_the_time_for_asking_ends_300_seconds_after_the_first(
    bus: Bus, sam: Peer, ann: Peer, kim: Peer, offset_us: int, allowed: bool
) -> None:
    sam.ask("Ann")
    ann.claim()
    bus.clock.advance(200)  # claimed long before anything was asked
    start_us = bus.clock.wall_us()
    ann.ask("Kim")
    bus.clock.set_wall(start_us + CONSULTATION_SECONDS * 1_000_000 + offset_us)
    if allowed:
        ann.ask("Kim")
    else:
        error = ann.refused_ask("Kim")
        assert is_spent(error, CONSULTATION_DEADLINE)
        assert error.detail == {"consultation_seconds_left": 0}


@pytest.mark.parametrize(("offset_us", "allowed"), [(-1, True), (0, False)])
def test_nobody_is_asked_beyond_the_deadline_of_the_work_itself(
    bus: Bus, sam: Peer, ann: Peer, kim: Peer, offset_us: int, allowed: bool
) -> None:
    sam.ask("Ann")
    got = ann.claim()["delivery_id"]
    deadline_us = delivery(bus, got).deadline_us
    assert deadline_us is not None
    bus.clock.set_wall(deadline_us + offset_us)
    if allowed:
        ann.ask("Kim")
    else:
        assert is_spent(ann.refused_ask("Kim"), CONSULTATION_DEADLINE)
        ann.do("progress", got)
        ann.ask("Kim")


@pytest.mark.parametrize(("offset_us", "allowed"), [(-1, False), (0, True)])
def test_on_its_own_account_a_session_may_ask_again_after_the_time(
    bus: Bus, sam: Peer, ann: Peer, offset_us: int, allowed: bool
) -> None:
    start_us = bus.clock.wall_us()
    for _ in range(CONSULTATION_REQUESTS):
        sam.ask("Ann")
    assert is_spent(sam.refused_ask("Ann"), CONSULTATION_BUDGET)
    bus.clock.set_wall(start_us + CONSULTATION_SECONDS * 1_000_000 + offset_us)
    if allowed:
        for _ in range(CONSULTATION_REQUESTS):
            sam.ask("Ann")
    assert is_spent(sam.refused_ask("Ann"), CONSULTATION_BUDGET)


def test_a_clock_that_went_back_gives_no_more_time_than_there_is(
    bus: Bus, sam: Peer, ann: Peer
) -> None:
    for _ in range(CONSULTATION_REQUESTS):
        sam.ask("Ann")
    bus.clock.set_wall(bus.clock.wall_us() - 3_600_000_000)
    error = sam.refused_ask("Ann")
    assert error.detail == {"consultation_seconds_left": CONSULTATION_SECONDS}


def test_while_its_work_rests_a_session_asks_on_its_own_account(
    bus: Bus, sam: Peer, ann: Peer, kim: Peer
) -> None:
    sam.ask("Ann")
    got = ann.claim()["delivery_id"]
    for _ in range(CONSULTATION_REQUESTS):
        ann.ask("Kim")
    bus.done(AbandonLease(*token_of(bus, got)))
    assert is_spent(ann.refused_ask("Kim"), CONSULTATION_BUDGET)
    ann.claim()
    asked = ann.do("human", got)["intervention_id"]
    ann.ask("Kim")
    assert consultations(bus) == {"": 1, got: CONSULTATION_REQUESTS}
    bus.done(Decide(asked, 1, "approve", "a person"))
    assert is_spent(ann.refused_ask("Kim"), CONSULTATION_BUDGET)


def test_sessions_have_budgets_of_their_own(bus: Bus, sam: Peer, ann: Peer) -> None:
    other = Peer(bus, "Sam", "another")
    for session in (sam, other):
        for _ in range(CONSULTATION_REQUESTS):
            session.ask("Ann")
        assert is_spent(session.refused_ask("Ann"), CONSULTATION_BUDGET)


# --- a send that is a reply ---


def test_a_send_to_the_sender_of_held_work_is_its_reply(bus: Bus, sam: Peer, ann: Peer) -> None:
    request = sam.ask("Ann", thread_id="t")
    got = ann.claim()["delivery_id"]
    answer = ann.send("Sam", kind="response", reply_to=request["message_id"], body="done")
    assert (answer["thread_id"], answer["acked"]) == ("t", got)
    assert answer["recipients"][0]["session_id"] == sam.session_id
    row = delivery(bus, got)
    assert (row.state, row.reply_state) == ("acked", "replied")
    assert row.reply_message_id == answer["message_id"]
    assert sam.claim()["envelope"]["body"] == "done"


@pytest.mark.parametrize("word", ["name", "agent", "session"])
def test_the_sender_is_meant_however_it_is_called(
    bus: Bus, sam: Peer, ann: Peer, word: str
) -> None:
    request = sam.ask("Ann")["message_id"]
    ann.claim()
    to = {"name": "Sam", "agent": sam.agent_id, "session": sam.session_id}[word]
    assert "acked" in ann.send(to, kind="response", reply_to=request)


def test_ack_false_is_a_part_of_the_answer_and_the_work_goes_on(
    bus: Bus, sam: Peer, ann: Peer
) -> None:
    request = sam.ask("Ann")["message_id"]
    got = ann.claim()["delivery_id"]
    part = ann.send("Sam", kind="response", reply_to=request, ack=False)
    assert "acked" not in part
    row = delivery(bus, got)
    assert (row.state, row.reply_state) == ("leased", "replied")
    assert row.reply_message_id == part["message_id"]
    rest = ann.do("reply", got)
    row = delivery(bus, got)
    assert (row.state, row.reply_message_id, row.late_reply_message_id) == (
        "acked",
        part["message_id"],
        None,
    )
    assert rest["acked"] == got


@pytest.mark.parametrize("ack", [None, True, False])
def test_whoever_sends_to_the_sender_of_held_work_need_not_say_that_it_is_the_response(
    bus: Bus, sam: Peer, ann: Peer, ack: bool | None
) -> None:
    request = sam.ask("Ann")["message_id"]
    got = ann.claim()["delivery_id"]
    answer = ann.send("Sam", reply_to=request, **({} if ack is None else {"ack": ack}))
    row = delivery(bus, got)
    assert (row.reply_state, row.reply_message_id) == ("replied", answer["message_id"])
    assert row.state == ("leased" if ack is False else "acked")
    assert sam.claim()["envelope"]["kind"] == "response"


def test_an_acknowledgement_that_is_sent_is_no_reply(bus: Bus, sam: Peer, ann: Peer) -> None:
    request = sam.ask("Ann")["message_id"]
    got = ann.claim()["delivery_id"]
    ann.send("Sam", kind="ack", reply_to=request, ack=False)
    assert delivery(bus, got).reply_state == "awaiting"
    ann.send("Sam", kind="ack", reply_to=request)
    row = delivery(bus, got)
    assert (row.state, row.reply_state) == ("acked", "awaiting")


def test_a_note_in_answer_to_a_response_is_no_response(bus: Bus, sam: Peer, ann: Peer) -> None:
    sam.ask("Ann")
    ann.do("reply", ann.claim()["delivery_id"])
    got = sam.claim()
    thanks = sam.send("Ann", reply_to=got["envelope"]["id"], body="thanks")
    assert thanks["acked"] == got["delivery_id"]
    assert ann.claim()["envelope"]["kind"] == "info"


def test_a_note_about_work_that_is_not_held_any_more_stays_a_note(
    bus: Bus, sam: Peer, ann: Peer
) -> None:
    request = sam.ask("Ann")["message_id"]
    got = ann.claim()["delivery_id"]
    ann.do("ack", got)
    ann.send("Sam", reply_to=request)
    assert delivery(bus, got).reply_state == "awaiting"
    assert sam.claim()["envelope"]["kind"] == "info"


def test_an_answer_to_held_work_goes_to_its_sender_in_its_thread(
    bus: Bus, sam: Peer, ann: Peer, kim: Peer
) -> None:
    other = Peer(bus, "Sam", "another")
    request = sam.ask("Ann", thread_id="t")["message_id"]
    got = ann.claim()["delivery_id"]
    for to in (("Kim",), ("Sam", "Kim"), (other.session_id,), ("Sam", sam.session_id)):
        error = bus.refused(ann.sending(*to, kind="response", reply_to=request))
        assert isinstance(error, ValidationError)
        assert "'Sam'" in error.message
    error = bus.refused(ann.sending("Sam", kind="response", reply_to=request, thread_id="u"))
    assert isinstance(error, ValidationError)
    assert delivery(bus, got).state == "leased"
    ann.send("Sam", kind="response", reply_to=request, thread_id="t")


@pytest.mark.parametrize("ack", [True, False])
def test_ack_needs_held_work_that_is_answered(bus: Bus, sam: Peer, ann: Peer, ack: bool) -> None:
    request = sam.ask("Ann")["message_id"]
    other = sam.send("Ann")["message_id"]
    for reply_to in (request, other, "never-was"):
        error = bus.refused(ann.sending("Sam", reply_to=reply_to, ack=ack))
        assert isinstance(error, ValidationError)
    ann.claim()
    error = bus.refused(ann.sending("Sam", reply_to=other, ack=ack))
    assert isinstance(error, ValidationError)
    ann.send("Sam", reply_to=request, ack=ack)


def test_a_send_that_is_a_reply_needs_the_lease(bus: Bus, sam: Peer, ann: Peer) -> None:
    request = sam.ask("Ann")["message_id"]
    got = ann.claim()["delivery_id"]
    answer = ann.sending("Sam", kind="response", reply_to=request, token=LeaseToken("old"))
    assert bus.refused(answer).reason == STALE_LEASE
    bus.done(AbandonLease(*token_of(bus, got)))
    answer = ann.sending("Sam", kind="response", reply_to=request, key="k")
    assert bus.refused(answer).reason == STALE_LEASE
    second = Peer(bus, "Ann", "second")
    second.claim()
    assert bus.refused(answer).reason == STALE_LEASE
    second.do("human", got)
    assert bus.refused(answer).reason == STALE_LEASE
    other = second.sending("Sam", kind="response", reply_to=request)
    assert bus.refused(other).reason == HUMAN_REQUIRED
    assert delivery(bus, got).reply_state == "awaiting"


# --- what a response makes of the request ---


def test_an_answer_after_the_ack_still_counts(bus: Bus, sam: Peer, ann: Peer) -> None:
    request = sam.ask("Ann")["message_id"]
    got = ann.claim()["delivery_id"]
    ann.do("ack", got)
    assert delivery(bus, got).reply_state == "awaiting"
    outcome = bus.done(ann.sending("Sam", kind="response", reply_to=request))
    assert [(view.kind, view.reply_state) for view in told(outcome)] == [
        ("response", None),
        ("request", "replied"),
    ]
    first = outcome.result["message_id"]
    ann.send("Sam", kind="response", reply_to=request)
    assert delivery(bus, got).reply_message_id == first


def test_each_recipient_answers_for_itself(bus: Bus, sam: Peer, ann: Peer, kim: Peer) -> None:
    request = sam.ask("Ann", "Kim", ann.session_id)
    ids = [one["delivery_id"] for one in request["recipients"]]
    kim.do("reply", kim.claim()["delivery_id"])
    assert [delivery(bus, one).reply_state for one in ids] == ["awaiting", "replied", "awaiting"]
    got = ann.claim()["delivery_id"]
    ann.do("reply", got)
    ann.do("reply", ann.claim()["delivery_id"])
    assert [delivery(bus, one).reply_state for one in ids] == ["replied"] * 3


def test_a_response_to_others_is_no_answer(bus: Bus, sam: Peer, ann: Peer, kim: Peer) -> None:
    request = sam.ask("Ann")["message_id"]
    got = ann.claim()["delivery_id"]
    ann.do("ack", got)
    ann.send("Kim", kind="response", reply_to=request)
    assert delivery(bus, got).reply_state == "awaiting"
    shown = kim.claim()["correlation"]
    assert shown["matches_sent_request"] is False
    error = bus.refused(kim.sending("Sam", kind="response", reply_to=request))
    assert isinstance(error, NotFoundError)


def test_a_response_to_what_was_no_request_is_only_a_message(
    bus: Bus, sam: Peer, ann: Peer
) -> None:
    sam.send("Ann")
    ann.do("reply", ann.claim()["delivery_id"])
    got = sam.claim()
    assert got["correlation"]["matches_sent_request"] is False
    assert [row.reply_state for row in deliveries(bus)] == [None, None]


@pytest.mark.parametrize("action", ["reject", "cancel", "reassign"])
def test_nobody_answers_what_was_taken_from_it(
    bus: Bus, sam: Peer, ann: Peer, kim: Peer, action: Any
) -> None:
    request = sam.ask("Ann")["message_id"]
    got = ann.claim()["delivery_id"]
    asked = ann.do("human", got)["intervention_id"]
    to = "Kim" if action == "reassign" else None
    bus.done(Decide(asked, 1, action, "a person", to=to))
    for answer in (
        ann.held("reply", got),
        ann.held("ack", got),
        ann.sending("Sam", kind="response", reply_to=request),
    ):
        error = bus.refused(answer)
        assert (error.reason, error.state) == (DELIVERY_UNAVAILABLE, "unavailable")
    assert ann.wait() == Claimed(None, None)


def test_the_answer_goes_to_the_session_that_asked(bus: Bus, sam: Peer, ann: Peer) -> None:
    other = Peer(bus, "Sam", "another")
    sam.ask("Ann")
    ann.do("reply", ann.claim()["delivery_id"])
    assert other.wait().delivery is None
    assert sam.claim()["envelope"]["kind"] == "response"
