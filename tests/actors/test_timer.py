"""The timer, on a clock that stands still until the test moves it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from actors.pool import Dispatcher, PooledActor
from actors.timer import Timer, TimerStatistics
from agentbus.clock import SystemClock
from tests.clock import FakeClock
from tests.eventually import PATIENCE_S, eventually
from tests.probe import Probe


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def timer(clock: FakeClock) -> Iterator[Timer]:
    timer = Timer(clock)
    yield timer
    timer.stop()


@pytest.fixture
def probe() -> Iterator[Probe]:
    with Probe() as probe:
        yield probe


def test_message_comes_at_its_deadline_and_not_before(
    clock: FakeClock, timer: Timer, probe: Probe
) -> None:
    timer.deliver_after(10.0, probe.address, "due")
    timer.deliver_after(9.5, probe.address, 9)
    clock.advance(9.5)
    assert probe.expect(int) == 9
    probe.expect_nothing_of(str)
    clock.advance(0.5)
    assert probe.expect(str) == "due"


def test_messages_come_in_the_order_of_their_deadlines_and_equal_ones_as_given(
    clock: FakeClock, timer: Timer, probe: Probe
) -> None:
    at_s = clock.monotonic_s() + 1
    for offset_s, name in [(2, "c"), (0, "a1"), (1, "b"), (0, "a2"), (0, "a3")]:
        timer.deliver_at(at_s + offset_s, probe.address, name)
    clock.advance(hours=72)
    assert [probe.expect(str) for _ in range(5)] == ["a1", "a2", "a3", "b", "c"]


def test_deadline_in_the_past_is_due_at_once(timer: Timer, probe: Probe) -> None:
    timer.deliver_at(0.0, probe.address, "late")
    assert probe.expect(str) == "late"


def test_cancelled_message_never_comes(clock: FakeClock, timer: Timer, probe: Probe) -> None:
    handle = timer.deliver_after(1.0, probe.address, "cancelled")
    timer.deliver_after(2.0, probe.address, 2)
    assert handle.cancel() is True
    assert handle.cancel() is False
    clock.advance(5.0)
    assert probe.expect(int) == 2
    probe.expect_nothing_of(str)


def test_cancel_after_the_delivery_says_that_it_was_too_late(
    clock: FakeClock, timer: Timer, probe: Probe
) -> None:
    handle = timer.deliver_after(1.0, probe.address, "due")
    clock.advance(1.0)
    probe.expect(str)
    assert handle.cancel() is False


def test_thousands_of_renewed_deadlines_do_not_pile_up(
    clock: FakeClock, timer: Timer, probe: Probe
) -> None:
    for number in range(5000):
        timer.deliver_after(600.0, probe.address, number).cancel()
    timer.deliver_after(1.0, probe.address, "kept")
    assert len(timer._heap) < 200
    assert timer.statistics() == TimerStatistics(pending=1, delivered=0)
    clock.advance(600.0)
    assert probe.expect(str) == "kept"
    probe.expect_nothing_of(int)
    assert timer.statistics() == TimerStatistics(pending=0, delivered=1)


def test_beats_come_once_per_period_until_they_are_cancelled(
    clock: FakeClock, timer: Timer, probe: Probe
) -> None:
    beat = timer.deliver_every(30.0, probe.address, "beat")
    probe.expect_nothing_of(str)
    for _ in range(3):
        clock.advance(30.0)
        probe.expect(str)
    assert beat.cancel() is True
    timer.deliver_after(60.0, probe.address, 60)
    clock.advance(60.0)
    probe.expect(int)
    probe.expect_nothing_of(str)


def test_beats_missed_in_a_jump_are_not_made_up_and_the_rhythm_is_kept(
    clock: FakeClock, timer: Timer, probe: Probe
) -> None:
    timer.deliver_every(30.0, probe.address, "beat")
    clock.advance(45.0 + 3600.0)
    probe.expect(str)
    timer.deliver_after(14.0, probe.address, 14)
    clock.advance(14.0)
    probe.expect(int)
    probe.expect_nothing_of(str)
    clock.advance(1.0)
    probe.expect(str)


def test_period_of_zero_is_refused(timer: Timer, probe: Probe) -> None:
    with pytest.raises(ValueError, match="period"):
        timer.deliver_every(0.0, probe.address, "never")


def test_jump_of_the_wall_clock_moves_no_deadline(
    clock: FakeClock, timer: Timer, probe: Probe
) -> None:
    timer.deliver_after(10.0, probe.address, "due")
    clock.set_wall(clock.wall_us() + 3600 * 1_000_000)
    timer.deliver_after(0.0, probe.address, 0)
    probe.expect(int)
    probe.expect_nothing_of(str)


def test_earlier_deadline_wakes_a_timer_that_sleeps_for_a_later_one(probe: Probe) -> None:
    timer = Timer(SystemClock())
    try:
        timer.deliver_after(3600.0, probe.address, "late")
        timer.deliver_after(0.02, probe.address, 1)
        assert probe.expect(int) == 1
        probe.expect_nothing_of(str)
    finally:
        timer.stop()


def test_message_to_an_actor_that_is_gone_does_not_stop_the_timer(
    clock: FakeClock, timer: Timer, probe: Probe
) -> None:
    gone = Probe()
    gone.stop()
    timer.deliver_after(1.0, gone.address, "nobody")
    timer.deliver_after(2.0, probe.address, "somebody")
    clock.advance(2.0)
    assert probe.expect(str) == "somebody"
    eventually(lambda: gone.address.statistics().dead_tells == 1)


def test_pooled_actor_gets_its_deadlines_too(clock: FakeClock, timer: Timer) -> None:
    class Waiter(PooledActor[str]):
        def __init__(self) -> None:
            super().__init__()
            self.told = threading.Event()

        def receive(self, message: str) -> None:
            self.told.set()

    dispatcher = Dispatcher(threads=1)
    try:
        waiter = Waiter()
        timer.deliver_after(1.0, dispatcher.start(waiter), "due")
        clock.advance(1.0)
        assert waiter.told.wait(PATIENCE_S)
    finally:
        assert dispatcher.stop(PATIENCE_S)


def test_stopped_timer_has_no_thread_and_delivers_nothing(clock: FakeClock, probe: Probe) -> None:
    timer = Timer(clock)
    timer.deliver_after(1.0, probe.address, "due")
    timer.stop()
    clock.advance(2.0)
    probe.expect_nothing_of(str)
    assert not any(thread is timer._thread for thread in threading.enumerate())


def test_failure_of_the_timer_is_reported(probe: Probe) -> None:
    class BrokenClock(FakeClock):
        broken = False

        def monotonic_s(self) -> float:
            if self.broken:
                raise ZeroDivisionError
            return super().monotonic_s()

    reports: list[tuple[str, type[BaseException]]] = []
    clock = BrokenClock()
    timer = Timer(clock, crashed=lambda name, error: reports.append((name, type(error))))
    timer.deliver_after(1.0, probe.address, "due")
    clock.broken = True
    clock.advance(1.0)
    eventually(lambda: reports == [("timer", ZeroDivisionError)])
    timer.stop()
