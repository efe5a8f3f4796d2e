"""An orderly end: what is flushed, who is told, what a reset leaves behind."""

from __future__ import annotations

import os
import time

import pytest

from agentbus.errors import BusError
from agentbus.limits import SHUTDOWN_GRACE_SECONDS
from agentbus.protocol.jsonrpc import encode_request
from agentbus.transport.client import Client
from tests.bus_fixture import ThrowAwayBus
from tests.eventually import PATIENCE_S


def test_a_stop_request_is_announced_answered_and_ends_everything(
    throw_away_bus: ThrowAwayBus,
) -> None:
    bus = throw_away_bus
    sam = bus.attach()
    redis_pid = bus.redis_pid()
    assert redis_pid is not None
    begun_s = time.monotonic()
    with bus.client() as client:
        assert client.request("stop", {}, SHUTDOWN_GRACE_SECONDS + 1) == {}
    assert bus.wait_ended() == 0
    assert time.monotonic() - begun_s < SHUTDOWN_GRACE_SECONDS
    assert sam.wait_for("stopping") == {"intentional": True}
    assert not bus.runtime.socket.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(redis_pid, 0)


def test_a_signal_is_an_intentional_stop_too(throw_away_bus: ThrowAwayBus) -> None:
    sam = throw_away_bus.attach()
    assert throw_away_bus.stop() == 0
    assert sam.wait_for("stopping") == {"intentional": True}


def test_a_stop_flushes_reports_that_still_wait(throw_away_bus: ThrowAwayBus) -> None:
    bus = throw_away_bus
    sam, ada = bus.attach(conversation="c"), bus.attach("Ada")
    for content in ("a", "b", "c"):
        ada.call("send", channel="general", content=content)
    through = 0
    while through < 3:
        delivery = sam.wait_for("deliver")["delivery"]
        through = delivery["through"]
    subscription = delivery["subscription"]
    # A request without waiting for its answer, and a stop before the 20 ms are over.
    sam.client.detach().sendall(_handoff_frame(sam.attachment, sam.facts["epoch"], subscription))
    assert bus.state() == "ready"
    with bus.client() as client:
        client.request("stop", {}, 6.0)
    assert bus.wait_ended() == 0
    bus.start()
    again = bus.attach(conversation="c")
    row = again.facts["subscriptions"][0]
    assert (row["handed_off"], row["confirmed"]) == (3, 0)
    delivery = again.wait_for("deliver")["delivery"]
    assert [record["content"] for _, record in delivery["records"]] == ["a", "b", "c"]
    assert delivery["redelivered_through"] == 3


def _handoff_frame(attachment: list[object], epoch: int, subscription: int) -> bytes:
    params = {
        "attachment": attachment,
        "epoch": epoch,
        "report": 1,
        "positions": [[subscription, 3]],
        "expired": [],
    }
    return encode_request("h", "handoff", params)


def test_everything_is_there_after_a_stop_and_a_start(throw_away_bus: ThrowAwayBus) -> None:
    bus = throw_away_bus
    first = bus.attach(conversation="c")
    first.call("create_channel", name="work")
    sent = first.call("send", channel="work", content="kept", operation_id="k")
    assert bus.stop() == 0
    bus.start()
    again = bus.attach(conversation="c")
    assert again.facts["resumed"] is True
    assert again.facts["bus_id"] == first.facts["bus_id"]
    assert again.facts["generation"] > first.facts["generation"]
    assert again.facts["session_id"] == first.facts["session_id"]
    repeat = again.call("send", channel="work", content="kept", operation_id="k")
    assert repeat == sent | {"duplicate": True}


def test_a_reset_empties_the_bus_and_numbers_go_on_rising(throw_away_bus: ThrowAwayBus) -> None:
    bus = throw_away_bus
    before = bus.attach(conversation="c")
    before.call("create_channel", name="work")
    last = before.call("send", channel="general", content="gone", operation_id="k")["sequence"]
    with bus.client() as client:
        bus_id = client.request("reset", {}, 10.0)["bus_id"]
    assert bus_id != before.facts["bus_id"]
    assert before.wait_for("stopping") == {"intentional": True}
    assert bus.wait_ended() == 0
    bus.start()
    after = bus.attach(conversation="c")
    assert after.facts["bus_id"] == bus_id
    assert after.facts["resumed"] is False
    assert after.facts["session_id"] != before.facts["session_id"]
    assert after.facts["generation"] > before.facts["generation"]
    channels = [row["channel"] for row in after.call("list_channels")["channels"]]
    assert channels == ["general"]
    sent = after.call("send", channel="general", content="new", operation_id="k")
    assert sent["duplicate"] is False
    assert sent["sequence"] > last
    with pytest.raises(BusError, match="attach again"):
        after.client.request("whoami", {"attachment": before.attachment, "args": {}}, PATIENCE_S)


def test_two_who_ask_to_stop_are_both_answered(throw_away_bus: ThrowAwayBus) -> None:
    clients = [throw_away_bus.client() for _ in range(2)]
    for client in clients:
        client.detach().sendall(encode_request("s", "stop", {}))
    assert throw_away_bus.wait_ended() == 0
    for client in clients:
        connected = client.detach()
        connected.settimeout(PATIENCE_S)
        received = b""
        while chunk := connected.recv(65536):
            received += chunk
        assert b'"id":"s","result":{}' in received or b'"result":{},"id":"s"' in received


def test_status_channels_and_sessions_need_no_hello(
    throw_away_bus: ThrowAwayBus,
) -> None:
    bus = throw_away_bus
    with Client.connect(bus.runtime.socket, PATIENCE_S) as client:
        assert client.request("status", {}, PATIENCE_S)["state"] == "ready"
        assert client.request("channels", {}, PATIENCE_S)["channels"][0]["channel"] == "general"
        assert client.request("sessions", {}, PATIENCE_S) == {"sessions": []}
