"""The ledger against a model of a few dictionaries: nothing is lost, all that is gone is covered.

Random sends, memory changes, subscriptions, cursor moves, removals and restarts, while the clock
goes forth and back. After every step the rows, the counters and the gaps are as the model says.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from agentbus.ids import ChannelId, Sequence
from agentbus.rules.retention import HOUR_US
from agentbus.store.accounting import recount
from agentbus.store.changes import (
    Done,
    MoveCursors,
    PruneResult,
    PruneSlice,
    Refused,
)
from tests.store.bus import Bus

HOURS = {
    "message_retention_hours": 6,
    "dedup_retention_hours": 3,
    "cursor_idle_hours": 4,
    "tombstone_min_hours": 2,
}
WHO = st.integers(0, 1)
ORDINARY = ("general", "work")
CHANNELS = (*ORDINARY, "notes")
NUMBERS = st.integers(0, 7)
ROWS = st.integers(1, 4)


@dataclass(slots=True)
class Message:
    sequence: int
    channel: str
    sent_at_us: int
    cause: str | None = None
    """Why it was removed; None while it is there."""


@dataclass(slots=True)
class Cursor:
    number: int
    handed_off: int
    confirmed: int
    used_us: int
    expired: bool = False


class LedgerModel(RuleBasedStateMachine):
    """What must be true of a ledger, in memory."""

    @initialize()
    def start(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.bus = Bus(Path(self.folder.name), sqlite_synchronous="normal", **HOURS)
        self.reader = self.bus.reader()
        self.sessions = [self.bus.attach("Sam", "s"), self.bus.attach("Ann", "a")]
        self.bus.store.apply(
            [self.sessions[0].make("work"), self.sessions[0].make("notes", "memory")]
        )
        self.messages: list[Message] = []
        self.memories: dict[str, tuple[int, int]] = {}  # id -> revision, position; living ones
        self.memory_ids: list[str] = []
        self.tombstones_us: list[int] = []
        self.receipts: dict[tuple[int, str], tuple[str, dict[str, Any], int]] = {}
        self.cursors = {
            (who, "general"): Cursor(row.subscription_id, 0, 0, self.now_us)
            for who, session in enumerate(self.sessions)
            for row in session.bound.subscriptions
        }
        self.send(0, ["general", "work", "general", "work", "work", "general"])

    @property
    def now_us(self) -> int:
        return self.bus.clock.wall_us()

    def over(self, began_us: int, setting: str) -> bool:
        return began_us + HOURS[setting] * HOUR_US <= self.now_us

    # --- mutations ---

    @rule(who=WHO, channels=st.lists(st.sampled_from(ORDINARY), min_size=1, max_size=6))
    def send(self, who: int, channels: list[str]) -> None:
        sends = [self.sessions[who].send("x", channel) for channel in channels]
        for send, outcome in zip(sends, self.bus.store.apply(sends), strict=True):
            assert isinstance(outcome, Done)
            sequence = outcome.result["sequence"]
            self.messages.append(Message(sequence, send.operation.channel, self.now_us))
            self.received(who, send.operation_id, "x", outcome.result)

    @rule(who=WHO, key=st.sampled_from("kl"), content=st.sampled_from("xy"))
    def send_with_a_key(self, who: int, key: str, content: str) -> None:
        """Twice in a batch, perhaps not for the first time: one effect while its receipt lives."""
        send = self.sessions[who].send(content, "work", operation_id=key)
        first, second = self.bus.store.apply([send, send])
        content_before, answer, expires_us = self.receipts.get((who, key), ("", {}, 0))
        if expires_us > self.now_us and content_before != content:
            assert isinstance(first, Refused)
            assert isinstance(second, Refused)
            return
        assert isinstance(first, Done)
        assert isinstance(second, Done)
        if expires_us > self.now_us:
            assert first.result == answer | {"duplicate": True}
        else:
            assert first.result["duplicate"] is False
            self.messages.append(Message(first.result["sequence"], "work", self.now_us))
            self.received(who, key, content, first.result)
        assert second.result == first.result | {"duplicate": True}

    def received(self, who: int, key: str, content: str, answer: dict[str, Any]) -> None:
        lifetime_us = HOURS["dedup_retention_hours"] * HOUR_US
        self.receipts[who, key] = (content, answer, self.now_us + lifetime_us)

    @rule(who=WHO)
    def create_memory(self, who: int) -> None:
        change = self.sessions[who].send("x", "notes")
        answer = self.bus.done(change).result
        self.memory_ids.append(answer["message_id"])
        self.memories[answer["message_id"]] = (1, answer["sequence"])
        self.received(who, change.operation_id, "x", answer)

    @precondition(lambda self: self.memory_ids)
    @rule(who=WHO, which=NUMBERS, edit=st.booleans())
    def change_memory(self, who: int, which: int, edit: bool) -> None:
        memory_id, session = self.memory_ids[which % len(self.memory_ids)], self.sessions[who]
        change = session.edit(memory_id) if edit else session.delete(memory_id)
        if memory_id not in self.memories:
            self.bus.refused(change)
            return
        answer = self.bus.done(change).result
        revision, position = self.memories.pop(memory_id)
        if edit:
            assert answer["revision"] == revision + 1
            self.memories[memory_id] = (revision + 1, position)
        self.tombstones_us.append(self.now_us)
        self.received(who, change.operation_id, "", answer)

    # --- cursors ---

    @rule(who=WHO, channel=st.sampled_from(CHANNELS), oldest=st.booleans())
    def subscribe(self, who: int, channel: str, oldest: bool) -> None:
        change = self.sessions[who].subscribe(channel, "oldest" if oldest else "now")
        answer = self.bus.done(change).result
        cursor = self.use(who, channel)
        assert answer["resumed"] is (cursor is not None)
        if cursor is None:
            gone = [m.sequence for m in self.messages if m.channel == channel and m.cause]
            start = max(gone, default=0) if oldest else self.bus.store.last_sequence
            number = answer["subscription_id"]
            cursor = self.cursors[who, channel] = Cursor(number, start, start, self.now_us)
        assert answer["from_sequence"] == cursor.handed_off + 1

    def use(self, who: int, channel: str) -> Cursor | None:
        """The cursor if it is there, renewed; one that was idle for too long is over instead."""
        cursor = self.cursors.get((who, channel))
        if cursor is None or cursor.expired or self.over(cursor.used_us, "cursor_idle_hours"):
            return None
        cursor.used_us = max(cursor.used_us, self.now_us)
        return cursor

    @rule(who=WHO, channel=st.sampled_from(CHANNELS))
    def unsubscribe(self, who: int, channel: str) -> None:
        change = self.sessions[who].unsubscribe(channel)
        if self.cursors.pop((who, channel), None) is None:
            self.bus.refused(change)
        else:
            self.bus.done(change)

    @precondition(lambda self: self.cursors)
    @rule(
        which=NUMBERS,
        handed_off=st.none() | st.floats(0, 1),
        confirmed=st.none() | st.floats(0, 1),
        renew=st.booleans(),
        expiry_confirmed=st.booleans(),
    )
    def move(
        self,
        which: int,
        handed_off: float | None,
        confirmed: float | None,
        renew: bool,
        expiry_confirmed: bool,
    ) -> None:
        (who, channel), cursor = list(self.cursors.items())[which % len(self.cursors)]
        number, newest = cursor.number, self.bus.store.last_sequence
        moves = [
            {} if part is None else {number: Sequence(round(part * newest))}
            for part in (handed_off, confirmed)
        ]
        numbers = (number,)
        self.bus.done(
            MoveCursors(
                self.sessions[who].attachment,
                *moves,
                numbers if renew else (),
                numbers if expiry_confirmed else (),
            )
        )
        if not cursor.expired:
            cursor.confirmed = max(cursor.confirmed, moves[1].get(number, 0))
            cursor.handed_off = max(cursor.handed_off, moves[0].get(number, 0), cursor.confirmed)
        if renew and not cursor.expired:
            cursor.expired = self.use(who, channel) is None
        if expiry_confirmed and cursor.expired:
            del self.cursors[who, channel]

    # --- time, cleanup, restart ---

    @rule(hours=st.sampled_from((1, 1, 2, 3, 7, -1, -3)))
    def pass_time(self, hours: int) -> None:
        self.bus.clock.set_wall(self.now_us + hours * HOUR_US)

    @rule(max_rows=ROWS, cause=st.sampled_from(("age", "capacity")), hours=st.sampled_from((6, 0)))
    def remove(self, max_rows: int, cause: str, hours: int) -> None:
        """The oldest of the bus; by age up to the first that is young enough."""
        self.pass_time(hours)
        retained = [message for message in self.messages if message.cause is None]
        removed = 0
        for message in retained[:max_rows]:
            if cause == "age" and not self.over(message.sent_at_us, "message_retention_hours"):
                break
            message.cause = cause
            removed += 1
        self.pruned(f"messages_by_{cause}", max_rows, removed)

    @rule(max_rows=ROWS)
    def purge(self, max_rows: int) -> None:
        self.tombstones_us.sort()
        over = [at for at in self.tombstones_us if self.over(at, "tombstone_min_hours")]
        del self.tombstones_us[: min(len(over), max_rows)]
        self.pruned("tombstones", max_rows, min(len(over), max_rows))

    @rule()
    def drop_receipts(self) -> None:
        over = [key for key, (_, _, end_us) in self.receipts.items() if end_us <= self.now_us]
        for key in over:
            del self.receipts[key]
        self.pruned("receipts", 1000, len(over))

    @rule()
    def expire(self) -> None:
        idle = [
            cursor
            for cursor in self.cursors.values()
            if not cursor.expired and self.over(cursor.used_us, "cursor_idle_hours")
        ]
        for cursor in idle:
            cursor.expired = True
        self.pruned("subscriptions", 1000, len(idle))

    def pruned(self, what: Any, max_rows: int, removed: int) -> None:
        change = PruneSlice(what, max_rows, free_bytes=2**40)  # by capacity: as many as there are
        result: PruneResult = self.bus.done(change).result
        assert (result.removed_rows, result.more) == (removed, removed == max_rows)

    @rule()
    def restart(self) -> None:
        self.bus.reopen()

    # --- what must be so ---

    @invariant()
    def the_counter_is_a_recount(self) -> None:
        with sqlite3.connect(self.bus.path) as connection:
            assert recount(connection) == self.bus.store.logical_bytes
        connection.close()
        assert self.reader.counts()["receipts"] == len(self.receipts)

    @invariant()
    def the_rows_are_those_of_the_model(self) -> None:
        for channel in ORDINARY:
            row = self.reader.channel(channel)
            assert row is not None
            there, gone = self.of(channel, removed=False), self.of(channel, removed=True)
            assert (row.retained, row.removed_through) == (len(there), max(gone, default=0))
            page = self.reader.history(row.channel_id, after=Sequence(0), count=1000)
            assert [message.sequence for message in page.messages] == there
        notes = self.reader.channel("notes")
        assert notes is not None
        assert notes.retained == len(self.memories)
        living = self.reader.scan_memories(notes.channel_id, Sequence(0), 1000)
        assert sorted(message.position for message in living) == sorted(
            position for _, position in self.memories.values()
        )

    @invariant()
    def the_ranges_are_exactly_what_was_removed(self) -> None:
        for channel in ORDINARY:
            row = self.reader.channel(channel)
            assert row is not None
            removed = [message for message in self.messages if message.channel == channel]
            runs = groupby((m for m in removed if m.cause), key=lambda message: message.cause)
            assert self.ranges(row.channel_id, 0) == [
                (run[0].sequence, run[-1].sequence, cause)
                for cause, run in ((cause, list(run)) for cause, run in runs)
            ]

    @invariant()
    def above_a_cursor_all_is_there_or_in_one_gap(self) -> None:
        rows = {
            (who, row.channel): row
            for who, session in enumerate(self.sessions)
            for row in self.reader.subscriptions(session.session_id)
        }
        assert rows.keys() == self.cursors.keys()
        for key, cursor in self.cursors.items():
            row, channel = rows[key], key[1]
            assert (row.subscription_id, row.handed_off, row.confirmed, row.last_used_us) == (
                (cursor.number, cursor.handed_off, cursor.confirmed, cursor.used_us)
            )
            assert (row.expired_at_us is not None) is cursor.expired
            gaps = self.ranges(row.channel_id, row.handed_off)
            there = above(row.handed_off, self.of(channel, removed=False))
            gone = above(row.handed_off, self.of(channel, removed=True))
            assert [sum(first <= n <= last for first, last, _ in gaps) for n in gone] == [1] * len(
                gone
            )
            assert not any(first <= n <= last for first, last, _ in gaps for n in there)
            assert {last for _, last, _ in gaps} <= set(gone)
            if channel in ORDINARY:
                assert self.reader.lag(row.channel_id, row.handed_off) == len(there)

    def ranges(self, channel_id: ChannelId, after: int) -> list[tuple[int, int, str]]:
        return [astuple(row) for row in self.reader.removed_ranges(channel_id, Sequence(after))]

    def of(self, channel: str, *, removed: bool) -> list[int]:
        return [
            message.sequence
            for message in self.messages
            if message.channel == channel and (message.cause is not None) is removed
        ]

    def teardown(self) -> None:
        if hasattr(self, "bus"):
            self.bus.close()
            self.folder.cleanup()


def above(position: int, sequences: Iterable[int]) -> list[int]:
    return [sequence for sequence in sequences if sequence > position]


@pytest.mark.timeout(180)  # some thousand commits, on a disk that others use
def test_whatever_happens_the_ledger_is_as_the_model_says() -> None:
    run_state_machine_as_test(
        LedgerModel,
        settings=settings(
            max_examples=50,
            stateful_step_count=40,
            derandomize=True,  # a failure is one wherever the test runs
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
