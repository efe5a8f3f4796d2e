"""Start a tool, follow its job, and know how it ended.

Owns the child process and the exit codes. The terminal event says how the job ended, whatever the
process exits with; a process that ends without one is a job that was lost. The caller's thread.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from agentbus.clock import Clock, SystemClock
from agentbus.errors import NotFoundError
from agentbus.jobs.emitter import Cancellation
from agentbus.jobs.events import CANCELLED, LOST, Failed, Succeeded, Terminal, timestamp
from agentbus.jobs.feeds import open_feed, variables
from agentbus.jobs.inbox import Arrival, JobInbox
from agentbus.jobs.settings import PREFIX

EXIT_OK: Final = 0
EXIT_GENERAL: Final = 1
EXIT_CODES: Final[Mapping[str, int]] = {
    "general": EXIT_GENERAL,
    "usage": 2,
    "blocked_url": 3,
    "extraction": 4,
    "formatting": 5,
}
"""Of the codes that tools share; a code of a tool's own has the exit code of its process."""

LINGER_S: Final = 10.0
"""How long a tool may still run after its terminal event, or after it was told to end."""

_LOOK_S: Final = 0.05
_STDERR: Final = 2


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How it ended. `status` is the process's own: negative for a signal."""

    terminal: Terminal
    status: int

    @property
    def exit_code(self) -> int:
        """What the parent exits with."""
        return exit_code(self.terminal, self.status)


def exit_code(terminal: Terminal, status: int) -> int:
    """By the terminal event; the process's own code is only asked where the event has none."""
    if isinstance(terminal, Succeeded):
        return EXIT_OK
    return EXIT_CODES.get(terminal.code) or (status if status > 0 else EXIT_GENERAL)


def run_job(
    command: Sequence[str],
    job_id: str,
    sink: str = "events",
    *,
    show: Callable[[Arrival], None],
    log: Callable[[str], None],
    prefix: str = PREFIX,
    cancellation: Cancellation | None = None,
    abort: Cancellation | None = None,
    clock: Clock | None = None,
) -> JobEnd:
    """Run the tool to its end. `show` is called with each event, here; `log`, on any thread, with
    lines that are none.

    Once `cancellation` is requested the job is told, and has `LINGER_S` to end; once `abort` is,
    the tool is killed.
    """
    cancellation, abort = cancellation or Cancellation(), abort or Cancellation()
    inbox = JobInbox(job_id)
    feed = open_feed(sink, inbox, log)
    feed.start()
    tool: _Tool | None = None
    was_told = False
    try:
        tool = _Tool(command, variables(feed, job_id, prefix), feed.reads_stdout)
        if tool.process.stdout is not None:
            feed.attach(tool.process.stdout)
        while tool.process.poll() is None:
            arrival = inbox.next(_LOOK_S)
            if arrival is not None:
                show(arrival)
            if abort.is_requested:
                tool.kill()
            if cancellation.is_requested and not was_told:
                was_told = True
                if not feed.cancel():
                    tool.terminate()
            if was_told or (arrival is None and inbox.terminal is not None):
                tool.end_within(LINGER_S)
        status = tool.process.wait()
    finally:
        if tool is not None:
            tool.kill()
        inbox.lift_bound()
        feed.finish()
    while arrival := inbox.next(0):
        show(arrival)
    terminal = inbox.terminal
    if terminal is None:
        now = timestamp((clock or SystemClock()).wall_us())
        code = CANCELLED if cancellation.is_requested else LOST
        terminal = _lost(job_id, inbox, status, now, code, prefix)
        show(Arrival(terminal))
        feed.lost(terminal)
    return JobEnd(terminal, status)


class _Tool:
    """The child, in a process group of its own: a Ctrl-C at the terminal is for the parent, which
    tells the tool in the way that it understands."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], reads_stdout: bool
    ) -> None:
        try:
            self.process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if reads_stdout else _STDERR,
                process_group=0,
            )
        except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
            raise NotFoundError(
                f"the tool cannot be started: {command[0]}: {error.strerror}"
            ) from None
        self._deadline_s: float | None = None

    def end_within(self, within_s: float) -> None:
        """It has nothing more to say: kill it when it is still there after so long. Called again
        and again; the first deadline counts."""
        if self._deadline_s is None:
            self._deadline_s = time.monotonic() + within_s
        elif time.monotonic() > self._deadline_s:
            self.kill()

    def terminate(self) -> None:
        """Ask it to end."""
        with suppress(ProcessLookupError):
            self.process.terminate()

    def kill(self) -> None:
        """End it and what it started in its group; nothing for one that was reaped."""
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def _lost(job_id: str, inbox: JobInbox, status: int, now: str, code: str, prefix: str) -> Failed:
    how = f"signal {-status}" if status < 0 else f"exit code {status}"
    if inbox.next_seq > 0:
        message = f"the tool ended without a terminal event, with {how}"
    else:
        message = (
            f"the tool ended without any event, with {how}; it was told where to send them in "
            f"variables that begin with {prefix} (--prefix)"
        )
    return Failed(
        job_id=job_id, seq=inbox.next_seq, ts=now, code=code, message=message, synthetic=True
    )
