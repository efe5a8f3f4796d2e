"""One attempt to have a Redis: start an executable, wait until it serves, see what it can do.

Owns the command line. Decides nothing about which executable to prefer and touches no instance but
the child that it started.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import redis

from agentbus.limits import MIB
from agentbus.projection.connection import COMMAND_TIMEOUT_SECONDS, Client, connect
from agentbus.projection.errors import ProjectionError
from agentbus.projection.finding import Candidate
from agentbus.projection.ownership import TOKEN_SETTING
from agentbus.projection.probe import MODULE_ARGUMENTS, Capabilities, probe, set_search_limits

SearchEngine: TypeAlias = Literal["auto", "redis", "sqlite"]

Check: TypeAlias = Callable[[], None]
"""Called again and again while something is waited for. What it raises ends the wait."""

START_SECONDS = 10.0
"""An executable that does not serve by then is not a Redis. Real ones take a tenth of a second."""

_POLL_SECONDS = 0.005
_LOG_TAIL_BYTES = 2000


@dataclass(frozen=True, slots=True)
class RedisSettings:
    """What the private Redis depends on. The timeouts are settings of tests only."""

    executable: str
    search_engine: SearchEngine
    budget_bytes: int
    data_directory: Path
    runtime_directory: Path
    start_s: float = START_SECONDS
    command_s: float = COMMAND_TIMEOUT_SECONDS

    @property
    def socket_path(self) -> Path:
        return self.runtime_directory / "redis.sock"

    @property
    def record_path(self) -> Path:
        return self.runtime_directory / "redis.json"

    @property
    def working_directory(self) -> Path:
        return self.data_directory / "redis"

    @property
    def log_path(self) -> Path:
        return self.working_directory / "redis.log"

    @property
    def memory_bytes(self) -> int:
        """Backstop above the budget: Redis refuses by allocated memory, the budget is of data."""
        return self.budget_bytes + max(64 * MIB, self.budget_bytes // 4)


@dataclass(frozen=True, slots=True)
class RedisInfo:
    """The running instance, as status shows it.

    `search_module` is a path, or "built in", or None; `search_missing` says why there is none.
    """

    pid: int
    executable: str
    engine: str
    version: str
    search_module: str | None
    search_missing: str | None
    socket_path: str
    taken_over: bool = False

    @property
    def search(self) -> bool:
        return self.search_module is not None


def launch(
    settings: RedisSettings, candidate: Candidate, token: str, go_on: Check
) -> tuple[subprocess.Popen[bytes], RedisInfo]:
    """A serving child and what it can do. Leaves nothing running when it raises."""
    _remove_leftovers(settings.working_directory)
    try:
        with settings.log_path.open("wb") as log:
            child = subprocess.Popen(
                _arguments(settings, candidate, token),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=settings.working_directory,
                start_new_session=True,  # a terminal's Ctrl-C is for the daemon alone
            )
    except OSError as error:
        raise ProjectionError(f"{candidate.executable}: cannot be run ({error})") from None
    try:
        with closing(connect(settings.socket_path, settings.command_s)) as client:
            _await_service(settings, candidate, client, child, go_on)
            found = _describe(settings, candidate, child.pid, probe(client))
            if found.search and candidate.module is None:
                set_search_limits(client)
    except BaseException:
        end_child(child, grace_s=0)
        raise
    return child, found


def end_child(child: subprocess.Popen[bytes], grace_s: float) -> None:
    """Ask it to end, by force after `grace_s`, and reap it."""
    if child.poll() is None and grace_s > 0:
        child.terminate()
        with suppress(subprocess.TimeoutExpired):
            child.wait(grace_s)
    if child.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # with the helpers that its search module forks
    child.wait()


def _remove_leftovers(folder: Path) -> None:
    """Dumps and logs of writes: ours and stale, and damaged ones would keep Redis from starting,
    even where it is told to use none."""
    for pattern in ("*.rdb", "*.aof"):
        for leftover in folder.glob(pattern):
            leftover.unlink()
    with suppress(FileNotFoundError):
        shutil.rmtree(folder / "appendonlydir")


def _arguments(settings: RedisSettings, candidate: Candidate, token: str) -> list[str]:
    arguments = [
        *(str(candidate.executable), "--port", "0"),
        *("--unixsocket", str(settings.socket_path), "--unixsocketperm", "600"),
        *("--save", "", "--appendonly", "no", "--dir", str(settings.working_directory)),
        *("--maxmemory", str(settings.memory_bytes), "--maxmemory-policy", "noeviction"),
        *("--daemonize", "no", "--loglevel", "warning", f"--{TOKEN_SETTING}", token),
    ]
    if candidate.module is not None:
        arguments += ("--loadmodule", str(candidate.module), *MODULE_ARGUMENTS)
    return arguments


def _await_service(
    settings: RedisSettings,
    candidate: Candidate,
    client: Client,
    child: subprocess.Popen[bytes],
    go_on: Check,
) -> None:
    deadline_s = time.monotonic() + settings.start_s
    while True:
        go_on()
        with suppress(redis.ConnectionError, redis.TimeoutError, redis.BusyLoadingError):
            client.ping()
            return
        with suppress(subprocess.TimeoutExpired):
            code = child.wait(_POLL_SECONDS)
            raise ProjectionError(
                f"{_name(candidate)}: ended at once with code {code} ({_tail(settings.log_path)})"
            )
        if time.monotonic() > deadline_s:
            raise ProjectionError(
                f"{_name(candidate)}: serves no Redis after {settings.start_s:g} s"
                f" ({_tail(settings.log_path)})"
            )


def _describe(
    settings: RedisSettings, candidate: Candidate, pid: int, found: Capabilities
) -> RedisInfo:
    if found.streams_error is not None:
        raise ProjectionError(
            f"{candidate.executable}: {found.engine} {found.version} lacks what streams need"
            f" ({found.streams_error})"
        )
    module = None
    if found.search_error is None:
        module = str(candidate.module) if candidate.module else "built in"
    return RedisInfo(
        pid=pid,
        executable=str(candidate.executable),
        engine=found.engine,
        version=found.version,
        search_module=module,
        search_missing=found.search_error,
        socket_path=str(settings.socket_path),
    )


def _name(candidate: Candidate) -> str:
    module = f" with {candidate.module}" if candidate.module else ""
    return f"{candidate.executable}{module}"


def _tail(log_path: Path) -> str:
    text = log_path.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " / ".join(lines[-3:]) or "it printed nothing"
