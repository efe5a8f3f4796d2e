"""Waits on behalf of idle sessions, against a whole bus."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from actors.wait_keeper import ABSENT_S, RETURN_S, WaitKeeperActor
from agentbus.errors import BusError
from agentbus.limits import PROTOCOL_VERSION
from agentbus.protocol.jsonrpc import Notification
from agentbus.transport.client import Client
from tests.eventually import PATIENCE_S, eventually
from tests.integration.in_process import InProcessBus, in_process_bus

LONG_MS = 600_000
WITHIN_S = 20.0


@pytest.fixture
def bus() -> Iterator[InProcessBus]:
    with in_process_bus() as bus:
        yield bus


@contextmanager
def waiting(bus: InProcessBus, **params: Any) -> Iterator[Future[Any]]:
    """A wait under way on a connection of its own."""
    with Client.connect(bus.paths.socket, PATIENCE_S) as client, ThreadPoolExecutor(1) as pool:
        connection = client.detach()
        try:
            yield pool.submit(client.request, "wait", {"wait_ms": LONG_MS, **params}, WITHIN_S)
        finally:
            connection.shutdown(socket.SHUT_RDWR)  # wakes a request that still waits


def waits(bus: InProcessBus) -> int:
    with Client.connect(bus.paths.socket, PATIENCE_S) as client:
        status = client.request("status", {}, PATIENCE_S)
    return int(status["waits"]["waiting"])


def look(bus: InProcessBus, **params: Any) -> Any:
    with Client.connect(bus.paths.socket, PATIENCE_S) as client:
        return client.request("wait", {"wait_ms": 0, **params}, WITHIN_S)


def test_an_arriving_message_wakes_the_wait_of_another_session(bus: InProcessBus) -> None:
    sam, kim = bus.attach("Sam", "sam-1"), bus.attach("Kim", "kim-1")
    with waiting(bus, conversation="sam-1") as wait:
        eventually(lambda: waits(bus) == 1, what="the wait is known")
        kim.call("send", channel="general", content="hello")
        assert wait.result(WITHIN_S) == {
            "outcome": "woken",
            "display_name": "Sam",
            "channels": [{"channel": "general", "waiting": 1}],
            "peer": 0,
        }
    assert waits(bus) == 0
    assert sam.facts["display_name"] == "Sam"


def test_what_waits_already_answers_at_once(bus: InProcessBus) -> None:
    bus.attach("Sam", "sam-1")
    bus.attach("Kim", "kim-1").call("send", channel="general", content="hello")
    with waiting(bus, conversation="sam-1") as wait:
        assert wait.result(WITHIN_S)["channels"] == [{"channel": "general", "waiting": 1}]


def test_own_messages_and_other_channels_wake_nobody(bus: InProcessBus) -> None:
    sam, kim = bus.attach("Sam", "sam-1"), bus.attach("Kim", "kim-1")
    kim.call("create_channel", name="noise", kind="ordinary")
    kim.call("create_channel", name="news", kind="ordinary")
    sam.call("subscribe", channel="news")
    with waiting(bus, conversation="sam-1", channels=["news"]) as wait:
        eventually(lambda: waits(bus) == 1, what="the wait is known")
        sam.call("send", channel="news", content="my own")
        kim.call("send", channel="noise", content="not subscribed")
        kim.call("send", channel="general", content="subscribed, but not waited for")
        assert not wait.done()
        kim.call("send", channel="news", content="hello")
        assert wait.result(WITHIN_S)["channels"] == [{"channel": "news", "waiting": 1}]


def test_a_channel_that_nothing_can_come_from_is_refused(bus: InProcessBus) -> None:
    bus.attach("Sam", "sam-1")
    for wait_ms in (0, LONG_MS):
        with pytest.raises(BusError, match="Sam is not subscribed to newz") as refused:
            look(bus, conversation="sam-1", channels=["general", "newz"], wait_ms=wait_ms)
        assert refused.value.code == "not_found"


def test_a_database_that_cannot_be_read_ends_the_wait_and_not_the_bus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keepers: list[WaitKeeperActor] = []
    begin = WaitKeeperActor.on_start

    def on_start(keeper: WaitKeeperActor) -> None:
        begin(keeper)
        keepers.append(keeper)

    monkeypatch.setattr(WaitKeeperActor, "on_start", on_start)
    with in_process_bus() as bus:
        bus.attach("Sam", "sam-1")
        kim = bus.attach("Kim", "kim-1")
        with waiting(bus, conversation="sam-1") as wait:
            eventually(lambda: waits(bus) == 1, what="the wait is known")
            (keeper,) = keepers
            whole = keeper._store
            keeper._store = keeper._open_store()
            keeper._store.close()
            kim.call("send", channel="general", content="hello")
            with pytest.raises(BusError, match="could not be read"):
                wait.result(WITHIN_S)
        keeper._store = whole
        assert waits(bus) == 0
        assert look(bus, conversation="sam-1")["channels"] == [{"channel": "general", "waiting": 1}]


def test_a_newer_wait_of_a_session_replaces_the_older(bus: InProcessBus) -> None:
    bus.attach("Sam", "sam-1")
    with waiting(bus, conversation="sam-1") as older:
        eventually(lambda: waits(bus) == 1, what="the wait is known")
        with waiting(bus, conversation="sam-1") as newer:
            assert older.result(WITHIN_S)["outcome"] == "replaced"
            bus.attach("Kim", "kim-1").call("send", channel="general", content="hello")
            assert newer.result(WITHIN_S)["outcome"] == "woken"


def test_a_wait_for_what_is_new_tells_each_message_once(bus: InProcessBus) -> None:
    bus.attach("Sam", "sam-1")
    kim = bus.attach("Kim", "kim-1")
    kim.call("send", channel="general", content="one")
    with waiting(bus, conversation="sam-1", only_new=True) as wait:
        assert wait.result(WITHIN_S)["channels"] == [{"channel": "general", "waiting": 1}]
    with waiting(bus, conversation="sam-1", only_new=True) as again:
        eventually(lambda: waits(bus) == 1, what="nothing is new")
        kim.call("send", channel="general", content="two")
        assert again.result(WITHIN_S)["channels"] == [{"channel": "general", "waiting": 1}]
    assert look(bus, conversation="sam-1")["channels"][0]["waiting"] == 2


def test_a_wait_ends_at_its_time(bus: InProcessBus) -> None:
    bus.attach("Sam", "sam-1")
    with waiting(bus, conversation="sam-1", wait_ms=60_000) as wait:
        eventually(lambda: waits(bus) == 1, what="the wait is known")
        bus.clock.advance(59.9)
        assert not wait.done()
        bus.clock.advance(0.2)
        assert wait.result(WITHIN_S)["outcome"] == "timeout"


def test_whoever_waits_and_goes_away_is_forgotten(bus: InProcessBus) -> None:
    bus.attach("Sam", "sam-1")
    with Client.connect(bus.paths.socket, PATIENCE_S) as client, ThreadPoolExecutor(1) as pool:
        wait = pool.submit(
            client.request, "wait", {"wait_ms": LONG_MS, "conversation": "sam-1"}, WITHIN_S
        )
        eventually(lambda: waits(bus) == 1, what="the wait is known")
        client.detach().shutdown(socket.SHUT_RDWR)
        assert isinstance(wait.exception(WITHIN_S), BusError)
    eventually(lambda: waits(bus) == 0, what="the wait is forgotten")


def test_a_session_is_found_by_its_harness_process(bus: InProcessBus) -> None:
    with Client.connect(bus.paths.socket, PATIENCE_S) as client:
        hello = {"protocol": PROTOCOL_VERSION, "version": "0", "pid": 1, "harness_pid": 4711}
        client.request("hello", hello, PATIENCE_S)
        client.request(
            "attach",
            {
                "agent": "Sam",
                "application": "test",
                "conversation": "sam-1",
                "identity_source": "argument",
                "window_messages": 1,
                "window_bytes": 1000,
            },
            5.0,
        )
        assert look(bus, harness_pids=[1, 4711])["display_name"] == "Sam"
        with pytest.raises(BusError, match="no session of this conversation") as refused:
            look(bus, harness_pids=[4712])
        assert refused.value.code == "not_found"


def test_of_several_harness_processes_the_nearest_counts_and_of_its_sessions_the_newest(
    bus: InProcessBus,
) -> None:
    with (
        Client.connect(bus.paths.socket, PATIENCE_S) as outer,
        Client.connect(bus.paths.socket, PATIENCE_S) as inner,
    ):
        greet(outer, 4711)
        greet(inner, 4712)
        for client, agent in ((outer, "Outer"), (inner, "Earlier"), (inner, "Later")):
            attach = {
                "agent": agent,
                "application": "test",
                "conversation": f"{agent}-1",
                "identity_source": "argument",
                "window_messages": 1,
                "window_bytes": 1000,
            }
            client.request("attach", attach, PATIENCE_S)
        assert look(bus, harness_pids=[9, 4712, 4711])["display_name"] == "Later"
        assert look(bus, harness_pids=[9, 4711])["display_name"] == "Outer"


def test_a_look_moves_no_cursor_and_counts_every_time(bus: InProcessBus) -> None:
    bus.attach("Sam", "sam-1")
    kim = bus.attach("Kim", "kim-1")
    kim.call("send", channel="general", content="one")
    assert look(bus, conversation="sam-1")["channels"][0]["waiting"] == 1
    kim.call("send", channel="general", content="two")
    assert look(bus, conversation="sam-1", application="test")["channels"][0]["waiting"] == 2
    with pytest.raises(BusError, match="no session"):
        look(bus, conversation="sam-1", application="other")


def test_hooks_of_a_harness_reach_its_adapters_in_either_order(bus: InProcessBus) -> None:
    told: list[Notification] = []
    event = {"application": "test", "event": "SessionStart", "harness_pid": 4711}
    with Client.connect(bus.paths.socket, PATIENCE_S) as hooks:
        hooks.request("hook", {**event, "conversation": "before"}, PATIENCE_S)
        with Client.connect(bus.paths.socket, PATIENCE_S, told.append) as client:
            hello = {"protocol": PROTOCOL_VERSION, "version": "0", "pid": 1, "harness_pid": 4711}
            client.request("hello", hello, PATIENCE_S)
            hooks.request("hook", {**event, "conversation": "after"}, PATIENCE_S)
            hooks.request("hook", {**event, "conversation": "no", "harness_pid": 1}, PATIENCE_S)

            def evidence() -> list[str]:
                client.request("heartbeat", {}, PATIENCE_S)
                return [n.params["session_id"] for n in told if n.method == "evidence"]

            eventually(lambda: evidence() == ["before", "after"], what="the adapter was told")


def test_the_end_of_a_session_releases_its_attachment(bus: InProcessBus) -> None:
    sam = bus.attach("Sam", "sam-1")
    with Client.connect(bus.paths.socket, PATIENCE_S) as hooks:
        ended = {"application": "test", "event": "SessionEnd", "conversation": "sam-1"}
        hooks.request("hook", ended, PATIENCE_S)
    with pytest.raises(BusError) as stale:
        sam.call("whoami")
    assert stale.value.code == "stale_attachment"
    assert bus.attach("Sam", "sam-2").facts["display_name"] == "Sam"


def test_a_wait_that_begins_a_turn_ends_with_its_attachment(bus: InProcessBus) -> None:
    sam = bus.attach("Sam", "sam-1")
    with waiting(bus, conversation="sam-1", only_new=True) as turn:
        eventually(lambda: waits(bus) == 1, what="the wait is known")
        sam.close()
        bus.attach("Sam", "sam-1")  # back in time
        bus.clock.advance(RETURN_S * 2)
        assert not turn.done()
        with Client.connect(bus.paths.socket, PATIENCE_S) as hooks:
            ended = {"application": "test", "event": "SessionEnd", "conversation": "sam-1"}
            hooks.request("hook", ended, PATIENCE_S)

        def is_over() -> bool:
            bus.clock.advance(RETURN_S)
            return turn.done()

        eventually(is_over, what="the wait is over")
        assert turn.result() == {
            "outcome": "ended",
            "display_name": "Sam",
            "channels": [],
            "peer": 0,
        }


def test_a_wait_that_begins_a_turn_ends_when_it_comes_after_its_attachment(
    bus: InProcessBus,
) -> None:
    bus.attach("Sam", "sam-1").close()
    with waiting(bus, conversation="sam-1", only_new=True) as turn:
        eventually(lambda: waits(bus) == 1, what="the wait is known")

        def is_over() -> bool:
            bus.clock.advance(RETURN_S)
            return turn.done()

        eventually(is_over, what="the wait is over")
        assert turn.result()["outcome"] == "ended"


def test_a_wait_that_begins_a_turn_gives_the_adapter_time_after_a_restart(
    bus: InProcessBus,
) -> None:
    bus.attach("Sam", "sam-1")
    assert bus.system.stop()
    bus.start()
    with waiting(bus, conversation="sam-1", only_new=True) as turn:
        eventually(lambda: waits(bus) == 1, what="the wait is known")
        bus.clock.advance(ABSENT_S - 1)
        bus.attach("Sam", "sam-1")
        bus.clock.advance(ABSENT_S)
        bus.attach("Kim", "kim-1").call("send", channel="general", content="hello")
        assert turn.result(WITHIN_S)["outcome"] == "woken"


def greet(client: Client, harness_pid: int) -> None:
    """As an adapter does that has not used the bus yet."""
    hello = {"protocol": PROTOCOL_VERSION, "version": "0", "pid": 1, "harness_pid": harness_pid}
    client.request("hello", hello, PATIENCE_S)


def test_a_resumed_conversation_is_woken_before_its_first_call_while_it_has_an_adapter(
    bus: InProcessBus,
) -> None:
    with bus.attach("Sam", "sam-1") as sam:
        sam.request("detach")  # answered when it has left; the end of a connection is seen later
    asked = {"conversation": "sam-1", "only_new": True, "harness_pids": [4711]}
    with Client.connect(bus.paths.socket, PATIENCE_S) as adapter:
        greet(adapter, 4711)
        with waiting(bus, **asked) as turn:
            eventually(lambda: waits(bus) == 1, what="the wait is known")
            bus.clock.advance(ABSENT_S)
            bus.attach("Kim", "kim-1").call("send", channel="general", content="hello")
            assert turn.result(WITHIN_S)["outcome"] == "woken"
    with Client.connect(bus.paths.socket, PATIENCE_S) as adapter:
        greet(adapter, 4711)
        with waiting(bus, **asked) as turn:
            eventually(lambda: waits(bus) == 1, what="the wait is known")
            adapter.detach().shutdown(socket.SHUT_RDWR)

            def is_over() -> bool:
                bus.clock.advance(RETURN_S)
                return turn.done()

            eventually(is_over, what="the wait is over")
            assert turn.result()["outcome"] == "ended"


def test_a_wait_that_begins_a_turn_ends_with_its_conversation_at_once(bus: InProcessBus) -> None:
    bus.attach("Sam", "sam-1").close()
    with Client.connect(bus.paths.socket, PATIENCE_S) as adapter:
        greet(adapter, 4711)
        asked = {"conversation": "sam-1", "only_new": True, "harness_pids": [4711]}
        with waiting(bus, **asked) as turn:
            eventually(lambda: waits(bus) == 1, what="the wait is known")
            ended = {"application": "test", "event": "SessionEnd", "conversation": "sam-1"}
            adapter.request("hook", ended, PATIENCE_S)
            assert turn.result(WITHIN_S)["outcome"] == "ended"
