"""One run of the inspection command: argv in, a verdict out, nothing left behind.

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
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Final, TypeAlias

from agentbus.encoding import decode_strict
from agentbus.errors import ValidationError
from agentbus.limits import INSPECTION_OUTPUT_BYTES, KIB

READ_BYTES: Final = 16 * KIB
REASON_CHARACTERS: Final = 1000
"""Of a denial, shown to the caller; a longer one is cut."""

_BURY_S: Final = 2.0
"""How long a killed child may take to be reaped: it cannot refuse, only hang in the kernel."""


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


class _RunFailedError(Exception):
    """Ends a run; the text becomes `Failed.what`."""


def inspect(argv: Sequence[str], document: bytes, timeout_s: float) -> Verdict:
    """Run the command on one document. Every way to go wrong is a `Failed`; nothing is raised."""
    deadline_s = time.monotonic() + timeout_s
    try:
        child = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # its own process group: what it leaves behind ends with it
            close_fds=True,
        )
    except (OSError, ValueError) as error:
        return Failed(f"it could not be started: {getattr(error, 'strerror', None) or 'bad argv'}")
    try:
        output = _Exchange(child, document, deadline_s).run()
        return _verdict(output)
    except _RunFailedError as error:
        return Failed(str(error))
    finally:
        _bury(child)


class _Exchange:
    """Writes the document and reads both outputs at once, so that no full pipe can stop either."""

    def __init__(self, child: subprocess.Popen[bytes], document: bytes, deadline_s: float) -> None:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        self._child = child
        self._stdin: IO[bytes] = child.stdin
        self._stdout: IO[bytes] = child.stdout
        self._stderr: IO[bytes] = child.stderr
        self._unwritten = memoryview(document)
        self._read: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        self._deadline_s = deadline_s

    def run(self) -> bytes:
        """All of stdout, once both outputs are closed and the child has exited with 0."""
        with selectors.DefaultSelector() as selector:
            for pipe in (self._stdin, self._stdout, self._stderr):
                os.set_blocking(pipe.fileno(), False)
            selector.register(self._stdin, selectors.EVENT_WRITE)
            selector.register(self._stdout, selectors.EVENT_READ, "stdout")
            selector.register(self._stderr, selectors.EVENT_READ, "stderr")
            while selector.get_map():
                left_s = self._deadline_s - time.monotonic()
                if left_s <= 0:
                    raise _RunFailedError("it did not finish in time")
                for key, _ in selector.select(left_s):
                    if key.data is None:
                        self._write(selector)
                    else:
                        self._take(selector, key.data)
        return self._exited()

    def _write(self, selector: selectors.BaseSelector) -> None:
        try:
            written = os.write(self._stdin.fileno(), self._unwritten)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.ECONNRESET):
                raise _RunFailedError("its input could not be written") from None
            self._unwritten = self._unwritten[:0]  # it needs no more to decide
        else:
            self._unwritten = self._unwritten[written:]
        if not self._unwritten:
            selector.unregister(self._stdin)
            with contextlib.suppress(OSError):
                self._stdin.close()

    def _take(self, selector: selectors.BaseSelector, name: str) -> None:
        pipe = self._stdout if name == "stdout" else self._stderr
        try:
            data = os.read(pipe.fileno(), READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            selector.unregister(pipe)
            return
        read = self._read[name]
        read += data
        if len(read) > INSPECTION_OUTPUT_BYTES:
            raise _RunFailedError(f"it wrote more than {INSPECTION_OUTPUT_BYTES} bytes to {name}")

    def _exited(self) -> bytes:
        try:
            code = self._child.wait(max(0.0, self._deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise _RunFailedError("it did not finish in time") from None
        if code < 0:
            raise _RunFailedError(f"it was ended by signal {-code}")
        if code > 0:
            raise _RunFailedError(f"it exited with {code}")
        return bytes(self._read["stdout"])


def _verdict(output: bytes) -> Verdict:
    try:
        answer = decode_strict(output)
    except ValidationError as error:
        raise _RunFailedError(f"its answer is {error.message}") from None
    if not isinstance(answer, dict) or not answer.keys() <= {"decision", "reason"}:
        raise _RunFailedError("its answer is not an object of decision and reason")
    reason = answer.get("reason")
    if reason is not None and not isinstance(reason, str):
        raise _RunFailedError("the reason in its answer is not text")
    match answer.get("decision"):
        case "allow":
            return Allowed()
        case "deny":
            return Denied((reason or "no reason given")[:REASON_CHARACTERS])
        case _:
            raise _RunFailedError('the decision in its answer is neither "allow" nor "deny"')


def _bury(child: subprocess.Popen[bytes]) -> None:
    """End the whole group, also after success: a child of the command may still hold the pipes."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_BURY_S)
