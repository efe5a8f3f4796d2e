"""Memories that change while they are prefetched: never shown as they were, never lost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from agentbus.adapter.prefetch import Batch, Budget, Prefetch, Report
from agentbus.adapter.subscription import Arrived

PLENTY = Budget(count=1000, characters=10**9, size_bytes=10**9)
OWN = "session-own"


def memory(position: int, revision: int = 1) -> dict[str, Any]:
    return {
        "message_id": f"memory-{position}",
        "revision": revision,
        "sequence": position * 1000 + revision,
        "channel_kind": "memory",
        "content": f"revision {revision}",
        "sender": {"session_id": "session-other"},
    }


def row(confirmed: int = 0, handed_off: int = 0) -> dict[str, Any]:
    return {
        "subscription": 1,
        "channel": "facts",
        "kind": "memory",
        "handed_off": handed_off,
        "confirmed": confirmed,
        "expired_at": None,
    }


def attached() -> Prefetch:
    prefetch = Prefetch()
    prefetch.attached(OWN, 1, [row()])
    return prefetch


def delivery(
    *records: tuple[int, int], after: int = 0, through: int = 0, redelivered_through: int = 0
) -> Arrived:
    """`records`: positions and revisions."""
    messages = tuple((position, memory(position, revision)) for position, revision in records)
    through = max([through, after, *(position for position, _ in records)])
    return Arrived(1, "facts", after, through, redelivered_through, messages, (), None)


def shown(batch: Batch) -> list[tuple[int, int]]:
    return [(record.position, record.message["revision"]) for record in batch.records]


def test_what_is_queued_is_replaced_at_its_place() -> None:
    prefetch = attached()
    prefetch.accept(delivery((1, 1), (2, 1), (3, 1)), epoch=1, pushed=True)
    prefetch.supersede(1, 2, memory(2, 2))
    assert shown(prefetch.take((), PLENTY)) == [(1, 1), (2, 2), (3, 1)]


def test_what_is_queued_of_a_deleted_memory_is_dropped_and_its_credit_given_back() -> None:
    prefetch = attached()
    prefetch.accept(delivery((1, 1), (2, 1)), epoch=1, pushed=True)
    prefetch.supersede(1, 2, None)
    assert prefetch.credit_due()[0] == 1
    assert prefetch.pending == 1
    batch = prefetch.take((), PLENTY)
    assert shown(batch) == [(1, 1)]
    prefetch.settle(batch, handed_off=True)
    report = prefetch.report_due()
    assert report is not None
    assert report.positions == {1: 2}


def test_own_memories_that_a_result_leaves_out_hide_no_other_from_the_comparison() -> None:
    prefetch = attached()
    own = {**memory(1), "sender": {"session_id": OWN}}
    arrived = Arrived(1, "facts", 0, 2, 0, ((1, own), (2, memory(2))), (), None)
    prefetch.accept(arrived, epoch=1, pushed=False, own=True)
    failed = prefetch.take((), PLENTY, own=True)
    prefetch.settle(failed, handed_off=False)
    assert (1, 2, "memory-2", 1) in prefetch.held_memories((), 1)
    assert shown(prefetch.take((), Budget(1, 10**9, 10**9))) == [(2, 1)]


@pytest.mark.parametrize("revision", [2, None])
def test_news_that_overtakes_the_record_holds_for_it(revision: int | None) -> None:
    prefetch = attached()
    prefetch.supersede(1, 1, None if revision is None else memory(1, revision))
    prefetch.accept(delivery((1, 1)), epoch=1, pushed=True)
    expected = [] if revision is None else [(1, revision)]
    assert shown(prefetch.take((), PLENTY)) == expected
    assert prefetch.credit_due()[0] == (1 if revision is None else 0)


def test_an_old_revision_that_arrives_late_does_not_replace_a_newer_one() -> None:
    prefetch = attached()
    prefetch.accept(delivery((1, 3)), epoch=1, pushed=False)
    prefetch.supersede(1, 1, memory(1, 2))
    prefetch.accept(delivery((1, 1)), epoch=1, pushed=True)
    assert shown(prefetch.take((), PLENTY)) == [(1, 3)]


@pytest.mark.parametrize("revision", [2, None])
def test_what_is_on_its_way_out_is_left_alone_but_waits_again_as_it_is_now(
    revision: int | None,
) -> None:
    prefetch = attached()
    prefetch.accept(delivery((1, 1), (2, 1)), epoch=1, pushed=True)
    batch = prefetch.take((), PLENTY)
    prefetch.supersede(1, 1, None if revision is None else memory(1, revision))
    assert shown(batch) == [(1, 1), (2, 1)]
    prefetch.settle(batch, handed_off=False, bytes_left=True)
    again = prefetch.take((), PLENTY)
    assert shown(again) == [(1, 2), (2, 1)] if revision else [(2, 1)]
    assert all(record.redelivered for record in again.records)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("revision", [2, None])
def test_a_replay_shows_the_last_batch_as_it_is_now(when: str, revision: int | None) -> None:
    prefetch = attached()
    prefetch.accept(delivery((1, 1), (2, 1)), epoch=1, pushed=True)
    batch = prefetch.take((), PLENTY)
    news = None if revision is None else memory(1, revision)
    if when == "before":
        prefetch.supersede(1, 1, news)
    prefetch.settle(batch, handed_off=True)
    if when == "after":
        prefetch.supersede(1, 1, news)
    assert shown(prefetch.replay(PLENTY)) == ([(1, 2), (2, 1)] if revision else [(2, 1)])


def test_after_a_recovery_what_waited_again_is_fetched_anew() -> None:
    prefetch = attached()
    prefetch.accept(delivery((1, 1), (2, 1), (3, 1)), epoch=1, pushed=True)
    prefetch.settle(prefetch.take((), PLENTY), handed_off=False, bytes_left=True)
    prefetch.new_epoch(2)
    assert prefetch.pending == 0
    assert prefetch.pull_positions((), own=False) == {1: 0}
    prefetch.accept(delivery((1, 2), (3, 1)), epoch=2, pushed=True)
    again = prefetch.take((), PLENTY)
    assert shown(again) == [(1, 2), (3, 1)]
    assert all(record.redelivered for record in again.records)


def test_what_was_on_its_way_in_a_recovery_waits_again_only_as_the_daemon_names_it() -> None:
    prefetch = attached()
    prefetch.accept(delivery((1, 1), (2, 1), (3, 1)), epoch=1, pushed=True)
    batch = prefetch.take((), PLENTY)
    prefetch.new_epoch(2)
    prefetch.accept(delivery((1, 2), through=2), epoch=2, pushed=True)  # 2 was deleted
    prefetch.settle(batch, handed_off=False)
    assert shown(prefetch.take((), PLENTY)) == [(1, 2)]
    prefetch.accept(delivery((3, 2), after=2), epoch=2, pushed=True)
    assert shown(prefetch.take((), PLENTY)) == [(3, 2)]


class PrefetchedMemories(RuleBasedStateMachine):
    """One subscription of a memory channel; pushes take time, what is told of a change does not."""

    WINDOW = 6

    @initialize()
    def start(self) -> None:
        self.epoch = 1
        self.newest = 0
        self.live: dict[int, int] = {}  # position -> revision
        self.cursor = self.handed_off = self.confirmed = self.redelivered_through = 0
        self.credit = self.WINDOW
        self.transit: list[tuple[int, Arrived]] = []
        self.reports: list[Report] = []
        self.taken_reports: dict[int, Report] = {}
        self.out: list[Batch] = []
        self.done: set[int] = set()
        self.left: set[int] = set()
        """Positions of which at least a byte left the adapter."""
        self.prefetch = Prefetch()
        self.prefetch.attached(OWN, 1, [row()])

    # --- the bus ---

    @rule(count=st.integers(1, 3))
    def create(self, count: int) -> None:
        for _ in range(count):
            self.newest += 1
            self.live[self.newest] = 1

    def change(self, data: st.DataObject, *, told: bool) -> None:
        if not self.live:
            return
        position = data.draw(st.sampled_from(sorted(self.live)))
        if data.draw(st.booleans()):
            self.live[position] += 1
        else:
            del self.live[position]
        if told and position <= self.cursor:
            revision = self.live.get(position)
            news = None if revision is None else memory(position, revision)
            self.prefetch.supersede(1, position, news)

    @rule(data=st.data())
    def edit_or_delete(self, data: st.DataObject) -> None:
        self.change(data, told=True)

    def read(self, after: int, count: int) -> Arrived:
        found = [(p, r) for p, r in sorted(self.live.items()) if p > after][:count]
        through = found[-1][0] if len(found) == count else self.newest
        return delivery(
            *found,
            after=after,
            through=max(after, through),
            redelivered_through=self.redelivered_through,
        )

    # --- the daemon and the wire ---

    @rule(count=st.integers(1, 4))
    def push(self, count: int) -> None:
        self.credit += self.prefetch.credit_due()[0]
        assert self.credit <= self.WINDOW
        if self.credit:
            arrived = self.read(self.cursor, min(count, self.credit))
            self.credit -= len(arrived.records)
            self.cursor = max(self.cursor, arrived.through)
            self.transit.append((self.epoch, arrived))

    @rule()
    def arrive(self) -> None:
        if self.transit:
            epoch, arrived = self.transit.pop(0)
            self.prefetch.accept(arrived, epoch=epoch, pushed=True)

    @rule(count=st.integers(1, 4))
    def pull(self, count: int) -> None:
        after = self.prefetch.pull_positions((), own=False)[1]
        arrived = self.read(after, count)
        self.cursor = max(self.cursor, arrived.through)
        self.prefetch.accept(arrived, epoch=self.epoch, pushed=False)

    @rule(data=st.data(), changes=st.integers(0, 2))
    def recover(self, data: st.DataObject, changes: int) -> None:
        """The last changes before it were committed, but nobody was told."""
        for _ in range(changes):
            self.change(data, told=False)
        self.epoch += 1
        self.cursor = self.handed_off
        self.redelivered_through = 0
        self.credit = self.WINDOW
        self.prefetch.new_epoch(self.epoch)

    @rule(data=st.data(), changes=st.integers(0, 2))
    def attach_again(self, data: st.DataObject, changes: int) -> None:
        for _ in range(changes):
            self.change(data, told=False)
        self.epoch += 1
        self.cursor = self.confirmed
        self.redelivered_through = self.handed_off
        self.credit = self.WINDOW
        self.transit.clear()
        self.reports.clear()
        self.taken_reports.clear()
        self.prefetch.attached(OWN, self.epoch, [row(self.confirmed, self.handed_off)])

    # --- results ---

    @rule(count=st.integers(1, 6))
    def take(self, count: int) -> None:
        batch = self.prefetch.take((), Budget(count, 10**9, 10**9), own=False)
        for position, revision in shown(batch):
            assert self.live.get(position) == revision, "shown as it was"
        for record in batch.records:
            assert record.redelivered or record.position not in self.left, "again without a mark"
        self.out.append(batch)

    @rule()
    def replay(self) -> None:
        for position, revision in shown(self.prefetch.replay(PLENTY)):
            assert self.live.get(position) == revision, "shown again as it was"

    @rule(data=st.data(), outcome=st.sampled_from(("handed_off", "clean", "torn")))
    def settle(self, data: st.DataObject, outcome: str) -> None:
        if self.out:
            batch = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
            self.finish(batch, outcome)

    def finish(self, batch: Batch, outcome: str) -> None:
        if outcome != "clean":
            self.left |= {record.position for record in batch.records}
        self.prefetch.settle(
            batch, handed_off=outcome == "handed_off", bytes_left=outcome != "clean"
        )
        if outcome == "handed_off":
            self.done |= {record.position for record in batch.records}

    @rule()
    def make_report(self) -> None:
        if (report := self.prefetch.report_due()) is not None:
            self.reports.append(report)

    @rule()
    def commit_report(self) -> None:
        if self.reports:
            report = self.reports.pop(0)
            if report.epoch == self.epoch:
                assert report.positions[1] <= self.cursor
                self.handed_off = max(self.handed_off, report.positions[1])
                self.taken_reports[report.number] = report
                self.prefetch.committed(report)

    @rule()
    def call(self) -> None:
        newest = self.prefetch.confirms(self.prefetch.arrival())
        for number, report in self.taken_reports.items():
            if number <= newest:
                self.confirmed = max(self.confirmed, report.positions[1])

    @invariant()
    def never_reports_a_living_memory_that_was_not_handed_off(self) -> None:
        for position in self.live:
            assert position > self.handed_off or position in self.done, "lost"

    def teardown(self) -> None:
        if not hasattr(self, "prefetch"):
            return
        for _ in range(10 + self.newest):
            while self.out:
                self.finish(self.out.pop(), "handed_off")
            self.push(4)
            while self.transit:
                self.arrive()
            self.take(100)
        assert set(self.live) <= self.done, "never arrived"


PrefetchedMemories.TestCase.settings = settings(
    max_examples=300, stateful_step_count=40, deadline=None
)
TestPrefetchedMemories = PrefetchedMemories.TestCase
