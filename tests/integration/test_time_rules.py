"""What the passing of time does to a bus: cursors, receipts, messages, silent attachments."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from agentbus.errors import NotFoundError, SessionAlreadyConnectedError
from agentbus.limits import HANDOFF_FLUSH_MS
from agentbus.rules.retention import HOUR_US
from tests.bus_fixture import BusSession
from tests.eventually import PATIENCE_S, eventually
from tests.integration.in_process import InProcessBus, in_process_bus


@pytest.fixture
def bus() -> Iterator[InProcessBus]:
    with in_process_bus() as bus:
        yield bus


def end(session: BusSession) -> None:
    """Leave as an adapter does that ends in order."""
    session.client.request("detach", {"attachment": session.attachment}, PATIENCE_S)
    session.close()


def use(bus: InProcessBus, session: BusSession, **report: Any) -> None:
    """An explicit receive of all channels, and a report where one is given; both committed.

    Any later request of the session is handled after the flush was begun, and the answer to this
    report comes after the commit.
    """
    number = report.get("report", 1)
    session.notify("used", confirms=report.get("confirms", 0), channels=[])
    answers = _report_in_background(bus, session, number, report)
    assert answers == {"report": number}


def _report_in_background(
    bus: InProcessBus, session: BusSession, number: int, report: dict[str, Any]
) -> dict[str, Any]:
    done = threading.Event()

    def pass_time() -> None:
        while not done.wait(0.005):
            bus.clock.advance(HANDOFF_FLUSH_MS / 1000)

    helper = threading.Thread(target=pass_time)
    helper.start()
    try:
        answer: dict[str, Any] = session.request(
            "handoff",
            epoch=session.facts["epoch"],
            report=number,
            positions=report.get("positions", []),
            expired=report.get("expired", []),
        )
    finally:
        done.set()
        helper.join()
    return answer


def subscriptions(session: BusSession) -> dict[str, Any]:
    return {row["channel"]: row for row in session.facts["subscriptions"]}


# --- cursors: 72 h ---


def test_a_subscription_lives_for_72_hours_without_use(bus: InProcessBus) -> None:
    first = bus.attach(conversation="c")
    end(first)
    bus.clock.advance(-1, hours=72)
    second = bus.attach(conversation="c")
    assert subscriptions(second)["general"]["expired_at"] is None
    end(second)  # attaching is no use: the time goes on
    bus.clock.advance(1)
    third = bus.attach(conversation="c")
    assert subscriptions(third)["general"]["expired_at"] is not None


def test_an_expiry_is_told_at_every_attach_until_the_result_that_told_it_is_confirmed(
    bus: InProcessBus,
) -> None:
    end(bus.attach(conversation="c"))
    bus.clock.advance(hours=73)
    session = bus.attach(conversation="c")
    expired = subscriptions(session)["general"]
    assert expired["expired_at"] is not None
    end(session)  # told, never confirmed
    session = bus.attach(conversation="c")
    assert subscriptions(session)["general"]["expired_at"] == expired["expired_at"]
    use(bus, session, report=1, expired=[expired["subscription"]])
    end(session)  # handed off, still not confirmed
    session = bus.attach(conversation="c")
    assert "general" in subscriptions(session)
    use(bus, session, report=1, expired=[expired["subscription"]])
    use(bus, session, report=2, confirms=1)
    end(session)
    assert subscriptions(bus.attach(conversation="c")) == {}


def test_an_expired_subscription_begins_anew_when_subscribed_again(bus: InProcessBus) -> None:
    end(bus.attach(conversation="c"))
    ada = bus.attach("Ada")
    ada.call("send", channel="general", content="missed")
    bus.clock.advance(hours=73)
    session = bus.attach(conversation="c")
    answer = session.call("subscribe", channel="general")
    assert answer["resumed"] is False
    assert answer["from_sequence"] == 2


def test_using_a_subscription_renews_it_for_the_whole_time(bus: InProcessBus) -> None:
    session = bus.attach(conversation="c")
    end(session)
    bus.clock.advance(hours=71)
    session = bus.attach(conversation="c")
    use(bus, session)
    end(session)
    bus.clock.advance(hours=71)
    assert subscriptions(bus.attach(conversation="c"))["general"]["expired_at"] is None


def test_a_live_session_hears_that_its_subscription_expired_though_it_beats() -> None:
    with in_process_bus(cursor_idle_hours=1, cleanup_interval_seconds=60) as bus:
        session = bus.attach()

        def beats() -> bool:
            bus.clock.advance(20)
            session.client.request("heartbeat", {}, PATIENCE_S)
            return any(one.method == "expired" for one in session.notifications)

        for _ in range(3600 // 20 - 1):
            assert not beats()
        eventually(beats, what="the next cleanup, or, where one still ran then, one after it")
        told = session.wait_for("expired")
        assert told["channel"] == "general"
        assert session.call("whoami")["subscriptions"] == []
        assert session.call("subscribe", channel="general")["resumed"] is False


# --- receipts: 72 h ---


def test_a_receipt_answers_for_72_hours_and_then_no_more(bus: InProcessBus) -> None:
    session = bus.attach(conversation="c")
    first = session.call("send", channel="general", content="x", operation_id="k")
    end(session)
    bus.clock.advance(-1, hours=72)
    session = bus.attach(conversation="c")
    again = session.call("send", channel="general", content="x", operation_id="k")
    assert again == first | {"duplicate": True}
    end(session)
    bus.clock.advance(1)
    session = bus.attach(conversation="c")
    later = session.call("send", channel="general", content="other", operation_id="k")
    assert later["duplicate"] is False
    assert later["sequence"] == 2


# --- messages: 168 h ---


def test_a_message_lives_for_168_hours_and_a_slow_subscriber_sees_the_exact_gap(
    bus: InProcessBus,
) -> None:
    ada = bus.attach("Ada", conversation="a")
    sent = [
        ada.call("send", channel="general", content=f"m{number}")["message_id"]
        for number in range(3)
    ]
    end(ada)
    bus.clock.advance(hours=100)
    slow = bus.attach(conversation="c")
    slow.call("subscribe", channel="general")
    slow.call("create_channel", name="work")
    ada = bus.attach("Ada", conversation="a")
    young = ada.call("send", channel="general", content="young")["sequence"]
    slow_subscription = slow.call("subscribe", channel="work")["subscription_id"]
    ada.call("send", channel="work", content="w1")
    ada.call("send", channel="work", content="w2")
    end(ada)
    end(slow)
    bus.clock.advance(-1, hours=68)
    ada = bus.attach("Ada", conversation="a")
    assert ada.call("history", message_id=sent[0])["message"]["content"] == "m0"
    end(ada)
    bus.clock.advance(61)  # 168 h are over, and so is a cleanup interval
    ada = bus.attach("Ada", conversation="a")
    bus.after_cleanup(lambda: _gone(ada, sent[2]), what="the cleanup")
    page = ada.call("history", channel="general", after=0)
    assert [message["sequence"] for message in page["messages"]] == [young]
    assert page["gaps"] == [
        {
            "channel": "general",
            "from_sequence": 1,
            "to_sequence": 3,
            "cause": "age",
            "oldest_retained": young,
        }
    ]
    end(ada)
    slow = bus.attach(conversation="c")
    deliveries = [slow.wait_for("deliver")["delivery"] for _ in range(2)]
    by_subscription = {delivery["subscription"]: delivery for delivery in deliveries}
    general = subscriptions(slow)["general"]["subscription"]
    assert [at for at, _ in by_subscription[general]["records"]] == [young]
    assert "gaps" not in by_subscription[general]  # what is gone was before its time
    assert len(by_subscription[slow_subscription]["records"]) == 2


def _gone(session: BusSession, message_id: str) -> bool:
    try:
        session.call("history", message_id=message_id)
    except NotFoundError:
        return True
    return False


def test_gap_and_survivors_come_in_one_delivery() -> None:
    with in_process_bus(message_retention_hours=24) as bus:
        slow = bus.attach(conversation="c")
        end(slow)
        ada = bus.attach("Ada", conversation="a")
        for number in range(5):
            ada.call("send", channel="general", content=f"m{number}")
        end(ada)
        bus.clock.advance(hours=23)
        ada = bus.attach("Ada", conversation="a")
        ada.call("send", channel="general", content="survivor")
        end(ada)
        bus.clock.advance(3600 + 60)
        reader = bus.attach("Ada", conversation="a")
        bus.after_cleanup(
            lambda: len(reader.call("history", channel="general", after=0)["messages"]) == 1,
            what="the cleanup",
        )
        end(reader)
        slow = bus.attach(conversation="c")
        delivery = slow.wait_for("deliver")["delivery"]
        assert delivery["gaps"] == [[1, 5, "age"]]
        assert delivery["oldest_retained"] == 6
        assert [record["content"] for _, record in delivery["records"]] == ["survivor"]
        assert delivery["through"] == 6


# --- attachments: 30 s ---


def test_a_silent_attachment_is_released_after_30_s(bus: InProcessBus) -> None:
    silent = bus.attach(conversation="c")
    bus.clock.advance(29)
    with pytest.raises(SessionAlreadyConnectedError):
        bus.attach(conversation="c")
    bus.clock.advance(2)
    again = bus.attach(conversation="c")
    assert again.facts["generation"] > silent.facts["generation"]
    assert again.facts["resumed"] is True


def test_heartbeats_keep_an_attachment_alive(bus: InProcessBus) -> None:
    session = bus.attach(conversation="c")
    for _ in range(12):
        bus.clock.advance(20)
        session.client.request("heartbeat", {}, PATIENCE_S)
    with pytest.raises(SessionAlreadyConnectedError):
        bus.attach(conversation="c")
    assert session.call("whoami")["display_name"] == "Sam"


# --- the clock is set, the machine sleeps ---


@pytest.mark.parametrize("hours", [1, -1])
def test_a_wall_clock_that_is_set_ends_no_attachment_and_changes_no_order(
    bus: InProcessBus, hours: int
) -> None:
    session = bus.attach(conversation="c")
    ada = bus.attach("Ada")
    receipts = [ada.call("send", channel="general", content="1", operation_id="k")]
    bus.clock.set_wall(bus.clock.wall_us() + hours * HOUR_US)
    bus.clock.advance(1)
    receipts.append(ada.call("send", channel="general", content="2"))
    assert ada.call("send", channel="general", content="1", operation_id="k")["duplicate"] is True
    seen: list[str] = []
    while len(seen) < 2:
        delivery = session.wait_for("deliver")["delivery"]
        assert "gaps" not in delivery
        seen += [record["content"] for _, record in delivery["records"]]
    assert seen == ["1", "2"]
    assert receipts[0]["sequence"] < receipts[1]["sequence"]
    with pytest.raises(SessionAlreadyConnectedError):
        bus.attach(conversation="c")
    assert [row["lag"] for row in session.call("whoami")["subscriptions"]] == [2]


@pytest.mark.parametrize("monotonic_goes_on", [True, False])
def test_after_ten_minutes_of_suspend_a_session_goes_on_where_it_was(
    bus: InProcessBus, monotonic_goes_on: bool
) -> None:
    """Whether the monotonic clock counts sleep depends on the system; the wall clock does."""
    session = bus.attach(conversation="c")
    ada = bus.attach("Ada")
    ada.call("send", channel="general", content="before")
    session.wait_for("deliver")
    if monotonic_goes_on:
        bus.clock.advance(600)
        session = bus.attach(conversation="c")
        assert session.facts["resumed"] is True
        delivery = session.wait_for("deliver")["delivery"]
        assert [record["content"] for _, record in delivery["records"]] == ["before"]
        ada = bus.attach("Ada")
    else:
        bus.clock.set_wall(bus.clock.wall_us() + 600 * 1_000_000)
    ada.call("send", channel="general", content="after")
    delivery = session.wait_for("deliver")["delivery"]
    assert [record["content"] for _, record in delivery["records"]] == ["after"]
    assert subscriptions(session)["general"]["expired_at"] is None
