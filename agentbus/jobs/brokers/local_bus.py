"""Jobs over the bus of this user: one channel per job, kept as messages are.

Owns the connections of one emitter or one reader to the daemon, which it starts if none runs. An
event is handed over when the daemon has committed it. One emitter lives at a time: its session is
named by the job, and one that died is replaced at once. The caller's thread; one more while a job
listens for its cancel.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from agentbus import __version__
from agentbus.config import default_path
from agentbus.encoding import encode, raw
from agentbus.errors import (
    BusError,
    ConflictError,
    JobClosedError,
    StaleAttachmentError,
    TooLargeError,
    ValidationError,
)
from agentbus.jobs.brokers.base import LOOK_S
from agentbus.jobs.errors import DeliveryRefusedError, SinkError
from agentbus.launch import ensure_daemon
from agentbus.limits import (
    IN_FLIGHT_PER_ATTACHMENT,
    JOB_APPLICATION,
    JOB_EVENTS_MAX,
    JOB_REASON_CHARACTERS,
    JOBS_AGENT,
    PROTOCOL_VERSION,
)
from agentbus.protocol.jobs import JobCallback
from agentbus.transport.client import Asked, Client, NoAnswerError
from agentbus.transport.singleton import runtime_directory

SCHEME: Final = "agentbus"
START_S: Final = 10.0
ANSWER_S: Final = 10.0
AHEAD_MAX: Final = IN_FLIGHT_PER_ATTACHMENT - 1
"""With the event that is handed over next as many as the daemon takes from one attachment."""

PUBLISH_S: Final = 30.0
"""An event is repeated for so long, through a restart of the daemon too."""

LISTEN_MS: Final = 20_000
"""How long one request for a cancel waits."""

_URL: Final = re.compile(SCHEME + r":(/(?!/)[^?]*)?(?:\?ahead=([0-9]{1,3}))?")
_PAUSE_S: Final = 0.05
_PAUSE_MAX_S: Final = 1.0


@dataclass(slots=True)
class _Sent:
    """An event that is not acknowledged. `before`: the one that must be there; any if None.

    `asked` is there while it is on its way.
    """

    seq: int
    event: bytes
    before: int | None
    asked: Asked | None = None


class BusTransport:
    """A client of `agentbus:`, or `agentbus:PATH` with the configuration to start a daemon with.

    With `?ahead=N` behind it up to N events are on their way while the emitter goes on. They come
    in order, or none after the one that could not be kept; a later `publish` then says so. The
    terminal event is handed over when all are.
    """

    def __init__(self, url: str, callback: JobCallback | None = None) -> None:
        """`callback`: where the bus posts the events of this emitter's job."""
        found = _URL.fullmatch(url)
        if found is None or int(found[2] or 0) > AHEAD_MAX:
            raise ValidationError(
                f"the URL of the local bus is {SCHEME}: alone, or with the whole path of a "
                f"configuration file behind it, then ?ahead=N up to {AHEAD_MAX}, not {url[:80]!r}"
            )
        self._config_path = Path(found[1]) if found[1] else default_path()
        self._ahead = int(found[2] or 0)
        self._on_their_way: deque[_Sent] = deque()
        self._callback = None if callback is None else callback.as_data()
        self._emitter: tuple[Client, list[Any]] | None = None
        self._cancelled: Callable[[str], None] | None = None
        self._stop = threading.Event()
        self._listening: Client | None = None
        self._listeners: list[threading.Thread] = []

    def publish(self, job_id: str, seq: int, event: bytes, *, is_terminal: bool) -> None:
        before = self._on_their_way[-1].seq if self._on_their_way else None
        self._on_their_way.append(_Sent(seq, event, before))
        allowed = 0 if is_terminal else self._ahead
        deadline_s, pause_s = time.monotonic() + PUBLISH_S, _PAUSE_S
        while True:
            try:
                self._emit(job_id, allowed)
                return
            except BusError as error:
                first = self._on_their_way[0].seq
                is_over = time.monotonic() >= deadline_s
                self._call_back()
                if is_over or not error.retryable:
                    self._on_their_way.clear()
                if not error.retryable:
                    raise _refused(error, first) from None
                if is_over:
                    raise SinkError(
                        f"the bus did not keep event {first}: {error.message}"
                    ) from None
                if isinstance(error, NoAnswerError | StaleAttachmentError):
                    self._leave()
                asked_s = (error.retry_after_ms or 0) / 1000
                time.sleep(asked_s or pause_s)
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    def has_begun(self, job_id: str) -> bool:
        asked = {"job_id": job_id, "count": 1}
        deadline_s = time.monotonic() + START_S
        while True:
            try:
                with self._connect() as client:
                    answer = client.request("job_events", asked, ANSWER_S)
            except BusError as error:
                if not error.retryable:
                    raise _refused(error, 0) from None
                if time.monotonic() >= deadline_s:
                    raise SinkError(f"the bus did not show the job: {error.message}") from None
                time.sleep(_PAUSE_S)
            else:
                return bool(answer["events"] or answer["closed"])

    def follow(self, job_id: str, from_seq: int, stop: threading.Event) -> Iterator[bytes]:
        with closing(_Reader(self._connect, job_id, from_seq)) as reader:
            while not stop.is_set():
                yield from reader.read(stop)

    def cancel(self, job_id: str, reason: str) -> None:
        asked = {"job_id": job_id, "reason": reason[:JOB_REASON_CHARACTERS] or "cancelled"}
        try:
            with self._connect() as client:
                client.request("job_cancel", {**asked, "ahead": True}, ANSWER_S)
        except BusError as error:
            raise SinkError(f"the bus did not keep the cancel: {error.message}") from None

    def listen(self, job_id: str, cancelled: Callable[[str], None]) -> None:
        self._cancelled = cancelled
        thread = threading.Thread(
            target=self._listen, args=(job_id, cancelled), name="job control", daemon=True
        )
        self._listeners.append(thread)
        thread.start()

    def close(self) -> None:
        self._stop.set()
        listening = self._listening
        if listening is not None:
            listening.interrupt()
        for thread in self._listeners:
            thread.join(LOOK_S)
        self._leave()

    def _connect(self) -> Client:
        paths = runtime_directory(os.environ, os.getuid())
        client = ensure_daemon(paths, self._config_path, deadline_s=START_S)
        try:
            hello = {"protocol": PROTOCOL_VERSION, "version": __version__, "pid": os.getpid()}
            client.request("hello", hello, ANSWER_S)
        except BaseException:
            client.close()
            raise
        return client

    def _emit(self, job_id: str, allowed: int) -> None:
        """Send what was not sent, and wait until no more than so many are not acknowledged."""
        if self._emitter is None:
            self._emitter = self._attach(job_id)
        client, attachment = self._emitter
        for sent in self._on_their_way:
            if sent.asked is None:
                frame: dict[str, Any] = {"attachment": attachment, "event": raw(sent.event)}
                if self._callback is not None:
                    frame["callback"] = self._callback
                if sent.before is not None:
                    frame["after"] = sent.before
                sent.asked = client.begin("job_event", frame, ANSWER_S)
        while len(self._on_their_way) > allowed:
            asked = self._on_their_way[0].asked
            assert asked is not None
            answer = client.finish(asked, ANSWER_S)
            self._on_their_way.popleft()
            if self._cancelled is not None and "cancel" in answer:
                self._cancelled(answer["cancel"])

    def _call_back(self) -> None:
        """Everything that is not acknowledged has to be sent again, in order."""
        for sent in self._on_their_way:
            if sent.asked is not None and self._emitter is not None:
                self._emitter[0].give_up(sent.asked)
            sent.asked = None

    def _attach(self, job_id: str) -> tuple[Client, list[Any]]:
        client = self._connect()
        try:
            frame = {
                "agent": JOBS_AGENT,
                "application": JOB_APPLICATION,
                "conversation": job_id,
                "identity_source": "argument",
                "window_messages": 1,
                "window_bytes": 1,
                "presence": False,
            }
            facts = client.request("attach", frame, ANSWER_S)
        except BaseException:
            client.close()
            raise
        return client, [facts["session_id"], facts["generation"]]

    def _leave(self) -> None:
        if self._emitter is not None:
            self._emitter[0].close()
            self._emitter = None

    def _listen(self, job_id: str, cancelled: Callable[[str], None]) -> None:
        asked = {"job_id": job_id, "wait_ms": LISTEN_MS}
        while not self._stop.is_set():
            try:
                with self._connect() as client:
                    self._listening = client
                    while not self._stop.is_set():
                        answer = client.request(
                            "job_await_cancel", asked, LISTEN_MS / 1000 + ANSWER_S
                        )
                        if answer["cancel"] is not None:
                            cancelled(answer["cancel"])
                        if answer["cancel"] is not None or answer["closed"]:
                            return
            except BusError:
                self._stop.wait(LOOK_S)  # no cancel comes from a bus that has gone


class _Reader:
    """A job from a sequence on, over one connection after the other."""

    def __init__(self, connect: Callable[[], Client], job_id: str, from_seq: int) -> None:
        self._connect = connect
        self._job_id = job_id
        self._next_seq = from_seq
        self._client: Client | None = None
        self._answered_s = time.monotonic()

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def read(self, stop: threading.Event) -> list[bytes]:
        """What has come; none after a moment without any."""
        asked = {
            "job_id": self._job_id,
            "from": self._next_seq,
            "count": JOB_EVENTS_MAX,
            "wait_ms": int(LOOK_S * 1000),
        }
        try:
            if self._client is None:
                self._client = self._connect()
            answer = self._client.request("job_events", asked, LOOK_S + ANSWER_S)
        except BusError as error:
            self.close()
            if not error.retryable:
                raise _refused(error, self._next_seq) from None
            if time.monotonic() >= self._answered_s + PUBLISH_S:
                raise SinkError(f"the bus did not show the job: {error.message}") from None
            stop.wait(_PAUSE_S)
            return []
        self._answered_s = time.monotonic()
        self._next_seq = answer["next"]
        if answer["closed"] and not answer["events"]:
            stop.wait(LOOK_S)  # nothing more will come
        return [encode(event) for event in answer["events"]]


def _refused(error: BusError, seq: int) -> BusError:
    """What no repeat helps against, as an emitter or a reader can meet it."""
    if isinstance(error, ConflictError | JobClosedError | ValidationError | TooLargeError):
        return error
    return DeliveryRefusedError(f"the bus refused event {seq}: {error.message}")
