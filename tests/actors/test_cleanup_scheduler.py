"""When cleanup runs, slice by slice, and what happens when it may not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from actors.cleanup_messages import (
    CapacityChanged,
    CapacityReached,
    CatchUpDidNotFit,
    EvictionEnded,
    LiftBackstop,
    MeasureRedis,
    PruneWhileFenced,
    RedisMeasured,
)
from actors.cleanup_scheduler import REST_S, ROUND, CleanupOutlets, CleanupSchedulerActor
from actors.messages import (
    ReadinessChanged,
    Submit,
    SubscriptionsExpired,
)
from actors.pool import Dispatcher
from actors.supervisor_messages import CatchUpFailed
from actors.timer import Timer
from agentbus.errors import UnavailableError
from agentbus.ids import ChannelId, RecoveryEpoch, SessionId
from agentbus.limits import KIB, MIB, PRUNE_ROWS
from agentbus.store.changes import PruneResult, PruneSlice, SubscriptionExpired
from tests.clock import FakeClock
from tests.eventually import PATIENCE_S
from tests.probe import Probe, settle
from tests.store.bus import config

EVERY_S = 60.0
READY = ReadinessChanged("ready", RecoveryEpoch(1), 0)
NOTHING = PruneResult(0, False)


class Scheduler:
    """The scheduler; the test plays the ledger."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.timer = Timer(self.clock)
        self.dispatcher = Dispatcher(threads=1)
        self.ledger, self.projector = Probe(), Probe()
        self.registrar, self.supervisor = Probe(), Probe()
        self.used_bytes = 0  # of SQLite
        self.notices: list[dict[str, Any]] = []
        outlets = CleanupOutlets(
            ledger=self.ledger.address,
            projector=self.projector.address,
            registrar=self.registrar.address,
            supervisor=self.supervisor.address,
            used_bytes=lambda: self.used_bytes,
            announce=self.notices.append,
        )
        folder = Path("/nowhere")
        self.config = config(folder, sqlite_budget_mib=1, redis_budget_mib=1, max_message_kib=64)
        self.actor = CleanupSchedulerActor(outlets, self.timer, self.config)
        self.address = self.dispatcher.start(self.actor)
        settle(self.address)

    def slice(self) -> Submit:
        submit = self.ledger.expect(Submit)
        assert isinstance(submit.change, PruneSlice)
        assert submit.change.max_rows == PRUNE_ROWS
        return submit

    def answer(self, result: PruneResult = NOTHING) -> str:
        """Settle the slice that is before the ledger; which sort it was."""
        submit = self.slice()
        submit.reply_to.set(result)
        return cast(PruneSlice, submit.change).what

    def round(self) -> list[str]:
        return [self.answer() for _ in ROUND]

    def evict(self, freed_bytes: int, rows: int = 1) -> int:
        """Answer a slice for room with what it freed; how much was asked for."""
        submit = self.slice()
        assert isinstance(submit.change, PruneSlice)
        assert submit.change.what == "messages_by_capacity"
        self.used_bytes -= freed_bytes
        submit.reply_to.set(PruneResult(rows, False))
        return submit.change.free_bytes

    def measure(self, dataset_bytes: int | None) -> bool:
        """Answer the question for the size of Redis; whether it was a patient one."""
        asked = self.ledger.expect(MeasureRedis)
        self.address.tell(RedisMeasured(dataset_bytes))
        return asked.patient

    def capacity(self) -> CapacityChanged:
        return self.ledger.expect(CapacityChanged)

    def told(self) -> list[tuple[str, bool]]:
        settle(self.address)
        told = [(notice["budget"], notice["exhausted"]) for notice in self.notices]
        self.notices.clear()
        return told

    def idle(self) -> None:
        self.ledger.expect_nothing_of(Submit, through=(self.address,))

    def close(self) -> None:
        self.dispatcher.stop(PATIENCE_S)
        self.timer.stop()
        for probe in (self.ledger, self.projector, self.registrar, self.supervisor):
            probe.stop()


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    scheduler = Scheduler()
    yield scheduler
    scheduler.close()


def test_a_round_goes_over_every_sort_one_slice_at_a_time(scheduler: Scheduler) -> None:
    scheduler.clock.advance(EVERY_S)
    first = scheduler.slice()
    scheduler.idle()  # nothing more until that one is settled
    first.reply_to.set(NOTHING)
    assert [scheduler.answer() for _ in range(4)] == list(ROUND[1:])
    scheduler.idle()


def test_the_next_round_comes_after_the_interval(scheduler: Scheduler) -> None:
    for _ in range(3):
        scheduler.clock.advance(EVERY_S - 0.001)
        scheduler.idle()
        scheduler.clock.advance(0.001)
        assert scheduler.round() == list(ROUND)
    settle(scheduler.address)
    assert scheduler.actor.cleanup_statistics().rounds == 3


def test_a_full_slice_is_followed_by_another_of_the_same_sort(scheduler: Scheduler) -> None:
    scheduler.clock.advance(EVERY_S)
    assert scheduler.answer(PruneResult(PRUNE_ROWS, True)) == "messages_by_age"
    assert scheduler.answer(PruneResult(7, False)) == "messages_by_age"
    assert scheduler.answer() == "tombstones"
    assert scheduler.answer() == "subscriptions"
    assert scheduler.answer() == "receipts"
    assert scheduler.answer() == "deliveries"
    scheduler.idle()
    assert scheduler.actor.cleanup_statistics().removed_rows == PRUNE_ROWS + 7


def test_a_round_that_is_not_over_when_the_next_is_due_goes_on_alone(scheduler: Scheduler) -> None:
    scheduler.clock.advance(EVERY_S)
    slow = scheduler.slice()
    scheduler.clock.advance(EVERY_S)
    scheduler.idle()
    slow.reply_to.set(NOTHING)
    assert [scheduler.answer() for _ in range(4)] == list(ROUND[1:])
    scheduler.idle()


def test_a_refused_slice_puts_the_round_off_until_the_bus_is_ready(scheduler: Scheduler) -> None:
    scheduler.clock.advance(EVERY_S)
    scheduler.slice().reply_to.set_exception(UnavailableError("recovering"))
    scheduler.idle()
    scheduler.address.tell(ReadinessChanged("recovering", RecoveryEpoch(2), 0))
    scheduler.idle()
    scheduler.address.tell(READY)
    assert scheduler.round() == list(ROUND)


def test_expired_subscriptions_are_told_to_the_registrar(scheduler: Scheduler) -> None:
    scheduler.clock.advance(EVERY_S)
    assert [scheduler.answer(), scheduler.answer()] == ["messages_by_age", "tombstones"]
    fact = SubscriptionExpired(SessionId("s"), 1, ChannelId(1), "general", 5)
    assert scheduler.answer(PruneResult(1, False, (fact,))) == "subscriptions"
    assert scheduler.registrar.expect(SubscriptionsExpired).facts == (fact,)


# --- capacity ---

DAY_S = 86_400.0
FREE = CapacityChanged()
SQLITE_EXHAUSTED = CapacityChanged(exhausted=frozenset({"sqlite"}))
REDIS_EXHAUSTED = CapacityChanged(exhausted=frozenset({"redis"}))
WAIT_FOR_REDIS = CapacityChanged(waiting=frozenset({"redis"}))


def exhaust_sqlite(scheduler: Scheduler) -> None:
    scheduler.used_bytes = MIB
    scheduler.address.tell(CapacityReached("sqlite", 100))
    scheduler.round()
    scheduler.evict(0, rows=0)
    assert scheduler.capacity() == SQLITE_EXHAUSTED
    assert scheduler.told() == [("sqlite_budget_mib", True)]


def test_a_full_budget_has_age_cleanup_at_once_and_nothing_more_if_that_is_enough(
    scheduler: Scheduler,
) -> None:
    scheduler.used_bytes = MIB
    scheduler.address.tell(CapacityReached("sqlite", 100))
    assert scheduler.answer() == "messages_by_age"
    scheduler.used_bytes = MIB - 100
    assert [scheduler.answer() for _ in range(4)] == list(ROUND[1:])
    assert scheduler.capacity() == FREE
    scheduler.idle()
    assert scheduler.told() == []


def test_the_oldest_are_removed_until_the_free_share_is_reached(scheduler: Scheduler) -> None:
    scheduler.used_bytes = MIB
    scheduler.address.tell(CapacityReached("sqlite", 100))
    scheduler.round()
    assert scheduler.evict(100 * KIB, rows=PRUNE_ROWS) == MIB // 4
    assert scheduler.evict(156 * KIB) == MIB // 4 - 100 * KIB
    assert scheduler.capacity() == FREE
    scheduler.idle()
    assert scheduler.actor.cleanup_statistics().removed_for_room == PRUNE_ROWS + 1


def test_room_is_made_for_what_waits_even_beyond_the_free_share(scheduler: Scheduler) -> None:
    scheduler.used_bytes = MIB // 2
    scheduler.address.tell(CapacityReached("sqlite", MIB // 2 + 1))
    scheduler.round()
    assert scheduler.evict(1) == 1
    assert scheduler.capacity() == FREE


def test_what_waits_for_room_on_a_failing_disk_is_tried_again_after_a_rest(
    scheduler: Scheduler,
) -> None:
    scheduler.used_bytes = MIB
    full = CapacityReached("sqlite", 100)
    scheduler.address.tell(full)
    for _ in range(3):
        scheduler.slice().reply_to.set_exception(UnavailableError("the disk takes nothing more"))
        assert scheduler.capacity() == FREE
        scheduler.address.tell(full)  # as the ledger says when what waits has tried again
        scheduler.idle()
        scheduler.clock.advance(REST_S)
    scheduler.round()
    scheduler.evict(MIB // 4)
    assert scheduler.capacity() == FREE
    scheduler.clock.advance(REST_S)
    scheduler.idle()


def test_an_exhausted_budget_is_told_once_then_daily_and_when_it_clears(
    scheduler: Scheduler,
) -> None:
    exhaust_sqlite(scheduler)
    scheduler.address.tell(CapacityReached("sqlite", 100))  # asked before it knew
    assert scheduler.capacity() == SQLITE_EXHAUSTED
    for _ in range(2):
        scheduler.clock.advance(DAY_S - 1)
        scheduler.round()
        scheduler.evict(0, rows=0)
        assert scheduler.told() == []
        scheduler.clock.advance(1)
        scheduler.round()
        scheduler.evict(0, rows=0)
        assert scheduler.told() == [("sqlite_budget_mib", True)]
        assert [scheduler.capacity(), scheduler.capacity()] == [SQLITE_EXHAUSTED] * 2
    scheduler.used_bytes = MIB - 66 * KIB
    scheduler.clock.advance(EVERY_S)
    scheduler.round()
    assert scheduler.told() == [("sqlite_budget_mib", False)]
    assert scheduler.capacity() == FREE
    scheduler.clock.advance(2 * DAY_S)
    scheduler.round()
    assert scheduler.told() == []
    assert scheduler.actor.cleanup_statistics().exhausted == ()


@pytest.mark.parametrize(("free_bytes", "clears"), [(66 * KIB - 1, False), (66 * KIB, True)])
def test_a_budget_is_clear_when_any_mutation_fits(
    scheduler: Scheduler, free_bytes: int, clears: bool
) -> None:
    exhaust_sqlite(scheduler)
    scheduler.used_bytes = MIB - free_bytes
    scheduler.clock.advance(EVERY_S)
    scheduler.round()
    if not clears:
        scheduler.evict(0, rows=0)
    assert scheduler.capacity() == (FREE if clears else SQLITE_EXHAUSTED)


def test_mutations_wait_for_redis_only_while_it_is_at_its_limit(scheduler: Scheduler) -> None:
    scheduler.used_bytes = MIB
    scheduler.address.tell(CapacityReached("redis"))
    assert scheduler.capacity() == WAIT_FOR_REDIS
    scheduler.round()
    assert not scheduler.measure(2 * MIB)
    asked = scheduler.evict(64 * KIB)
    assert asked < MIB // 2
    while asked > 64 * KIB:
        asked = scheduler.evict(64 * KIB)
    assert not scheduler.measure(MIB - 1)
    assert scheduler.capacity() == FREE
    scheduler.evict(64 * KIB)
    assert not scheduler.measure(3 * MIB // 4)
    assert scheduler.capacity() == FREE
    scheduler.idle()


def test_redis_is_exhausted_only_after_its_index_had_time_to_give_memory_back(
    scheduler: Scheduler,
) -> None:
    scheduler.used_bytes = MIB
    for last_bytes, answer in ((MIB - 1, FREE), (MIB, REDIS_EXHAUSTED)):
        scheduler.address.tell(CapacityReached("redis"))
        assert scheduler.capacity() == WAIT_FOR_REDIS
        scheduler.round()
        assert not scheduler.measure(2 * MIB)
        scheduler.evict(0, rows=0)
        assert scheduler.measure(last_bytes)
        if last_bytes < MIB:
            assert scheduler.capacity() == FREE  # no longer at the limit
        assert scheduler.capacity() == answer
    assert scheduler.told() == [("redis_budget_mib", True)]


def test_both_budgets_can_be_full_at_once(scheduler: Scheduler) -> None:
    scheduler.used_bytes = MIB
    scheduler.address.tell(CapacityReached("sqlite", 100))
    scheduler.address.tell(CapacityReached("redis"))
    assert scheduler.capacity() == WAIT_FOR_REDIS
    scheduler.round()
    scheduler.measure(MIB + KIB)
    assert scheduler.evict(MIB // 4) == MIB // 4
    scheduler.measure(MIB // 2)
    assert [scheduler.capacity(), scheduler.capacity()] == [FREE, FREE]
    scheduler.idle()


def test_a_lost_redis_puts_the_round_off_and_nobody_waits(scheduler: Scheduler) -> None:
    scheduler.address.tell(CapacityReached("redis"))
    assert scheduler.capacity() == WAIT_FOR_REDIS
    scheduler.round()
    scheduler.measure(None)
    assert scheduler.capacity() == FREE
    scheduler.idle()


DID_NOT_FIT = CatchUpDidNotFit(RecoveryEpoch(7), 2 * MIB, 0.5, 1000 * KIB)


def fenced(scheduler: Scheduler) -> PruneWhileFenced:
    order = scheduler.ledger.expect(PruneWhileFenced)
    assert order.epoch == 7
    return order


def test_a_rebuild_that_does_not_fit_gets_room_under_the_fence(scheduler: Scheduler) -> None:
    scheduler.used_bytes = 5 * MIB
    scheduler.address.tell(DID_NOT_FIT)  # all of it would take 4 MiB, three quarters of one may
    first = fenced(scheduler)
    assert first.change == PruneSlice(
        "messages_by_capacity", PRUNE_ROWS, round(1000 * KIB * (1 - 0.75 / 4))
    )
    scheduler.used_bytes -= 800 * KIB
    first.reply_to.set(PruneResult(PRUNE_ROWS, True))
    second = fenced(scheduler)
    scheduler.used_bytes -= 100 * KIB
    second.reply_to.set(PruneResult(3, False))
    assert scheduler.supervisor.expect(EvictionEnded).epoch == 7
    scheduler.projector.expect_nothing_of(LiftBackstop)
    assert scheduler.told() == []


def test_a_rebuild_for_which_nothing_can_be_removed_lifts_the_backstop(
    scheduler: Scheduler,
) -> None:
    scheduler.used_bytes = 5 * MIB
    scheduler.address.tell(DID_NOT_FIT)
    fenced(scheduler).reply_to.set(PruneResult(0, False))
    scheduler.projector.expect(LiftBackstop)
    assert scheduler.supervisor.expect(EvictionEnded).epoch == 7
    assert scheduler.told() == [("redis_budget_mib", True)]
    assert scheduler.actor.cleanup_statistics().exhausted == ("redis",)


def test_a_slice_that_fails_under_the_fence_is_a_failed_recovery(scheduler: Scheduler) -> None:
    scheduler.used_bytes = 5 * MIB
    scheduler.address.tell(DID_NOT_FIT)
    fenced(scheduler).reply_to.set_exception(UnavailableError("the disk is full"))
    assert scheduler.supervisor.expect(CatchUpFailed).epoch == 7


def test_an_answer_of_before_does_not_end_the_room_for_a_rebuild(scheduler: Scheduler) -> None:
    scheduler.used_bytes = 5 * MIB
    scheduler.address.tell(CapacityReached("redis"))
    scheduler.round()
    scheduler.address.tell(DID_NOT_FIT)
    scheduler.measure(None)
    fenced(scheduler).reply_to.set(PruneResult(0, False))
    assert scheduler.supervisor.expect(EvictionEnded).epoch == 7
