"""One run of a command: a document on its stdin, both outputs back, nothing left behind.

Owns the child process and its whole process group for the time of one run. Never uses a shell,
never knows what the outputs mean, never logs them. Blocks its caller up to the given time limit
and a short moment to bury the child.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Final

from agentbus.command_guard import Guard
from agentbus.limits import KIB

READ_BYTES: Final = 16 * KIB

_BURY_S: Final = 2.0
"""How long a killed child may take to be reaped: it cannot refuse, only hang in the kernel."""

_FIRST_PAUSE_S: Final = 0.0005
_LONGEST_PAUSE_S: Final = 0.02
"""Between two looks whether a child has ended that has closed its outputs already."""


class RunFailedError(Exception):
    """The run did not come to its end; the text says why, without any of its input or output."""


class RunTimedOutError(RunFailedError):
    """The time was up first."""


class RunCancelledError(RunFailedError):
    """It was called off."""


@dataclass(frozen=True, slots=True)
class OutputLimits:
    """What a command may write. `keep_tail`: of a longer stderr the end is kept, else it ends the
    run, as a longer stdout always does."""

    stdout_bytes: int
    stderr_bytes: int
    keep_tail: bool = False

    def of(self, name: str) -> int:
        return self.stdout_bytes if name == "stdout" else self.stderr_bytes


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended by itself. `code` is negative for a signal, None if it hangs for good."""

    code: int | None
    stdout: bytes
    stderr: bytes


class Cancellation:
    """Ends any number of runs, those of the future included. A descriptor, so a run can wait on it.

    `cancel` may be called on any thread; `close` only when no run uses it any more.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reader, self._writer = os.pipe()
        self._cancelled = False

    def cancel(self) -> None:
        with self._lock:
            if not self._cancelled:
                self._cancelled = True
                os.close(self._writer)  # the reader is at its end from now on, for everybody

    def fileno(self) -> int:
        return self._reader

    def close(self) -> None:
        self.cancel()
        os.close(self._reader)


def run_command(
    argv: Sequence[str],
    document: bytes,
    timeout_s: float,
    cancellation: Cancellation,
    limits: OutputLimits,
    *,
    guard: Guard | None = None,
    environment: Mapping[str, str] | None = None,
    started: Callable[[], None] | None = None,
) -> Ended:
    """Run it in a process group of its own, and end that group. Raises RunFailedError.

    `guard` ends the group should this process be killed meanwhile. `started` is called when the
    child runs.
    """
    deadline_s = time.monotonic() + timeout_s
    try:
        child = subprocess.Popen(
            list(argv),
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # its own process group: what it leaves behind ends with it
            env=environment,
        )
    except (OSError, ValueError) as error:
        raise RunFailedError(f"it could not be started: {_reason(error)}") from None
    if guard is not None:
        guard.began(child.pid)
    try:
        try:
            if started is not None:
                started()
            stdout, stderr = _Exchange(child, document, deadline_s, limits).run(cancellation)
        finally:
            code = _bury(child)
            if guard is not None:
                guard.ended(child.pid)
    except OSError as error:
        raise RunFailedError(f"its pipes could not be used: {_reason(error)}") from None
    return Ended(code, stdout, stderr)


class _Exchange:
    """Writes the document and reads both outputs at once, so that no full pipe can stop either."""

    def __init__(
        self,
        child: subprocess.Popen[bytes],
        document: bytes,
        deadline_s: float,
        limits: OutputLimits,
    ) -> None:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        self._child = child
        self._stdin: IO[bytes] = child.stdin
        self._outputs: dict[str, IO[bytes]] = {"stdout": child.stdout, "stderr": child.stderr}
        self._unwritten = memoryview(document)
        self._read = {"stdout": bytearray(), "stderr": bytearray()}
        self._deadline_s = deadline_s
        self._limits = limits

    def run(self, cancellation: Cancellation) -> tuple[bytes, bytes]:
        """Both outputs, once they are closed and the child has ended (not yet reaped).

        What is unwritten then nobody needs, although a child of it may still hold stdin.
        """
        with selectors.DefaultSelector() as selector:
            selector.register(cancellation, selectors.EVENT_READ, "cancellation")
            selector.register(self._stdin, selectors.EVENT_WRITE, "stdin")
            for name, pipe in self._outputs.items():
                selector.register(pipe, selectors.EVENT_READ, name)
            for pipe in (self._stdin, *self._outputs.values()):
                os.set_blocking(pipe.fileno(), False)
            while self._outputs:
                self._turn(selector, self._left_s())
            pause_s = _FIRST_PAUSE_S
            while not _has_ended(self._child):
                self._turn(selector, min(pause_s, self._left_s()))
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return bytes(self._read["stdout"]), bytes(self._read["stderr"])

    def _left_s(self) -> float:
        left_s = self._deadline_s - time.monotonic()
        if left_s > 0:
            return left_s
        if _has_ended(self._child):
            raise RunTimedOutError("what it left behind held its pipes until the time was up")
        raise RunTimedOutError("it did not finish in time")

    def _turn(self, selector: selectors.BaseSelector, wait_s: float) -> None:
        for key, _ in selector.select(wait_s):
            if key.data == "cancellation":
                raise RunCancelledError("it was called off")
            if key.data == "stdin":
                self._write(selector)
            else:
                self._take(selector, key.data)

    def _write(self, selector: selectors.BaseSelector) -> None:
        try:
            written = os.write(self._stdin.fileno(), self._unwritten)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.EPIPE:
                raise
            written = len(self._unwritten)  # it needs no more to decide
        self._unwritten = self._unwritten[written:]
        if not self._unwritten:
            selector.unregister(self._stdin)
            self._stdin.close()

    def _take(self, selector: selectors.BaseSelector, name: str) -> None:
        pipe, read = self._outputs[name], self._read[name]
        try:
            data = os.read(pipe.fileno(), READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            selector.unregister(pipe)
            del self._outputs[name]
            return
        read += data
        surplus_bytes = len(read) - self._limits.of(name)
        if surplus_bytes <= 0:
            return
        if name == "stderr" and self._limits.keep_tail:
            del read[:surplus_bytes]
            return
        raise RunFailedError(f"it wrote more than {self._limits.of(name)} bytes to {name}")


def _has_ended(child: subprocess.Popen[bytes]) -> bool:
    """Without reaping it where the system can: until then no other group can have its number."""
    if hasattr(os, "waitid"):
        return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    return child.poll() is not None


def _bury(child: subprocess.Popen[bytes]) -> int | None:
    """End the whole group, also after success, and reap the child; its exit code."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: all of it zombies
        os.killpg(child.pid, signal.SIGKILL)
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        return child.wait(_BURY_S)
    return None


def _reason(error: Exception) -> str:
    """The system's own words; an error's text could quote what it was about."""
    return getattr(error, "strerror", None) or type(error).__name__
