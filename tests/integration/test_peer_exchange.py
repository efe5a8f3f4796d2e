"""Directed work between sessions on a whole bus: asked, claimed, answered, collected."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from actors.inbox import COUNTS_PAUSE_S
from agentbus.errors import (
    BusError,
    ConflictError,
    NotFoundError,
    TooLargeError,
    ValidationError,
)
from agentbus.rules.peer import STALE_LEASE
from agentbus.transport.client import Client
from tests.eventually import PATIENCE_S, eventually
from tests.integration.in_process import InProcessBus, in_process_bus
from tests.peer_sessions import PeerSession
from tests.signals import kill

LEASE_S = 5
LONG_S = 45


@pytest.fixture
def bus() -> Iterator[InProcessBus]:
    with in_process_bus(peer_lease_seconds=LEASE_S) as bus:
        yield bus


def attach(bus: InProcessBus, agent: str, conversation: str | None = None) -> PeerSession:
    return PeerSession(bus.attach(agent, conversation or f"{agent}-1"))


@contextmanager
def under_way(session: PeerSession, op: str, **args: Any) -> Iterator[Future[Any]]:
    """An operation that waits; its session is that thread's meanwhile."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(session.peer, op, **args)


def waiting(bus: InProcessBus) -> int:
    return int(bus.status()["inboxes"]["waiting"])


def lapse(bus: InProcessBus, asker: PeerSession, message_id: str) -> None:
    """Time passes until the lease of the only recipient is over."""

    def is_queued() -> bool:
        bus.clock.advance(LEASE_S / 2)
        status = asker.peer("status", message_id=message_id)
        return bool(status["deliveries"][0]["state"] == "queued")

    eventually(is_queued, what="the end of the lease")


def renew(session: PeerSession, delivery_id: str) -> None:
    session.session.notify("renew", leases=[[delivery_id, session.token]])


def test_a_request_is_claimed_answered_and_collected(bus: InProcessBus) -> None:
    sam, kim = attach(bus, "Sam"), attach(bus, "Kim")
    sent = sam.ask("Kim", body="How many?")
    work = kim.claim()
    assert work["envelope"]["body"] == "How many?"
    assert work["envelope"]["from"]["agent"] == "Sam"
    kim.reply(work["delivery_id"], "Seven.")
    result = sam.peer("collect", message_id=sent["message_id"], timeout=0)
    assert (result["outcome"], result["expected"], result["excluded"]) == ("complete", 1, 0)
    (answer,) = result["answers"]
    assert (answer["recipient"], answer["body"], answer["late"]) == ("Kim", "Seven.", False)
    assert (result["pending"], result["closed"]) == ({}, {})
    assert result["request_id"] == sent["message_id"]


def test_a_waiting_session_is_woken_by_what_is_sent_to_it(bus: InProcessBus) -> None:
    sam, kim = attach(bus, "Sam"), attach(bus, "Kim")
    with under_way(kim, "wait", timeout=LONG_S) as wait:
        eventually(lambda: waiting(bus) == 1, what="a parked wait")
        sam.ask("Kim", body="now")
        assert wait.result(PATIENCE_S)["delivery"]["envelope"]["body"] == "now"


def test_a_collection_ends_with_the_last_answer(bus: InProcessBus) -> None:
    sam, kim, leo = attach(bus, "Sam"), attach(bus, "Kim"), attach(bus, "Leo")
    sent = sam.ask("Kim", "Leo", body="Votes?")
    with under_way(sam, "collect", message_id=sent["message_id"], timeout=LONG_S) as collect:
        kim.reply(kim.claim()["delivery_id"], "yes", ack=False)
        leo.reply(leo.claim()["delivery_id"], "no")
        result = collect.result(PATIENCE_S)
    assert result["outcome"] == "complete"
    assert {one["recipient"]: one["body"] for one in result["answers"]} == {
        "Kim": "yes",
        "Leo": "no",
    }


def test_a_collection_ends_with_as_many_answers_as_are_expected(bus: InProcessBus) -> None:
    sam, kim = attach(bus, "Sam"), attach(bus, "Kim")
    attach(bus, "Leo")
    sent = sam.ask("Kim", "Leo", body="Anybody?")
    kim.reply(kim.claim()["delivery_id"], "me")
    args = {"message_id": sent["message_id"], "timeout": LONG_S}
    result = sam.peer("collect", **args, expected=1)
    assert result["outcome"] == "complete"
    assert result["pending"]["Leo"]["reply_state"] == "awaiting"


def test_a_collection_ends_with_its_time_and_tells_what_is_missing(bus: InProcessBus) -> None:
    sam, kim = attach(bus, "Sam"), attach(bus, "Kim")
    attach(bus, "Leo")
    sent = sam.ask("Kim", "Leo", body="Votes?")
    collect = {"message_id": sent["message_id"], "timeout": 10}
    with under_way(sam, "collect", **collect) as nobody:
        eventually(lambda: bus.clock.advance(1) or nobody.done(), what="the end of its time")
    assert nobody.result()["outcome"] == "no_reply"
    kim.reply(kim.claim()["delivery_id"], "yes")
    with under_way(sam, "collect", **collect) as some:
        eventually(lambda: bus.clock.advance(1) or some.done(), what="the end of its time")
    result = some.result()
    assert (result["outcome"], list(result["pending"])) == ("partial", ["Leo"])
    assert "1 of 2" in result["summary"]


def test_a_collection_that_is_cancelled_says_so_and_consumes_nothing(bus: InProcessBus) -> None:
    sam, kim = attach(bus, "Sam"), attach(bus, "Kim")
    sent = sam.ask("Kim", body="Well?")
    number = sam.next_number
    with under_way(sam, "collect", message_id=sent["message_id"], timeout=LONG_S) as collect:

        def is_cancelled() -> bool:
            sam.session.notify("cancel_peer", number=number)
            return collect.done()

        eventually(is_cancelled)
        assert collect.result()["outcome"] == "cancelled"
    kim.reply(kim.claim()["delivery_id"], "here")
    for _ in range(2):
        again = sam.peer("collect", message_id=sent["message_id"])
        assert [one["body"] for one in again["answers"]] == ["here"]


def test_only_own_requests_are_collected(bus: InProcessBus) -> None:
    sam, kim = attach(bus, "Sam"), attach(bus, "Kim")
    sent = sam.ask("Kim", body="Well?")
    with pytest.raises(NotFoundError):
        kim.peer("collect", message_id=sent["message_id"])
    note = sam.peer("send", to=["Kim"], body="note", idempotency_key="k")
    with pytest.raises(ValidationError, match="no request"):
        sam.peer("collect", message_id=note["message_id"])


def test_what_was_shown_is_not_shown_again(bus: InProcessBus) -> None:
    sam, kim = attach(bus, "Sam"), attach(bus, "Kim")
    sent = sam.ask("Kim", body="Well?")
    kim.reply(kim.claim()["delivery_id"], "here")
    (answer,) = sam.peer("collect", message_id=sent["message_id"])["answers"]
    sam.session.notify("peer_shown", responses=[answer["message_id"]], notices=[])

    def is_known() -> bool:
        (again,) = sam.peer("collect", message_id=sent["message_id"])["answers"]
        return again.get("already_presented") is True and again["body"] is None

    eventually(is_known)
    assert sam.peer("wait", timeout=0)["delivery"] is None, "its delivery is finished with that"


def test_a_restart_while_work_is_held_neither_loses_nor_doubles_it(bus: InProcessBus) -> None:
    sam, kim = attach(bus, "Sam"), attach(bus, "Kim")
    sent = sam.ask("Kim", body="once")
    first = kim.claim()
    bus.system.stop()
    bus.start()
    sam, other, kim = attach(bus, "Sam"), attach(bus, "Kim", "Kim-2"), attach(bus, "Kim")
    assert other.peer("wait", timeout=0)["delivery"] is None
    again = kim.claim()
    assert (again["delivery_id"], again["attempt"]) == (first["delivery_id"], 1)
    kim.reply(again["delivery_id"], "done")
    for session in (kim, other):
        assert session.peer("wait", timeout=0)["delivery"] is None
    (answer,) = sam.peer("collect", message_id=sent["message_id"])["answers"]
    assert answer["body"] == "done"


def test_a_lease_whose_holder_never_comes_back_lapses_after_a_restart(bus: InProcessBus) -> None:
    sam, kim = attach(bus, "Sam"), attach(bus, "Kim")
    sent = sam.ask("Kim", body="once")
    kim.claim()
    bus.system.stop()
    bus.start()
    sam = attach(bus, "Sam")
    lapse(bus, sam, sent["message_id"])
    other = attach(bus, "Kim", "Kim-2")
    assert other.claim()["attempt"] == 2


def test_a_holder_that_paused_cannot_answer_when_another_session_has_its_work(
    bus: InProcessBus,
) -> None:
    sam, kim, other = attach(bus, "Sam"), attach(bus, "Kim"), attach(bus, "Kim", "Kim-2")
    sent = sam.ask("Kim", body="once")
    held = kim.claim()["delivery_id"]
    lapse(bus, sam, sent["message_id"])
    assert other.claim()["delivery_id"] == held
    with pytest.raises(ConflictError) as stale:
        kim.reply(held, "too late")
    assert (stale.value.reason, stale.value.status) == (STALE_LEASE, 409)
    other.reply(held, "mine")
    (answer,) = sam.peer("collect", message_id=sent["message_id"])["answers"]
    assert answer["body"] == "mine"


def test_two_sessions_of_one_agent_share_its_work_one_at_a_time(bus: InProcessBus) -> None:
    sam, kim, other = attach(bus, "Sam"), attach(bus, "Kim"), attach(bus, "Kim", "Kim-2")
    for body in ("one", "two"):
        sam.ask("Kim", body=body)
    first = kim.claim()
    blocked = other.peer("wait", timeout=0)
    assert blocked["delivery"] is None
    assert first["delivery_id"] in blocked["blocked"]
    with under_way(other, "wait", timeout=LONG_S) as wait:
        eventually(lambda: waiting(bus) == 1, what="a parked wait")
        kim.reply(first["delivery_id"], "done")
        assert wait.result(PATIENCE_S)["delivery"]["envelope"]["body"] == "two"


def test_a_session_is_told_what_waits_for_it(bus: InProcessBus) -> None:
    sam, kim = attach(bus, "Sam"), attach(bus, "Kim")
    sam.ask("Kim", body="one")

    def told() -> int:
        bus.clock.advance(seconds=COUNTS_PAUSE_S)
        return int(kim.session.wait_for("peer_waiting")["count"])

    eventually(lambda: told() == 1)
    held = kim.claim()["delivery_id"]
    kim.reply(held, "done")
    eventually(lambda: told() == 0)


def test_agentbus_wait_is_woken_by_a_direct_message(bus: InProcessBus) -> None:
    sam, kim = attach(bus, "Sam"), attach(bus, "Kim", "kim-1")
    question = {"wait_ms": 600_000, "conversation": "kim-1"}
    with Client.connect(bus.paths.socket, PATIENCE_S) as client, ThreadPoolExecutor(1) as pool:
        wait = pool.submit(client.request, "wait", question, PATIENCE_S)
        eventually(lambda: bus.status()["waits"]["waiting"] == 1)
        sam.ask("Kim", body="one")
        answer = wait.result(PATIENCE_S)
        assert (answer["outcome"], answer["channels"], answer["peer"]) == ("woken", [], 1)
        kim.claim()
        look = client.request("wait", {"wait_ms": 0, "conversation": "kim-1"}, PATIENCE_S)
        assert look["peer"] == 0, "it is in hand"


def test_who_works_for_others_is_woken_by_the_answers_to_what_it_asked(bus: InProcessBus) -> None:
    sam, kim, lee = attach(bus, "Sam"), attach(bus, "Kim", "kim-1"), attach(bus, "Lee")
    sam.ask("Kim", body="hard")
    held = kim.claim()["delivery_id"]
    asked = kim.ask("Lee", body="half of it")["message_id"]
    question = {"wait_ms": 600_000, "conversation": "kim-1", "only_new": True}
    with Client.connect(bus.paths.socket, PATIENCE_S) as client, ThreadPoolExecutor(1) as pool:
        wait = pool.submit(client.request, "wait", question, PATIENCE_S)
        eventually(lambda: bus.status()["waits"]["waiting"] == 1)
        sam.ask("Kim", body="this has to wait")
        lee.reply(lee.claim()["delivery_id"], "done")
        answer = wait.result(PATIENCE_S)
        assert (answer["outcome"], answer["peer"]) == ("woken", 1)
    assert [one["body"] for one in kim.peer("collect", message_id=asked)["answers"]] == ["done"]
    assert kim.claim()["delivery_id"] == held


def test_a_wait_of_a_hook_is_woken_once_for_what_waits(bus: InProcessBus) -> None:
    sam, kim = attach(bus, "Sam"), attach(bus, "Kim", "kim-1")
    sam.ask("Kim", body="one")
    question = {"wait_ms": 600_000, "conversation": "kim-1", "only_new": True}
    with Client.connect(bus.paths.socket, PATIENCE_S) as client, ThreadPoolExecutor(1) as pool:
        assert client.request("wait", question, PATIENCE_S)["peer"] == 1
        wait = pool.submit(client.request, "wait", question, PATIENCE_S)
        eventually(lambda: bus.status()["waits"]["waiting"] == 1)
        sam.ask("Kim", body="two")
        assert wait.result(PATIENCE_S)["peer"] == 1, "one more"
        held = kim.claim()["delivery_id"]
        wait = pool.submit(client.request, "wait", question, PATIENCE_S)
        eventually(lambda: bus.status()["waits"]["waiting"] == 1)
        kim.peer("ack", delivery_id=held)
        assert wait.result(PATIENCE_S)["peer"] == 1, "what was kept back"
    assert kim.claim()["envelope"]["body"] == "two"


def test_a_lease_outlasts_a_recovery_and_nothing_of_the_work_is_lost(bus: InProcessBus) -> None:
    """Renewals are taken while the bus recovers, so the holder goes on with the token it has."""
    sam, kim = attach(bus, "Sam"), attach(bus, "Kim")
    sent = sam.ask("Kim", body="once")
    held = kim.claim()["delivery_id"]
    epoch = bus.status()["epoch"]
    kill(bus.status()["redis"]["pid"])

    def has_recovered() -> bool:
        bus.clock.advance(1)
        renew(kim, held)
        sam.session.client.request("heartbeat", {}, PATIENCE_S)
        return bus.status()["epoch"] > epoch and bus.heartbeat() == "ready"

    eventually(has_recovered, what="the recovery")
    for one in (sam, kim):
        one.session.wait_served()
    kim.reply(held, "done")
    (answer,) = sam.peer("collect", message_id=sent["message_id"])["answers"]
    assert answer["body"] == "done"
    with pytest.raises(ConflictError):
        kim.reply(held, "again")


def test_a_stop_ends_waits_and_collections(bus: InProcessBus) -> None:
    sam, kim = attach(bus, "Sam"), attach(bus, "Kim")
    sent = sam.ask("Kim", body="Well?")
    kim.claim()
    other = attach(bus, "Kim", "Kim-2")
    with (
        under_way(other, "wait", timeout=LONG_S) as wait,
        under_way(sam, "collect", message_id=sent["message_id"], timeout=LONG_S) as collect,
    ):
        eventually(lambda: waiting(bus) == 1, what="a parked wait")
        assert bus.system.stop()
        for answer in (wait, collect):
            assert isinstance(answer.exception(PATIENCE_S), BusError)
    bus.start()


def test_a_wait_for_channels_is_not_woken_by_direct_messages(bus: InProcessBus) -> None:
    sam = attach(bus, "Sam")
    attach(bus, "Kim", "kim-1")
    sam.ask("Kim", body="one")
    with Client.connect(bus.paths.socket, PATIENCE_S) as client:
        look = {"wait_ms": 0, "conversation": "kim-1", "channels": ["general"]}
        assert client.request("wait", look, PATIENCE_S)["peer"] == 0


def test_a_session_that_is_taken_over_goes_on_with_its_work(bus: InProcessBus) -> None:
    """The new attachment has no token; its first wait gets what was held, with a fresh one."""
    sam, kim = attach(bus, "Sam"), attach(bus, "Kim")
    sent = sam.ask("Kim", body="once")
    held, stale = kim.claim()["delivery_id"], kim.token
    kim.session.client.request("detach", {"attachment": kim.session.attachment}, PATIENCE_S)
    again = attach(bus, "Kim")
    assert again.claim()["delivery_id"] == held
    assert again.token != stale
    again.reply(held, "done")
    assert sam.peer("collect", message_id=sent["message_id"])["outcome"] == "complete"


def test_a_message_over_the_limit_is_refused_by_the_name_of_its_operation() -> None:
    with in_process_bus(max_message_kib=1) as bus:
        sam = attach(bus, "Sam")
        attach(bus, "Kim")
        with pytest.raises(TooLargeError, match="peer send: the message takes at least"):
            sam.ask("Kim", body="x" * 1100)
