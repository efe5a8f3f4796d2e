"""Results of the tool `peer`: waits that are cut, `*`, what was shown, ceilings."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

import pytest

from agentbus.adapter.handoff import Outcome, current_delivery
from agentbus.encoding import encode
from agentbus.harnesses import generic
from agentbus.harnesses.evidence import Limits
from tests.adapter.in_process import Adapter, scenario
from tests.adapter.peer_answers import (
    NOTHING,
    PROGRESS,
    RECEIPT,
    claimed,
    notice,
    operations,
)
from tests.adapter.scripted_daemon import After, ScriptedDaemon

# --- waiting and cancelling -----------------------------------------------------------------------


@pytest.mark.parametrize(("op", "longest"), [("wait", 50), ("collect", 45)])
def test_a_wait_is_cut_to_what_the_client_allows_and_the_result_says_so(
    op: str, longest: float
) -> None:
    args = {"message_id": "m1"} if op == "collect" else {}

    @scenario
    async def play(daemon: ScriptedDaemon, adapter: Adapter) -> None:
        daemon.answers["peer"] = [{**NOTHING, "answers": [], "outcome": "no_reply"}]
        asked = await adapter.peer(op, timeout=longest, **args)
        assert "timeout" not in asked
        client = Limits(result_characters=10_000, call_seconds=generic.SPARE_SECONDS + 20)
        with patch.object(generic, "_LIMITS", client):
            cut = await adapter.peer(op, timeout=longest, **args)
            whole = await adapter.peer(op, timeout=20, **args)
        assert cut["timeout"] == 20
        assert "timeout" not in whole
        first, second, third = daemon.requests("peer")
        assert longest - 10 < first["args"]["timeout"] <= longest
        assert 10 < second["args"]["timeout"] <= 20
        assert 10 < third["args"]["timeout"] <= 20

    play()


@scenario
async def test_who_waits_in_vain_again_and_again_is_told_what_to_do_instead(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    daemon.answers["peer"] = [*[NOTHING] * 5, claimed(), NOTHING]
    told = [await adapter.peer("wait", timeout=timeout) for timeout in (1, 0, 1, 0, 1, 1, 1)]
    assert [("hint" in one) for one in told] == [False] * 4 + [True, False, False]


@pytest.mark.parametrize("op", ["wait", "collect"])
def test_a_call_that_the_client_cancels_is_cancelled_at_the_daemon_too(op: str) -> None:
    args = {"message_id": "m1"} if op == "collect" else {}

    @scenario
    async def play(daemon: ScriptedDaemon, adapter: Adapter) -> None:
        release = asyncio.Event()
        daemon.answers["peer"] = [After(release, claimed())]
        waiting = asyncio.create_task(
            adapter.calls.call("peer", {"op": op, "args": args}, "tester", {})
        )
        (asked,) = await daemon.until("peer")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        release.set()
        (cancelled,) = await daemon.until("cancel_peer")
        assert cancelled["number"] == asked["number"]
        assert adapter.conversation.peer.leases.held is None

    play()


@scenario
async def test_what_waits_is_shown_in_every_result_and_wakes_an_idle_conversation(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    assert "peer" not in await adapter.use("whoami")
    woken = 0

    def arrived() -> None:
        nonlocal woken
        woken += 1

    adapter.conversation.on_arrival = arrived
    for count in (1, 2, 2, 1):
        daemon.tell("peer_waiting", session_id="session-1", generation=1, count=count)
    async with asyncio.timeout(10):
        while (await adapter.use("whoami")).get("peer") != 1 or woken < 2:
            await asyncio.sleep(0.005)
    assert woken == 2
    daemon.tell("peer_waiting", session_id="session-1", generation=1, count=0)
    async with asyncio.timeout(10):
        while "peer" in await adapter.use("whoami"):
            await asyncio.sleep(0.005)


@scenario
async def test_a_new_attachment_counts_anew_and_wakes_nobody_for_what_waited_before(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    await adapter.use("whoami")
    woken: list[int] = []
    daemon.tell("peer_waiting", session_id="session-1", generation=1, count=2)
    async with asyncio.timeout(10):
        while (await adapter.use("whoami")).get("peer") != 2:
            await asyncio.sleep(0.005)
    adapter.conversation.on_arrival = lambda: woken.append(adapter.conversation.peer.waiting)
    await daemon.leave()
    await daemon.listen()
    await daemon.until("attach", 2)
    assert "peer" not in await adapter.use("whoami")
    for count in (2, 3):
        daemon.tell("peer_waiting", session_id="session-1", generation=2, count=count)
    async with asyncio.timeout(10):
        while (await adapter.use("whoami")).get("peer") != 3:
            await asyncio.sleep(0.005)
    assert woken == [3]


async def count_heard(daemon: ScriptedDaemon, adapter: Adapter, count: int) -> None:
    """The daemon has told that so much waits."""
    daemon.tell("peer_waiting", session_id="session-1", generation=1, count=count)
    async with asyncio.timeout(10):
        while adapter.conversation.peer.waiting != count:
            await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("op", "args", "told", "left"),
    [
        ("ack", {}, {"state": "acked"}, 1),
        ("reply", {"body": "b", "idempotency_key": "k"}, RECEIPT, 1),
        ("reply", {"body": "b", "idempotency_key": "k", "ack": False}, RECEIPT, 2),
        ("progress", {"summary": "s", "idempotency_key": "k"}, PROGRESS, 2),
        ("human", {"reason": "unsure"}, {"status": "paused"}, 0),
    ],
)
def test_what_a_call_has_finished_waits_no_more_in_its_own_result(
    op: str, args: dict[str, Any], told: dict[str, Any], left: int
) -> None:
    """The daemon counts anew a moment later. Who believed the old count would wait for nothing."""

    @scenario
    async def play(daemon: ScriptedDaemon, adapter: Adapter) -> None:
        daemon.answers["peer"] = [claimed(), told]
        assert "peer" not in await adapter.use("whoami")
        await count_heard(daemon, adapter, 2)
        assert (await adapter.peer("wait"))["peer"] == 2
        assert (await adapter.peer(op, delivery_id="d1", **args)).get("peer", 0) == left
        assert (await adapter.use("whoami"))["peer"] == 2, "until the daemon says otherwise"

    play()


@scenario
async def test_a_count_that_comes_before_the_answer_is_the_newer_one(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    release = asyncio.Event()
    daemon.answers["peer"] = [claimed(), After(release, {"state": "acked"})]
    assert "peer" not in await adapter.use("whoami")
    await count_heard(daemon, adapter, 2)
    await adapter.peer("wait")
    acking = asyncio.create_task(adapter.peer("ack", delivery_id="d1"))
    await daemon.until("peer", 2)
    await count_heard(daemon, adapter, 1)
    release.set()
    assert (await acking)["peer"] == 1


@pytest.mark.parametrize("op", ["collect", "recent"])
def test_answers_that_a_result_shows_wait_no_more_in_it(op: str) -> None:
    @scenario
    async def play(daemon: ScriptedDaemon, adapter: Adapter) -> None:
        args = {"message_id": "m1"} if op == "collect" else {"reply_to": "m1"}
        answer = {"recipient": "Kim", "message_id": "a1", "id": "a1", "kind": "response"}
        answers = [{**answer, "body": "done"}]
        shown = {"answers": answers, "messages": answers, "outcome": "complete"}
        daemon.answers["peer"] = [shown, shown, NOTHING]
        assert "peer" not in await adapter.use("whoami")
        await count_heard(daemon, adapter, 2)
        assert (await adapter.peer(op, **args))["peer"] == 1
        assert (await adapter.peer(op, **args))["peer"] == 2, "it was shown before"
        assert "peer" not in await adapter.peer("wait", timeout=0), "there is nothing"

    play()


# --- everybody ------------------------------------------------------------------------------------


def page(*names: str, next_cursor: str | None = None) -> dict[str, Any]:
    rows = [{"agent": name, "agent_id": f"id-{name}"} for name in names]
    return {"agents": rows, "next_cursor": next_cursor, "has_more": next_cursor is not None}


def everybody(**settings: Any) -> Any:
    """A decorator: the scenario with these settings."""

    def decorate(test: Any) -> Any:
        @scenario
        async def play(daemon: ScriptedDaemon, adapter: Adapter) -> None:
            daemon.config_path.write_bytes(encode(settings))
            await test(daemon, adapter)

        play.__name__ = test.__name__
        return play

    return decorate


SEND = {"to": ["*"], "body": "hello", "idempotency_key": "k"}


@everybody()
async def test_everybody_is_all_pages_of_the_directory_but_oneself_and_people(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    daemon.answers["peer"] = [
        page("Kim", "Sam", next_cursor="c1"),
        page("human:ada", "Lee"),
        RECEIPT,
    ]
    assert (await adapter.peer("send", **SEND))["message_id"] == "m9"
    first, second, sent = daemon.requests("peer")
    assert (first["op"], first["args"]) == ("agents", {"limit": 100})
    assert second["args"] == {"limit": 100, "cursor": "c1"}
    assert sent["args"]["to"] == ["id-Kim", "id-Lee"]


@everybody(peer_allow=["Lee", "Sam"])
async def test_everybody_is_only_whom_the_configuration_allows(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    daemon.answers["peer"] = [page("Kim", "Sam", "Lee"), RECEIPT]
    await adapter.peer("send", **SEND)
    assert daemon.requests("peer")[-1]["args"]["to"] == ["id-Lee"]


@pytest.mark.parametrize(
    ("settings", "names", "code", "says"),
    [
        ({}, ["Sam"], "not_found", "stands for nobody"),
        ({"peer_allow": []}, ["Kim"], "not_found", "that peer_allow names"),
        ({"discovery_enabled": False}, ["Kim"], "discovery_disabled", "discovery_enabled"),
        ({}, [f"a{number}" for number in range(101)], "validation", "more than the 100"),
    ],
)
def test_everybody_may_be_nobody_or_too_many_or_not_to_be_known(
    settings: dict[str, Any], names: list[str], code: str, says: str
) -> None:
    @everybody(**settings)
    async def play(daemon: ScriptedDaemon, adapter: Adapter) -> None:
        daemon.answers["peer"] = [page(*names)]
        told = await adapter.peer("send", **SEND)
        assert told["error"]["code"] == code
        assert says in told["error"]["message"]
        assert told["error"].get("status") == (404 if code == "not_found" else None)
        assert all(op == "agents" for op, _ in operations(daemon))

    play()


@everybody()
async def test_a_hundred_others_are_still_everybody(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    daemon.answers["peer"] = [page(*(f"a{number}" for number in range(100))), RECEIPT]
    await adapter.peer("send", **SEND)
    assert len(daemon.requests("peer")[-1]["args"]["to"]) == 100


@everybody()
async def test_a_repeat_of_a_send_to_everybody_goes_to_the_same_although_somebody_came(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    daemon.answers["peer"] = [page("Kim"), RECEIPT, {**RECEIPT, "duplicate": True}]
    await adapter.peer("send", **SEND)
    assert (await adapter.peer("send", **SEND))["duplicate"] is True
    assert [op for op, _ in operations(daemon)] == ["agents", "send", "send"]
    first, second = daemon.requests("peer")[1:]
    assert first["args"] == second["args"]


# --- what was shown -------------------------------------------------------------------------------


@scenario
async def test_responses_and_notices_count_as_shown_when_their_result_was_handed_off(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    late = notice("d7", "overdue")
    daemon.answers["peer"] = [claimed("d1", kind="response", notices=(late,))]
    await adapter.peer("wait", outcome=Outcome.CANCELLED)
    await adapter.use("whoami")
    assert daemon.requests("peer_shown") == []
    told = await adapter.peer("wait")
    assert told["notices"] == [late]
    (shown,) = await daemon.until("peer_shown")
    assert shown["responses"] == ["m-d1"]
    assert shown["notices"] == [["d7", "overdue"]]


@scenario
async def test_notices_of_the_bus_come_beside_those_of_late_replies(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    await adapter.use("whoami")
    full = {"kind": "capacity", "budget": "sqlite", "message": "full"}
    daemon.tell("notice", session_id="session-1", generation=1, notice=full)
    daemon.answers["peer"] = [claimed(notices=(notice("d7"),))]
    told = await adapter.peer("wait")
    assert told["notices"] == [full, notice("d7")]
    (shown,) = await daemon.until("peer_shown")
    assert shown["notices"] == [["d7", "overdue"]]
    assert "notices" not in await adapter.use("whoami")


@scenario
async def test_collect_recent_and_requests_tell_what_they_have_shown(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    answers = [
        {"recipient": "r1", "message_id": "m1", "late": False, "body": "yes"},
        {"recipient": "r2", "message_id": "m2", "late": True, "already_presented": True},
    ]
    messages = [
        {"id": "m3", "kind": "response", "body": "no"},
        {"id": "m4", "kind": "request", "body": "well?"},
    ]
    requests = [
        {"message_id": "m5", "id": "d5", "reply_state": "unanswered"},
        {"message_id": "m5", "id": "d6", "reply_state": "awaiting"},
    ]
    daemon.answers["peer"] = [
        {"request_id": "m0", "outcome": "complete", "answers": answers},
        {"messages": messages, "next_cursor": None},
        {"messages": messages, "next_cursor": None},
        {"requests": requests},
    ]
    await adapter.peer("collect", message_id="m0")
    await adapter.peer("recent")
    await adapter.peer("recent", reply_to="m0")
    await adapter.peer("requests")
    shown = await daemon.until("peer_shown", 3)
    assert [one["responses"] for one in shown] == [["m1"], ["m3"], []]
    assert [one["notices"] for one in shown] == [[], [], [["d5", "unanswered"]]]


ANSWER = {"recipient": "r1", "message_id": "m-d1", "late": False, "body": "yes"}
COLLECTED = {"request_id": "m0", "outcome": "complete", "answers": [ANSWER]}
BLANK = {**ANSWER, "body": None, "already_presented": True}


@scenario
async def test_a_text_that_was_handed_off_is_not_shown_again_by_a_daemon_that_is_behind(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    daemon.answers["peer"] = [COLLECTED] * 4
    await adapter.peer("collect", message_id="m0", outcome=Outcome.CANCELLED)
    for shown in (ANSWER, BLANK, BLANK):
        assert (await adapter.peer("collect", message_id="m0"))["answers"] == [shown]


@scenario
async def test_what_a_wait_has_shown_is_not_shown_again_by_collect_but_by_wait_until_finished(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    response = claimed("d1", kind="response", body="yes")
    daemon.answers["peer"] = [response, COLLECTED, claimed("d1", "t-2", kind="response")]
    assert (await adapter.peer("wait"))["delivery"]["envelope"]["body"] == "yes"
    assert (await adapter.peer("collect", message_id="m0"))["answers"] == [BLANK]
    assert (await adapter.peer("wait"))["delivery"]["envelope"]["body"] == "Look at this"


@pytest.mark.parametrize("op", ["collect", "recent"])
def test_a_response_that_is_claimed_after_it_was_shown_comes_without_its_text(op: str) -> None:
    messages = [{"id": "m-d1", "kind": "response", "body": "yes"}]
    shows = {
        "collect": (COLLECTED, {"message_id": "m0"}),
        "recent": ({"messages": messages, "next_cursor": None}, {"reply_to": "m0"}),
    }

    @scenario
    async def play(daemon: ScriptedDaemon, adapter: Adapter) -> None:
        answer, args = shows[op]
        response = claimed("d1", kind="response", body="yes")
        daemon.answers["peer"] = [answer, response, claimed("d2", kind="response", body="no")]
        await adapter.peer(op, **args)
        delivery = (await adapter.peer("wait"))["delivery"]
        assert (delivery["envelope"]["body"], delivery["already_presented"]) == (None, True)
        other = (await adapter.peer("wait"))["delivery"]
        assert other["envelope"]["body"] == "no"
        assert "already_presented" not in other

    play()


@scenario
async def test_what_was_shown_without_a_connection_is_told_once_there_is_one(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    daemon.answers["peer"] = [claimed(kind="response")]
    await adapter.use("whoami")
    settled = asyncio.Event()

    async def call() -> None:
        await adapter.calls.call("peer", {"op": "wait"}, "tester", {})
        await settled.wait()
        delivery = current_delivery.get()
        assert delivery is not None
        delivery.settle(Outcome.HANDED_OFF)

    calling = asyncio.create_task(call())
    await daemon.until("peer")
    await daemon.leave()
    async with asyncio.timeout(10):
        while adapter.conversation.attachment is not None:
            await asyncio.sleep(0.005)
    settled.set()
    await calling
    await daemon.listen()
    (shown,) = await daemon.until("peer_shown")
    assert shown["responses"] == ["m-d1"]


@scenario
async def test_the_context_of_a_memory_stands_alone_in_its_result(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    context = {"source": "caura-bus", "tenant_id": "bus-1", "kind": "request", "ts": 5}
    daemon.answers["peer"] = [context]
    assert await adapter.peer("memory_context", delivery_id="d1") == context


# --- ceilings -------------------------------------------------------------------------------------

CEILING = 10_000
"""Characters of a result for a client that nothing is known of."""


@scenario
async def test_a_long_delivery_is_cut_and_says_how_to_read_on(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    text = "ä\n" * 20_000
    notices = tuple(notice(f"d{number}", text="x" * 100) for number in range(100))
    daemon.answers["peer"] = [claimed(body=text, notices=notices)]
    told = await adapter.answer("peer", op="wait")
    assert len(told.text) <= CEILING
    envelope = told.structured["delivery"]["envelope"]
    assert text.startswith(envelope["body"])
    assert envelope["truncated"]["next_offset"] == len(envelope["body"]) > 1000
    kept = told.structured["notices"]
    assert 10 < len(kept) < 100
    (shown,) = await daemon.until("peer_shown")
    assert len(shown["notices"]) == len(kept)


@scenario
async def test_a_hundred_recipients_do_not_take_the_room_of_the_text(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    work = claimed(body="Look at this")
    names = [f"an agent with a rather long name {number}" for number in range(100)]
    work["delivery"]["envelope"]["to"] = [
        {"agent": name, "agent_id": "01a22d26-bedc-7efd-8d8e-99db55409b57"} for name in names
    ]
    daemon.answers["peer"] = [work]
    told = await adapter.answer("peer", op="wait")
    assert len(told.text) <= CEILING
    envelope = told.structured["delivery"]["envelope"]
    assert envelope["body"] == "Look at this"
    assert envelope["truncated"]["omitted"] == ["to"]


@scenario
async def test_a_page_that_is_too_large_is_asked_for_again_with_fewer_so_that_its_cursor_holds(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    def messages(count: int) -> dict[str, Any]:
        rows = [{"id": f"m{number}", "kind": "info", "body": "x" * 900} for number in range(count)]
        return {"messages": rows, "next_cursor": f"after-{count}"}

    daemon.answers["peer"] = [messages(20), messages(10)]
    told = await adapter.answer("peer", op="recent")
    assert len(told.text) <= CEILING
    asked = [params["args"]["limit"] for params in daemon.requests("peer")]
    assert asked == [20, 10]
    assert len(told.structured["messages"]) == 10
    assert told.structured["next_cursor"] == "after-10"
    assert "more" not in told.structured


@scenario
async def test_a_page_with_one_message_that_is_too_large_cuts_it(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    long = {"messages": [{"id": "m1", "kind": "info", "body": "x" * 50_000}], "next_cursor": None}
    daemon.answers["peer"] = [long]
    told = await adapter.answer("peer", op="recent", args={"limit": 1})
    assert len(told.text) <= CEILING
    (message,) = told.structured["messages"]
    assert message["truncated"]["next_offset"] == len(message["body"]) > 5000


@scenario
async def test_answers_that_do_not_fit_are_left_for_the_next_collect(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    def answer(number: int, size: int) -> dict[str, Any]:
        return {"recipient": f"r{number}", "message_id": f"m{number}", "body": "x" * size}

    daemon.answers["peer"] = [
        {"outcome": "complete", "answers": [answer(1, 4000), answer(2, 9000), answer(3, 4000)]},
        {
            "outcome": "complete",
            "answers": [
                {"recipient": "r1", "message_id": "m1", "already_presented": True},
                answer(2, 90_000),
                answer(3, 90_000),
            ],
        },
    ]
    told = await adapter.answer("peer", op="collect", args={"message_id": "m0"})
    assert len(told.text) <= CEILING
    bodies = [one["body"] for one in told.structured["answers"]]
    assert [body is None for body in bodies] == [False, True, False]
    assert told.structured["answers"][1]["truncated"] == {"bytes": 9000, "next_offset": 0}
    again = await adapter.answer("peer", op="collect", args={"message_id": "m0"})
    assert len(again.text) <= CEILING
    _, cut, rest = again.structured["answers"]
    assert cut["truncated"]["next_offset"] == len(cut["body"]) > 5000
    assert rest["body"] is None
    shown = await daemon.until("peer_shown", 2)
    assert [one["responses"] for one in shown] == [["m1", "m3"], ["m2"]]


@scenario
async def test_a_status_keeps_its_deliveries_and_cuts_the_text(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    deliveries = [{"id": f"d{number}", "state": "queued"} for number in range(50)]
    envelope = {"id": "m1", "body": "x" * 60_000}
    daemon.answers["peer"] = [{"envelope": envelope, "deliveries": deliveries}]
    told = await adapter.answer("peer", op="status", args={"message_id": "m1"})
    assert len(told.text) <= CEILING
    assert told.structured["deliveries"] == deliveries
    assert told.structured["envelope"]["truncated"]["next_offset"] > 1000
