"""What a client may have seen is told before it can have seen it, and taken back if it has not."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Any

import pytest
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCResponse

from agentbus.adapter.binding import Binder
from agentbus.adapter.calls import Calls
from agentbus.adapter.conversation import Profile
from agentbus.adapter.handoff import Delivery, Outcome, current_delivery
from agentbus.adapter.link import Link
from agentbus.adapter.transport import StdioTransport
from tests.adapter.deliveries import OWN, PLENTY, arrive, attached, message, row, take
from tests.adapter.scripted_daemon import SUBSCRIPTION, ScriptedDaemon

# --- the bookkeeping ---


def test_a_batch_is_announced_once_with_the_highest_position_of_each_subscription() -> None:
    prefetch = attached(1, 2)
    arrive(prefetch, message(1), message(3))
    arrive(prefetch, message(2), subscription=2)
    batch = take(prefetch)
    assert prefetch.exposes(batch) == {1: 3, 2: 2}
    prefetch.settle(batch, handed_off=True, bytes_left=True)
    assert prefetch.unexposed(batch) == {}
    assert prefetch.exposes(prefetch.replay(PLENTY)) == {}


def test_what_did_not_leave_is_taken_back_to_what_did() -> None:
    prefetch = attached(1)
    arrive(prefetch, message(1), message(2))
    first = take(prefetch, count=1)
    prefetch.exposes(first)
    prefetch.settle(first, handed_off=True, bytes_left=True)
    second = take(prefetch)
    assert prefetch.exposes(second) == {1: 2}
    prefetch.settle(second, handed_off=False)
    assert prefetch.unexposed(second) == {1: 1}
    again = take(prefetch)
    assert prefetch.exposes(again) == {1: 2}


def test_a_torn_result_stays_announced() -> None:
    prefetch = attached(1)
    arrive(prefetch, message(1))
    batch = take(prefetch)
    prefetch.exposes(batch)
    prefetch.settle(batch, handed_off=False, bytes_left=True)
    assert prefetch.unexposed(batch) == {}
    assert prefetch.exposes(take(prefetch)) == {}


@pytest.mark.parametrize("settled", [True, False])
def test_a_daemon_that_does_not_know_is_told_at_the_next_attach(settled: bool) -> None:
    """Also of a result that is still being written."""
    prefetch = attached(1)
    arrive(prefetch, message(1), message(2))
    batch = take(prefetch)
    prefetch.exposes(batch)
    if settled:
        prefetch.settle(batch, handed_off=True, bytes_left=True)
    for stored, told in ((0, {1: 2}), (1, {1: 2}), (2, {})):
        rows = [{**row(1), "handed_off": stored}]
        prefetch.attached(OWN, 1, rows)
        assert prefetch.exposed_before(rows) == told


def test_what_the_daemon_has_stored_is_not_announced_again() -> None:
    prefetch = attached()
    prefetch.attached(OWN, 1, [{**row(1), "handed_off": 2}])
    arrive(prefetch, message(1), message(2), message(3), redelivered_through=2)
    assert prefetch.exposes(take(prefetch, count=2)) == {}
    last = take(prefetch)
    assert prefetch.exposes(last) == {1: 3}
    prefetch.settle(last, handed_off=False)
    assert prefetch.unexposed(last) == {1: 2}


def test_a_subscription_that_was_left_is_announced_no_more() -> None:
    prefetch = attached(1)
    arrive(prefetch, message(1))
    batch = take(prefetch)
    prefetch.left("channel-1")
    assert prefetch.exposes(batch) == {}
    prefetch.settle(batch, handed_off=True, bytes_left=True)
    assert prefetch.unexposed(batch) == {}


# --- the transport ---


def test_a_delivery_begins_before_its_first_byte_and_only_once() -> None:
    """Filling the pipe first, so that the first write is refused and tried again."""
    seen: list[str] = []

    async def scenario(*, cancel: bool) -> None:
        to_us, write_fd = os.pipe()
        read_fd, to_transport = os.pipe()
        os.set_blocking(write_fd, False)
        filled = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                filled += os.write(write_fd, b" " * 4096)
        stdio = StdioTransport(read_fd, write_fd)

        def begun(delivery: Delivery) -> None:
            seen.append(f"begun {delivery.bytes_left}")

        def settled(delivery: Delivery) -> None:
            seen.append(f"{delivery.outcome} {delivery.begun} {delivery.bytes_left}")

        async def respond() -> None:
            current_delivery.set(Delivery(settled, begun))
            response = JSONRPCResponse(jsonrpc="2.0", id=1, result={})
            await stdio.write.send(SessionMessage(response))

        sending = asyncio.create_task(respond())
        await asyncio.sleep(0)
        assert seen == ["begun False"]
        if cancel:
            sending.cancel()
            await asyncio.wait([sending])
        else:
            os.read(to_us, filled)
            await sending
        await stdio.close(flush_s=0)
        os.close(to_us)
        os.close(to_transport)

    asyncio.run(scenario(cancel=False))
    assert seen == ["begun False", f"{Outcome.HANDED_OFF} True True"]
    seen.clear()
    asyncio.run(scenario(cancel=True))
    assert seen == ["begun False", f"{Outcome.CANCELLED} True False"]


def test_an_announcement_that_fails_keeps_no_result_back() -> None:
    def fails(delivery: Delivery) -> None:
        raise OSError

    delivery = Delivery(lambda _: None, fails)
    delivery.begin()
    assert delivery.begun


# --- on the wire ---


def _exposed(daemon: ScriptedDaemon) -> list[Any]:
    return [params["exposed"] for params in daemon.requests("handing_off")]


def test_the_daemon_has_the_announcement_before_the_result_leaves() -> None:
    async def scenario() -> None:
        async with ScriptedDaemon() as daemon:
            link = Link(daemon.paths, daemon.config_path)
            calls = Calls(link, Profile("Sam", None, None), Binder("conversation-1", {}))

            async def receive() -> Delivery:
                await calls.call("receive", {"wait_seconds": 5}, "tester", {})
                delivery = current_delivery.get()
                assert delivery is not None
                return delivery

            await calls.call("whoami", {}, "tester", {})
            daemon.deliver(1, after=0)
            delivery = await receive()
            delivery.begin()
            link.close()  # as if the process was killed here
            await daemon.until("handing_off")
            assert _exposed(daemon) == [[[1, 1]]]
            assert daemon.requests("handoff") == []

    asyncio.run(scenario())


def test_a_result_that_did_not_leave_after_all_is_taken_back_and_what_left_told_anew() -> None:
    async def scenario() -> None:
        async with ScriptedDaemon() as daemon:
            link = Link(daemon.paths, daemon.config_path)
            calls = Calls(link, Profile("Sam", None, None), Binder("conversation-1", {}))

            async def receive(outcome: Outcome) -> None:
                await calls.call("receive", {"wait_seconds": 5}, "tester", {})
                delivery = current_delivery.get()
                assert delivery is not None
                delivery.begin()
                delivery.bytes_left = outcome is Outcome.HANDED_OFF
                delivery.settle(outcome)

            await calls.call("whoami", {}, "tester", {})
            daemon.deliver(1, after=0)
            await asyncio.create_task(receive(Outcome.CANCELLED))
            await daemon.until("handing_off", 2)
            assert _exposed(daemon) == [[[1, 1]], [[1, 0]]]
            await asyncio.create_task(receive(Outcome.HANDED_OFF))
            await daemon.until("handing_off", 3)
            assert _exposed(daemon)[2] == [[1, 1]]
            await daemon.leave()
            await daemon.listen()
            await calls.call("whoami", {}, "tester", {})
            (told,) = (await daemon.until("handing_off", 4))[3:]
            assert told["exposed"] == [[SUBSCRIPTION["subscription"], 1]]
            assert told["attachment"][1] == daemon.generation
            link.close()

    asyncio.run(scenario())
