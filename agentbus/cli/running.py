"""The daemon as a command line sees it: is one there, ask it, wait until it has gone.

Never starts one and never trusts a pid: whether a daemon runs is what its lock says. Blocks; runs
on the main thread of a command.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from agentbus import __version__
from agentbus.cli.entry import NotRunningError
from agentbus.errors import (
    NotFoundError,
    UnavailableError,
    ValidationError,
    VersionMismatchError,
)
from agentbus.limits import PROTOCOL_VERSION
from agentbus.transport.client import Client, NoAnswerError, connect_socket
from agentbus.transport.singleton import (
    DaemonLock,
    RuntimePaths,
    check_directory,
    holder_pid,
    runtime_directory,
)

CONNECT_S: Final = 1.0
ANSWER_S: Final = 5.0
PATIENCE_S: Final = 5.0
"""A daemon that has just taken its lock has its socket well before that."""

GONE_S: Final = 10.0
"""An orderly stop takes 5 s at most; what is still there after this hangs."""

_PAUSE_S = 0.02


def runtime_paths() -> RuntimePaths:
    """Where this user's daemon is found; one place, whatever the configuration says."""
    return runtime_directory(os.environ, os.getuid())


class Daemon:
    """A connection to the running daemon. `pid` is the holder of its lock."""

    def __init__(self, client: Client, paths: RuntimePaths) -> None:
        self._client = client
        self._paths = paths
        self.pid = holder_pid(paths.lock)

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def ask(
        self, method: str, within_s: float = ANSWER_S, params: Mapping[str, Any] | None = None
    ) -> Any:
        """The answer to a request."""
        try:
            return self._client.request(method, dict(params or {}), within_s)
        except NoAnswerError as error:
            raise UnavailableError(f"{error.message}; {_advice(self.pid)}") from None

    def config_path(self) -> Path | None:
        """The file that the daemon was started with; None when its protocol is another one."""
        greeting = {"protocol": PROTOCOL_VERSION, "version": __version__, "pid": os.getpid()}
        try:
            answer = self._client.request("hello", greeting, ANSWER_S)
        except VersionMismatchError:
            return None
        except NoAnswerError as error:
            raise UnavailableError(f"{error.message}; {_advice(self.pid)}") from None
        path = answer.get("config_path")
        return Path(path) if isinstance(path, str) else None

    def data_directory(self, asked_path: Path | None) -> object:
        """Its data folder. Refuses when the person named another configuration than its own."""
        used_path = self.config_path()
        if asked_path is not None and used_path is not None and used_path != asked_path.absolute():
            raise ValidationError(
                f"the running daemon uses {used_path}, not {asked_path.absolute()}; run agentbus "
                "stop first, or leave out --config to mean the running bus"
            )
        status: dict[str, Any] = self.ask("status")
        values = (status.get("config") or {}).get("values") or {}
        return values.get("data_directory", "(unknown)")

    def wait_until_gone(self) -> None:
        """Until the lock is free or somebody else's. Raises UnavailableError after 10 s."""
        lock = DaemonLock(self._paths.lock)
        deadline_s = time.monotonic() + GONE_S
        while lock.held_by_another() and holder_pid(self._paths.lock) == self.pid:
            if time.monotonic() >= deadline_s:
                raise UnavailableError(
                    f"the daemon agreed to stop but is there after {GONE_S:g} s; "
                    f"{_advice(self.pid)}"
                )
            time.sleep(_PAUSE_S)


def find_daemon(patience_s: float = PATIENCE_S) -> Daemon | None:
    """The running daemon, None when none runs.

    Raises UnavailableError when one holds the lock but takes no connection for `patience_s`.
    """
    paths = runtime_paths()
    try:
        check_directory(paths, os.getuid())
    except NotFoundError:
        return None
    lock = DaemonLock(paths.lock)
    deadline_s = time.monotonic() + patience_s
    while True:
        try:
            return Daemon(Client(connect_socket(paths.socket, CONNECT_S)), paths)
        except OSError:
            pass  # nobody listens; the lock tells whether somebody will, or did a moment ago
        if not lock.held_by_another():
            return None
        if time.monotonic() >= deadline_s:
            pid = holder_pid(paths.lock)
            raise UnavailableError(
                f"a daemon holds {paths.lock} but does not listen; it may still be starting or "
                f"stopping: try again, and {_advice(pid)}"
            )
        time.sleep(_PAUSE_S)


def need_daemon() -> Daemon:
    """The running daemon. Raises NotRunningError."""
    daemon = find_daemon()
    if daemon is None:
        raise NotRunningError
    return daemon


def _advice(pid: int | None) -> str:
    who = "its process" if pid is None else f"process {pid}"
    kill = "" if pid is None else f": kill -9 {pid} loses nothing that was acknowledged"
    return f"if {who} hangs, end it{kill}"
