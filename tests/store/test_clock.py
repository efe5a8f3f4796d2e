"""Lifetimes at their edges, and a wall clock that is set forth and back, also over a restart."""

from __future__ import annotations

from typing import Any

import pytest

from agentbus.ids import Sequence
from agentbus.rules.retention import HOUR_US
from agentbus.store.changes import MoveCursors, PruneResult
from tests.store.bus import Bus

EVERYTHING: tuple[Any, ...] = ("messages_by_age", "tombstones", "receipts", "subscriptions")


def shift(bus: Bus, microseconds: int) -> None:
    bus.clock.set_wall(bus.clock.wall_us() + microseconds)


@pytest.mark.parametrize(("offset_us", "answers"), [(-1, True), (0, False), (1, False)])
@pytest.mark.parametrize("pruned", [False, True])
def test_a_receipt_answers_exactly_its_hours(
    bus: Bus, offset_us: int, answers: bool, pruned: bool
) -> None:
    """Whether cleanup has already dropped it makes no difference."""
    sam = bus.attach()
    first = bus.done(sam.send(operation_id="k")).result
    shift(bus, bus.config.dedup_retention_hours * HOUR_US + offset_us)
    if pruned:
        assert bus.prune("receipts")[0].removed_rows == (not answers)
    again = bus.done(sam.send(operation_id="k")).result
    assert again["duplicate"] is answers
    assert again["sequence"] == first["sequence"] + (not answers)


@pytest.mark.parametrize(("offset_us", "purged"), [(-1, 0), (0, 1), (1, 1)])
def test_a_tombstone_is_kept_exactly_its_hours(bus: Bus, offset_us: int, purged: int) -> None:
    sam = bus.attach()
    bus.done(sam.make("notes", "memory"))
    memory_id = bus.done(sam.send(channel="notes")).result["message_id"]
    bus.done(sam.delete(memory_id))
    shift(bus, bus.config.tombstone_min_hours * HOUR_US + offset_us)
    assert bus.prune("tombstones")[0] == PruneResult(purged, False)
    # A replay from before the end could bring it back, so it is refused from now on.
    assert bus.reader().purged_through() == (bus.store.last_sequence if purged else 0)


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("hours", [1, 1000])
def test_a_clock_that_is_set_back_ends_nothing(bus: Bus, restart: bool, hours: int) -> None:
    sam = bus.attach()
    bus.done(sam.make("notes", "memory"))
    memory_id = bus.done(sam.send(channel="notes")).result["message_id"]
    bus.done(sam.edit(memory_id))
    first = bus.done(sam.send("before", operation_id="k")).result
    shift(bus, -hours * HOUR_US)
    if restart:
        bus.reopen()
    for what in EVERYTHING:
        assert bus.prune(what)[0].removed_rows == 0
    assert bus.done(sam.send("before", operation_id="k")).result == first | {"duplicate": True}
    (row,) = bus.reader().subscriptions(sam.session_id)
    assert row.expired_at_us is None
    later = bus.done(sam.send("after")).result
    assert later["sequence"] == first["sequence"] + 1
    page = bus.reader().history(row.channel_id, count=9)
    assert [message.sequence for message in page.messages] == [
        first["sequence"],
        later["sequence"],
    ]


def test_what_was_written_with_a_later_time_lives_longer_and_holds_up_what_is_behind(
    bus: Bus,
) -> None:
    sam = bus.attach()
    retention_us = bus.config.message_retention_hours * HOUR_US
    bus.done(sam.send("an hour ahead"))
    shift(bus, -HOUR_US)
    bus.done(sam.send("right"))
    shift(bus, retention_us)
    assert bus.prune("messages_by_age")[0].removed_rows == 0
    shift(bus, HOUR_US)
    assert bus.prune("messages_by_age")[0].removed_rows == 2


@pytest.mark.parametrize("restart", [False, True])
def test_an_hour_forward_ends_what_had_an_hour_left_and_nothing_else(
    bus: Bus, restart: bool
) -> None:
    sam = bus.attach()
    bus.done(sam.send("old", operation_id="old"))
    hours = bus.config.message_retention_hours
    shift(bus, (hours - 1) * HOUR_US - 1)
    numbers = tuple(row.subscription_id for row in sam.bound.subscriptions)
    bus.done(sam.subscribe("general"))
    bus.done(MoveCursors(sam.attachment, renewed=numbers))
    bus.done(sam.send("young", operation_id="young"))
    bus.prune("receipts")
    shift(bus, HOUR_US)
    if restart:
        bus.reopen()
    assert bus.prune("messages_by_age")[0].removed_rows == 0
    shift(bus, 1)
    assert [bus.prune(what)[0].removed_rows for what in EVERYTHING] == [1, 0, 0, 0]
    assert [message.sequence for message in bus.reader().scan(Sequence(0), 9)] == [2]
    assert bus.done(sam.send("young", operation_id="young")).result["duplicate"] is True
