"""The asyncio client against a real listener."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest

from agentbus import limits
from agentbus.errors import NotFoundError, OverloadedError, TooLargeError, UnavailableError
from agentbus.protocol import jsonrpc
from agentbus.protocol.jsonrpc import Notification
from agentbus.transport.async_client import AsyncClient
from agentbus.transport.client import Client, NoAnswerError
from tests.eventually import PATIENCE_S
from tests.transport.server import Server

Scenario = Callable[[AsyncClient, list[Notification]], Awaitable[None]]


def run(server: Server, scenario: Scenario) -> None:
    async def main() -> None:
        seen: list[Notification] = []
        client = await AsyncClient.connect(server.path, seen.append, timeout_s=PATIENCE_S)
        try:
            await asyncio.wait_for(scenario(client, seen), 30)
        finally:
            client.close()
            await client.closed

    asyncio.run(main())


def test_many_requests_at_once_get_their_own_answers(server: Server) -> None:
    async def scenario(client: AsyncClient, _: list[Notification]) -> None:
        calls = [client.request("echo", {"n": number}) for number in range(200)]
        assert await asyncio.gather(*calls) == [{"n": number} for number in range(200)]

    run(server, scenario)


def test_errors_are_raised_as_they_were_answered(server: Server) -> None:
    async def scenario(client: AsyncClient, _: list[Notification]) -> None:
        with pytest.raises(NotFoundError, match="no such thing"):
            await client.request("missing", {})

    run(server, scenario)


def test_large_frames_travel_both_ways(server: Server) -> None:
    async def scenario(client: AsyncClient, _: list[Notification]) -> None:
        text = "x" * (limits.FRAME_BYTES - 100)
        assert await client.request("echo", {"a": text}) == {"a": text}
        with pytest.raises(TooLargeError):
            await client.request("echo", {"a": text + "x" * 100})

    run(server, scenario)


def test_notifications_arrive_in_order(server: Server) -> None:
    async def scenario(client: AsyncClient, seen: list[Notification]) -> None:
        connection = server.connection()
        connection.deliver([jsonrpc.encode_notification("n", {"i": i}) for i in range(500)])
        await client.request("echo", {})
        while len(seen) < 500:
            await asyncio.sleep(0.001)
        assert [notification.params["i"] for notification in seen] == list(range(500))

    run(server, scenario)


def test_fault_in_the_callback_does_not_end_the_connection(server: Server) -> None:
    def fault(_: Notification) -> None:
        raise RuntimeError("callback")

    async def main() -> None:
        client = await AsyncClient.connect(server.path, fault, timeout_s=PATIENCE_S)
        server.connection().send(jsonrpc.encode_notification("n", {}))
        assert await client.request("echo", {}) == {}
        client.close()
        await client.closed

    asyncio.run(main())


def test_notify_reaches_the_daemon(server: Server) -> None:
    async def scenario(client: AsyncClient, _: list[Notification]) -> None:
        client.notify("used", {"n": 1})
        await client.request("echo", {})
        told = server.handler.notifications.get(timeout=PATIENCE_S)
        assert told == Notification("used", {"n": 1})

    run(server, scenario)


def test_lost_daemon_fails_every_waiting_request_and_later_ones(server: Server) -> None:
    async def scenario(client: AsyncClient, _: list[Notification]) -> None:
        calls = [asyncio.ensure_future(client.request("hold", {})) for _ in range(3)]
        await client.request("echo", {})
        for _ in calls:  # read by the daemon, or the end of the connection is a reset
            server.handler.held.get(timeout=PATIENCE_S)
        server.connection().close("test")
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(outcome, NoAnswerError)
            assert outcome.sent
        assert "closed" in await client.closed
        with pytest.raises(NoAnswerError) as caught:
            await client.request("echo", {})
        assert not caught.value.sent
        with pytest.raises(NoAnswerError):
            client.notify("used", {})

    run(server, scenario)


def test_closing_fails_waiting_requests_at_once(server: Server) -> None:
    async def scenario(client: AsyncClient, _: list[Notification]) -> None:
        call = asyncio.ensure_future(client.request("hold", {}))
        await client.request("echo", {})
        client.close("going home")
        with pytest.raises(NoAnswerError, match="going home"):
            await call
        assert await client.closed == "going home"

    run(server, scenario)


def test_request_that_times_out_leaves_the_connection_usable(server: Server) -> None:
    async def scenario(client: AsyncClient, _: list[Notification]) -> None:
        with pytest.raises(NoAnswerError) as caught:
            await client.request("hold", {}, timeout_s=0.05)
        assert caught.value.sent
        server.handler.held.get(timeout=PATIENCE_S).set("late")
        assert await client.request("echo", {"a": 1}) == {"a": 1}

    run(server, scenario)


def test_cancelled_request_leaves_the_connection_usable(server: Server) -> None:
    async def scenario(client: AsyncClient, _: list[Notification]) -> None:
        call = asyncio.ensure_future(client.request("hold", {}))
        await client.request("echo", {})
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        server.handler.held.get(timeout=PATIENCE_S).set("late")
        assert await client.request("echo", {"a": 1}) == {"a": 1}

    run(server, scenario)


def test_output_is_bounded_when_the_daemon_does_not_read() -> None:
    ours, theirs = socket.socketpair()

    async def main() -> None:
        client = await AsyncClient.adopt(ours, lambda _: None)
        text = "x" * limits.MIB
        with pytest.raises(OverloadedError):  # noqa: PT012 - how many it takes depends on buffers
            for _ in range(100):
                client.notify("used", {"x": text})
        client.close()
        await client.closed

    with theirs:
        asyncio.run(main())


def test_no_daemon_is_unavailable(server: Server) -> None:
    async def main() -> None:
        nobody = server.path.with_name("nobody")
        await AsyncClient.connect(nobody, lambda _: None, timeout_s=PATIENCE_S)

    with pytest.raises(UnavailableError):
        asyncio.run(main())


def test_socket_of_a_blocking_client_can_be_adopted(server: Server) -> None:
    async def main() -> None:
        blocking = Client.connect(server.path, PATIENCE_S)
        blocking.request("heartbeat", {}, PATIENCE_S)
        client = await AsyncClient.adopt(blocking.detach(), lambda _: None)
        assert await client.request("echo", {"a": 1}) == {"a": 1}
        client.close()
        await client.closed

    asyncio.run(main())


def test_what_a_blocking_client_read_too_much_is_not_lost() -> None:
    ours, theirs = socket.socketpair()
    told: list[Notification] = []

    async def main() -> None:
        blocking = Client(ours)
        ready, stopping = (
            jsonrpc.encode_notification(name, {}) for name in ("readiness", "stopping")
        )
        theirs.sendall(jsonrpc.encode_response(1, {}) + ready + stopping[:10])
        blocking.request("heartbeat", {}, PATIENCE_S)
        unread = blocking.take_unread()
        client = await AsyncClient.adopt(blocking.detach(), told.append, unread)
        theirs.sendall(stopping[10:])
        theirs.close()
        await client.closed

    asyncio.run(main())
    assert [notification.method for notification in told] == ["readiness", "stopping"]


def test_an_answer_is_taken_before_the_notification_that_comes_with_it_is_told() -> None:
    ours, theirs = socket.socketpair()
    order: list[str] = []

    async def main() -> None:
        client = await AsyncClient.adopt(ours, lambda told: order.append(told.method))
        asked = client.ask("pull", {}, lambda _: order.append("answer"))
        told = jsonrpc.encode_notification("deliver", {})
        theirs.sendall(jsonrpc.encode_response(1, {}) + told)
        await client.answer(asked, 5.0)
        client.close()

    with theirs:
        asyncio.run(main())
    assert order == ["answer", "deliver"]
