"""How the events of a tool that a parent started come back to it: one feed per kind of sink.

Owns what is read from: a pipe, a file, an HTTP server, a broker. Each feed says what its tool's
environment must hold, then puts what comes into the inbox, on a thread of its own. Judges nothing.
"""

from __future__ import annotations

import os
import secrets
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import IO, Final, Protocol

from agentbus.errors import BusError, ConflictError, ValidationError
from agentbus.jobs.brokers import SCHEMES, open_transport
from agentbus.jobs.events import EVENT_BYTES, Failed, decode_event, encode_event
from agentbus.jobs.inbox import JobInbox
from agentbus.jobs.sinks.file import end_of_lines

POLL_S: Final = 0.02
"""How often a file is looked at."""

SETTLE_S: Final = 2.0
"""How long after its end a tool's next event may be on its way."""


class Feed(Protocol):
    """From one tool to one inbox."""

    environment: Mapping[str, str]
    """Suffixes and values of the variables that the tool is to be started with."""

    reads_stdout: bool
    """Whether the tool's standard output carries events; else it is a log."""

    def start(self) -> None:
        """Begin to read, before the tool begins to write."""
        ...

    def attach(self, stdout: IO[bytes]) -> None:
        """The tool's standard output; called where `reads_stdout`."""
        ...

    def finish(self) -> None:
        """The tool has ended: take what it left, until nothing comes for `SETTLE_S`, then stop."""
        ...

    def cancel(self) -> bool:
        """Tell the tool to end, where the feed has a way back; whether it has."""
        ...

    def lost(self, event: Failed) -> None:
        """After `finish`: the tool left no terminal event. This one is for others who follow."""
        ...


def open_feed(sink: str, inbox: JobInbox, log: Callable[[str], None]) -> Feed:
    """`events`, `file`, `file:PATH`, `callback`, or the URL of a broker. `log` is told lines that
    are no events, and why events were refused."""
    kind, colon, rest = sink.partition(":")
    if kind == "events" and not rest:
        return PipeFeed(inbox, log)
    if kind == "file":
        return FileFeed(inbox, log, Path(rest) if rest else None)
    if kind == "callback" and not rest:
        return CallbackFeed(inbox)
    if colon and kind in SCHEMES:
        return BrokerFeed(inbox, log, sink)
    raise ValidationError(
        f"there is no sink {sink!r}; known are events, file, file:PATH, callback and the URL of a "
        f"broker ({', '.join(SCHEMES)})"
    )


class PipeFeed:
    """The tool's standard output, one event per line."""

    reads_stdout = True

    def __init__(self, inbox: JobInbox, log: Callable[[str], None]) -> None:
        self.environment: Mapping[str, str] = {"TRANSPORT": "events"}
        self._inbox = inbox
        self._log = log
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Nothing to read before there is a tool."""

    def attach(self, stdout: IO[bytes]) -> None:
        self._thread = threading.Thread(
            target=self._read, args=(stdout,), name="job events", daemon=True
        )
        self._thread.start()

    def finish(self) -> None:
        if self._thread is not None:
            settle(self._inbox, _has_ended(self._thread))  # a child may hold the pipe for ever

    def cancel(self) -> bool:
        return False

    def lost(self, event: Failed) -> None:
        """Nobody else reads it."""

    def _read(self, stdout: IO[bytes]) -> None:
        with stdout:
            while line := stdout.readline(EVENT_BYTES + 1):
                _take(line, self._inbox, self._log)


class FileFeed:
    """A file that grows. In one that was named, events of other jobs are passed over."""

    reads_stdout = False

    def __init__(self, inbox: JobInbox, log: Callable[[str], None], path: Path | None) -> None:
        self._is_shared = path is not None
        self._folder = tempfile.TemporaryDirectory(prefix="job-") if path is None else None
        if path is None:
            assert self._folder is not None
            path = Path(self._folder.name) / "events.ndjson"
        self.environment: Mapping[str, str] = {
            "TRANSPORT": "file",
            "EVENTS_PATH": str(path.absolute()),
        }
        self._path = path
        self._inbox = inbox
        self._log = log
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._read, name="job events", daemon=True)
        self._offset = _end_of_lines(path)

    def start(self) -> None:
        self._thread.start()

    def attach(self, stdout: IO[bytes]) -> None:
        """What the tool prints is a log."""

    def finish(self) -> None:
        self._has_ended.set()
        settle(self._inbox, _has_ended(self._thread))
        if self._folder is not None:
            self._folder.cleanup()

    def cancel(self) -> bool:
        return False

    def lost(self, event: Failed) -> None:
        """Nobody else reads it."""

    def _read(self) -> None:
        while True:
            was_last = self._has_ended.is_set()
            self._look()
            if was_last:
                return
            self._has_ended.wait(POLL_S)

    def _look(self) -> None:
        """Every line that is whole, and in pieces what is too long to become an event."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                while (line := file.readline(EVENT_BYTES + 1)).endswith(b"\n") or (
                    len(line) > EVENT_BYTES
                ):
                    self._offset += len(line)
                    _take(line, self._inbox, self._log, only_own=self._is_shared)
        except FileNotFoundError:
            return  # the tool has not begun


class CallbackFeed:
    """An HTTP server on loopback, with a secret made for this job."""

    reads_stdout = False

    def __init__(self, inbox: JobInbox) -> None:
        from agentbus.jobs.receiver import LOOPBACK, CallbackReceiver

        secret = secrets.token_hex(32)
        self._receiver = CallbackReceiver(None)
        self._receiver.expect_into(inbox, secret)
        self.environment: Mapping[str, str] = {
            "TRANSPORT": "callback",
            "CALLBACK_URL": self._receiver.url(inbox.job_id),
            "CALLBACK_SECRET": secret,
            "CALLBACK_ALLOWED_HOSTS": LOOPBACK,
        }

    def start(self) -> None:
        self._receiver.start()

    def attach(self, stdout: IO[bytes]) -> None:
        """What the tool prints is a log."""

    def finish(self) -> None:
        self._receiver.close()  # a request that was answered is in the inbox

    def cancel(self) -> bool:
        return False

    def lost(self, event: Failed) -> None:
        """Nobody else reads it."""


class BrokerFeed:
    """A broker, from the first event on."""

    reads_stdout = False

    def __init__(self, inbox: JobInbox, log: Callable[[str], None], url: str) -> None:
        self.environment: Mapping[str, str] = {"TRANSPORT": "broker", "BROKER_URL": url}
        self._inbox = inbox
        self._log = log
        self._url = url
        self._transport = open_transport(url)
        self._was_told = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, name="job events", daemon=True)

    def start(self) -> None:
        """Raises ConflictError for an id that was used before: its old end would be the new one."""
        job_id = self._inbox.job_id
        try:
            if self._transport.has_begun(job_id):
                raise ConflictError(
                    f"there are events of a job {job_id} on this broker already; give another id, "
                    f"or read them: agentbus job tail {job_id}"
                )
        except BaseException:
            self._transport.close()
            raise
        self._thread.start()

    def attach(self, stdout: IO[bytes]) -> None:
        """What the tool prints is a log."""

    def finish(self) -> None:
        settle(self._inbox, lambda within_s: self._inbox.wait_terminal(within_s) is not None)
        self._stop.set()
        self._thread.join()
        self._transport.close()

    def cancel(self) -> bool:
        """On a thread of its own: a broker that has gone must not keep the parent from killing."""
        asking = threading.Thread(target=self._cancel, name="job cancel", daemon=True)
        asking.start()
        asking.join(SETTLE_S)
        return self._was_told

    def _cancel(self) -> None:
        try:
            self._transport.cancel(self._inbox.job_id, "cancelled by the parent")
            self._was_told = True
        except BusError as error:
            self._log(error.message)

    def lost(self, event: Failed) -> None:
        try:
            with closing(open_transport(self._url)) as transport:
                transport.has_begun(event.job_id)  # says soon when the broker has gone
                document = encode_event(event)
                transport.publish(event.job_id, event.seq, document, is_terminal=True)
        except BusError as error:  # then their deadlines tell them
            self._log(error.message)

    def _read(self) -> None:
        while not self._stop.is_set():
            try:
                for event in self._transport.follow(self._inbox.job_id, 0, self._stop):
                    _take(event, self._inbox, self._log)
            except BusError as error:
                self._log(error.message)
                if not error.retryable:
                    return
                self._stop.wait(POLL_S)


def settle(inbox: JobInbox, is_over: Callable[[float], bool]) -> None:
    """Ask whether it is over, `SETTLE_S` each time, as long as events come meanwhile."""
    next_seq = inbox.next_seq
    while not is_over(SETTLE_S) and inbox.next_seq > next_seq:
        next_seq = inbox.next_seq


def _has_ended(thread: threading.Thread) -> Callable[[float], bool]:
    def is_over(within_s: float) -> bool:
        thread.join(within_s)
        return not thread.is_alive()

    return is_over


def _take(
    line: bytes, inbox: JobInbox, log: Callable[[str], None], *, only_own: bool = False
) -> None:
    try:
        event = decode_event(line)
    except BusError as error:
        text = line.decode("utf-8", "replace").strip()
        if line.lstrip().startswith(b"{"):
            log(f"no event ({error.message}): {text[:200]}")
        elif text:
            log(text)
        return
    if only_own and event.job_id != inbox.job_id:
        return
    inbox.wait_room()
    try:
        inbox.put(event)
    except BusError as error:
        log(f"refused: {error.message}")


def _end_of_lines(path: Path) -> int:
    """Behind the last whole line: what stands after it is dropped by the next writer."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            return end_of_lines(file.fileno(), end, within_bytes=end) or 0
    except FileNotFoundError:
        return 0


def variables(feed: Feed, job_id: str, prefix: str) -> dict[str, str]:
    """The environment of the tool: ours, what the feed needs, and nothing else of the prefix."""
    suffixes = {"JOB_ID": job_id, **feed.environment}
    inherited = {name: value for name, value in os.environ.items() if not _is_ours(name, prefix)}
    return inherited | {prefix + suffix: value for suffix, value in suffixes.items()}


def _is_ours(name: str, prefix: str) -> bool:
    from agentbus.jobs.settings import VARIABLES

    return name.startswith(prefix) and name.removeprefix(prefix) in VARIABLES
