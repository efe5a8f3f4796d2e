"""What only pooled actors can get wrong: turns, threads, numbers."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pykka
import pytest

from actors.base import start_actor
from actors.pool import Dispatcher, DispatcherStatistics, PooledActor
from agentbus.errors import UnavailableError
from tests.actors.runtimes import switching_often
from tests.eventually import PATIENCE_S, eventually
from tests.probe import settle


@pytest.fixture
def dispatcher() -> Iterator[Dispatcher]:
    dispatcher = Dispatcher(threads=4, quantum=8)
    yield dispatcher
    assert dispatcher.stop(PATIENCE_S)


class Counter(PooledActor[int]):
    """Adds up what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.sum = 0

    def receive(self, message: int) -> None:
        self.sum += message


class Blocker(PooledActor[threading.Event]):
    """Holds its dispatcher thread, as no real pooled actor may."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()

    def receive(self, message: threading.Event) -> None:
        self.entered.set()
        message.wait()


class Turns(PooledActor[str]):
    """Writes who had a turn into a list that it shares with others."""

    def __init__(self, turns: list[str]) -> None:
        super().__init__()
        self.turns = turns

    def receive(self, message: str) -> None:
        self.turns.append(message)


def test_actor_hands_over_after_its_quantum() -> None:
    """One thread: A's queue of 100 cannot delay B by more than the quantum."""
    dispatcher = Dispatcher(threads=1, quantum=4)
    turns: list[str] = []
    blocker = Blocker()
    gate = threading.Event()
    dispatcher.start(blocker).tell(gate)
    assert blocker.entered.wait(PATIENCE_S)
    first, second = (dispatcher.start(Turns(turns)) for _ in range(2))
    for _ in range(100):
        first.tell("A")
    for _ in range(3):
        second.tell("B")
    gate.set()
    settle(first, second)
    assert turns[:8] == ["A"] * 4 + ["B"] * 3 + ["A"]
    assert len(turns) == 103
    assert dispatcher.stop(PATIENCE_S)


def test_no_two_threads_are_ever_in_one_actor(dispatcher: Dispatcher) -> None:
    class Alone(PooledActor[int]):
        def __init__(self) -> None:
            super().__init__()
            self.inside = threading.Lock()
            self.intrusions = 0
            self.count = 0
            self.threads: set[str] = set()

        def receive(self, message: int) -> None:
            if not self.inside.acquire(blocking=False):
                self.intrusions += 1
                return
            before = self.count
            self.threads.add(threading.current_thread().name)
            self.count = before + 1
            self.inside.release()

    actors = [Alone() for _ in range(6)]
    addresses = [dispatcher.start(actor) for actor in actors]

    def tell() -> None:
        for number in range(2000):
            addresses[number % len(addresses)].tell(number)

    with switching_often():
        tellers = [threading.Thread(target=tell) for _ in range(6)]
        for teller in tellers:
            teller.start()
        for teller in tellers:
            teller.join()
        settle(*addresses)
    assert [actor.intrusions for actor in actors] == [0] * 6
    assert sum(actor.count for actor in actors) == 12_000
    assert any(len(actor.threads) > 1 for actor in actors), "actors never moved between threads"


def test_5000_actors_live_on_4_threads_and_stop_in_seconds(dispatcher: Dispatcher) -> None:
    threads_before = threading.active_count()
    actors = [Counter() for _ in range(5000)]
    addresses = [dispatcher.start(actor) for actor in actors]
    for number in range(4):
        for address in addresses:
            address.tell(number)
    settle(*addresses)
    assert threading.active_count() <= threads_before  # of other tests, some may end
    assert all(actor.sum == 6 for actor in actors)
    assert dispatcher.statistics() == DispatcherStatistics(threads=4, actors=5000, ready=0)
    assert dispatcher.stop(PATIENCE_S)
    assert not pykka.ActorRegistry.get_by_class(Counter)


class InterruptedToken:
    """A mailbox's token; somebody tells just before the dispatcher gives it back."""

    def __init__(self, token: threading.Lock, interrupt: Callable[[], None]) -> None:
        self._token = token
        self._interrupt = interrupt

    def acquire(self, blocking: bool) -> bool:
        return self._token.acquire(blocking)

    def release(self) -> None:
        self._interrupt()
        self._token.release()


def test_message_told_between_the_last_look_and_the_return_of_the_token_is_handled(
    dispatcher: Dispatcher,
) -> None:
    actor = Counter()
    address = actor.address
    left = [1000, 100, 10]

    def interrupt() -> None:
        if left:
            address.tell(left.pop())

    mailbox: Any = actor.actor_inbox
    mailbox.token = InterruptedToken(mailbox.token, interrupt)
    dispatcher.start(actor)
    eventually(lambda: actor.sum == 1110)
    address.tell(1)
    eventually(lambda: actor.sum == 1111)


def test_actors_that_tell_each_other_do_not_deadlock_on_one_thread() -> None:
    dispatcher = Dispatcher(threads=1, quantum=2)
    done = threading.Event()

    class Player(PooledActor[int]):
        other: Any = None

        def receive(self, message: int) -> None:
            if message == 0:
                done.set()
            else:
                self.other.tell(message - 1)

    first, second = Player(), Player()
    first.other, second.other = dispatcher.start(second), dispatcher.start(first)
    first.other.tell(10_000)
    assert done.wait(PATIENCE_S)
    assert dispatcher.stop(PATIENCE_S)


def test_stop_of_the_dispatcher_handles_what_was_told_before(dispatcher: Dispatcher) -> None:
    actors = [Counter() for _ in range(50)]
    addresses = [dispatcher.start(actor) for actor in actors]
    for _ in range(100):
        for address in addresses:
            address.tell(1)
    assert dispatcher.stop(PATIENCE_S)
    assert all(actor.sum == 100 for actor in actors)


def test_stopped_dispatcher_takes_no_new_actor_and_leaves_none_registered() -> None:
    dispatcher = Dispatcher(threads=1)
    assert dispatcher.stop(PATIENCE_S)
    with pytest.raises(UnavailableError):
        dispatcher.start(Counter())
    assert not pykka.ActorRegistry.get_by_class(Counter)


def test_stop_says_when_an_actor_is_still_busy() -> None:
    dispatcher = Dispatcher(threads=1)
    blocker = Blocker()
    gate = threading.Event()
    dispatcher.start(blocker).tell(gate)
    assert blocker.entered.wait(PATIENCE_S)
    assert dispatcher.stop(0.01) is False
    gate.set()
    eventually(lambda: not any(thread.is_alive() for thread in dispatcher._threads))


def test_failing_actor_leaves_its_thread_to_the_others() -> None:
    dispatcher = Dispatcher(threads=1)
    failed = threading.Event()
    bad = dispatcher.start(Counter(), crashed=lambda name, error: failed.set())
    bad.tell("not a number")  # type: ignore[arg-type]
    assert failed.wait(PATIENCE_S)
    good = Counter()
    address = dispatcher.start(good)
    address.tell(5)
    settle(address)
    assert good.sum == 5
    assert dispatcher.statistics().actors == 1
    assert dispatcher.stop(PATIENCE_S)


def test_started_pooled_actor_can_be_waited_for(dispatcher: Dispatcher) -> None:
    class Broken(PooledActor[int]):
        def on_start(self) -> None:
            raise ZeroDivisionError

        def receive(self, message: int) -> None:
            raise AssertionError("it never started")

    actor = Broken()
    actor.dispatcher = dispatcher
    with pytest.raises(ZeroDivisionError):
        start_actor(actor)


def test_ended_actor_is_forgotten_though_its_address_lives_on(dispatcher: Dispatcher) -> None:
    actor = Counter()
    gone = weakref.ref(actor)
    address = dispatcher.start(actor)
    address.ref.stop()
    eventually(lambda: dispatcher.statistics().actors == 0)
    del actor

    def is_forgotten() -> bool:
        # An idle thread remembers the last actor it ran; give each something else to remember.
        settle(*(dispatcher.start(Counter()) for _ in range(64)))
        gc.collect()
        return gone() is None

    eventually(is_forgotten)
    address.tell(1)
    assert address.statistics().dead_tells == 1
