"""What readers of a whole bus are told of messages that are gone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.bus_fixture import BusSession
from tests.eventually import PATIENCE_S
from tests.integration.in_process import InProcessBus, in_process_bus


@pytest.fixture
def bus() -> Iterator[InProcessBus]:
    """Messages live for a day, unused subscriptions for two."""
    with in_process_bus(message_retention_hours=24, cursor_idle_hours=48) as bus:
        yield bus


def leave(session: BusSession) -> None:
    session.client.request("detach", {"attachment": session.attachment}, PATIENCE_S)
    session.close()


def subscribe(session: BusSession, *channels: str) -> None:
    for channel in channels:
        session.call("create_channel", name=channel)
        session.call("subscribe", channel=channel)


def say(bus: InProcessBus, *channels: str) -> list[int]:
    """One message each, by somebody else, who leaves."""
    ada = bus.attach("Ada", conversation="a")
    sent = [ada.call("send", channel=c, content="x")["sequence"] for c in channels]
    leave(ada)
    return sent


def pass_time(bus: InProcessBus, hours: float, retained: int) -> None:
    """And a cleanup, until so many messages are left."""
    bus.clock.advance(hours=hours)
    bus.clock.advance(bus.config.cleanup_interval_seconds)
    ada = bus.attach("Ada", conversation="a")

    def left() -> bool:
        rows = ada.call("list_channels")["channels"]
        return sum(row["retained"] for row in rows) == retained

    bus.after_cleanup(left, what=f"{retained} messages left")
    leave(ada)


def shown(session: BusSession, count: int) -> dict[str, tuple[list[int], Any]]:
    """Of so many deliveries, by channel: positions and gaps."""
    deliveries = [session.wait_for("deliver")["delivery"] for _ in range(count)]
    return {
        delivery["channel"]: (
            [position for position, _ in delivery["records"]],
            delivery.get("gaps"),
        )
        for delivery in deliveries
    }


def test_every_channel_has_its_own_gap_and_goes_on_behind_it(bus: InProcessBus) -> None:
    slow = bus.attach(conversation="c")
    subscribe(slow, "one", "two", "three")
    leave(slow)
    say(bus, "one", "two", "one", "two", "one")
    pass_time(bus, 23, retained=5)
    say(bus, "two", "three")
    pass_time(bus, 1, retained=2)
    slow = bus.attach(conversation="c")
    assert shown(slow, 3) == {
        "one": ([], [[1, 5, "age"]]),
        "two": ([6], [[2, 4, "age"]]),
        "three": ([7], None),
    }
    lags = {row["channel"]: row["lag"] for row in slow.call("whoami")["subscriptions"]}
    assert lags == {"general": 0, "one": 0, "two": 1, "three": 1}
    channels = slow.call("list_channels")["channels"]
    assert {row["channel"]: row["lag"] for row in channels} == lags


def test_where_all_is_gone_the_boundary_stays_and_later_messages_follow_it(
    bus: InProcessBus,
) -> None:
    slow = bus.attach(conversation="c")
    subscribe(slow, "one")
    leave(slow)
    say(bus, "one", "one")
    pass_time(bus, 25, retained=0)
    say(bus, "one")
    slow = bus.attach(conversation="c")
    assert shown(slow, 1) == {"one": ([3], [[1, 2, "age"]])}
    newcomer = bus.attach("Bea")
    assert newcomer.call("subscribe", channel="one", **{"from": "oldest"})["from_sequence"] == 3
    assert shown(newcomer, 1) == {"one": ([3], None)}


def test_a_gap_and_an_expiry_at_once_are_both_told(bus: InProcessBus) -> None:
    """The subscription that expired covers its own gap; history has the exact range."""
    slow = bus.attach(conversation="c")
    subscribe(slow, "one", "two")
    leave(slow)
    say(bus, "one", "two")
    bus.clock.advance(hours=47)
    again = bus.attach(conversation="c")
    again.call("subscribe", channel="one")  # renews this one only
    leave(again)
    pass_time(bus, 2, retained=0)
    say(bus, "one", "two")
    slow = bus.attach(conversation="c")
    expired = {row["channel"]: row["expired_at"] is not None for row in slow.facts["subscriptions"]}
    assert expired == {"general": True, "one": False, "two": True}
    assert shown(slow, 1) == {"one": ([3], [[1, 1, "age"]])}
    page = slow.call("history", channel="two", after=0)
    assert [message["sequence"] for message in page["messages"]] == [4]
    assert page["gaps"] == [
        {
            "channel": "two",
            "from_sequence": 2,
            "to_sequence": 2,
            "cause": "age",
            "oldest_retained": 4,
        }
    ]
    renewed = slow.call("subscribe", channel="two")
    assert (renewed["resumed"], renewed["from_sequence"]) == (False, 5)


def test_pages_of_history_tell_a_gap_once_in_either_direction(bus: InProcessBus) -> None:
    reader = bus.attach(conversation="c")
    subscribe(reader, "one")
    leave(reader)
    say(bus, *["one"] * 4)
    pass_time(bus, 23, retained=4)
    say(bus, *["one"] * 5)
    pass_time(bus, 1, retained=5)
    reader = bus.attach(conversation="c")

    def walk(direction: str, start: int) -> list[tuple[list[int], list[tuple[int, int]]]]:
        pages = []
        position = start
        while True:
            page = reader.call("history", channel="one", count=2, **{direction: position})
            numbers = [message["sequence"] for message in page["messages"]]
            gaps = [(gap["from_sequence"], gap["to_sequence"]) for gap in page["gaps"]]
            pages.append((numbers, gaps))
            if not page["more"]:
                return pages
            position = numbers[-1] if direction == "after" else numbers[0]

    assert walk("after", 1) == [([5, 6], [(2, 4)]), ([7, 8], []), ([9], [])]
    assert walk("before", 100) == [([8, 9], []), ([6, 7], []), ([5], [(1, 4)])]
    assert walk("before", 3) == [([], [(1, 2)])]
    assert walk("after", 4) == [([5, 6], []), ([7, 8], []), ([9], [])]
