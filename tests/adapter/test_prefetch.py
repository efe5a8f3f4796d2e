"""The bookkeeping of fetched, given out and handed off messages, without any I/O."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from agentbus.adapter.prefetch import Batch, Budget, Prefetch, Report
from agentbus.adapter.subscription import Arrived, Gap, Record, parse_arrived
from agentbus.encoding import decode_frame, encode
from agentbus.errors import CursorExpiredError, NotFoundError
from agentbus.ids import Sequence
from agentbus.limits import GAPS_PER_RESULT
from agentbus.protocol.session import Delivery, GapRange

PLENTY = Budget(count=1000, characters=10**9, size_bytes=10**9)
OWN, OTHER = "session-own", "session-other"


def message(sequence: int, content: str = "hello", session: str = OTHER) -> dict[str, Any]:
    return {"sequence": sequence, "content": content, "sender": {"session_id": session}}


def row(subscription: int, confirmed: int = 0, expired_at: str | None = None) -> dict[str, Any]:
    return {
        "subscription": subscription,
        "channel": f"channel-{subscription}",
        "kind": "ordinary",
        "handed_off": confirmed,
        "confirmed": confirmed,
        "expired_at": expired_at,
    }


def attached(*subscriptions: int) -> Prefetch:
    prefetch = Prefetch()
    prefetch.attached(OWN, 1, [row(subscription) for subscription in subscriptions])
    return prefetch


def arrive(
    prefetch: Prefetch,
    *messages: dict[str, Any],
    subscription: int = 1,
    after: int = 0,
    through: int | None = None,
    redelivered_through: int = 0,
    gaps: tuple[GapRange, ...] = (),
    epoch: int = 1,
    pushed: bool = True,
    own: bool = False,
) -> None:
    last = max([after, *(m["sequence"] for m in messages), *(gap.to_sequence for gap in gaps)])
    prefetch.accept(
        Arrived(
            subscription,
            f"channel-{subscription}",
            after,
            last if through is None else through,
            redelivered_through,
            tuple((message["sequence"], message) for message in messages),
            gaps,
            None,
        ),
        epoch=epoch,
        pushed=pushed,
        own=own,
    )


def sequences(batch: Batch) -> list[int]:
    return [record.position for record in batch.records]


def take(prefetch: Prefetch, *channels: str, count: int = 1000, own: bool = False) -> Batch:
    return prefetch.take(channels, Budget(count, 10**9, 10**9), own=own)


def test_a_delivery_of_the_wire_is_understood() -> None:
    delivery = Delivery(
        subscription=7,
        channel="general",
        after=Sequence(3),
        through=Sequence(9),
        redelivered_through=Sequence(4),
        records=((Sequence(8), encode(message(8))),),
        gaps=(GapRange(Sequence(5), Sequence(6), "age"),),
        oldest_retained=Sequence(7),
    )
    arrived = parse_arrived(decode_frame(encode(delivery.as_data())))
    assert arrived.records == ((8, message(8)),)
    assert arrived.gaps == delivery.gaps
    assert arrived.oldest_retained == 7


def test_messages_are_taken_in_order_over_all_channels() -> None:
    prefetch = attached(1, 2)
    arrive(prefetch, message(1), message(4), subscription=1)
    arrive(prefetch, message(2), message(3), subscription=2)
    assert sequences(take(prefetch)) == [1, 2, 3, 4]


def test_only_the_named_channels_are_read() -> None:
    prefetch = attached(1, 2)
    arrive(prefetch, message(1), subscription=1)
    arrive(prefetch, message(2), subscription=2)
    assert sequences(take(prefetch, "channel-2")) == [2]
    assert prefetch.pending == 1


def test_an_unknown_channel_is_named_together_with_the_known_ones() -> None:
    prefetch = attached(1)
    with pytest.raises(NotFoundError, match="channel-1"):
        take(prefetch, "nowhere")


def test_the_count_bounds_a_batch_and_the_rest_is_announced() -> None:
    prefetch = attached(1)
    arrive(prefetch, message(1), message(2), message(3))
    batch = take(prefetch, count=2)
    assert sequences(batch) == [1, 2]
    assert batch.more
    assert not take(prefetch, count=1).more


def test_characters_and_bytes_bound_a_batch_to_whole_records() -> None:
    prefetch = attached(1)
    arrive(prefetch, *(message(n, "x" * 100) for n in (1, 2, 3)))
    two = 2 * len(encode(message(1, "x" * 100))) + 60
    assert sequences(prefetch.take((), Budget(10, two, 10**9))) == [1, 2]
    assert sequences(prefetch.take((), Budget(10, 10**9, two))) == [3]


def test_characters_are_not_bytes() -> None:
    prefetch = attached(1)
    arrive(prefetch, *(message(n, "ü" * 100) for n in (1, 2, 3)))
    two = 2 * len(encode(message(1, "ü" * 100)).decode()) + 60
    assert sequences(prefetch.take((), Budget(10, two, 10**9))) == [1, 2]


def test_a_record_beyond_the_budget_is_taken_alone() -> None:
    prefetch = attached(1)
    arrive(prefetch, message(1), message(2, "x" * 500), message(3))
    small = Budget(10, 200, 10**9)
    assert sequences(prefetch.take((), small)) == [1]
    batch = prefetch.take((), small)
    assert sequences(batch) == [2]
    assert batch.oversize
    assert batch.more
    assert sequences(prefetch.take((), small)) == [3]


def test_nothing_is_reported_before_the_handoff() -> None:
    prefetch = attached(1)
    arrive(prefetch, message(1))
    batch = take(prefetch)
    assert prefetch.report_due() is None
    prefetch.settle(batch, handed_off=True)
    assert prefetch.report_due() == Report(1, 1, {1: 1}, ())
    assert prefetch.report_due() is None


def test_a_result_that_failed_waits_again_in_front() -> None:
    prefetch = attached(1)
    arrive(prefetch, message(1), message(2), message(3))
    batch = take(prefetch, count=2)
    prefetch.settle(batch, handed_off=False, bytes_left=False)
    again = take(prefetch)
    assert sequences(again) == [1, 2, 3]
    assert not any(record.redelivered for record in again.records)
    assert prefetch.report_due() is None


def test_a_result_of_which_bytes_had_left_is_marked_redelivered() -> None:
    prefetch = attached(1)
    arrive(prefetch, message(1), message(2))
    prefetch.settle(take(prefetch, count=1), handed_off=False, bytes_left=True)
    assert [record.redelivered for record in take(prefetch).records] == [True, False]


def test_a_later_result_is_not_reported_over_an_unsettled_earlier_one() -> None:
    prefetch = attached(1)
    arrive(prefetch, message(1), message(2))
    first, second = take(prefetch, count=1), take(prefetch, count=1)
    prefetch.settle(second, handed_off=True)
    assert prefetch.report_due() is None
    prefetch.settle(first, handed_off=False)
    assert prefetch.report_due() is None
    again = take(prefetch)
    assert sequences(again) == [1]
    prefetch.settle(again, handed_off=True)
    assert prefetch.report_due() == Report(1, 1, {1: 2}, ())


def test_own_messages_that_were_left_out_are_passed_over_by_a_receive() -> None:
    prefetch = attached(1)
    arrive(prefetch, after=0, through=5)
    assert prefetch.report_due() is None
    prefetch.settle(take(prefetch), handed_off=True)
    assert prefetch.report_due() == Report(1, 1, {1: 5}, ())


def test_credit_comes_back_with_the_handoff_and_for_what_is_dropped() -> None:
    prefetch = attached(1)
    arrive(prefetch, message(1), message(2))
    arrive(prefetch, message(2), after=1)
    assert prefetch.credit_due() == (1, len(encode(message(2))))
    batch = take(prefetch)
    assert prefetch.credit_due() == (0, 0)
    prefetch.settle(batch, handed_off=True)
    assert prefetch.credit_due() == (2, 2 * len(encode(message(1))))


def test_pulled_records_never_used_credit() -> None:
    prefetch = attached(1)
    arrive(prefetch, message(1), pushed=False)
    arrive(prefetch, message(1))
    assert prefetch.credit_due() == (1, len(encode(message(1))))
    prefetch.settle(take(prefetch), handed_off=True)
    assert prefetch.credit_due() == (0, 0)


def test_a_new_epoch_drops_the_queue_and_gives_no_credit_back() -> None:
    prefetch = attached(1)
    arrive(prefetch, message(1), message(2), message(3))
    batch = take(prefetch, count=1)
    prefetch.new_epoch(2)
    assert prefetch.pending == 0
    prefetch.settle(batch, handed_off=True)
    assert prefetch.credit_due() == (0, 0)
    arrive(prefetch, message(2), after=0, epoch=1)
    assert prefetch.pending == 0
    arrive(prefetch, message(1), message(2), message(3), epoch=2)
    assert prefetch.credit_due() == (1, len(encode(message(1))))
    assert sequences(take(prefetch)) == [2, 3]


def test_positions_that_a_recovery_ignored_are_reported_again() -> None:
    prefetch = attached(1)
    arrive(prefetch, message(1))
    prefetch.settle(take(prefetch), handed_off=True)
    assert prefetch.report_due() is not None
    prefetch.new_epoch(2)
    assert prefetch.report_due() is None
    arrive(prefetch, message(1), epoch=2)
    assert prefetch.report_due() == Report(2, 2, {1: 1}, ())


def test_a_committed_report_is_not_repeated_after_a_recovery() -> None:
    prefetch = attached(1)
    arrive(prefetch, message(1))
    prefetch.settle(take(prefetch), handed_off=True)
    report = prefetch.report_due()
    assert report is not None
    prefetch.committed(report)
    prefetch.new_epoch(2)
    assert prefetch.report_due() is None


def test_a_failed_result_survives_a_recovery_in_order() -> None:
    prefetch = attached(1)
    arrive(prefetch, *(message(n) for n in range(1, 6)))
    first, second = take(prefetch, count=2), take(prefetch, count=2)
    prefetch.settle(first, handed_off=False)
    prefetch.new_epoch(2)
    prefetch.settle(second, handed_off=False)
    assert sequences(take(prefetch)) == [1, 2, 3, 4]
    arrive(prefetch, *(message(n) for n in range(1, 6)), epoch=2)
    assert sequences(take(prefetch)) == [5]


def test_attaching_again_does_not_deliver_what_was_handed_off_but_reports_it() -> None:
    prefetch = attached(1)
    arrive(prefetch, message(1), message(2))
    prefetch.settle(take(prefetch, count=1), handed_off=True)
    prefetch.attached(OWN, 4, [row(1, confirmed=0)])
    arrive(prefetch, message(1), message(2), epoch=4)
    assert prefetch.report_due() == Report(1, 4, {1: 1}, ())
    assert sequences(take(prefetch)) == [2]


def test_what_another_adapter_handed_off_meanwhile_is_not_delivered() -> None:
    prefetch = attached(1)
    arrive(prefetch, message(1), message(2))
    prefetch.attached(OWN, 4, [row(1, confirmed=2)])
    assert prefetch.pending == 0
    arrive(prefetch, message(3), after=2, epoch=4)
    assert sequences(take(prefetch)) == [3]


def test_unconfirmed_messages_come_marked_to_a_new_adapter() -> None:
    prefetch = Prefetch()
    prefetch.attached(OWN, 1, [{**row(1, confirmed=1), "handed_off": 2}])
    arrive(prefetch, message(2), message(3), after=1, redelivered_through=2)
    batch = take(prefetch)
    assert [(r.position, r.redelivered) for r in batch.records] == [(2, True), (3, False)]
    prefetch.settle(batch, handed_off=True)
    assert prefetch.report_due() == Report(1, 1, {1: 3}, ())


def test_gaps_are_told_at_their_place_and_count_as_handed_off() -> None:
    prefetch = attached(1)
    arrive(prefetch, message(1), message(5), gaps=(GapRange(2, 4, "age"),))  # type: ignore[arg-type]
    batch = take(prefetch)
    assert [entry.last for _, entry in batch.entries] == [1, 4, 5]
    assert batch.gaps == ((1, Gap(2, 4, "age", None)),)
    prefetch.settle(batch, handed_off=True)
    assert prefetch.report_due() == Report(1, 1, {1: 5}, ())


def test_a_gap_is_not_told_twice_and_comes_back_after_a_failure() -> None:
    prefetch = attached(1)
    gap = GapRange(1, 4, "capacity")  # type: ignore[arg-type]
    arrive(prefetch, gaps=(gap,))
    arrive(prefetch, gaps=(gap,), pushed=False)
    batch = take(prefetch)
    assert len(batch.gaps) == 1
    prefetch.settle(batch, handed_off=False)
    again = take(prefetch)
    assert len(again.gaps) == 1
    prefetch.settle(again, handed_off=True)
    arrive(prefetch, gaps=(gap,))
    assert take(prefetch).is_empty


def test_gaps_are_bounded_per_result() -> None:
    prefetch = attached(1)
    gaps = tuple(GapRange(n, n, "age") for n in range(1, 2 * GAPS_PER_RESULT, 2))  # type: ignore[arg-type]
    arrive(prefetch, gaps=(*gaps, GapRange(2 * GAPS_PER_RESULT, 2 * GAPS_PER_RESULT, "age")))  # type: ignore[arg-type]
    batch = take(prefetch)
    assert len(batch.gaps) == GAPS_PER_RESULT
    assert batch.more
    assert len(take(prefetch).gaps) == 1


def test_an_expiry_is_repeated_until_the_result_with_it_is_confirmed() -> None:
    prefetch = attached(1, 2)
    prefetch.expire(2, "channel-2", "2026-01-01T00:00:00.000Z")
    failed = take(prefetch)
    assert [e.channel for e in failed.expired] == ["channel-2"]
    prefetch.settle(failed, handed_off=False)
    assert prefetch.report_due() is None
    prefetch.settle(take(prefetch), handed_off=True)
    assert prefetch.report_due() == Report(1, 1, {}, (2,))
    assert len(take(prefetch).expired) == 1
    assert prefetch.confirms(prefetch.arrival()) == 1
    assert take(prefetch).expired == ()


def test_an_expiry_survives_attaching_again() -> None:
    prefetch = attached(1, 2)
    prefetch.expire(2, "channel-2", "2026-01-01T00:00:00.000Z")
    prefetch.settle(take(prefetch), handed_off=True)
    assert prefetch.report_due() is not None
    prefetch.attached(OWN, 2, [row(1), row(2, expired_at="2026-01-01T00:00:00.000Z")])
    assert prefetch.report_due() == Report(1, 2, {}, (2,))


def test_naming_an_expired_channel_is_an_error_until_it_is_subscribed_again() -> None:
    prefetch = attached(1, 2)
    prefetch.expire(2, "channel-2", "2026-01-01T00:00:00.000Z")
    with pytest.raises(CursorExpiredError, match="subscribe again"):
        take(prefetch, "channel-2")
    prefetch.subscribed(3, "channel-2", 10)
    assert take(prefetch, "channel-2").is_empty


def test_only_a_call_that_arrived_later_confirms() -> None:
    prefetch = attached(1)
    arrive(prefetch, message(1), message(2))
    early = prefetch.arrival()
    prefetch.settle(take(prefetch, count=1), handed_off=True)
    assert prefetch.report_due() is not None
    assert prefetch.confirms(early) == 0
    assert prefetch.confirms(prefetch.arrival()) == 1
    assert prefetch.confirms(prefetch.arrival()) == 0


def test_replay_gives_the_last_result_again_without_moving_anything() -> None:
    prefetch = attached(1)
    assert prefetch.replay(PLENTY).is_empty
    arrive(prefetch, message(1), message(2), message(3))
    prefetch.settle(take(prefetch, count=2), handed_off=True)
    assert prefetch.report_due() is not None
    prefetch.settle(take(prefetch), handed_off=False)
    replay = prefetch.replay(PLENTY)
    assert sequences(replay) == [1, 2]
    prefetch.settle(replay, handed_off=True)
    assert prefetch.report_due() is None
    assert sequences(take(prefetch)) == [3]


def test_a_replay_keeps_the_ceiling_of_the_call_that_asks_for_it() -> None:
    prefetch = attached(1)
    arrive(prefetch, *(message(n, "x" * 100) for n in (1, 2, 3)))
    prefetch.settle(take(prefetch), handed_off=True)
    replay = prefetch.replay(Budget(1000, 200, 10**9))
    assert sequences(replay) == [1]
    assert replay.more
    assert prefetch.replay(Budget(1000, 50, 10**9)).oversize


def test_unsubscribing_forgets_what_waits_and_what_is_under_way() -> None:
    prefetch = attached(1)
    arrive(prefetch, message(1), message(2))
    batch = take(prefetch, count=1)
    prefetch.unsubscribed(1)
    assert prefetch.credit_due()[0] == 1
    prefetch.settle(batch, handed_off=True)
    assert prefetch.credit_due()[0] == 1
    assert prefetch.report_due() is None


def test_own_messages_are_given_only_to_who_asks() -> None:
    prefetch = attached(1)
    arrive(prefetch, message(2), through=3)
    assert prefetch.pull_positions((), own=True) == {1: 0}
    asked = (message(1, session=OWN), message(2), message(3, session=OWN))
    arrive(prefetch, *asked, pushed=False, own=True)
    batch = take(prefetch, count=1, own=True)
    assert sequences(batch) == [1]
    assert prefetch.pending == 1
    prefetch.settle(batch, handed_off=True)
    assert prefetch.pull_positions((), own=True) == {1: 1}
    assert sequences(take(prefetch)) == [2]


def test_own_messages_of_a_failed_result_come_again_to_who_asks() -> None:
    prefetch = attached(1)
    arrive(prefetch, message(1, session=OWN), message(2), pushed=False, own=True)
    prefetch.settle(take(prefetch, own=True), handed_off=False)
    assert sequences(take(prefetch, own=True)) == [1, 2]


class AgainstAModelDaemon(RuleBasedStateMachine):
    """Random pushes, pulls, takes, failures, recoveries and new attachments."""

    SUBSCRIPTIONS = (1, 2)
    WINDOW = 8

    @initialize()
    def start(self) -> None:
        self.newest = 0
        self.epoch = 1
        self.messages: dict[int, list[int]] = {sub: [] for sub in self.SUBSCRIPTIONS}
        self.cursor = dict.fromkeys(self.SUBSCRIPTIONS, 0)
        self.handed_off = dict.fromkeys(self.SUBSCRIPTIONS, 0)
        self.confirmed = dict.fromkeys(self.SUBSCRIPTIONS, 0)
        self.redelivered_through = dict.fromkeys(self.SUBSCRIPTIONS, 0)
        self.credit = self.WINDOW
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
        self.redelivered_through = dict(self.handed_off)
        self.credit = self.WINDOW
        self.reports.clear()
        self.taken_reports.clear()
        rows = [
            {**row(sub, confirmed=self.confirmed[sub]), "handed_off": self.handed_off[sub]}
            for sub in self.SUBSCRIPTIONS
        ]
        self.prefetch.attached(OWN, self.epoch, rows)

    def deliver(self, sub: int, after: int, count: int, pushed: bool) -> int:
        found = [sequence for sequence in self.messages[sub] if sequence > after][:count]
        through = found[-1] if found else after
        arrive(
            self.prefetch,
            *(message(sequence) for sequence in found),
            subscription=sub,
            after=after,
            through=through,
            redelivered_through=self.redelivered_through[sub],
            epoch=self.epoch,
            pushed=pushed,
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
            assert isinstance(entry, Record)
            key = (sub, entry.position)
            if entry.position <= self.highest_taken[sub] and not entry.redelivered:
                assert key in self.failed, "an earlier message came after a later one"
            self.failed.discard(key)
            self.highest_taken[sub] = max(self.highest_taken[sub], entry.position)
        self.out.append(batch)

    @rule(data=st.data(), outcome=st.sampled_from(("handed_off", "clean", "torn")))
    def settle(self, data: st.DataObject, outcome: str) -> None:
        if not self.out:
            return
        batch = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        for sub, entry in batch.entries:
            key = (sub, entry.last)
            if outcome == "clean":
                self.failed.add(key)
                continue
            assert isinstance(entry, Record)
            if key in self.seen:
                assert entry.redelivered, "doubled without a mark"
            self.seen[key] = self.seen.get(key, 0) + (outcome == "handed_off")
            if outcome == "torn":
                self.failed.add(key)
        self.prefetch.settle(
            batch, handed_off=outcome == "handed_off", bytes_left=outcome != "clean"
        )

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
        self.cursor = dict(self.handed_off)
        self.redelivered_through = dict.fromkeys(self.SUBSCRIPTIONS, 0)
        self.credit = self.WINDOW
        self.prefetch.new_epoch(self.epoch)

    @rule()
    def lose_the_connection(self) -> None:
        self.epoch += 1
        self.attach()

    @rule()
    def restart_the_adapter_after_an_orderly_end(self) -> None:
        while self.out:
            self.prefetch.settle(self.out.pop(), handed_off=False)
        self.make_report()
        while self.reports:
            self.commit_report()
        self.failed = {(s, n) for s in self.SUBSCRIPTIONS for n in self.messages[s]}
        if all(
            (sub, n) not in self.seen or self.seen[sub, n] == 0 or n <= self.handed_off[sub]
            for sub in self.SUBSCRIPTIONS
            for n in self.messages[sub]
        ) and all(count for count in self.seen.values()):
            self.prefetch = Prefetch()
            self.attach()

    @invariant()
    def never_reports_what_was_not_handed_off(self) -> None:
        for sub in self.SUBSCRIPTIONS:
            for sequence in self.messages[sub]:
                if sequence <= self.handed_off[sub]:
                    assert self.seen.get((sub, sequence), 0) > 0, "lost"

    def teardown(self) -> None:
        if not hasattr(self, "prefetch"):
            return
        for _ in range(10 + self.newest):
            for batch in self.out:
                for sub, entry in batch.entries:
                    self.seen[sub, entry.last] = self.seen.get((sub, entry.last), 0) + 1
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
        self.credit += self.prefetch.credit_due()[0]
        assert self.credit == self.WINDOW


TestAgainstAModelDaemon = AgainstAModelDaemon.TestCase
TestAgainstAModelDaemon.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
