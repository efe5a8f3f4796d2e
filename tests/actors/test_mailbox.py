"""Nothing that was told is lost without a count, not even in the race with the actor's end."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import pykka
import pytest

from actors.base import Address, FutureReply, start_actor, stop_actor
from actors.mailbox import DEAD_TELLS
from agentbus.errors import UnavailableError
from tests.actors.runtimes import Asked, Recorder, Runtime, switching_often
from tests.eventually import PATIENCE_S, eventually


def dead_tells_of(address: Address[Any], count: int) -> Callable[[], bool]:
    return lambda: address.statistics().dead_tells == count


def test_telling_a_dead_actor_is_counted_and_not_raised(recorder: Any) -> None:
    address = start_actor(recorder)
    stop_actor(address, PATIENCE_S)
    before = DEAD_TELLS.count
    address.tell("late")
    address.tell("later")
    assert address.statistics().dead_tells == 2
    assert DEAD_TELLS.count == before + 2


def test_request_to_a_dead_actor_is_answered_as_not_done(recorder: Any) -> None:
    address = start_actor(recorder)
    stop_actor(address, PATIENCE_S)
    reply = FutureReply()
    address.tell(Asked(ZeroDivisionError(), reply))
    with pytest.raises(UnavailableError):
        reply.get(PATIENCE_S)


def test_messages_behind_a_stop_or_a_failure_are_counted(runtime: Runtime) -> None:
    for end in ("stop", "failure"):
        actor = runtime.of(Recorder)()
        address = start_actor(actor)
        gate = threading.Event()
        address.tell(gate.wait)
        if end == "stop":
            address.stop()
        else:
            address.tell(ZeroDivisionError())
        for number in range(5):
            address.tell(number)
        gate.set()
        eventually(dead_tells_of(address, 5))
        assert 0 not in actor.events


class InterruptedQueue:
    """A mailbox's queue that lets something happen at the worst moment, once."""

    def __init__(self, queue: queue.SimpleQueue[Any]) -> None:
        self._queue = queue
        self.before_put: Callable[[], object] | None = None
        self.when_found_empty: Callable[[], object] | None = None

    def put(self, item: Any) -> None:
        if self.before_put is not None:
            interrupt, self.before_put = self.before_put, None
            interrupt()
        self._queue.put(item)

    def get_nowait(self) -> Any:
        try:
            return self._queue.get_nowait()
        except queue.Empty:
            if self.when_found_empty is not None:
                interrupt, self.when_found_empty = self.when_found_empty, None
                interrupt()
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


@pytest.fixture
def interrupted(recorder: Any) -> InterruptedQueue:
    recorder.actor_inbox._queue = InterruptedQueue(recorder.actor_inbox._queue)
    queue: InterruptedQueue = recorder.actor_inbox._queue
    return queue


def ended(address: Address[Any]) -> bool:
    stop_actor(address, PATIENCE_S)
    mailbox: Any = address.ref.actor_inbox
    eventually(lambda: mailbox.closed and mailbox.empty())
    return True


def test_actor_that_ends_while_a_teller_is_about_to_put_loses_nothing(
    recorder: Any, interrupted: InterruptedQueue
) -> None:
    address = start_actor(recorder)
    interrupted.before_put = lambda: ended(address)
    address.tell("racing")
    assert address.statistics().dead_tells == 1
    assert "racing" not in recorder.events


def test_ask_of_an_actor_that_ends_just_before_the_put_is_answered(
    recorder: Any, interrupted: InterruptedQueue
) -> None:
    address = start_actor(recorder)
    interrupted.before_put = lambda: ended(address)
    with pytest.raises(pykka.ActorDeadError):
        address.ref.ask("racing", timeout=PATIENCE_S)


def test_message_put_when_the_ending_actor_has_just_found_nothing_is_counted(
    recorder: Any, interrupted: InterruptedQueue
) -> None:
    address = start_actor(recorder)
    interrupted.when_found_empty = lambda: address.tell("racing")
    address.stop()
    eventually(dead_tells_of(address, 1))
    assert "racing" not in recorder.events


@pytest.mark.parametrize("end", ["stop", "failure"])
def test_no_tell_is_lost_uncounted_in_the_race_with_the_end(runtime: Runtime, end: str) -> None:
    """300 ends, each while four threads tell: handled + counted is exactly what was told."""
    tellers, each = 4, 40

    class Counter(Recorder):
        handled = 0

        def receive(self, message: object) -> None:
            if message is not None:
                raise ZeroDivisionError
            self.handled += 1

    cls = runtime.of(Counter)
    lost_to_the_end = 0
    with switching_often():
        for _ in range(150 if end == "failure" else 300):
            actor = cls()
            address: Address[object] = start_actor(actor)
            line = threading.Barrier(tellers + 1)

            def tell(address: Address[object] = address, line: threading.Barrier = line) -> None:
                line.wait()
                for _ in range(each):
                    address.tell(None)

            threads = [threading.Thread(target=tell) for _ in range(tellers)]
            for thread in threads:
                thread.start()
            line.wait()
            if end == "stop":
                stop_actor(address, PATIENCE_S)
            else:
                address.tell("fail")
            for thread in threads:
                thread.join()

            def accounted(actor: Any = actor, address: Address[object] = address) -> bool:
                dead = address.statistics().dead_tells
                return bool(not address.alive and actor.handled + dead == tellers * each)

            eventually(accounted)
            lost_to_the_end += address.statistics().dead_tells
    assert lost_to_the_end > 0, "the race never happened, so the test proved nothing"


def test_every_ask_is_answered_in_the_race_with_the_end(runtime: Runtime) -> None:
    cls = runtime.of(Recorder)
    answered = {"handled": 0, "dead": 0}
    with switching_often():
        for _ in range(150):
            ref = cls.start()
            futures: queue.SimpleQueue[pykka.Future[Any]] = queue.SimpleQueue()
            line = threading.Barrier(5)

            def ask(
                ref: pykka.ActorRef[Any] = ref,
                line: threading.Barrier = line,
                futures: queue.SimpleQueue[pykka.Future[Any]] = futures,
            ) -> None:
                line.wait()
                for _ in range(10):
                    futures.put(ref.ask("question", block=False))

            threads = [threading.Thread(target=ask) for _ in range(4)]
            for thread in threads:
                thread.start()
            line.wait()
            ref.stop()
            for thread in threads:
                thread.join()
            for _ in range(40):
                try:
                    futures.get().get(timeout=PATIENCE_S)
                    answered["handled"] += 1
                except pykka.ActorDeadError:
                    answered["dead"] += 1
    assert answered["dead"] > 0
