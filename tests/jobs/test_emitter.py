"""The emitter: numbers, times, one end, redaction before cutting, cancels."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import pytest

from agentbus.errors import BusError, ConflictError, JobClosedError, TooLargeError, ValidationError
from agentbus.jobs import Cancellation, JobCancelledError, JobEmitter, SinkError
from agentbus.jobs.events import RESULT_BYTES, Event, Failed, Succeeded, Warned, is_terminal
from agentbus.jobs.text import ELLIPSIS, REDACTED
from tests.clock import FakeClock
from tests.eventually import eventually

SECRET = "sk-" + "a" * 20

Emitter: TypeAlias = JobEmitter[Any, Any, Any]


class KeepingSink:
    """Keeps what it is given; fails where a test says so."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.fails_at: set[int] = set()
        self.closed = 0

    def emit(self, event: Event) -> None:
        self.events.append(event)
        if event.seq in self.fails_at:
            raise SinkError("nobody knows")

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def sink() -> KeepingSink:
    return KeepingSink()


def test_events_are_numbered_from_0_and_carry_the_time(sink: KeepingSink, clock: FakeClock) -> None:
    job: JobEmitter[list[int], Literal["extract"], Literal["general"]]
    with JobEmitter(sink, "j", clock=clock) as job:
        job.accepted("https://example.com")
        clock.advance(0.25)
        job.progress("extract", pct=50)
        job.warning("w")
        job.succeeded([1])
    assert [event.seq for event in sink.events] == [0, 1, 2, 3]
    assert [event.TYPE for event in sink.events] == ["accepted", "progress", "warning", "succeeded"]
    assert {event.job_id for event in sink.events} == {"j"}
    assert sink.events[0].ts == "2027-01-15T08:00:00.000Z"
    assert sink.events[1].ts == "2027-01-15T08:00:00.250Z"
    assert sink.closed == 1


def test_nothing_comes_after_the_terminal_event(sink: KeepingSink) -> None:
    job: Emitter = JobEmitter(sink, "j")
    job.accepted("u")
    job.failed("general", "over")
    for again in (
        lambda: job.succeeded(1),
        lambda: job.failed("general", "again"),
        lambda: job.progress("s"),
        lambda: job.warning("w"),
        lambda: job.accepted("u"),
    ):
        with pytest.raises(JobClosedError):
            again()
    assert len(sink.events) == 2


def end(job: Emitter, ready: threading.Barrier, number: int) -> Event:
    ready.wait()
    return job.succeeded(number) if number % 2 else job.failed("general", "f")


def test_of_many_ends_at_once_exactly_one_is_emitted() -> None:
    for _ in range(20):
        sink = KeepingSink()
        job: Emitter = JobEmitter(sink, "j")
        job.accepted("u")
        ready = threading.Barrier(8)

        with ThreadPoolExecutor(8) as pool:
            ends = [pool.submit(end, job, ready, number) for number in range(8)]
        refused = [end for end in ends if isinstance(end.exception(), JobClosedError)]
        assert [is_terminal(event) for event in sink.events] == [False, True]
        assert len(refused) == 7


def test_threads_share_one_order_without_holes(sink: KeepingSink) -> None:
    job: Emitter = JobEmitter(sink, "j")
    job.accepted("u")
    threads = [
        threading.Thread(target=lambda: [job.progress("s") for _ in range(200)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [event.seq for event in sink.events] == list(range(801))


def test_the_first_event_is_accepted_or_failed(sink: KeepingSink) -> None:
    job: Emitter = JobEmitter(sink, "j")
    with pytest.raises(ValidationError):
        job.progress("s")
    with pytest.raises(ValidationError):
        job.succeeded(1)
    job.accepted("u")
    with pytest.raises(ConflictError):
        job.accepted("u")
    other: Emitter = JobEmitter(sink, "k")
    assert other.failed("usage", "no URL was given").seq == 0


def test_a_refused_event_uses_up_no_sequence_and_ends_nothing(sink: KeepingSink) -> None:
    job: Emitter = JobEmitter(sink, "j")
    job.accepted("u")
    for refused in (
        lambda: job.progress("s", pct=100.1),
        lambda: job.progress("s", pct=float("nan")),
        lambda: job.progress(""),
        lambda: job.succeeded(object()),
        lambda: job.succeeded("x" * RESULT_BYTES),
    ):
        with pytest.raises((ValidationError, TooLargeError)):
            refused()
    assert job.succeeded(1).seq == 1


def test_a_sequence_that_a_sink_has_seen_is_never_used_again(sink: KeepingSink) -> None:
    job: Emitter = JobEmitter(sink, "j")
    sink.fails_at = {1}
    job.accepted("u")
    with pytest.raises(SinkError):
        job.progress("s")
    assert job.progress("s").seq == 2


@pytest.mark.parametrize("refusal", [TooLargeError("too large"), ValidationError("unfit")])
def test_a_job_whose_result_its_sink_cannot_take_still_ends_with_a_failure(
    sink: KeepingSink, monkeypatch: pytest.MonkeyPatch, refusal: BusError
) -> None:
    def emit(event: Event) -> None:
        if isinstance(event, Succeeded):
            raise refusal
        sink.events.append(event)

    monkeypatch.setattr(sink, "emit", emit)
    job: Emitter = JobEmitter(sink, "j")
    job.accepted("u")
    with pytest.raises(type(refusal)), job:
        job.succeeded("large")
    end = sink.events[-1]
    assert isinstance(end, Failed)
    assert (end.seq, end.code) == (1, "general")
    assert refusal.message in end.message


def test_text_is_redacted_and_then_cut(sink: KeepingSink) -> None:
    job: Emitter = JobEmitter(sink, "j")
    assert job.accepted(f"https://user:{SECRET}@example.com/").url == (
        f"https://{REDACTED}@example.com/"
    )
    progress = job.progress("s", message="x" * 490 + " " + SECRET)
    assert progress.message == ("x" * 490 + " " + REDACTED)[:499] + ELLIPSIS
    assert job.warning("y" * 501).message == "y" * 499 + ELLIPSIS
    failed = job.failed("general", f"{SECRET} " + "z" * 2000)
    assert failed.message.startswith(f"{REDACTED} zzz")
    assert len(failed.message) == 2000


@dataclass(frozen=True)
class Typed:
    key: str


def test_a_result_is_redacted_only_when_asked_for(sink: KeepingSink) -> None:
    plain: Emitter = JobEmitter(sink, "j")
    plain.accepted("u")
    assert plain.succeeded({"key": SECRET}).result == {"key": SECRET}
    careful: Emitter = JobEmitter(sink, "k", redact_results=True)
    careful.accepted("u")
    assert careful.succeeded({"key": [SECRET]}).result == {"key": [REDACTED]}
    typed: Emitter = JobEmitter(sink, "l", redact_results=True)
    typed.accepted("u")
    assert typed.succeeded(Typed(SECRET)).result == {"key": REDACTED}


def test_a_tool_may_have_a_redactor_of_its_own(sink: KeepingSink) -> None:
    job: Emitter = JobEmitter(sink, "j", redactor=lambda text: text.replace("plum", "fruit"))
    job.accepted("u")
    assert job.warning("a plum").message == "a fruit"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError("bad"), "general"),
        (JobCancelledError("enough"), "cancelled"),
        (KeyboardInterrupt(), "cancelled"),
        (SystemExit(3), "general"),
    ],
)
def test_an_exception_in_the_tool_ends_the_job_and_goes_on(
    sink: KeepingSink, error: BaseException, code: str
) -> None:
    with pytest.raises(type(error)):
        raise_inside(sink, error)
    end = sink.events[-1]
    assert isinstance(end, Failed)
    assert end.code == code
    assert sink.closed == 1


def raise_inside(sink: KeepingSink, error: BaseException) -> None:
    job: Emitter
    with JobEmitter(sink, "j") as job:
        job.accepted("u")
        raise error


def test_a_tool_that_just_leaves_has_failed(sink: KeepingSink) -> None:
    job: Emitter
    with JobEmitter(sink, "j") as job:
        job.accepted("u")
    assert isinstance(sink.events[-1], Failed)


def test_the_tools_own_exception_survives_a_sink_that_fails(sink: KeepingSink) -> None:
    sink.fails_at = {1}
    with pytest.raises(ValueError, match="the cause"):
        raise_inside(sink, ValueError("the cause"))
    assert sink.closed == 1


def test_an_end_that_nobody_heard_is_an_error_of_its_own(sink: KeepingSink) -> None:
    sink.fails_at = {1}
    job: Emitter = JobEmitter(sink, "j")
    job.accepted("u")
    with pytest.raises(SinkError), job:
        job.succeeded(1)
    assert sink.closed == 1
    assert isinstance(sink.events[-1], Succeeded)


def test_nothing_is_emitted_by_a_closed_emitter(sink: KeepingSink) -> None:
    job: Emitter = JobEmitter(sink, "j")
    job.accepted("u")
    job.close()
    job.close()
    assert sink.closed == 1
    with pytest.raises(JobClosedError):
        job.warning("w")


@pytest.mark.parametrize("job_id", ["", "a/b", "a b", "x" * 125])
def test_a_job_without_a_usable_id_does_not_begin(sink: KeepingSink, job_id: str) -> None:
    with pytest.raises(BusError):
        JobEmitter(sink, job_id)


def test_the_first_request_to_cancel_is_the_one_that_counts() -> None:
    cancellation = Cancellation()
    cancellation.check()
    assert not cancellation.is_requested
    assert not cancellation.wait(0)
    cancellation.request("first")
    cancellation.request("second")
    with pytest.raises(JobCancelledError, match="first"):
        cancellation.check()


def test_sigterm_asks_also_while_the_tool_waits() -> None:
    before = signal.getsignal(signal.SIGTERM)
    cancellation = Cancellation()
    try:
        cancellation.on_signal()
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
        assert cancellation.wait(30)
    finally:
        signal.signal(signal.SIGTERM, before)
    with pytest.raises(JobCancelledError, match="SIGTERM"):
        cancellation.check()


def test_the_emitter_gives_back_what_it_emitted(sink: KeepingSink) -> None:
    job: Emitter = JobEmitter(sink, "j")
    emitted = [job.accepted("u"), job.progress("s"), job.warning("w"), job.succeeded(None)]
    assert emitted == sink.events
    assert isinstance(emitted[2], Warned)
    assert job.terminal == eventually(lambda: sink.events[-1])
