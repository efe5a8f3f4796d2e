"""Channels, subscriptions, and the reports that move their cursors."""

from __future__ import annotations

from typing import Any

import pytest

from agentbus.errors import ConflictError, NotFoundError, ValidationError
from agentbus.ids import Sequence
from agentbus.store.changes import (
    ChannelMade,
    Done,
    MoveCursors,
    SubscriptionClosed,
    SubscriptionExpired,
    SubscriptionOpened,
    SubscriptionRow,
)
from tests.store.bus import Bus, Speaker


def move(speaker: Speaker, **fields: Any) -> MoveCursors:
    return MoveCursors(speaker.attachment, **fields)


def of(bus: Bus, speaker: Speaker, channel: str = "general") -> SubscriptionRow:
    (row,) = (
        row for row in bus.reader().subscriptions(speaker.session_id) if row.channel == channel
    )
    return row


def test_making_a_channel_twice_changes_nothing_the_second_time(bus: Bus) -> None:
    sam = bus.attach()
    made = bus.done(sam.make("plans"))
    assert made.result == {"channel": "plans", "kind": "ordinary", "created": True}
    assert [type(fact) for fact in made.facts] == [ChannelMade]
    again = bus.done(sam.make("plans"))
    assert again.result == {"channel": "plans", "kind": "ordinary", "created": False}
    assert again.facts == ()
    bus.reopen()
    assert bus.done(sam.make("plans")).result["created"] is False


def test_a_channel_never_changes_its_kind(bus: Bus) -> None:
    sam = bus.attach()
    bus.done(sam.make("plans", "memory"))
    error = bus.refused(sam.make("plans", "ordinary"))
    assert isinstance(error, ConflictError)
    assert "'plans'" in error.message
    assert "memory" in error.message


def test_a_channel_made_in_a_batch_can_be_used_in_it(bus: Bus) -> None:
    sam = bus.attach()
    outcomes = bus.store.apply(
        [sam.make("plans"), sam.subscribe("plans"), sam.send("hi", channel="plans")]
    )
    assert all(isinstance(outcome, Done) for outcome in outcomes)
    channel = bus.reader().channel("plans")
    assert channel is not None
    assert (channel.retained, channel.newest) == (1, 1)


def test_a_new_subscription_starts_now_or_at_the_oldest(bus: Bus) -> None:
    sam = bus.attach()
    bus.store.apply([sam.make("a"), sam.make("b"), sam.send("1", channel="a"), sam.send("2")])
    now = bus.done(sam.subscribe("a"))
    assert now.result["from_sequence"] == 3
    assert now.result["resumed"] is False
    (fact,) = now.facts
    assert isinstance(fact, SubscriptionOpened)
    assert fact.subscription == of(bus, sam, "a")
    assert fact.subscription.subscription_id == now.result["subscription_id"]
    assert bus.done(sam.subscribe("b", "oldest")).result["from_sequence"] == 1


def test_oldest_does_not_report_what_was_removed_before(bus: Bus) -> None:
    sam = bus.attach()
    bus.done(sam.make("a"))
    bus.store.apply([sam.send(str(n), channel="a") for n in range(3)])
    bus.clock.advance(hours=bus.config.message_retention_hours)
    sam = bus.attach()
    bus.done(sam.send("young", channel="a"))
    bus.prune("messages_by_age")
    opened = bus.done(sam.subscribe("a", "oldest"))
    assert opened.result["from_sequence"] == 4
    row = of(bus, sam, "a")
    assert bus.reader().removed_ranges(row.channel_id, row.handed_off) == []


def test_subscribing_again_keeps_the_cursor_and_renews_it(bus: Bus) -> None:
    sam = bus.attach()
    bus.store.apply([sam.send("1"), sam.send("2")])
    row = of(bus, sam)
    bus.done(move(sam, handed_off={row.subscription_id: Sequence(1)}))
    bus.clock.advance(hours=1)
    again = bus.done(sam.subscribe("general", "oldest"))
    assert again.result == {
        "channel": "general",
        "resumed": True,
        "subscription_id": row.subscription_id,
        "from_sequence": 2,
    }
    assert again.facts == ()
    assert of(bus, sam).last_used_us == bus.clock.wall_us()


def test_an_unknown_channel_can_be_neither_subscribed_nor_left(bus: Bus) -> None:
    sam = bus.attach()
    assert isinstance(bus.refused(sam.subscribe("nowhere")), NotFoundError)
    assert isinstance(bus.refused(sam.unsubscribe("nowhere")), NotFoundError)


def test_unsubscribing_drops_the_cursor_for_good(bus: Bus) -> None:
    sam = bus.attach()
    old = of(bus, sam)
    closed = bus.done(sam.unsubscribe("general"))
    assert closed.facts == (
        SubscriptionClosed(sam.session_id, old.subscription_id, old.channel_id),
    )
    assert bus.reader().subscriptions(sam.session_id) == ()
    assert isinstance(bus.refused(sam.unsubscribe("general")), NotFoundError)
    bus.done(sam.send("1"))
    opened = bus.done(sam.subscribe("general", "oldest"))
    assert opened.result["subscription_id"] > old.subscription_id
    late = bus.done(move(sam, handed_off={old.subscription_id: Sequence(1)}))
    assert late.result == ()
    assert of(bus, sam).handed_off == 0


def test_the_highest_subscription_id_is_not_given_twice(bus: Bus) -> None:
    sam = bus.attach()
    bus.done(sam.unsubscribe("general"))
    bus.reopen()
    assert bus.done(sam.subscribe("general")).result["subscription_id"] == 2


def test_cursors_only_move_forward(bus: Bus) -> None:
    sam = bus.attach()
    bus.store.apply([sam.send(str(n)) for n in range(9)])
    key = of(bus, sam).subscription_id

    def positions(**fields: dict[int, int]) -> tuple[int, int]:
        (row,) = bus.done(move(sam, **fields)).result
        assert row == of(bus, sam)
        return row.handed_off, row.confirmed

    assert positions(handed_off={key: 5}) == (5, 0)
    assert positions(handed_off={key: 3}) == (5, 0)
    assert positions(confirmed={key: 4}) == (5, 4)
    assert positions(confirmed={key: 2}, handed_off={key: 6}) == (6, 4)
    assert positions(confirmed={key: 8}) == (8, 8)


def test_a_cursor_cannot_go_where_no_message_is_yet(bus: Bus) -> None:
    sam = bus.attach()
    bus.done(sam.send())
    key = of(bus, sam).subscription_id
    for report in ({"handed_off": {key: 2}}, {"confirmed": {key: 2}}, {"handed_off": {key: -1}}):
        assert isinstance(bus.refused(move(sam, **report)), ValidationError)
    assert of(bus, sam).handed_off == 0


def test_nobody_moves_anothers_cursor(bus: Bus) -> None:
    sam, kim = bus.attach(), bus.attach("Kim", "c2")
    bus.done(sam.send())
    key = of(bus, kim).subscription_id
    report = move(sam, handed_off={key: Sequence(1)}, renewed=(key,), expiry_confirmed=(key, 12345))
    assert bus.done(report).result == ()
    assert of(bus, kim).handed_off == 0


def idle_us(bus: Bus) -> int:
    return bus.config.cursor_idle_hours * 3_600_000_000


@pytest.mark.parametrize(("offset_us", "expired"), [(-1, False), (0, True), (1, True)])
@pytest.mark.parametrize("how", ["renew", "prune", "attach", "subscribe"])
def test_a_subscription_lives_exactly_its_idle_hours(
    bus: Bus, offset_us: int, expired: bool, how: str
) -> None:
    sam = bus.attach()
    bus.done(sam.send())
    row = of(bus, sam)
    bus.clock.set_wall(bus.clock.wall_us() + idle_us(bus) + offset_us)
    now_us = bus.clock.wall_us()
    if how == "renew":
        outcome = bus.done(move(sam, renewed=(row.subscription_id,)))
        assert (outcome.result[0].expired_at_us is not None) is expired
    elif how == "prune":
        result, outcome = bus.prune("subscriptions")
        assert result.removed_rows == len(result.expired) == (1 if expired else 0)
    elif how == "attach":
        facts_before = bus.attach().bound.subscriptions
        assert [r.expired_at_us for r in facts_before] == [now_us if expired else None]
        return
    else:
        outcome = bus.done(sam.subscribe("general"))
        assert outcome.result["resumed"] is not expired
    fact = SubscriptionExpired(
        sam.session_id, row.subscription_id, row.channel_id, "general", now_us
    )
    assert (fact in outcome.facts) is expired
    if not expired and how != "prune":
        assert of(bus, sam).last_used_us == now_us


def test_handing_off_and_confirming_is_no_use(bus: Bus) -> None:
    sam = bus.attach()
    bus.done(sam.send())
    row = of(bus, sam)
    bus.clock.advance(hours=1)
    key = row.subscription_id
    bus.done(move(sam, handed_off={key: Sequence(1)}, confirmed={key: Sequence(1)}))
    assert of(bus, sam).last_used_us == row.last_used_us


def test_an_expired_subscription_stays_until_its_notice_is_confirmed(bus: Bus) -> None:
    sam = bus.attach()
    bus.done(sam.send())
    key = of(bus, sam).subscription_id
    bus.clock.advance(hours=bus.config.cursor_idle_hours)
    bus.prune("subscriptions")
    for _ in range(2):
        sam = bus.attach()
        assert [row.subscription_id for row in sam.bound.subscriptions] == [key]
        assert sam.bound.subscriptions[0].expired_at_us is not None
    moved = bus.done(move(sam, handed_off={key: Sequence(1)}, renewed=(key,)))
    assert moved.result[0].handed_off == 0
    assert moved.facts == ()
    bus.reopen()
    confirmed = bus.done(move(sam, expiry_confirmed=(key,)))
    assert [type(fact) for fact in confirmed.facts] == [SubscriptionClosed]
    assert bus.attach().bound.subscriptions == ()


def test_a_live_subscription_is_not_dropped_by_a_confirmed_expiry(bus: Bus) -> None:
    sam = bus.attach()
    key = of(bus, sam).subscription_id
    assert bus.done(move(sam, expiry_confirmed=(key,))).facts == ()
    assert of(bus, sam).subscription_id == key


def test_subscribing_replaces_an_expired_subscription(bus: Bus) -> None:
    sam = bus.attach()
    bus.done(sam.send())
    old = of(bus, sam)
    bus.clock.advance(hours=bus.config.cursor_idle_hours)
    bus.prune("subscriptions")
    opened = bus.done(sam.subscribe("general"))
    assert opened.result["resumed"] is False
    assert opened.result["from_sequence"] == 2
    assert [type(fact) for fact in opened.facts] == [SubscriptionClosed, SubscriptionOpened]
    assert of(bus, sam).subscription_id == opened.result["subscription_id"] != old.subscription_id


def test_a_clock_that_went_back_does_not_shorten_a_subscription(bus: Bus) -> None:
    sam = bus.attach()
    row = of(bus, sam)
    bus.clock.set_wall(bus.clock.wall_us() - 3_600_000_000)
    bus.done(move(sam, renewed=(row.subscription_id,)))
    assert of(bus, sam).last_used_us == row.last_used_us
