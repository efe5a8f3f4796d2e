"""The one way in which a tool speaks about its job.

Owns the sequence, the times, the rule of one terminal event, and that text is redacted before it is
cut. Knows nothing of where the events go. Any thread may call it; the events of all of them are
numbered and handed over one at a time.
"""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

from agentbus.clock import Clock, SystemClock
from agentbus.errors import ConflictError, JobClosedError, TooLargeError, ValidationError
from agentbus.jobs.errors import JobCancelledError
from agentbus.jobs.events import (
    CANCELLED,
    FAILURE_BYTES,
    FAILURE_CHARACTERS,
    MESSAGE_BYTES,
    MESSAGE_CHARACTERS,
    Accepted,
    ArtifactRef,
    Event,
    Failed,
    Progress,
    Succeeded,
    Warned,
    check_job_id,
    encode_event,
    is_terminal,
    plain_result,
    timestamp,
)
from agentbus.jobs.sinks.base import Sink
from agentbus.jobs.text import Redactor, clip, redact, redact_json

ResultT = TypeVar("ResultT")
StageT = TypeVar("StageT", bound=str)
CodeT = TypeVar("CodeT", bound=str)
_EventT = TypeVar("_EventT", Accepted, Progress, Warned, Succeeded, Failed)

GENERAL: Final = "general"
"""Code of a failure that the tool did not expect."""


class Cancellation:
    """Whether the parent wants the job to end. Asked from any thread, set from any other."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._reason = ""

    def request(self, reason: str = "the parent asked for it") -> None:
        """Ask; the first reason stays."""
        if not self._asked.is_set():
            self._reason = reason
            self._asked.set()

    @property
    def is_requested(self) -> bool:
        return self._asked.is_set()

    def wait(self, within_s: float) -> bool:
        """Wait up to so long for a request; whether there is one."""
        return self._asked.wait(within_s)

    def on_signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Let a signal ask, too; where a handler can be set, which is on the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return
        # The one thing that a handler may do whatever it interrupts, be it `wait` or itself.
        arrived: queue.SimpleQueue[None] = queue.SimpleQueue()
        signal.signal(number, lambda *_: arrived.put(None))

        def ask() -> None:
            arrived.get()
            self.request(f"signal {number.name}")

        threading.Thread(target=ask, name="signal", daemon=True).start()

    def check(self) -> None:
        """Raises JobCancelledError when it was requested."""
        if self._asked.is_set():
            raise JobCancelledError(self._reason)


class JobEmitter(Generic[ResultT, StageT, CodeT]):
    """Emits the events of one job.

    As a context manager it also ends the job: an exception becomes `failed` with the code
    `general` (or `cancelled`), and so does an end without a terminal event. The exception goes on.

        emitter: JobEmitter[Recipe, Stage, Code]
        with JobEmitter(sink, job_id) as job:
            job.accepted(url)
            job.progress("extract", pct=50)
            job.succeeded(recipe)
    """

    def __init__(
        self,
        sink: Sink,
        job_id: str,
        *,
        redactor: Redactor = redact,
        redact_results: bool = False,
        cancellation: Cancellation | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`redact_results`: also every text inside the result, names of its fields too."""
        self.job_id = check_job_id(job_id)
        self.cancellation = cancellation or Cancellation()
        self._sink = sink
        self._redactor = redactor
        self._redact_results = redact_results
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._next_seq = 0
        self._terminal: Event | None = None
        self._is_closed = False

    @property
    def terminal(self) -> Event | None:
        """The event that ended the job, once somebody has begun to hand it over."""
        return self._terminal

    def accepted(self, url: str) -> Accepted:
        """The job has begun. First, once. Credentials inside the URL are redacted."""
        return self._emit(
            lambda seq, ts: Accepted(job_id=self.job_id, seq=seq, ts=ts, url=self._redactor(url))
        )

    def progress(
        self, stage: StageT, pct: float | None = None, message: str | None = None
    ) -> Progress:
        """Where the work is; `pct` is 0 to 100."""
        text = None if message is None else self._message(message)
        return self._emit(
            lambda seq, ts: Progress(
                job_id=self.job_id, seq=seq, ts=ts, stage=stage, pct=pct, message=text
            )
        )

    def warning(self, message: str) -> Warned:
        """Something a person should know."""
        text = self._message(message)
        return self._emit(lambda seq, ts: Warned(job_id=self.job_id, seq=seq, ts=ts, message=text))

    def succeeded(self, result: ResultT, artifacts: Sequence[ArtifactRef] = ()) -> Succeeded:
        """The end, with the result: any JSON up to 1 MiB, larger things as artifacts."""
        value: Any = result
        if self._redact_results:
            value = redact_json(plain_result(result), self._redactor)
        return self._emit(
            lambda seq, ts: Succeeded(
                job_id=self.job_id, seq=seq, ts=ts, result=value, artifacts=tuple(artifacts)
            )
        )

    def failed(self, code: CodeT, message: str) -> Failed:
        """The end, and why; also possible before `accepted`."""
        return self._fail(code, message)

    def close(self) -> None:
        """Close the sink. Once is enough, again is harmless."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._sink.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self._terminal is None:
                self._end(error)
        finally:
            self.close()

    def _end(self, error: BaseException | None) -> None:
        try:
            if error is None:
                self._fail(GENERAL, "the tool ended without a result")
            elif isinstance(error, JobCancelledError):
                self._fail(CANCELLED, str(error))
            elif isinstance(error, KeyboardInterrupt):
                self._fail(CANCELLED, "interrupted")
            else:
                self._fail(GENERAL, f"{type(error).__name__}: {error}")
        except Exception:
            if error is None:
                raise
            # What ended the tool is worth more to its log than that nobody could be told.

    def _fail(self, code: str, message: str) -> Failed:
        text = clip(self._redactor(message), FAILURE_CHARACTERS, FAILURE_BYTES)
        return self._emit(
            lambda seq, ts: Failed(job_id=self.job_id, seq=seq, ts=ts, code=code, message=text)
        )

    def _message(self, message: str) -> str:
        return clip(self._redactor(message), MESSAGE_CHARACTERS, MESSAGE_BYTES)

    def _emit(self, make: Callable[[int, str], _EventT]) -> _EventT:
        """Check, then hand over. A sequence is used up once the sink has seen it, as the other side
        may have the event then; not by one that it cannot take, so a job can still say that."""
        with self._lock:
            event = make(self._next_seq, timestamp(self._clock.wall_us()))
            self._check_order(event)
            encode_event(event)
            self._next_seq += 1
            if is_terminal(event):
                self._terminal = event
            try:
                self._sink.emit(event)
            except (ValidationError, TooLargeError):
                self._next_seq, self._terminal = event.seq, None
                raise
            return event

    def _check_order(self, event: Event) -> None:
        if self._is_closed:
            raise JobClosedError(f"the emitter of job {self.job_id} is closed")
        if self._terminal is not None:
            raise JobClosedError(
                f"job {self.job_id} has ended with {self._terminal.TYPE}; nothing comes after that"
            )
        if isinstance(event, Accepted) and event.seq > 0:
            raise ConflictError(f"job {self.job_id} was accepted before; once is all")
        if event.seq == 0 and not isinstance(event, Accepted | Failed):
            raise ValidationError("the first event of a job is accepted (or failed)")
