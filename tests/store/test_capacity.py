"""What does not fit the budget is not stored, to the byte; what is removed for it is the oldest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agentbus.ids import Sequence
from agentbus.limits import KIB, MIB
from agentbus.store import accounting
from agentbus.store.changes import (
    Change,
    Done,
    MessagesRemoved,
    NoRoom,
    Outcome,
    PruneResult,
    PruneSlice,
    Refused,
    RemovedRange,
)
from agentbus.store.connection import open_reader
from tests.store.bus import Bus, Speaker

BUDGET_BYTES = MIB
FILLER = "x" * (48 * KIB)


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    bus = Bus(tmp_path, sqlite_budget_mib=1)
    yield bus
    bus.close()


def fill(bus: Bus, speaker: Speaker, leave_bytes: int, channel: str = "general") -> None:
    """Send until exactly so much of the budget is left."""
    while BUDGET_BYTES - bus.store.logical_bytes > leave_bytes + 64 * KIB:
        bus.done(speaker.send(FILLER, channel))
    before = bus.store.logical_bytes
    bus.done(speaker.send("x" * KIB, channel))
    added_bytes = bus.store.logical_bytes - before
    left_bytes = BUDGET_BYTES - bus.store.logical_bytes - leave_bytes
    bus.done(speaker.send("x" * (KIB + left_bytes - added_bytes), channel))
    assert BUDGET_BYTES - bus.store.logical_bytes == leave_bytes


def counted(bus: Bus) -> int:
    connection = open_reader(bus.path)
    try:
        return accounting.recount(connection)
    finally:
        connection.close()


def outcome_of(bus: Bus, change: Change) -> Outcome:
    (outcome,) = bus.store.apply([change])
    return outcome


def free(bus: Bus, free_bytes: int, max_rows: int = 500) -> tuple[PruneResult, Done]:
    done = bus.done(PruneSlice("messages_by_capacity", max_rows, free_bytes))
    return done.result, done


@pytest.mark.parametrize(("left_over", "fits"), [(-1, False), (0, True), (1, True)])
def test_a_mutation_fits_up_to_the_last_byte(bus: Bus, left_over: int, fits: bool) -> None:
    sam = bus.attach()
    fill(bus, sam, 10 * KIB)
    before = bus.store.logical_bytes
    bus.done(sam.send("y", operation_id="op-size"))
    needed_bytes = bus.store.logical_bytes - before  # of each that has as long an operation id
    rest_bytes = BUDGET_BYTES - bus.store.logical_bytes - needed_bytes - left_over
    bus.done(sam.send("y" * (1 + rest_bytes - needed_bytes), operation_id="op-fill"))
    before = bus.store.logical_bytes
    outcome = outcome_of(bus, sam.send("y", operation_id="op-last"))
    if fits:
        assert isinstance(outcome, Done)
        assert bus.store.logical_bytes == before + needed_bytes <= BUDGET_BYTES
    else:
        assert outcome == NoRoom(needed_bytes)
        assert bus.store.logical_bytes == before
    assert counted(bus) == bus.store.logical_bytes


def test_edits_and_deletions_of_memories_have_to_fit_too(bus: Bus) -> None:
    sam = bus.attach()
    bus.done(sam.make("facts", "memory"))
    memory_id = bus.done(sam.send("a fact", "facts")).result["message_id"]
    fill(bus, sam, 100)
    for change in (sam.edit(memory_id, "another"), sam.delete(memory_id)):
        assert isinstance(outcome_of(bus, change), NoRoom)
    memory = bus.reader().memory(memory_id)
    assert memory is not None
    assert memory.sequence == 1
    assert counted(bus) == bus.store.logical_bytes


def test_nothing_new_passes_one_that_found_no_room(bus: Bus) -> None:
    sam, kim = bus.attach(), bus.attach("Kim", "c2")
    first = sam.send("first", operation_id="first")
    bus.done(first)
    fill(bus, sam, 4 * KIB)
    outcomes = bus.store.apply(
        [
            kim.send("small enough, and before it"),
            sam.send(FILLER),
            kim.send("small enough, but after it"),
            first,
            sam.send("other", operation_id="first"),
            kim.subscribe("general"),
            kim.send("no such channel", "nowhere"),
        ]
    )
    assert [type(outcome) for outcome in outcomes] == [
        *(Done, NoRoom, NoRoom, Done, Refused, Done, Refused)
    ]
    repeat = outcomes[3]
    assert isinstance(repeat, Done)
    assert repeat.result["duplicate"]
    assert counted(bus) == bus.store.logical_bytes <= BUDGET_BYTES


def test_what_reading_on_takes_is_let_in_beyond_the_budget(bus: Bus) -> None:
    sam = bus.attach()
    fill(bus, sam, 0)
    kim = bus.attach("Kim", "c2")
    bus.done(kim.make("elsewhere"))
    bus.done(kim.subscribe("elsewhere", "oldest"))
    assert bus.store.logical_bytes > BUDGET_BYTES
    assert isinstance(outcome_of(bus, kim.send("more")), NoRoom)
    assert counted(bus) == bus.store.logical_bytes


@pytest.mark.parametrize(("free_bytes", "rows"), [(0, 0), (1, 1)])
def test_the_fewest_messages_that_free_so_much_are_removed(
    bus: Bus, free_bytes: int, rows: int
) -> None:
    sam = bus.attach()
    bus.store.apply([sam.send(str(number)) for number in range(5)])
    assert free(bus, free_bytes)[0] == PruneResult(rows, False)
    assert counted(bus) == bus.store.logical_bytes


@pytest.mark.parametrize(("more_bytes", "rows"), [(-1, 3), (0, 3), (1, 4)])
def test_a_removal_ends_where_enough_is_free(bus: Bus, more_bytes: int, rows: int) -> None:
    sam = bus.attach()
    bus.store.apply([sam.send(str(number)) for number in range(6)])
    free(bus, 1)  # the range of what is missing takes a row of its own, once
    before = bus.store.logical_bytes
    free(bus, 1)
    row_bytes = before - bus.store.logical_bytes
    bus.store.apply([sam.send(str(number)) for number in range(2)])
    assert free(bus, 3 * row_bytes + more_bytes)[0] == PruneResult(rows, False)


def test_the_oldest_of_the_whole_bus_go_first_and_every_channel_has_its_exact_range(
    bus: Bus,
) -> None:
    sam = bus.attach()
    small = [f"small-{number}" for number in range(4)]
    bus.store.apply([sam.make(name) for name in ("giant", *small)])
    for name in small:
        bus.store.apply(
            [sam.send(channel="giant"), sam.send(channel="giant"), sam.send(channel=name)]
        )
    result, done = free(bus, MIB, max_rows=8)  # 1 2 |3| 4 5 |6| 7 8
    assert result == PruneResult(8, True)
    giant, first, second = (bus.reader().channel(name) for name in ("giant", *small[:2]))
    assert giant is not None
    assert first is not None
    assert second is not None
    sequences = tuple(Sequence(number) for number in (1, 2, 4, 5, 7, 8))
    assert set(done.facts) == {
        MessagesRemoved(giant.channel_id, "giant", Sequence(8), sequences, "capacity"),
        MessagesRemoved(first.channel_id, small[0], Sequence(3), (Sequence(3),), "capacity"),
        MessagesRemoved(second.channel_id, small[1], Sequence(6), (Sequence(6),), "capacity"),
    }
    ranges = bus.reader().removed_ranges(giant.channel_id, Sequence(0))
    assert ranges == [RemovedRange(Sequence(1), Sequence(8), "capacity")]
    assert [row.sequence for row in bus.reader().scan(Sequence(0), 10)] == [9, 10, 11, 12]
    assert counted(bus) == bus.store.logical_bytes


def test_removals_of_different_causes_stay_ranges_of_their_own_in_order(bus: Bus) -> None:
    sam = bus.attach()
    bus.done(sam.send("1"))
    bus.clock.advance(hours=bus.config.message_retention_hours)
    bus.store.apply([sam.send(str(number)) for number in range(2, 6)])
    bus.prune("messages_by_age")
    free(bus, 1)
    free(bus, 1)
    bus.clock.advance(hours=bus.config.message_retention_hours)
    bus.prune("messages_by_age", 1)
    bus.done(sam.send("6"))
    free(bus, 1)
    general = bus.reader().channel("general")
    assert general is not None
    assert bus.reader().removed_ranges(general.channel_id, Sequence(0)) == [
        RemovedRange(Sequence(1), Sequence(1), "age"),
        RemovedRange(Sequence(2), Sequence(3), "capacity"),
        RemovedRange(Sequence(4), Sequence(4), "age"),
        RemovedRange(Sequence(5), Sequence(5), "capacity"),
    ]
    assert counted(bus) == bus.store.logical_bytes


def test_memories_tombstones_and_receipts_are_never_removed_for_room(bus: Bus) -> None:
    sam = bus.attach()
    bus.done(sam.make("facts", "memory"))
    memory_id = bus.done(sam.send("old", "facts")).result["message_id"]
    bus.done(sam.edit(memory_id, "new"))
    message = sam.send("ordinary", operation_id="kept")
    bus.done(message)
    assert free(bus, MIB)[0] == PruneResult(1, False)
    assert free(bus, MIB)[0] == PruneResult(0, False)
    memory = bus.reader().memory(memory_id)
    assert memory is not None
    assert memory.sequence == 2
    assert bus.done(message).result["duplicate"]
    bus.clock.advance(hours=bus.config.tombstone_min_hours)
    assert bus.prune("tombstones")[0].removed_rows == 1
    assert counted(bus) == bus.store.logical_bytes
