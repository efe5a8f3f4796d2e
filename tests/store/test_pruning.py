"""Cleanup slices: what they remove, where they stop, what they record."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agentbus.failpoints import VARIABLE
from agentbus.ids import Sequence
from agentbus.store.accounting import recount
from agentbus.store.changes import MessagesRemoved, PruneResult, RemovedRange
from tests.architecture.tree import ROOT
from tests.store.bus import Bus


def sequences(bus: Bus) -> list[int]:
    return [row.sequence for row in bus.reader().scan(Sequence(0), 1000)]


def hours_us(hours: int) -> int:
    return hours * 3_600_000_000


@pytest.mark.parametrize(("offset_us", "removed"), [(-1, 0), (0, 1), (1, 1)])
def test_a_message_lives_exactly_its_hours(bus: Bus, offset_us: int, removed: int) -> None:
    sam = bus.attach()
    bus.done(sam.send())
    age_us = hours_us(bus.config.message_retention_hours) + offset_us
    bus.clock.set_wall(bus.clock.wall_us() + age_us)
    result, _ = bus.prune("messages_by_age")
    assert result == PruneResult(removed, False)
    assert len(sequences(bus)) == 1 - removed


def test_a_slice_is_bounded_and_says_whether_there_is_more(bus: Bus) -> None:
    sam = bus.attach()
    bus.store.apply([sam.send(str(n)) for n in range(5)])
    bus.clock.advance(hours=bus.config.message_retention_hours)
    bus.done(sam.send("young"))
    assert bus.prune("messages_by_age", 3)[0] == PruneResult(3, True)
    assert bus.prune("messages_by_age", 3)[0] == PruneResult(2, False)
    assert bus.prune("messages_by_age", 3)[0] == PruneResult(0, False)
    assert sequences(bus) == [6]


def test_removals_are_facts_per_channel_and_one_growing_range(bus: Bus) -> None:
    sam = bus.attach()
    bus.store.apply([sam.make("a"), *(sam.send(channel=c) for c in ("a", "general", "a"))])
    bus.clock.advance(hours=1)
    bus.store.apply([sam.send(channel="a"), sam.send(channel="general")])
    bus.clock.advance(hours=bus.config.message_retention_hours - 1)
    _, first = bus.prune("messages_by_age")
    general, a = bus.reader().channel("general"), bus.reader().channel("a")
    assert general is not None
    assert a is not None
    assert set(first.facts) == {
        MessagesRemoved(a.channel_id, "a", Sequence(3), (Sequence(1), Sequence(3)), "age"),
        MessagesRemoved(general.channel_id, "general", Sequence(2), (Sequence(2),), "age"),
    }
    assert (a.retained, a.newest, a.removed_through) == (1, 4, 3)
    bus.clock.advance(hours=1)
    bus.prune("messages_by_age")
    assert bus.reader().removed_ranges(a.channel_id, Sequence(0)) == [
        RemovedRange(Sequence(1), Sequence(4), "age")
    ]
    bus.reopen()
    a = bus.reader().channel("a")
    assert a is not None
    assert (a.retained, a.newest, a.removed_through) == (0, 4, 4)


def test_memories_are_passed_over_whatever_their_age(bus: Bus) -> None:
    sam = bus.attach()
    bus.done(sam.make("facts", "memory"))
    bus.store.apply([sam.send(channel=c) for c in ("facts", "general", "facts", "general")])
    bus.clock.advance(hours=bus.config.message_retention_hours)
    assert bus.prune("messages_by_age")[0].removed_rows == 2
    assert sequences(bus) == []
    (channel_id,) = bus.reader().memory_channels()
    memories = bus.reader().scan_memories(channel_id, Sequence(0), 9)
    assert [memory.sequence for memory in memories] == [1, 3]


def test_cleanup_stops_at_the_first_young_message_when_the_clock_went_back(bus: Bus) -> None:
    sam = bus.attach()
    start_us = bus.clock.wall_us()
    bus.done(sam.send("1"))
    bus.clock.advance(hours=2)
    bus.done(sam.send("2"))
    bus.clock.set_wall(start_us)
    bus.done(sam.send("3, dated before 2"))
    bus.clock.set_wall(start_us + hours_us(bus.config.message_retention_hours + 1))
    assert bus.prune("messages_by_age")[0].removed_rows == 1
    assert sequences(bus) == [2, 3]


def test_messages_sent_after_a_cleanup_are_cleaned_up_later(bus: Bus) -> None:
    sam = bus.attach()
    for _ in range(2):
        bus.done(sam.send())
        bus.clock.advance(hours=bus.config.message_retention_hours)
        assert bus.prune("messages_by_age")[0].removed_rows == 1
    assert sequences(bus) == []


def test_expired_receipts_go_and_the_others_stay(bus: Bus) -> None:
    sam = bus.attach()
    bus.store.apply([sam.send(operation_id=f"old-{n}") for n in range(3)])
    bus.clock.advance(hours=1)
    bus.done(sam.send(operation_id="young"))
    bus.clock.advance(hours=bus.config.dedup_retention_hours - 1)
    assert bus.prune("receipts", 2)[0] == PruneResult(2, True)
    assert bus.prune("receipts", 2)[0] == PruneResult(1, False)
    assert bus.done(sam.send(operation_id="young")).result["duplicate"]


def test_an_idle_subscription_expires_once(bus: Bus) -> None:
    bus.attach()
    bus.attach("Kim", "c2")
    bus.clock.advance(hours=bus.config.cursor_idle_hours)
    result, outcome = bus.prune("subscriptions", 1)
    assert (result.removed_rows, result.more) == (1, True)
    assert outcome.facts == result.expired
    assert bus.prune("subscriptions", 5)[0].removed_rows == 1
    assert bus.prune("subscriptions", 5)[0].removed_rows == 0


def test_cleanup_gives_its_bytes_back(tmp_path: Path) -> None:
    bus = Bus(tmp_path, dedup_retention_hours=1)
    sam = bus.attach()
    bus.done(sam.send("warm up"))
    bus.clock.advance(hours=bus.config.message_retention_hours)
    bus.prune("messages_by_age")
    bus.prune("receipts")
    empty = bus.store.logical_bytes
    bus.store.apply([sam.send("ä" * n, subject="s", thread="t") for n in range(50)])
    assert bus.store.logical_bytes > empty
    bus.clock.advance(hours=bus.config.message_retention_hours)
    bus.prune("messages_by_age")
    bus.prune("receipts")
    assert bus.store.logical_bytes == empty
    bus.close()


_PRUNE = """
import sys
from pathlib import Path
from agentbus.store.changes import PruneSlice
from tests.store.bus import Bus

bus = Bus(Path(sys.argv[1]))
bus.clock.advance(hours=bus.config.message_retention_hours)
bus.store.apply([PruneSlice(*{slice})])
"""


@pytest.mark.parametrize("slice_", [("messages_by_age", 4), ("messages_by_capacity", 4, 1 << 20)])
def test_killed_in_a_removal_nothing_of_it_has_happened(
    tmp_path: Path, slice_: tuple[object, ...]
) -> None:
    bus = Bus(tmp_path)
    sam = bus.attach()
    bus.store.apply([sam.send(str(number)) for number in range(6)])
    channel = bus.reader().channels()[0].channel_id
    bus.close()
    ended = subprocess.run(
        [sys.executable, "-c", _PRUNE.format(slice=slice_), str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, VARIABLE: "during_eviction", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    bus = Bus(tmp_path)
    assert sequences(bus) == [1, 2, 3, 4, 5, 6]
    assert bus.reader().removed_ranges(channel, Sequence(0)) == []
    assert bus.store.logical_bytes == recount(bus.store._connection)
    bus.clock.advance(hours=bus.config.message_retention_hours)
    bus.prune("messages_by_age", 4)
    assert sequences(bus) == [5, 6]
    (gone,) = bus.reader().removed_ranges(channel, Sequence(0))
    assert (gone.from_sequence, gone.to_sequence) == (1, 4)
    bus.close()
