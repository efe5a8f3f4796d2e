"""Random histories of one attachment against a model of the daemon: never lost, never reordered,
never doubled without a mark."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from agentbus.adapter.prefetch import Batch, Prefetch, Report
from agentbus.adapter.subscription import Entry, Gap, Record
from agentbus.ids import Sequence
from agentbus.protocol.session import GapRange
from tests.adapter.deliveries import OWN, arrive, message, row, sequences, take


class AgainstAModelDaemon(RuleBasedStateMachine):
    """Random pushes, pulls, takes, failures, recoveries, new attachments and killed adapters.

    `seen` is what any adapter of the conversation wrote out; `owed` is what a killed one left
    unconfirmed, so that the one after it has to show it again.
    """

    SUBSCRIPTIONS = (1, 2)
    WINDOW = 8

    @initialize()
    def start(self) -> None:
        self.newest = 0
        self.epoch = 1
        self.messages: dict[int, list[int]] = {sub: [] for sub in self.SUBSCRIPTIONS}
        self.removed_through = dict.fromkeys(self.SUBSCRIPTIONS, 0)
        self.given: dict[tuple[int, int], type[Entry]] = {}  # by this adapter, as what
        self.cursor = dict.fromkeys(self.SUBSCRIPTIONS, 0)
        self.handed_off = dict.fromkeys(self.SUBSCRIPTIONS, 0)
        self.confirmed = dict.fromkeys(self.SUBSCRIPTIONS, 0)
        self.reported = dict.fromkeys(self.SUBSCRIPTIONS, 0)
        self.exposed: dict[int, int] = {}
        self.redelivered_through = dict.fromkeys(self.SUBSCRIPTIONS, 0)
        self.credit = self.WINDOW
        self.owed: set[tuple[int, int]] = set()
        self.reports: list[Report] = []
        self.taken_reports: dict[int, Report] = {}
        self.out: list[Batch] = []
        self.failed: set[tuple[int, int]] = set()
        self.highest_taken = dict.fromkeys(self.SUBSCRIPTIONS, 0)
        self.seen: dict[tuple[int, int], int] = {}
        self.prefetch = Prefetch()
        self.attach()

    def attach(self) -> None:
        self.cursor = dict(self.confirmed)
        self.reported = dict(self.confirmed)
        self.redelivered_through = dict(self.handed_off)
        self.credit = self.WINDOW
        self.reports.clear()
        self.taken_reports.clear()
        rows = [
            {**row(sub, confirmed=self.confirmed[sub]), "handed_off": self.handed_off[sub]}
            for sub in self.SUBSCRIPTIONS
        ]
        self.prefetch.attached(OWN, self.epoch, rows)
        self.exposed = self.prefetch.exposed_before(rows)

    def end_attachment(self) -> None:
        """What the daemon commits at last."""
        for sub, position in self.exposed.items():
            self.handed_off[sub] = max(self.handed_off[sub], position)

    def show(self, batch: Batch, *, whole: bool) -> None:
        """The client gets it, or a part of it."""
        for sub, entry in batch.entries:
            for key in ((sub, n) for n in self.messages_of(sub, entry)):
                if key in self.seen and isinstance(entry, Record):
                    assert entry.redelivered, "doubled without a mark"
                self.seen[key] = self.seen.get(key, 0) + whole
                if whole:
                    self.owed.discard(key)

    def deliver(self, sub: int, after: int, count: int, pushed: bool) -> int:
        removed = self.removed_through[sub]
        found = [n for n in self.messages[sub] if n > max(after, removed)][:count]
        through = found[-1] if found else max(after, removed)
        gap = GapRange(Sequence(after + 1), Sequence(removed), "age")
        arrive(
            self.prefetch,
            *(message(sequence) for sequence in found),
            subscription=sub,
            after=after,
            through=through,
            redelivered_through=self.redelivered_through[sub],
            epoch=self.epoch,
            pushed=pushed,
            gaps=(gap,) if removed > after else (),
        )
        if pushed:
            self.credit -= len(found)
        self.cursor[sub] = max(self.cursor[sub], through)
        return len(found)

    @rule(sub=st.sampled_from(SUBSCRIPTIONS), count=st.integers(1, 4))
    def send(self, sub: int, count: int) -> None:
        for _ in range(count):
            self.newest += 1
            self.messages[sub].append(self.newest)

    @rule(sub=st.sampled_from(SUBSCRIPTIONS), count=st.integers(1, 3))
    def remove(self, sub: int, count: int) -> None:
        """The oldest that are left, whether they were delivered or not."""
        retained = [n for n in self.messages[sub] if n > self.removed_through[sub]]
        for sequence in retained[:count]:
            self.removed_through[sub] = sequence

    def messages_of(self, sub: int, entry: Entry) -> list[int]:
        return [n for n in self.messages[sub] if entry.first <= n <= entry.last]

    @rule(sub=st.sampled_from(SUBSCRIPTIONS), count=st.integers(1, 5))
    def push(self, sub: int, count: int) -> None:
        self.credit += self.prefetch.credit_due()[0]
        assert self.credit <= self.WINDOW
        if self.credit:
            self.deliver(sub, self.cursor[sub], min(count, self.credit), pushed=True)

    @rule(sub=st.sampled_from(SUBSCRIPTIONS), count=st.integers(1, 5))
    def pull(self, sub: int, count: int) -> None:
        after = self.prefetch.pull_positions((f"channel-{sub}",), own=False)[sub]
        self.deliver(sub, after, count, pushed=False)

    @rule(subs=st.sampled_from(((), ("channel-1",), ("channel-2",))), count=st.integers(1, 6))
    def take(self, subs: tuple[str, ...], count: int) -> None:
        batch = take(self.prefetch, *subs, count=count)
        assert sequences(batch) == sorted(sequences(batch))
        for sub, entry in batch.entries:
            keys = {(sub, n) for n in self.messages_of(sub, entry)}
            assert keys, "a gap of nothing"
            again = isinstance(entry, Record) and entry.redelivered
            earlier = {key for key in keys if key[1] <= self.highest_taken[sub]}
            if not again:
                assert earlier <= self.failed, "an earlier message came after a later one"
            if isinstance(entry, Gap):
                assert entry.last <= self.removed_through[sub], "a gap where nothing is gone"
            for key in keys:
                assert self.given.setdefault(key, type(entry)) is type(entry), "given as both"
            self.failed -= keys
            self.highest_taken[sub] = max(self.highest_taken[sub], entry.last)
        self.out.append(batch)

    @rule(data=st.data(), outcome=st.sampled_from(("handed_off", "clean", "withdrawn", "torn")))
    def settle(self, data: st.DataObject, outcome: str) -> None:
        if not self.out:
            return
        batch = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        bytes_left = outcome in ("handed_off", "torn")
        if outcome != "clean":
            self.exposed.update(self.prefetch.exposes(batch))
        if bytes_left:
            self.show(batch, whole=outcome == "handed_off")
        if outcome != "handed_off":
            for sub, entry in batch.entries:
                self.failed.update((sub, n) for n in self.messages_of(sub, entry))
        self.prefetch.settle(batch, handed_off=outcome == "handed_off", bytes_left=bytes_left)
        if outcome == "withdrawn":
            self.exposed.update(self.prefetch.unexposed(batch))

    @rule(sub=st.sampled_from(SUBSCRIPTIONS), count=st.integers(1, 3))
    def receive(self, sub: int, count: int) -> None:
        """All at once, as a conversation mostly does it."""
        self.send(sub, count)
        self.pull(sub, count)
        self.take((), count)
        batch = self.out.pop()
        self.exposed.update(self.prefetch.exposes(batch))
        self.show(batch, whole=True)
        self.prefetch.settle(batch, handed_off=True, bytes_left=True)

    @rule()
    def make_report(self) -> None:
        report = self.prefetch.report_due()
        if report is not None:
            self.reports.append(report)

    @rule()
    def commit_report(self) -> None:
        if not self.reports:
            return
        report = self.reports.pop(0)
        if report.epoch != self.epoch:
            return
        for sub, position in report.positions.items():
            assert position <= self.cursor[sub], "reported what this attachment was not sent"
            self.handed_off[sub] = max(self.handed_off[sub], position)
            self.reported[sub] = max(self.reported[sub], position)
        self.taken_reports[report.number] = report
        self.prefetch.committed(report)

    @rule()
    def call(self) -> None:
        newest = self.prefetch.confirms(self.prefetch.arrival())
        for number, report in self.taken_reports.items():
            if number <= newest:
                for sub, position in report.positions.items():
                    self.confirmed[sub] = max(self.confirmed[sub], position)

    @rule()
    def recover(self) -> None:
        self.epoch += 1
        self.cursor = dict(self.reported)
        self.credit = self.WINDOW
        self.prefetch.new_epoch(self.epoch)

    @rule(removed=st.integers(0, 6), daemon_lives=st.booleans())
    def lose_the_connection(self, removed: int, daemon_lives: bool) -> None:
        """With some messages removed before the next attach."""
        if daemon_lives:
            self.end_attachment()
        for sub in self.SUBSCRIPTIONS:
            self.remove(sub, removed)
        self.epoch += 1
        self.attach()

    @rule(data=st.data(), reports_arrive=st.booleans())
    def kill_the_adapter(self, data: st.DataObject, reports_arrive: bool) -> None:
        """At any moment, also while a result leaves; the next one knows what the daemon says."""
        while reports_arrive and self.reports:
            self.commit_report()
        if self.out and data.draw(st.booleans()):
            batch = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
            self.exposed.update(self.prefetch.exposes(batch))
            self.show(batch, whole=data.draw(st.booleans()))
        self.out.clear()
        self.end_attachment()
        everything = {(sub, n) for sub in self.SUBSCRIPTIONS for n in self.messages[sub]}
        self.failed = everything
        self.owed = {(sub, n) for sub, n in everything if n > self.confirmed[sub]}
        self.prefetch = Prefetch()
        self.given.clear()
        self.attach()

    @invariant()
    def never_reports_what_was_not_handed_off(self) -> None:
        for sub in self.SUBSCRIPTIONS:
            for sequence in self.messages[sub]:
                if sequence <= self.reported[sub]:
                    assert self.seen.get((sub, sequence), 0) > 0, "lost"

    def teardown(self) -> None:
        if not hasattr(self, "prefetch"):
            return
        for _ in range(10 + self.newest):
            for batch in self.out:
                self.show(batch, whole=True)
                self.prefetch.settle(batch, handed_off=True)
            self.out.clear()
            for sub in self.SUBSCRIPTIONS:
                self.push(sub, 5)
            self.out.append(take(self.prefetch))
            if self.out[0].is_empty and all(
                self.cursor[sub] >= (self.messages[sub] or [0])[-1] for sub in self.SUBSCRIPTIONS
            ):
                break
        missing = {
            (sub, n)
            for sub in self.SUBSCRIPTIONS
            for n in self.messages[sub]
            if not self.seen.get((sub, n))
        }
        assert not missing
        assert not self.owed
        self.credit += self.prefetch.credit_due()[0]
        assert self.credit == self.WINDOW


TestAgainstAModelDaemon = AgainstAModelDaemon.TestCase
TestAgainstAModelDaemon.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
