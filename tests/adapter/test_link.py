"""Connection and conversations against a scripted daemon: faults, retries, recoveries, orders."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

import pytest

import agentbus.adapter.conversation
import agentbus.adapter.retry
from agentbus.adapter.handoff import Outcome, current_delivery
from agentbus.encoding import encode
from agentbus.errors import (
    ConfigMismatchError,
    NotFoundError,
    SessionAlreadyConnectedError,
    StaleAttachmentError,
    UnavailableError,
    UnknownOutcomeError,
    VersionMismatchError,
)
from tests.adapter.in_process import Adapter, scenario
from tests.adapter.scripted_daemon import DROP, After, ScriptedDaemon
from tests.eventually import PATIENCE_S

RECEIPT = {"message_id": "m1", "sequence": 1, "operation_id": "x", "duplicate": False}


def sequences(answer: Any) -> list[int]:
    return [message["sequence"] for message in answer["messages"]]


@scenario
async def test_a_stale_attachment_is_attached_again_with_the_same_operation_id(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    daemon.answers["send"] = [StaleAttachmentError("replaced"), RECEIPT]
    answer = await adapter.use("send", channel="general", content="x")
    assert answer["message_id"] == "m1"
    first, second = daemon.requests("send")
    assert first["args"] == second["args"]
    assert (first["attachment"][1], second["attachment"][1]) == (1, 2)


@scenario
async def test_a_lost_connection_and_an_unknown_outcome_are_retried_with_the_same_id(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    daemon.answers["send"] = [DROP, UnknownOutcomeError("the commit raised"), RECEIPT]
    assert (await adapter.use("send", channel="general", content="x"))["sequence"] == 1
    ids = {params["args"]["operation_id"] for params in daemon.requests("send")}
    assert len(daemon.requests("send")) == 3
    assert len(ids) == 1


@scenario
async def test_what_is_inspected_is_given_the_time_of_its_inspection(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    inspected = {"inspection_command": ["a-hook"], "inspection_timeout_seconds": 30}
    daemon.config_path.write_bytes(encode(inspected))
    read, sent = asyncio.Event(), asyncio.Event()
    daemon.answers["history"] = [After(read, {"messages": []})]
    daemon.answers["send"] = [After(sent, RECEIPT)]
    with (
        patch.object(agentbus.adapter.conversation, "REQUEST_TIMEOUT_S", 0.1),
        patch.object(agentbus.adapter.retry, "ADAPTER_RETRY_SECONDS", 0.0),
    ):
        answer = await adapter.use("history", channel="general")
        assert answer["error"]["code"] == "unavailable"  # nobody inspects what is read
        read.set()
        sending = asyncio.create_task(adapter.use("send", channel="general", content="x"))
        await daemon.until("send")
        finished, _ = await asyncio.wait([sending], timeout=0.3)
        assert not finished
        sent.set()
        assert (await sending)["message_id"] == "m1"


@scenario
async def test_a_call_in_a_long_recovery_waits_as_it_is_told_but_not_beyond_its_end(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    await adapter.use("whoami")
    daemon.tell("readiness", state="recovering", epoch=2)
    recovering = UnavailableError("the bus is recovering", retry_after_ms=20_000)
    daemon.answers["send"] = [recovering, RECEIPT]
    sending = asyncio.create_task(adapter.use("send", channel="general", content="x"))
    await daemon.until("send")
    finished, _ = await asyncio.wait([sending], timeout=0.5)
    assert not finished
    assert len(daemon.requests("send")) == 1
    daemon.tell("readiness", state="ready", epoch=2)
    assert (await asyncio.wait_for(sending, PATIENCE_S))["message_id"] == "m1"


@scenario
async def test_a_denial_is_not_retried(daemon: ScriptedDaemon, adapter: Adapter) -> None:
    daemon.answers["send"] = [NotFoundError("no such channel")]
    answer = await adapter.use("send", channel="nowhere", content="x")
    assert answer["error"]["code"] == "not_found"
    assert len(daemon.requests("send")) == 1


@scenario
async def test_another_version_or_configuration_is_shown_at_once(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    daemon.answers["hello"] = [VersionMismatchError("the daemon is older"), None]
    daemon.answers["attach"] = [ConfigMismatchError("restart it"), None]
    assert (await adapter.use("whoami"))["error"]["code"] == "version_mismatch"
    assert (await adapter.use("whoami"))["error"]["code"] == "config_mismatch"
    assert "error" not in await adapter.use("whoami")


@scenario
async def test_a_session_that_is_connected_elsewhere_is_tried_again(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    busy = SessionAlreadyConnectedError("held by process 1", retry_after_ms=10)
    daemon.answers["attach"] = [busy, busy, None]
    assert "error" not in await adapter.use("whoami")
    assert len(daemon.requests("attach")) == 3


@scenario
async def test_an_unsubscribe_whose_answer_was_lost_succeeds_when_nothing_is_left(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    daemon.answers["unsubscribe"] = [DROP, NotFoundError("not subscribed")]
    assert (await adapter.use("unsubscribe", channel="general"))["channel"] == "general"


@scenario
async def test_a_config_that_became_unreadable_is_a_readable_error(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    daemon.config_path.write_text("{")
    answer = await adapter.use("whoami")
    assert answer["error"]["code"] == "validation"
    assert "config.json" in answer["error"]["message"]


@scenario
async def test_a_changed_config_is_told_with_another_hello_before_an_attach(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    await adapter.use("whoami")
    daemon.config_path.write_text('{"recv_default_count": 7}')
    daemon.answers["whoami"] = [StaleAttachmentError("replaced"), {"agent": "Sam"}]
    await adapter.use("whoami")
    first, second = daemon.requests("hello")
    assert first["config_fingerprint"] != second["config_fingerprint"]


@scenario
async def test_deliveries_that_overtake_the_answer_to_attach_are_kept(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    daemon.generation = 1
    daemon.before_attach_answer = [
        daemon.deliver_frame(1, after=0),
        daemon.deliver_frame(2, after=1),
    ]
    daemon.generation = 0
    assert sequences(await adapter.use("receive")) == [1, 2]
    assert daemon.requests("pull") == []


@scenario
async def test_a_handoff_is_reported_at_once_and_confirmed_by_the_next_call(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    await adapter.use("whoami")
    daemon.deliver(1, 2, after=0)
    assert sequences(await adapter.use("receive", wait_seconds=5)) == [1, 2]
    (report,) = await daemon.until("handoff")
    assert (report["report"], report["positions"]) == (1, [[1, 2]])
    (credit,) = daemon.requests("credit")
    assert credit["messages"] == 2
    await adapter.use("whoami")
    used = await daemon.until("used", 2)
    assert [(params["confirms"], params["channels"]) for params in used] == [(0, []), (1, None)]


@scenario
async def test_a_result_that_was_not_handed_off_is_neither_reported_nor_lost(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    await adapter.use("whoami")
    daemon.deliver(1, after=0)
    lost = await adapter.use("receive", wait_seconds=5, outcome=Outcome.CANCELLED)
    assert sequences(lost) == [1]
    assert sequences(await adapter.use("receive")) == [1]
    (report,) = await daemon.until("handoff")
    assert report["positions"] == [[1, 1]]


@scenario
async def test_a_pull_that_is_left_early_loses_nothing_that_it_brings(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    await adapter.use("whoami")
    release = asyncio.Event()
    brought = {"epoch": 1, "deliveries": [daemon.delivery(1, after=0)]}
    daemon.answers["pull"] = [After(release, brought)]
    waiting = asyncio.create_task(adapter.calls.call("receive", {"wait_seconds": 9}, "tester", {}))
    await daemon.until("pull")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    release.set()
    await daemon.until("cancel_pull")
    assert sequences(await adapter.use("receive", wait_seconds=5)) == [1]


@scenario
async def test_a_recovery_starts_over_without_doubling_what_was_handed_off(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    await adapter.use("whoami")
    daemon.deliver(1, after=0)
    assert sequences(await adapter.use("receive", wait_seconds=5)) == [1]
    daemon.deliver(2, after=1)
    daemon.tell("readiness", state="recovering", epoch=2)
    daemon.tell("readiness", state="ready", epoch=2)
    daemon.answers["pull"] = [{"epoch": 2, "deliveries": []}]
    daemon.deliver(1, 2, 3, after=0, epoch=2)
    assert sequences(await adapter.use("receive", wait_seconds=5)) == [2, 3]


@scenario
async def test_a_pull_across_a_recovery_attaches_again_instead_of_leaving_a_hole(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    await adapter.use("whoami")
    past = {"epoch": 2, "deliveries": [daemon.delivery(9, after=8)]}
    daemon.answers["pull"] = [past, {"epoch": 1, "deliveries": [daemon.delivery(1, after=0)]}]
    assert sequences(await adapter.use("receive", wait_seconds=5)) == [1]
    assert len(daemon.requests("attach")) == 2


@scenario
async def test_a_pull_whose_answer_comes_too_late_attaches_again_instead_of_leaving_a_hole(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    await adapter.use("whoami")
    (conversation,) = adapter.calls._conversations.values()
    released = asyncio.Event()
    answer = {"epoch": 1, "deliveries": [daemon.delivery(1, after=0)]}
    daemon.answers["pull"] = [After(released, answer), answer]
    with patch.object(agentbus.adapter.conversation, "_ANSWER_SLACK_S", 0.05):
        call = asyncio.create_task(adapter.use("receive", wait_seconds=0))
        async with asyncio.timeout(5):
            while conversation.attachment is not None:
                await asyncio.sleep(0.005)
    daemon.deliver(2, after=1)  # the daemon believes that its answer has arrived
    released.set()
    assert sequences(await call) == [1]
    assert len(daemon.requests("attach")) == 2


@scenario
async def test_after_an_unexpected_loss_the_conversation_is_attached_again_by_itself(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    await adapter.use("whoami")
    await daemon.leave()
    await daemon.listen()
    await daemon.until("attach", 2)


@scenario
async def test_a_waiting_call_does_not_outlive_an_intentional_stop(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    await adapter.use("whoami")
    daemon.answers["pull"] = [UnavailableError("stopping")]
    daemon.tell("stopping", intentional=True)
    answer = await adapter.use("receive", wait_seconds=5)
    assert answer["error"]["code"] == "unavailable"
    assert "was stopped" in answer["error"]["message"]


@scenario
async def test_a_stop_that_comes_during_a_retry_ends_the_call_too(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    await adapter.use("whoami")
    daemon.answers["pull"] = [UnavailableError("stopping", retry_after_ms=100)]
    waiting = asyncio.create_task(adapter.use("receive", wait_seconds=5))
    await daemon.until("pull")
    daemon.tell("stopping", intentional=True)
    assert "was stopped" in (await waiting)["error"]["message"]
    assert len(daemon.requests("pull")) == 1


@scenario
async def test_what_is_pushed_right_behind_a_pulls_answer_leaves_no_hole_before_it(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    await adapter.use("whoami")
    daemon.answers["pull"] = [
        {"epoch": 1, "deliveries": [daemon.delivery(1, after=0)]},
        {"epoch": 1, "deliveries": []},
    ]
    daemon.behind_answer["pull"] = daemon.deliver_frame(2, after=1)
    assert sequences(await adapter.use("receive", wait_seconds=5)) == [1, 2]


@scenario
async def test_a_report_leaves_in_the_step_in_which_its_result_left(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    await adapter.use("whoami")
    daemon.deliver(1, after=0)
    await adapter.calls.call("receive", {"wait_seconds": 5}, "tester", {})
    delivery = current_delivery.get()
    assert delivery is not None
    delivery.bytes_left = True
    delivery.settle(Outcome.HANDED_OFF)
    adapter.link.close()  # as if the process was killed here
    (report,) = await daemon.until("handoff")
    assert report["positions"] == [[1, 1]]


@scenario
async def test_an_expiry_is_told_until_it_is_confirmed_and_delivery_goes_on(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    await adapter.use("whoami")
    at = "2026-01-01T00:00:00.000Z"
    attachment = {"session_id": "session-1", "generation": 1}
    daemon.tell("expired", **attachment, subscription=1, channel="general", expired_at=at)
    told = await adapter.use("receive", wait_seconds=5)
    assert told["expired"] == [{"channel": "general", "expired_at": at}]
    (report,) = await daemon.until("handoff")
    assert report["expired"] == [1]
    named = await adapter.use("receive", channels=["general"])
    assert named["error"]["code"] == "cursor_expired"


@scenario
async def test_the_windows_of_all_conversations_together_keep_the_bound(
    daemon: ScriptedDaemon, adapter: Adapter
) -> None:
    for number in range(12):
        thread = f"thread-{number}"
        await adapter.calls.call(
            "whoami", {}, "codex-mcp-client", {"threadId": thread, "sessionId": thread}
        )
    windows = [params["window_messages"] for params in daemon.requests("attach")]
    assert min(windows) == 1
    assert sum(windows) <= 256 + windows.count(1)
