"""Reset at every moment: the old bus or the new one, never a mixture, and no way back."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from agentbus.errors import BusError, UnavailableError
from agentbus.ids import new_id
from agentbus.transport.client import NoAnswerError
from tests.bus_fixture import BusSession, ThrowAwayBus
from tests.cli.command import agentbus
from tests.crash.conversation import attempt
from tests.eventually import PATIENCE_S, eventually
from tests.signals import kill

FAILPOINT = "AGENTBUS_TEST_FAILPOINT"


@pytest.fixture
def bus() -> Iterator[ThrowAwayBus]:
    """Not started yet."""
    bus = ThrowAwayBus(send_messages_per_second=10_000, send_kib_per_second=65_536)
    yield bus
    bus.close()


def fill(bus: ThrowAwayBus) -> BusSession:
    sam = bus.attach(conversation="c")
    sam.call("create_channel", name="work")
    for number in range(3):
        sam.call("send", channel="work", content=str(number), operation_id=str(number))
    return sam


def reset(bus: ThrowAwayBus) -> Any:
    with bus.client() as client:
        return client.request("reset", {}, PATIENCE_S)


def state_of(bus: ThrowAwayBus) -> tuple[str, dict[str, int], bool]:
    """Bus id, messages retained by channel, and whether Sam's conversation is known."""
    sam = bus.attach(conversation="c")
    channels = {row["channel"]: row["retained"] for row in sam.call("list_channels")["channels"]}
    return sam.facts["bus_id"], channels, sam.facts["resumed"]


OLD = {"general": 0, "work": 3}
NEW = {"general": 0}


@pytest.mark.parametrize(
    ("failpoint", "is_new"),
    [("during_reset", False), ("after_reset", True)],
)
def test_killed_during_a_reset_the_bus_is_the_old_or_the_new_one(
    bus: ThrowAwayBus, failpoint: str, is_new: bool
) -> None:
    bus.environment[FAILPOINT] = failpoint
    bus.start()
    before = fill(bus)
    with pytest.raises(NoAnswerError):
        reset(bus)
    assert bus.wait_ended() == -signal.SIGKILL
    del bus.environment[FAILPOINT]
    bus.start()  # its Redis was left over, filled and marked as the old bus's
    bus_id, channels, resumed = state_of(bus)
    assert (bus_id != before.facts["bus_id"]) is is_new
    assert channels == (NEW if is_new else OLD)
    assert resumed is not is_new
    sam = bus.attach("Kim")
    if is_new:
        sam.call("create_channel", name="work")
    sam.call("subscribe", channel="work", **{"from": "oldest"})
    sam.call("send", channel="work", content="after", operation_id="0")
    contents = [m["content"] for m in sam.call("history", channel="work")["messages"]]
    assert contents == (["after"] if is_new else ["0", "1", "2", "after"])


@pytest.mark.parametrize("failpoint", ["during_reset", "after_reset"])
def test_killed_without_a_daemon_the_command_leaves_one_or_the_other(
    bus: ThrowAwayBus, failpoint: str
) -> None:
    bus.start()
    before = fill(bus)
    assert bus.stop() == 0
    bus.environment[FAILPOINT] = failpoint
    killed = agentbus(bus, "reset", "--yes", "--config", str(bus.config_path))
    assert killed.returncode == -signal.SIGKILL
    del bus.environment[FAILPOINT]
    bus.start()
    bus_id, channels, _ = state_of(bus)
    is_new = failpoint == "after_reset"
    assert (bus_id != before.facts["bus_id"], channels) == (is_new, NEW if is_new else OLD)


def test_sends_in_flight_are_answered_and_leave_nothing_in_the_new_bus(bus: ThrowAwayBus) -> None:
    bus.start()
    fill(bus)
    sessions = [bus.attach(f"A{number}") for number in range(4)]
    under_way = threading.Barrier(5)
    newest = []

    def send_on(session: BusSession) -> None:
        session.call("send", channel="general", content="before", operation_id=new_id())
        under_way.wait(PATIENCE_S)
        while True:
            answer = attempt(
                lambda: session.call("send", channel="general", content="x", operation_id=new_id())
            )
            if isinstance(answer, BusError):
                assert answer.retryable or isinstance(answer, NoAnswerError), answer
                return
            newest.append(answer["sequence"])

    with ThreadPoolExecutor(4) as pool:
        sending = [pool.submit(send_on, session) for session in sessions]
        under_way.wait(PATIENCE_S)
        answer = reset(bus)
        for one in sending:
            one.result(PATIENCE_S)
    assert bus.wait_ended() == 0
    bus.start()
    bus_id, channels, resumed = state_of(bus)
    assert (bus_id, channels, resumed) == (answer["bus_id"], NEW, False)
    kim = bus.attach("Kim")
    assert kim.call("history", channel="general")["messages"] == []
    sent = kim.call("send", channel="general", content="new")
    assert sent["sequence"] > max(newest, default=0)


def test_nothing_of_before_can_change_the_new_bus(bus: ThrowAwayBus) -> None:
    bus.start()
    old = fill(bus)
    kept = old.facts["subscriptions"][0]
    export = bus.data_directory / "export.jsonl"
    export.write_text("mine")
    reset(bus)
    assert bus.wait_ended() == 0
    bus.start()
    new = bus.attach(conversation="c")
    (row,) = new.facts["subscriptions"]
    asking = bus.client()
    late = {"attachment": old.attachment}
    with pytest.raises(BusError, match="attach again"):
        asking.request(
            "send", {**late, "args": {"channel": "general", "content": "late"}}, PATIENCE_S
        )
    report = {"epoch": old.facts["epoch"], "report": 1, "expired": []}
    positions = [[kept["subscription"], 3], [row["subscription"], row["handed_off"] + 5]]
    answer = attempt(
        lambda: asking.request("handoff", {**late, **report, "positions": positions}, PATIENCE_S)
    )
    assert isinstance(answer, BusError) or answer.get("stale")
    asking.notify("used", {**late, "channels": [], "confirm": True})
    again = bus.attach("Kim")
    assert again.call("history", channel="general")["messages"] == []
    new.close()
    eventually(lambda: not isinstance(attempt(lambda: bus.attach(conversation="c")), BusError), 40)
    (now,) = bus.attach(conversation="c2").facts["subscriptions"]
    assert now["subscription"] > row["subscription"] > kept["subscription"]
    assert export.read_text() == "mine"


def test_two_resets_at_once_make_one_new_bus(bus: ThrowAwayBus) -> None:
    bus.start()
    before = fill(bus)
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda _: attempt(lambda: reset(bus)), range(2)))
    assert bus.wait_ended() == 0
    done = {answer["bus_id"] for answer in answers if not isinstance(answer, BusError)}
    assert len(done) == 1
    assert all(isinstance(one, (dict, UnavailableError, NoAnswerError)) for one in answers)
    bus.start()
    bus_id, channels, _ = state_of(bus)
    assert {bus_id} == done != {before.facts["bus_id"]}
    assert channels == NEW


@pytest.mark.parametrize("moment", ["starting", "recovering", "stopping"])
def test_a_reset_at_an_odd_moment_is_done_or_refused_truly(bus: ThrowAwayBus, moment: str) -> None:
    bus.start()
    before = fill(bus)
    stopper = bus.client()
    asking = bus.client()
    match moment:
        case "starting":
            assert bus.stop() == 0
            bus.launch()
            asking = _connect_as_soon_as_possible(bus)
        case "recovering":
            pid = bus.redis_pid()
            assert pid is not None
            kill(pid)
        case _:
            stopper.notify("stop", {})
            threading.Thread(
                target=lambda: attempt(lambda: stopper.request("stop", {}, PATIENCE_S))
            ).start()
    answer = attempt(lambda: asking.request("reset", {}, PATIENCE_S))
    bus.wait_ended()
    bus.start()
    bus_id, channels, _ = state_of(bus)
    if isinstance(answer, BusError):
        assert moment == "stopping", answer
        assert (bus_id, channels) == (before.facts["bus_id"], OLD)
    else:
        assert (bus_id, channels) == (answer["bus_id"], NEW)


def _connect_as_soon_as_possible(bus: ThrowAwayBus) -> Any:
    deadline_s = time.monotonic() + 20
    while True:
        client = attempt(bus.client)
        if not isinstance(client, BusError):
            return client
        assert time.monotonic() < deadline_s
        time.sleep(0.005)
