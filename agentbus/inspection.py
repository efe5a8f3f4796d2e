"""One run of the inspection command: a document in, a verdict out, nothing left behind.

Owns the child process and its whole process group for the time of one run. Never uses a shell,
never logs what was inspected, never lets silence mean "allow". Blocks its caller, an inspector's
thread, up to the given timeout and a short moment to bury the child.

stdin of the command: `{"operation", "sender", "payload"}`; stdout: `{"decision": "allow" | "deny",
"reason"?}`, at most 64 KiB each on stdout and stderr. See docs/inspection.md.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Final, TypeAlias

from agentbus.config import Config, ConfigError
from agentbus.encoding import decode_strict, encode
from agentbus.errors import ValidationError
from agentbus.failpoints import reach
from agentbus.identity import SenderBinding
from agentbus.inspection_guard import Guard
from agentbus.limits import INSPECTION_OUTPUT_BYTES, INSPECTION_REASON_CHARACTERS, KIB
from agentbus.settings import shown

READ_BYTES: Final = 16 * KIB

_BURY_S: Final = 2.0
"""How long a killed child may take to be reaped: it cannot refuse, only hang in the kernel."""

_FIRST_PAUSE_S: Final = 0.0005
_LONGEST_PAUSE_S: Final = 0.02
"""Between two looks whether a child has ended that has closed its outputs already."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """The command said "allow" in the only way that counts."""


@dataclass(frozen=True, slots=True)
class Denied:
    """The command said "deny". The reason is data for the caller, never an instruction."""

    reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    """There is no verdict; `what` says why, in words without any of the payload or its output."""

    what: str


Verdict: TypeAlias = Allowed | Denied | Failed


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


class _RunFailedError(Exception):
    """Ends a run; the text becomes `Failed.what`."""


def find_command(config: Config) -> tuple[str, ...]:
    """The configured argv with the absolute path of its program; empty when there is no hook.

    Looked up once, at start: what inspects must not change with the PATH of whoever starts the
    daemon next. Raises ConfigError when there is no such program.
    """
    if not config.inspection_command:
        return ()
    name, *arguments = config.inspection_command
    program = shutil.which(name)
    if program is None:
        where = "" if os.sep in name else " on the PATH that the daemon was given"
        raise ConfigError(
            config.path,
            f"inspection_command names {shown(name)}, but there is no executable file of that name"
            f"{where}, and nothing is ever allowed by silence; correct it, or remove the key",
            key="inspection_command",
        )
    return (os.path.abspath(program), *arguments)


def build_document(operation: str, sender: SenderBinding, payload: Mapping[str, Any]) -> bytes:
    """What the command reads from its stdin."""
    return encode({"operation": operation, "sender": sender, "payload": payload})


def inspect(
    argv: Sequence[str],
    document: bytes,
    timeout_s: float,
    cancellation: Cancellation,
    guard: Guard | None = None,
) -> Verdict:
    """Run the command on one document. Every way to go wrong is a `Failed`; nothing is raised.

    `guard` ends the run should this process be killed meanwhile.
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
        )
    except (OSError, ValueError) as error:
        return Failed(f"it could not be started: {_reason(error)}")
    if guard is not None:
        guard.began(child.pid)
    try:
        try:
            reach("during_inspection")
            output = _Exchange(child, document, deadline_s).run(cancellation)
        finally:
            code = _bury(child)
            if guard is not None:
                guard.ended(child.pid)
        return _verdict(code, output)
    except _RunFailedError as error:
        return Failed(str(error))
    except OSError as error:
        return Failed(f"its pipes could not be used: {_reason(error)}")


class _Exchange:
    """Writes the document and reads both outputs at once, so that no full pipe can stop either."""

    def __init__(self, child: subprocess.Popen[bytes], document: bytes, deadline_s: float) -> None:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        self._child = child
        self._stdin: IO[bytes] = child.stdin
        self._outputs: dict[str, IO[bytes]] = {"stdout": child.stdout, "stderr": child.stderr}
        self._unwritten = memoryview(document)
        self._read = {"stdout": bytearray(), "stderr": bytearray()}
        self._deadline_s = deadline_s

    def run(self, cancellation: Cancellation) -> bytes:
        """All of stdout, once both outputs are closed and the child has ended (not yet reaped).

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
        return bytes(self._read["stdout"])

    def _left_s(self) -> float:
        left_s = self._deadline_s - time.monotonic()
        if left_s > 0:
            return left_s
        if _has_ended(self._child):
            raise _RunFailedError("what it left behind held its pipes until the time was up")
        raise _RunFailedError("it did not finish in time")

    def _turn(self, selector: selectors.BaseSelector, wait_s: float) -> None:
        for key, _ in selector.select(wait_s):
            if key.data == "cancellation":
                raise _RunFailedError("the daemon stopped meanwhile")
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
        if len(read) > INSPECTION_OUTPUT_BYTES:
            raise _RunFailedError(f"it wrote more than {INSPECTION_OUTPUT_BYTES} bytes to {name}")


def _verdict(code: int | None, output: bytes) -> Verdict:
    """What the end of the command and its output mean; only one document means "allow"."""
    if code is None:
        raise _RunFailedError("it could not be ended")
    if code < 0:
        raise _RunFailedError(f"it was ended by signal {-code}")
    if code > 0:
        raise _RunFailedError(f"it exited with {code}")
    if not output.strip():
        raise _RunFailedError("it exited with 0 but gave no answer")
    try:
        answer = decode_strict(output)
    except ValidationError:  # its text may quote the output, which may quote the payload
        raise _RunFailedError("its answer is not one well-formed JSON document") from None
    if not isinstance(answer, dict) or not answer.keys() <= {"decision", "reason"}:
        raise _RunFailedError("its answer is not an object of decision and reason")
    reason = answer.get("reason")
    if reason is not None and not isinstance(reason, str):
        raise _RunFailedError("the reason in its answer is not text")
    match answer.get("decision"):
        case "allow":
            return Allowed()
        case "deny":
            return Denied((reason or "no reason given")[:INSPECTION_REASON_CHARACTERS])
        case _:
            raise _RunFailedError('the decision in its answer is neither "allow" nor "deny"')


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
