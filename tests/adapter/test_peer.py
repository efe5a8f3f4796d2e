"""The tool `peer` against a scripted daemon: tokens, lapsed leases, `*`, waits, what was shown."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

import pytest

import agentbus.adapter.peer.leases
import agentbus.adapter.retry
from agentbus.adapter.handoff import Outcome, current_delivery
from agentbus.encoding import encode
from agentbus.errors import ConflictError, StaleAttachmentError, UnknownOutcomeError
from agentbus.harnesses import generic
from agentbus.harnesses.evidence import Limits
from agentbus.rules import peer as refusals
from tests.adapter.in_process import Adapter, scenario
from tests.adapter.scripted_daemon import DROP, After, ScriptedDaemon

RECEIPT = {
    "message_id": "m9",
    "thread_id": "t1",
    "recipients": [],
    "status": "accepted",
    "duplicate": False,
}
NOTHING = {"delivery": None, "notices": [], "token": None, "lease_seconds": 30}
PROGRESS = {"status": "leased", "extension_count": 1, "duplicate": False}
INSTRUCTIONS = {"intervention_id": "i1", "action": "redirect", "instructions": "only the tests"}


def claimed(
    delivery_id: str = "d1",
    token: str = "t-1",
    *,
    kind: str = "request",
    body: str = "Look at this",
    lease_seconds: float = 30,
    notices: tuple[dict[str, Any], ...] = (),
    **more: Any,
) -> dict[str, Any]:
    """The answer to a wait: a delivery whose message is `m-` and its id."""
    envelope = {"id": f"m-{delivery_id}", "kind": kind, "body": body, "parts": []}
    delivery = {"delivery_id": delivery_id, "attempt": 1, "state": "leased", **more}
    return {
        "delivery": {**delivery, "envelope": envelope},
        "notices": list(notices),
        "token": token,
        "lease_seconds": lease_seconds,
    }


def notice(delivery_id: str, reply_state: str = "overdue", **more: Any) -> dict[str, Any]:
    return {"delivery_id": delivery_id, "reply_state": reply_state, **more}


def operations(daemon: ScriptedDaemon) -> list[tuple[str, str | None]]:
    """Each operation that came, with its token."""
    return [(params["op"], params.get("token")) for params in daemon.requests("peer")]


# --- tokens and leases ----------------------------------------------------------------------------


@scenario
async def test_the_token_stays_in_the_adapter_and_goes_with_what_is_about_the_delivery(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    daemon.answers["peer"] = [claimed(), PROGRESS, {**PROGRESS, "status": "leased"}, RECEIPT]
    told = await adapter.answer("peer", op="wait")
    assert told.structured["delivery"]["delivery_id"] == "d1"
    assert "t-1" not in told.text
    assert "lease_seconds" not in told.text
    await adapter.peer("progress", delivery_id="d1", summary="at it", idempotency_key="k1")
    await adapter.peer("progress", delivery_id="d2", summary="at it", idempotency_key="k2")
    await adapter.peer("reply", delivery_id="d1", body="done", idempotency_key="k3")
    assert operations(daemon) == [
        ("wait", None),
        ("progress", "t-1"),
        ("progress", None),
        ("reply", "t-1"),
    ]
    assert adapter.conversation.peer.leases.held is None


@pytest.mark.parametrize(
    ("op", "args", "answer", "holds"),
    [
        ("ack", {"delivery_id": "d1"}, {"delivery_id": "d1", "state": "acked"}, False),
        ("human", {"delivery_id": "d1", "reason": "why"}, {"status": "paused"}, False),
        ("reply", {"delivery_id": "d1", "body": "b", "idempotency_key": "k"}, RECEIPT, False),
        (
            "reply",
            {"delivery_id": "d1", "body": "b", "idempotency_key": "k", "ack": False},
            RECEIPT,
            True,
        ),
        ("progress", {"delivery_id": "d1", "summary": "s", "idempotency_key": "k"}, PROGRESS, True),
        (
            "checkpoint",
            {"delivery_id": "d1", "summary": "s", "idempotency_key": "k", "proposed_action": "a"},
            PROGRESS,
            True,
        ),
        (
            "checkpoint",
            {"delivery_id": "d1", "summary": "s", "idempotency_key": "k", "proposed_action": "a"},
            {"status": "paused", "duplicate": False},
            False,
        ),
        (
            "send",
            {"to": ["Kim"], "body": "b", "idempotency_key": "k", "reply_to": "m-d1"},
            RECEIPT,
            False,
        ),
        (
            "send",
            {"to": ["Kim"], "body": "b", "idempotency_key": "k", "reply_to": "m-d1", "ack": False},
            RECEIPT,
            True,
        ),
        ("send", {"to": ["Kim"], "body": "b", "idempotency_key": "k"}, RECEIPT, True),
        ("describe", {"description": None}, {"description": None}, True),
    ],
)
def test_what_ends_the_work_ends_the_lease_here(
    op: str, args: dict[str, Any], answer: dict[str, Any], holds: bool
) -> None:
    @scenario
    async def play(daemon: ScriptedDaemon, adapter: Adapter) -> None:
        daemon.answers["peer"] = [claimed(), answer]
        await adapter.peer("wait")
        assert "error" not in await adapter.peer(op, **args)
        assert (adapter.conversation.peer.leases.held is not None) is holds

    play()


@pytest.mark.parametrize(
    "error", [refusals.paused("d1", "i1"), refusals.unavailable("d1", "cancelled")]
)
def test_a_refusal_that_says_the_work_is_gone_ends_the_lease_and_is_told_with_its_state(
    error: ConflictError,
) -> None:
    @scenario
    async def play(daemon: ScriptedDaemon, adapter: Adapter) -> None:
        daemon.answers["peer"] = [claimed(), error]
        await adapter.peer("wait")
        told = await adapter.peer("ack", delivery_id="d1")
        assert told["error"] == error.as_data()
        assert {"state", "status", "reason", "detail"} <= told["error"].keys()
        assert adapter.conversation.peer.leases.held is None

    play()


@scenario
async def test_a_lease_is_renewed_while_it_is_held_and_not_after(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    daemon.answers["peer"] = [claimed(lease_seconds=0.06), {"state": "acked"}]
    await adapter.peer("wait")
    first, *_ = await daemon.until("renew", 3)
    assert first["leases"] == [["d1", "t-1"]]
    assert first["attachment"] == ["session-1", 1]
    await adapter.peer("ack", delivery_id="d1")
    await adapter.use("whoami")
    count = len(daemon.requests("renew"))
    await asyncio.sleep(0.1)  # five renewals' time
    assert len(daemon.requests("renew")) == count


@scenario
async def test_a_long_lease_is_renewed_by_the_fixed_pause(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    daemon.answers["peer"] = [claimed(lease_seconds=300)]
    with patch.object(agentbus.adapter.peer.leases, "LEASE_RENEWAL_SECONDS", 0.01):
        await adapter.peer("wait")
        await daemon.until("renew", 2)


@scenario
async def test_a_lost_connection_keeps_the_lease_and_renews_it_once_attached(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    daemon.answers["peer"] = [claimed(), PROGRESS]
    await adapter.peer("wait")
    await daemon.leave()
    await daemon.listen()
    (renewal,) = await daemon.until("renew")
    assert renewal == {"attachment": ["session-1", 2], "leases": [["d1", "t-1"]]}
    await adapter.peer("progress", delivery_id="d1", summary="at it", idempotency_key="k1")
    assert operations(daemon)[-1] == ("progress", "t-1")


@scenario
async def test_a_reset_bus_and_a_conversation_that_ends_forget_the_lease(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    daemon.answers["peer"] = [claimed(), claimed("d2", "t-2")]
    await adapter.peer("wait")
    await daemon.leave()
    daemon.bus_id = "bus-2"
    await daemon.listen()
    await daemon.until("attach", 2)
    await adapter.use("whoami")
    leases = adapter.conversation.peer.leases
    assert leases.held is None
    await adapter.peer("wait")
    assert leases.held is not None
    adapter.calls.hook({"event": "SessionEnd", "session_id": "conversation-1"})
    assert leases.held is None


@scenario
async def test_work_whose_result_was_not_handed_off_is_let_go_but_not_what_was_shown_before(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    daemon.answers["peer"] = [claimed(), claimed(token="t-2"), claimed(token="t-3")]
    await adapter.peer("wait", outcome=Outcome.CANCELLED)
    leases = adapter.conversation.peer.leases
    assert leases.held is None
    await adapter.peer("wait")
    await adapter.peer("wait", outcome=Outcome.CANCELLED)
    assert leases.held is not None
    assert leases.held.token == "t-3"


@scenario
async def test_a_wait_that_gives_nothing_says_that_nothing_is_held(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    why = "delivery d1 of this session is paused until a person decides"
    daemon.answers["peer"] = [claimed(), {**NOTHING, "blocked": why}]
    await adapter.peer("wait")
    told = await adapter.peer("wait", timeout=0)
    assert told["blocked"] == why
    assert adapter.conversation.peer.leases.held is None


# --- a lease that lapsed --------------------------------------------------------------------------


@scenario
async def test_a_lapsed_delivery_that_comes_back_unchanged_is_answered_with_the_same_key(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    stale = refusals.stale_lease("d1")
    daemon.answers["peer"] = [claimed(), stale, claimed(token="t-2"), RECEIPT]
    await adapter.peer("wait")
    told = await adapter.peer("reply", delivery_id="d1", body="done", idempotency_key="k1")
    assert told["message_id"] == "m9"
    assert operations(daemon) == [
        ("wait", None),
        ("reply", "t-1"),
        ("wait", None),
        ("reply", "t-2"),
    ]
    requests = daemon.requests("peer")
    assert requests[1]["args"] == requests[3]["args"]
    assert requests[2]["args"]["timeout"] == 0


@scenario
async def test_an_adapter_that_knows_no_token_claims_what_an_operation_is_about(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    """After it was started again, or when the first claim's answer was lost."""
    daemon.answers["peer"] = [refusals.stale_lease("d1"), claimed(), {"state": "acked"}]
    assert (await adapter.peer("ack", delivery_id="d1"))["state"] == "acked"
    first, _, second = daemon.requests("peer")
    assert first["operation_id"] == second["operation_id"]
    assert operations(daemon) == [("ack", None), ("wait", None), ("ack", "t-1")]


@scenario
async def test_a_send_that_answers_a_lapsed_delivery_claims_it_by_its_message(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    daemon.answers["peer"] = [refusals.stale_lease("d1"), claimed(), RECEIPT]
    args = {"to": ["Kim"], "body": "done", "idempotency_key": "k", "reply_to": "m-d1"}
    assert (await adapter.peer("send", **args))["message_id"] == "m9"
    assert operations(daemon) == [("send", None), ("wait", None), ("send", "t-1")]


@scenario
async def test_a_lapsed_delivery_that_comes_back_with_instructions_shows_them_once(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    stale = refusals.stale_lease("d1")
    daemon.answers["peer"] = [
        claimed(),
        stale,
        claimed(token="t-2", resume_context=INSTRUCTIONS),
        stale,
        claimed(token="t-3", resume_context=INSTRUCTIONS),
        RECEIPT,
    ]
    await adapter.peer("wait")
    told = await adapter.answer(
        "peer", op="reply", args={"delivery_id": "d1", "body": "done", "idempotency_key": "k1"}
    )
    assert told.is_error
    error = told.structured["error"]
    assert (error["state"], error["reason"]) == ("resumed", refusals.INSTRUCTIONS_CHANGED)
    assert error["detail"]["resume_context"] == INSTRUCTIONS
    again = await adapter.peer("reply", delivery_id="d1", body="rework", idempotency_key="k2")
    assert again["message_id"] == "m9"
    assert operations(daemon)[-1] == ("reply", "t-3")


@scenario
async def test_instructions_whose_error_was_not_handed_off_are_told_again(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    stale = refusals.stale_lease("d1")
    back = claimed(token="t-2", resume_context=INSTRUCTIONS)
    daemon.answers["peer"] = [claimed(), stale, back, stale, back]
    await adapter.peer("wait")
    args = {"delivery_id": "d1", "body": "done", "idempotency_key": "k1"}
    for outcome in (Outcome.CANCELLED, Outcome.HANDED_OFF):
        told = await adapter.peer("reply", outcome=outcome, **args)
        assert told["error"]["state"] == "resumed"


@scenario
async def test_instructions_that_a_wait_has_shown_are_not_told_as_news_later(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    back = claimed(token="t-2", resume_context=INSTRUCTIONS)
    daemon.answers["peer"] = [back, refusals.stale_lease("d1"), back, PROGRESS]
    assert (await adapter.peer("wait"))["delivery"]["resume_context"] == INSTRUCTIONS
    told = await adapter.peer("progress", delivery_id="d1", summary="s", idempotency_key="k")
    assert told["status"] == "leased"


@pytest.mark.parametrize("given", [NOTHING, claimed("d2", "t-2")])
def test_a_lapsed_delivery_that_does_not_come_back_is_unavailable(given: dict[str, Any]) -> None:
    @scenario
    async def play(daemon: ScriptedDaemon, adapter: Adapter) -> None:
        daemon.answers["peer"] = [claimed(), refusals.stale_lease("d1"), given]
        await adapter.peer("wait")
        told = await adapter.peer("reply", delivery_id="d1", body="b", idempotency_key="k")
        assert told["error"]["state"] == "unavailable"
        assert told["error"]["reason"] == refusals.DELIVERY_UNAVAILABLE
        assert told["error"]["detail"]["delivery_id"] == "d1"
        assert adapter.conversation.peer.leases.held is None, "what the model never saw"

    play()


@scenario
async def test_asking_for_lost_work_does_not_lose_the_work_that_is_held(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    daemon.answers["peer"] = [
        claimed("d2", "t-2"),
        refusals.stale_lease("d1"),
        claimed("d2", "t-3"),
        PROGRESS,
    ]
    await adapter.peer("wait")
    told = await adapter.peer("ack", delivery_id="d1")
    assert told["error"]["state"] == "unavailable"
    await adapter.peer("progress", delivery_id="d2", summary="s", idempotency_key="k")
    assert operations(daemon)[-1] == ("progress", "t-3")


@scenario
async def test_a_lease_that_lapses_twice_in_one_call_is_told_to_the_model(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    stale = refusals.stale_lease("d1")
    daemon.answers["peer"] = [claimed(), stale, claimed(token="t-2"), stale]
    await adapter.peer("wait")
    told = await adapter.peer("ack", delivery_id="d1")
    assert told["error"]["reason"] == refusals.STALE_LEASE


# --- retries --------------------------------------------------------------------------------------


@scenario
async def test_a_write_is_retried_with_the_same_key_and_token(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    daemon.answers["peer"] = [
        claimed(),
        StaleAttachmentError("replaced"),
        DROP,
        UnknownOutcomeError("the commit raised"),
        RECEIPT,
    ]
    await adapter.peer("wait")
    told = await adapter.peer("reply", delivery_id="d1", body="done", idempotency_key="k1")
    assert told["message_id"] == "m9"
    replies = daemon.requests("peer")[1:]
    assert len(replies) == 4
    assert all(one["args"] == replies[0]["args"] and one["token"] == "t-1" for one in replies)


@scenario
async def test_an_unknown_outcome_says_how_to_repeat_the_call(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    daemon.answers["peer"] = [UnknownOutcomeError("the commit raised")]
    with patch.object(agentbus.adapter.retry, "ADAPTER_RETRY_SECONDS", 0.0):
        sent = await adapter.peer("send", to=["Kim"], body="b", idempotency_key="key-7")
        asked = await adapter.peer("human", delivery_id="d1", reason="why")
        read = await adapter.peer("status", message_id="m1")
    assert sent["error"]["code"] == "unknown"
    assert "idempotency_key 'key-7'" in sent["error"]["message"]
    assert "repeat the call unchanged" in asked["error"]["message"]
    assert "repeat" not in read["error"]["message"]


@scenario
async def test_a_wait_whose_attempt_failed_goes_on_with_the_time_that_is_left(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    daemon.answers["peer"] = [DROP, NOTHING]
    told = await adapter.peer("wait", timeout=5)
    assert told["delivery"] is None
    first, second = daemon.requests("peer")
    assert second["args"]["timeout"] < first["args"]["timeout"] <= 5
    assert second["number"] > first["number"]


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
        assert longest - 1 < first["args"]["timeout"] <= longest
        assert 19 < second["args"]["timeout"] <= 20
        assert 19 < third["args"]["timeout"] <= 20

    play()


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
        {
            "message_id": "m5",
            "deliveries": [
                {"id": "d5", "reply_state": "unanswered"},
                {"id": "d6", "reply_state": "awaiting"},
            ],
        }
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


# --- nothing before the check ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "there is no op None"),
        ({"op": "fly"}, "there is no op 'fly'"),
        ({"op": "ack", "args": {"delivery_id": "d1", "token": "t"}}, "unknown argument 'token'"),
        ({"op": "ack", "delivery_id": "d1"}, "unknown argument 'delivery_id'"),
        ({"op": "wait", "args": {"timeout": "5"}}, "timeout must be a number"),
        ({"op": "wait", "args": []}, "args must be an object"),
        ({"op": ["wait"]}, "there is no op"),
    ],
)
def test_a_call_that_is_not_sound_reaches_nobody(arguments: dict[str, Any], says: str) -> None:
    @scenario
    async def play(daemon: ScriptedDaemon, adapter: Adapter) -> None:
        told = await adapter.use("peer", **arguments)
        assert told["error"]["code"] == "validation"
        assert says in told["error"]["message"]
        assert daemon.requests("attach") == []

    play()
