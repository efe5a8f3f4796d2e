"""Promises of an actor, Pykka's and ours, each against a threaded and a pooled one."""

from __future__ import annotations

import logging
import queue
import threading
from typing import Any

import pykka
import pytest

from actors.base import (
    BusActor,
    FutureReply,
    describe_failure,
    start_actor,
    stop_actor,
)
from agentbus.errors import InternalError, NotFoundError, UnavailableError
from tests.actors.runtimes import (
    Asked,
    AskedActor,
    LogRecords,
    Recorder,
    Runtime,
)
from tests.eventually import PATIENCE_S, eventually
from tests.probe import settle

# --- what Pykka's documentation promises ---


def test_start_returns_a_ref_of_a_living_registered_actor(runtime: Runtime) -> None:
    cls = runtime.of(Recorder)
    ref = cls.start()
    assert isinstance(ref, pykka.ActorRef)
    assert ref.is_alive()
    assert ref.actor_class is cls
    assert pykka.ActorRegistry.get_by_urn(ref.actor_urn) is ref
    assert pykka.ActorRegistry.get_by_class(cls) == [ref]
    assert pykka.ActorRegistry.get_by_class_name("Recorder") == [ref]


def test_every_actor_has_its_own_urn(runtime: Runtime) -> None:
    cls = runtime.of(Recorder)
    assert len({cls.start().actor_urn for _ in range(10)}) == 10


def test_start_hands_its_arguments_to_the_constructor(runtime: Runtime) -> None:
    class Named(Recorder):
        def __init__(self, first: str, *, second: str) -> None:
            super().__init__()
            self.given = (first, second)

    proxy = runtime.of(Named).start("a", second="b").proxy()
    assert proxy.given.get(timeout=PATIENCE_S) == ("a", "b")


def test_constructor_runs_on_the_creators_thread_and_hooks_on_the_actors(runtime: Runtime) -> None:
    class Where(Recorder):
        def __init__(self) -> None:
            super().__init__()
            self.made_on = threading.current_thread()

        def on_start(self) -> None:
            self.started_on = threading.current_thread()

    actor = runtime.of(Where)()
    start_actor(actor)
    assert actor.made_on is threading.current_thread()
    assert actor.started_on is not threading.current_thread()


def test_on_start_comes_before_the_first_message(recorder: Any) -> None:
    recorder.actor_ref.tell("first")
    address = start_actor(recorder)
    address.tell("second")
    settle(address)
    assert recorder.events == ["on_start", "first", "second"]


def test_messages_are_handled_in_the_order_in_which_they_were_told(recorder: Any) -> None:
    address = start_actor(recorder)
    for number in range(1000):
        if number % 2:
            address.tell(number)
        else:
            address.ref.tell(number)
    settle(address)
    assert recorder.events == ["on_start", *range(1000)]


@pytest.mark.parametrize("end", ["stop", "stop_actor"])
def test_a_handler_that_takes_long_sees_that_a_stop_waits_behind_it(
    runtime: Runtime, end: str
) -> None:
    begun, seen = threading.Event(), threading.Event()

    class Patient(Recorder):
        def receive(self, message: Any) -> None:
            assert not self.stop_waits()
            begun.set()
            eventually(self.stop_waits)
            seen.set()

    address = start_actor(runtime.of(Patient)())
    address.tell("work")
    assert begun.wait(PATIENCE_S)
    if end == "stop":
        address.stop()
    else:
        assert stop_actor(address, PATIENCE_S)
    assert seen.wait(PATIENCE_S)


def test_whoever_stops_an_actor_waits_for_its_end_also_when_another_one_has_asked_before(
    runtime: Runtime,
) -> None:
    stopping, leave = threading.Event(), threading.Event()

    class Slow(Recorder):
        def on_stop(self) -> None:
            stopping.set()
            assert leave.wait(PATIENCE_S)
            super().on_stop()

    actor = runtime.of(Slow)()
    address = start_actor(actor)
    address.stop()
    assert stopping.wait(PATIENCE_S)
    assert stop_actor(address, 0.05) is False
    leave.set()
    assert stop_actor(address, PATIENCE_S) is True
    assert actor.events == ["on_start", "on_stop"]


def test_messages_told_before_stop_are_handled_before_it_stops(recorder: Any) -> None:
    address = start_actor(recorder)
    for number in range(100):
        address.tell(number)
    assert address.ref.stop() is True
    assert recorder.events == ["on_start", *range(100), "on_stop"]


def test_stop_unregisters_and_a_second_stop_says_that_it_was_dead(recorder: Any) -> None:
    address = start_actor(recorder)
    assert address.ref.stop() is True
    assert not address.alive
    assert pykka.ActorRegistry.get_by_urn(address.ref.actor_urn) is None
    assert address.ref.stop() is False
    assert recorder.events.count("on_stop") == 1


def test_actor_can_stop_itself(recorder: Any) -> None:
    address = start_actor(recorder)
    address.tell(recorder.stop)
    eventually(lambda: "on_stop" in recorder.events)
    assert not address.alive


def test_tell_through_a_ref_of_a_dead_actor_raises(recorder: Any) -> None:
    address = start_actor(recorder)
    address.ref.stop()
    with pytest.raises(pykka.ActorDeadError):
        address.ref.tell("late")


def test_ask_returns_what_the_handler_returned(recorder: Any) -> None:
    address = start_actor(recorder)
    assert address.ref.ask(lambda: 42, timeout=PATIENCE_S) == 42
    assert address.ref.ask(lambda: 43, block=False).get(timeout=PATIENCE_S) == 43


def test_ask_raises_what_the_handler_raised_and_the_actor_lives_on(recorder: Any) -> None:
    address = start_actor(recorder, crashed=recorder.crashed)
    with pytest.raises(ZeroDivisionError):
        address.ref.ask(ZeroDivisionError(), timeout=PATIENCE_S)
    assert address.ref.ask(lambda: "alive", timeout=PATIENCE_S) == "alive"
    assert not recorder.ended.is_set()


def test_ask_can_time_out(recorder: Any) -> None:
    address = start_actor(recorder)
    gate = threading.Event()
    with pytest.raises(pykka.Timeout):
        address.ref.ask(gate.wait, timeout=0.01)
    gate.set()


def test_ask_of_a_dead_actor_raises(recorder: Any) -> None:
    address = start_actor(recorder)
    address.ref.stop()
    with pytest.raises(pykka.ActorDeadError):
        address.ref.ask("late", timeout=PATIENCE_S)


def test_asks_left_in_the_mailbox_after_a_stop_get_an_error(recorder: Any) -> None:
    address = start_actor(recorder)
    gate = threading.Event()
    address.tell(gate.wait)
    stopped = address.ref.stop(block=False)
    left = [address.ref.ask("left", block=False) for _ in range(3)]
    again = address.ref.stop(block=False)
    gate.set()
    assert stopped.get(timeout=PATIENCE_S) is True
    assert again.get(timeout=PATIENCE_S) is True
    for future in left:
        with pytest.raises(pykka.ActorDeadError):
            future.get(timeout=PATIENCE_S)
    assert "left" not in recorder.events


def test_failure_in_a_told_message_stops_the_actor_and_calls_on_failure(recorder: Any) -> None:
    address = start_actor(recorder, crashed=recorder.crashed)
    error = ZeroDivisionError()
    address.tell(error)
    assert recorder.ended.wait(PATIENCE_S)
    assert not address.alive
    assert pykka.ActorRegistry.get_by_urn(address.ref.actor_urn) is None
    assert recorder.events == [
        "on_start",
        error,
        ("on_failure", ZeroDivisionError),
        ("crashed", "Recorder", error),
    ]


def test_failure_in_on_start_stops_the_actor_without_on_failure(runtime: Runtime) -> None:
    class Broken(Recorder):
        def on_start(self) -> None:
            super().on_start()
            raise ZeroDivisionError

    ref = runtime.of(Broken).start()
    eventually(lambda: not ref.is_alive())
    assert pykka.ActorRegistry.get_by_urn(ref.actor_urn) is None


def test_failure_in_on_stop_is_reported_and_the_stop_is_still_answered(runtime: Runtime) -> None:
    class Broken(Recorder):
        def on_stop(self) -> None:
            raise KeyboardInterrupt

    actor = runtime.of(Broken)()
    address = start_actor(actor, crashed=actor.crashed)
    assert address.ref.stop() is True
    assert actor.ended.wait(PATIENCE_S)
    assert [event[:2] for event in actor.events[1:]] == [("crashed", "Broken")]


def test_failure_in_on_failure_does_not_hide_the_first_one(runtime: Runtime) -> None:
    class Broken(Recorder):
        def on_failure(self, exception_type: Any, exception_value: Any, traceback: Any) -> None:
            raise LookupError

    actor = runtime.of(Broken)()
    address = start_actor(actor, crashed=actor.crashed)
    error = ZeroDivisionError()
    address.tell(error)
    assert actor.ended.wait(PATIENCE_S)
    assert actor.events[-1] == ("crashed", "Broken", error)


def test_registry_broadcasts_and_stops_all(runtime: Runtime) -> None:
    actors = [runtime.of(Recorder)() for _ in range(3)]
    for actor in actors:
        start_actor(actor)
    pykka.ActorRegistry.broadcast("to all", "Recorder")
    assert pykka.ActorRegistry.stop_all(timeout=PATIENCE_S) == [True, True, True]
    assert [actor.events for actor in actors] == [["on_start", "to all", "on_stop"]] * 3


def test_proxy_calls_reads_and_writes(runtime: Runtime) -> None:
    class Counter(Recorder):
        value = 0

        def add(self, number: int) -> int:
            self.value += number
            return self.value

    proxy = runtime.of(Counter).start().proxy()
    assert proxy.add(2).get(timeout=PATIENCE_S) == 2
    proxy.value = 40
    assert proxy.add(2).get(timeout=PATIENCE_S) == 42
    assert proxy.value.get(timeout=PATIENCE_S) == 42


# --- what we promise beyond Pykka ---


def test_start_actor_raises_what_on_start_raised_and_reports_it_to_nobody_else(
    runtime: Runtime,
) -> None:
    error = ZeroDivisionError("the original")

    class Broken(Recorder):
        def on_start(self) -> None:
            raise error

    actor = runtime.of(Broken)()
    with pytest.raises(ZeroDivisionError) as caught:
        start_actor(actor, crashed=actor.crashed)
    assert caught.value is error
    assert not actor.actor_ref.is_alive()
    assert not actor.ended.is_set()


def test_failed_start_that_nobody_waits_for_is_a_crash(runtime: Runtime) -> None:
    class Broken(Recorder):
        def on_start(self) -> None:
            raise ZeroDivisionError

    actor = runtime.of(Broken)()
    start_actor(actor, crashed=actor.crashed, within_s=None)
    assert actor.ended.wait(PATIENCE_S)


def test_slow_start_is_given_up_and_the_actor_stops_when_it_is_done(runtime: Runtime) -> None:
    gate = threading.Event()

    class Slow(Recorder):
        def on_start(self) -> None:
            gate.wait()

    actor = runtime.of(Slow)()
    with pytest.raises(UnavailableError, match="Slow did not start within"):
        start_actor(actor, within_s=0.01)
    gate.set()
    eventually(lambda: actor.events == ["on_stop"])


def test_stop_actor_says_whether_it_stopped_in_time(recorder: Any) -> None:
    address = start_actor(recorder)
    gate = threading.Event()
    address.tell(gate.wait)
    assert stop_actor(address, 0.01) is False
    gate.set()
    assert stop_actor(address, PATIENCE_S) is True


def test_base_exception_ends_one_actor_and_no_other(runtime: Runtime) -> None:
    first, second = runtime.of(Recorder)(), runtime.of(Recorder)()
    start_actor(first, crashed=first.crashed)
    neighbour = start_actor(second)
    first.address.tell(SystemExit())
    assert first.ended.wait(PATIENCE_S)
    assert first.events[2] == ("on_failure", SystemExit)
    settle(neighbour)
    assert neighbour.alive


def test_asked_base_exception_is_answered_and_ends_the_actor(recorder: Any) -> None:
    address = start_actor(recorder, crashed=recorder.crashed)
    with pytest.raises(SystemExit):
        address.ref.ask(SystemExit(), timeout=PATIENCE_S)
    assert recorder.ended.wait(PATIENCE_S)
    assert not address.alive


def test_bus_error_is_answered_through_the_message_and_the_actor_lives_on(
    runtime: Runtime,
) -> None:
    address = start_actor(runtime.of(AskedActor)())
    reply = FutureReply()
    address.tell(Asked(NotFoundError("no such channel"), reply))
    with pytest.raises(NotFoundError):
        reply.get(PATIENCE_S)
    settle(address)
    assert address.alive


def test_bus_error_that_nobody_asked_for_is_a_failure(recorder: Any) -> None:
    address = start_actor(recorder, crashed=recorder.crashed)
    address.tell(NotFoundError("for whom?"))
    assert recorder.ended.wait(PATIENCE_S)


def test_other_failure_is_answered_as_internal_and_ends_the_actor(runtime: Runtime) -> None:
    actor = runtime.of(AskedActor)()
    address = start_actor(actor, crashed=actor.crashed)
    reply = FutureReply()
    address.tell(Asked(ZeroDivisionError("secret"), reply))
    with pytest.raises(InternalError) as caught:
        reply.get(PATIENCE_S)
    assert "secret" not in str(caught.value)
    assert actor.ended.wait(PATIENCE_S)


def test_reply_that_refuses_the_answer_does_not_end_the_actor(runtime: Runtime) -> None:
    address = start_actor(runtime.of(AskedActor)())
    reply = FutureReply()
    reply.set("already answered")
    address.tell(Asked(NotFoundError("too late"), reply))
    settle(address)
    assert address.alive


def test_failing_crash_report_is_survived(runtime: Runtime) -> None:
    def crashed(name: str, error: BaseException) -> None:
        raise LookupError

    address = start_actor(runtime.of(Recorder)(), crashed=crashed)
    address.tell(ZeroDivisionError())
    eventually(lambda: not address.alive)
    settle(start_actor(runtime.of(Recorder)()))


def test_log_of_a_failure_names_types_and_frames_but_no_content(
    recorder: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")  # Pykka's own debug lines must not say more either
    records = LogRecords()
    logging.getLogger().addHandler(records)
    try:
        address = start_actor(recorder, crashed=recorder.crashed)

        def fail() -> None:
            try:
                raise ValueError("content one")
            except ValueError as error:
                raise LookupError("content two") from error

        address.tell(fail)
        assert recorder.ended.wait(PATIENCE_S)
    finally:
        logging.getLogger().removeHandler(records)
    text = "\n".join(records.texts)
    assert "Recorder failed: LookupError" in text
    assert "because of ValueError" in text
    assert "test_base.py" in text
    assert "content" not in text


def test_description_of_a_failure_ends_even_if_its_causes_form_a_ring() -> None:
    first, second = ValueError(), LookupError()
    first.__cause__, second.__cause__ = second, first
    assert describe_failure(first) == "ValueError\nbecause of LookupError"


def test_label_tells_actors_of_a_class_apart(recorder: Any) -> None:
    address = start_actor(recorder, label="7")
    assert address.name == "Recorder-7"
    assert "Recorder-7" in repr(address)
    assert address.statistics().name == "Recorder-7"


def test_addresses_of_one_actor_are_equal_and_hash_alike(runtime: Runtime) -> None:
    one, other = runtime.of(Recorder)(), runtime.of(Recorder)()
    address = start_actor(one)
    start_actor(other)
    assert address == one.address
    assert hash(address) == hash(one.address)
    assert address != other.address
    assert {address: 1}[one.address] == 1
    assert not hasattr(address, "__dict__")


def test_statistics_are_read_while_the_actor_is_busy(recorder: Any) -> None:
    address = start_actor(recorder)
    entered, gate = threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        gate.wait()

    address.tell(hold)
    assert entered.wait(PATIENCE_S)
    address.tell("waiting")
    busy = address.statistics()
    assert (busy.alive, busy.busy, busy.mailbox_length, busy.processed) == (True, True, 1, 0)
    gate.set()
    eventually(lambda: not address.statistics().busy and address.statistics().processed == 2)
    assert address.statistics().mailbox_length == 0


def test_actor_sees_when_its_mailbox_is_empty(recorder: Any) -> None:
    seen: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def look() -> None:
        seen.put(recorder.mailbox_is_empty())

    for _ in range(3):
        recorder.actor_ref.tell(look)
    start_actor(recorder)
    assert [seen.get(timeout=PATIENCE_S) for _ in range(3)] == [False, False, True]


def test_threaded_actor_runs_on_a_thread_with_its_name() -> None:
    class Named(Recorder, BusActor[object]):
        pass

    actor = Named()
    address = start_actor(actor, label="x")
    address.tell("hello")
    stop_actor(address, PATIENCE_S)
    assert actor.threads == {"Named-x"}


def test_future_reply_gives_the_value_or_raises_the_error() -> None:
    value, error = FutureReply(), FutureReply()
    value.set(7)
    error.set_exception(NotFoundError("nothing"))
    assert value.get(PATIENCE_S) == 7
    with pytest.raises(NotFoundError):
        error.get(PATIENCE_S)
    with pytest.raises(TimeoutError):
        FutureReply().get(0.01)
