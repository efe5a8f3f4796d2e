"""The tool `peer` against a scripted daemon: tokens, lapsed leases, retries, unsound calls."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

import pytest

import agentbus.adapter.peer.leases
import agentbus.adapter.retry
from agentbus.adapter.handoff import Outcome
from agentbus.errors import (
    ConflictError,
    StaleAttachmentError,
    UnavailableError,
    UnknownOutcomeError,
)
from agentbus.rules import peer as refusals
from tests.adapter.in_process import Adapter, scenario
from tests.adapter.peer_answers import (
    INSTRUCTIONS,
    NOTHING,
    PROGRESS,
    RECEIPT,
    claimed,
    operations,
)
from tests.adapter.scripted_daemon import DROP, ScriptedDaemon

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
async def test_a_daemon_that_takes_no_attachment_yet_is_tried_again_without_a_call(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    daemon.answers["peer"] = [claimed()]
    await adapter.peer("wait")
    await daemon.leave()
    daemon.answers["attach"] = [UnavailableError("the bus is starting"), None]
    await daemon.listen()
    await daemon.until("renew")
    assert len(daemon.requests("attach")) == 3


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


@scenario
async def test_a_lapsed_delivery_that_does_not_come_back_is_unavailable(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    daemon.answers["peer"] = [claimed(), refusals.stale_lease("d1"), NOTHING]
    await adapter.peer("wait")
    told = await adapter.peer("reply", delivery_id="d1", body="b", idempotency_key="k")
    assert told["error"]["state"] == "unavailable"
    assert told["error"]["reason"] == refusals.DELIVERY_UNAVAILABLE
    assert told["error"]["detail"] == {"delivery_id": "d1"}, "nothing else is known of it"
    assert adapter.conversation.peer.leases.held is None
    asked = daemon.requests("peer")[-1]
    assert (asked["op"], asked["only"]) == ("wait", "d1"), "or the model never sees what it got"


@scenario
async def test_asking_for_lost_work_does_not_lose_the_work_that_is_held(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    daemon.answers["peer"] = [
        claimed("d2", "t-2"),
        refusals.stale_lease("d1"),
        NOTHING,
        PROGRESS,
    ]
    await adapter.peer("wait")
    told = await adapter.peer("ack", delivery_id="d1")
    assert told["error"]["state"] == "unavailable"
    await adapter.peer("progress", delivery_id="d2", summary="s", idempotency_key="k")
    assert operations(daemon)[-1] == ("progress", "t-2")


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
