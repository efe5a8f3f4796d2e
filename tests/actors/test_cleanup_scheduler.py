"""When cleanup runs, slice by slice, and what happens when it may not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

from actors.cleanup_scheduler import CleanupSchedulerActor
from actors.messages import ReadinessChanged, Submit, SubscriptionsExpired
from actors.pool import Dispatcher
from actors.timer import Timer
from agentbus.errors import UnavailableError
from agentbus.ids import ChannelId, RecoveryEpoch, SessionId
from agentbus.limits import PRUNE_ROWS
from agentbus.store.changes import PruneResult, PruneSlice, SubscriptionExpired
from tests.clock import FakeClock
from tests.probe import Probe, settle

EVERY_S = 60.0
READY = ReadinessChanged("ready", RecoveryEpoch(1), 0)
NOTHING = PruneResult(0, False)


class Scheduler:
    """The scheduler; the test plays the ledger."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.timer = Timer(self.clock)
        self.dispatcher = Dispatcher(threads=1)
        self.ledger, self.registrar = Probe(), Probe()
        self.actor = CleanupSchedulerActor(
            self.ledger.address, self.registrar.address, self.timer, EVERY_S
        )
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
        return [self.answer() for _ in range(4)]

    def idle(self) -> None:
        self.ledger.expect_nothing_of(Submit, through=(self.address,))

    def close(self) -> None:
        self.dispatcher.stop(5.0)
        self.timer.stop()
        self.ledger.stop()
        self.registrar.stop()


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
    assert [scheduler.answer() for _ in range(3)] == ["tombstones", "subscriptions", "receipts"]
    scheduler.idle()


def test_the_next_round_comes_after_the_interval(scheduler: Scheduler) -> None:
    for _ in range(3):
        scheduler.clock.advance(EVERY_S - 0.001)
        scheduler.idle()
        scheduler.clock.advance(0.001)
        assert scheduler.round() == ["messages_by_age", "tombstones", "subscriptions", "receipts"]
    settle(scheduler.address)
    assert scheduler.actor.cleanup_statistics().rounds == 3


def test_a_full_slice_is_followed_by_another_of_the_same_sort(scheduler: Scheduler) -> None:
    scheduler.clock.advance(EVERY_S)
    assert scheduler.answer(PruneResult(PRUNE_ROWS, True)) == "messages_by_age"
    assert scheduler.answer(PruneResult(7, False)) == "messages_by_age"
    assert scheduler.answer() == "tombstones"
    assert scheduler.answer() == "subscriptions"
    assert scheduler.answer() == "receipts"
    scheduler.idle()
    assert scheduler.actor.cleanup_statistics().removed_rows == PRUNE_ROWS + 7


def test_a_round_that_is_not_over_when_the_next_is_due_goes_on_alone(scheduler: Scheduler) -> None:
    scheduler.clock.advance(EVERY_S)
    slow = scheduler.slice()
    scheduler.clock.advance(EVERY_S)
    scheduler.idle()
    slow.reply_to.set(NOTHING)
    assert [scheduler.answer() for _ in range(3)] == ["tombstones", "subscriptions", "receipts"]
    scheduler.idle()


def test_a_refused_slice_puts_the_round_off_until_the_bus_is_ready(scheduler: Scheduler) -> None:
    scheduler.clock.advance(EVERY_S)
    scheduler.slice().reply_to.set_exception(UnavailableError("recovering"))
    scheduler.idle()
    scheduler.address.tell(ReadinessChanged("recovering", RecoveryEpoch(2), 0))
    scheduler.idle()
    scheduler.address.tell(READY)
    assert scheduler.round() == ["messages_by_age", "tombstones", "subscriptions", "receipts"]


def test_expired_subscriptions_are_told_to_the_registrar(scheduler: Scheduler) -> None:
    scheduler.clock.advance(EVERY_S)
    assert [scheduler.answer(), scheduler.answer()] == ["messages_by_age", "tombstones"]
    fact = SubscriptionExpired(SessionId("s"), 1, ChannelId(1), "general", 5)
    assert scheduler.answer(PruneResult(1, False, (fact,))) == "subscriptions"
    assert scheduler.registrar.expect(SubscriptionsExpired).facts == (fact,)
