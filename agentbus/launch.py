"""Find the user's daemon, or start it: everybody ends with the same one.

Owns: the decision whether a daemon has to be started, the start itself and the wait for it. Never:
imports the daemon, decides whether starting is allowed now (the caller does: after an intentional
stop only a tool call or a new adapter may), keeps a pid. Blocks; run it off an event loop.

    client = ensure_daemon(paths, config_path, deadline_s=10.0, allow_start=True)   # a Client
    unread, connected = client.take_unread(), client.detach()                       # its socket

How twenty at once end with one daemon: whoever finds nobody answering tries for `start.lock`. Its
one holder starts a daemon only when the daemon's own lock is free; all others just try the socket
again. Both are flocks, so no crash leaves one behind.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from agentbus.errors import (
    BusError,
    InternalError,
    NotFoundError,
    UnavailableError,
    ValidationError,
)
from agentbus.ids import NO_EPOCH
from agentbus.transport.client import Client, connect_socket, no_daemon
from agentbus.transport.singleton import (
    EXIT_ALREADY_RUNNING,
    EXIT_CONFIGURATION,
    EXIT_DATABASE,
    DaemonLock,
    RuntimePaths,
    check_directory,
    holder_pid,
    prepare_directory,
)

PAUSE_S: Final = 0.01
PAUSE_MAX_S: Final = 0.2
"""Between two looks at the socket; grows by half each time, with jitter."""

STARTS: Final = 3
"""Daemons that one call starts at most, when each of them dies."""

CONNECT_S: Final = 1.0
ERROR_TEXT_BYTES: Final = 4096


def daemon_command(config_path: Path, *options: str) -> list[str]:
    """The argv that is the only seam between this package and the daemon."""
    return [sys.executable, "-m", "actors", *options, "--config", os.fspath(config_path)]


def ensure_daemon(
    paths: RuntimePaths,
    config_path: Path,
    *,
    deadline_s: float,
    allow_start: bool = True,
    command: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
) -> Client:
    """A connection to a daemon that has answered a heartbeat.

    `deadline_s` is how long this may take. Raises UnavailableError when there is none by then (or
    none runs and `allow_start` is false), ForbiddenError for an unsafe runtime folder, and
    the daemon's own line as ValidationError when its configuration is refused, as InternalError
    when its database is.
    """
    give_up_s = time.monotonic() + deadline_s
    uid = os.getuid()
    if allow_start:
        prepare_directory(paths, uid)
    else:
        try:
            check_directory(paths, uid)
        except NotFoundError:
            raise no_daemon(paths.socket) from None
    client = _connect(paths, give_up_s)
    if client is not None:
        return client
    if not allow_start:
        raise no_daemon(paths.socket)
    start = _Start(paths, list(command or daemon_command(config_path, "--detach")), env)
    try:
        return _wait(paths, start, give_up_s, deadline_s)
    finally:
        start.release()


def _wait(paths: RuntimePaths, start: _Start, give_up_s: float, deadline_s: float) -> Client:
    pause_s = PAUSE_S
    while True:
        start.advance()
        client = _connect(paths, give_up_s)
        if client is not None:
            return client
        left_s = give_up_s - time.monotonic()
        if left_s <= 0:
            raise UnavailableError(
                f"the daemon did not answer at {paths.socket} within {deadline_s:g} s"
                f"{start.explanation()}; try again, or run: agentbus daemon"
            )
        time.sleep(min(left_s, pause_s * random.uniform(0.5, 1.5)))
        pause_s = min(pause_s * 1.5, PAUSE_MAX_S)


def _connect(paths: RuntimePaths, give_up_s: float) -> Client | None:
    """A client of a daemon that has a Redis; None when nobody is there (yet, or any more).

    Until it has one, its start may still be refused, and its last words are what is waited for.
    """
    left_s = max(0.05, give_up_s - time.monotonic())
    try:
        connected = connect_socket(paths.socket, min(left_s, CONNECT_S))
    except OSError:
        return None
    client = Client(connected)
    try:
        answer = client.request("heartbeat", {}, left_s)
    except BusError:
        client.close()
        return None
    if answer.get("state") == "starting" and answer.get("epoch") == NO_EPOCH:
        client.close()
        return None
    return client


class _Start:
    """One caller's part in starting a daemon: the start lock, and the child it started."""

    def __init__(
        self, paths: RuntimePaths, command: list[str], env: Mapping[str, str] | None
    ) -> None:
        self._daemon_lock = DaemonLock(paths.lock)
        self._start_lock = DaemonLock(paths.start_lock)
        self._command = command
        self._env = env
        self._child: subprocess.Popen[bytes] | None = None
        self._child_errors: IO[bytes] | None = None
        self._starts = 0
        self._last_words = ""

    def advance(self) -> None:
        """Start a daemon if it is on us to do so. Raises when our daemon cannot start."""
        if self._child is not None:
            if self._child.poll() is None:
                return
            self._bury(self._child)
        if self._starts >= STARTS:
            raise UnavailableError(
                f"the daemon died {self._starts} times while starting{self.explanation()}"
            )
        if not self._start_lock.acquire(retry_s=0.0):
            return  # another one is starting it
        if not self._daemon_lock.held_by_another():
            self._spawn()

    def explanation(self) -> str:
        """What is known about why it is not there."""
        if self._last_words:
            return f" ({self._last_words})"
        if self._daemon_lock.held_by_another():
            return f" (process {holder_pid(self._daemon_lock.path)} starts, stops or hangs)"
        return ""

    def release(self) -> None:
        """Leave the child to itself; a thread waits for its end so that it is no zombie."""
        self._start_lock.release()
        if self._child_errors is not None:
            self._child_errors.close()
        if self._child is not None:
            threading.Thread(target=self._child.wait, name="reaper", daemon=True).start()

    def _spawn(self) -> None:
        self._starts += 1
        try:
            # A file, not a pipe: nothing breaks in the daemon when its starter ends first.
            self._child_errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by release
        except OSError:
            self._child_errors = None  # no room anywhere: should it fail, its reason is not known
        try:
            self._child = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._child_errors or subprocess.DEVNULL,
                close_fds=True,
                start_new_session=True,  # a harness kills its process group, not our daemon
                cwd="/",
                env=None if self._env is None else dict(self._env),
            )
        except OSError as error:
            raise UnavailableError(
                f"cannot run {self._command[0]}: {error.strerror}; repair the installation"
            ) from None

    def _bury(self, child: subprocess.Popen[bytes]) -> None:
        """Our child has ended: it is not needed any more, or for a reason that it printed."""
        self._child = None
        last_line = self._last_line()
        if child.returncode == EXIT_CONFIGURATION:
            raise ValidationError(last_line or "the daemon refused its configuration")
        if child.returncode == EXIT_DATABASE:
            raise InternalError(last_line or "the daemon cannot use its database")
        if child.returncode in (0, EXIT_ALREADY_RUNNING):
            self._starts -= 1  # it did what it should
            return
        self._last_words = last_line or f"exit code {child.returncode}"

    def _last_line(self) -> str:
        errors, self._child_errors = self._child_errors, None
        if errors is None:
            return ""
        with errors:
            size_bytes = errors.seek(0, os.SEEK_END)
            errors.seek(max(0, size_bytes - ERROR_TEXT_BYTES))
            lines = errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1].strip().removeprefix("agentbus: ") if lines else ""
