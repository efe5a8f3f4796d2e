"""Processes of the bus that nobody needs any more, found in the list of all processes.

Owns the reading of that list (`ps`, so that it works on every Unix) and the judgement. Judges only
processes of the own user, by their command lines and locks, never ends one. Main thread.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agentbus.cli.doctoring.faults import (
    ADAPTER_ORPHANED,
    DAEMON_STRAY,
    PROCESSES_UNKNOWN,
    REDIS_STRAY,
    Fault,
    Finding,
    fine,
)
from agentbus.config import ConfigError, load_config
from agentbus.errors import BusError
from agentbus.processes import open_files
from agentbus.transport.singleton import DaemonLock, RuntimePaths, holder_pid

LIST_S: Final = 5.0
SECOND_LOOK_S: Final = 3.0
"""How long something must look stale: what starts or ends right now does so for a moment."""

_PAUSE_S: Final = 0.5
_INITS: Final = frozenset({"init", "systemd", "launchd"})
"""What a process whose parent has ended is given to, where that is not process 1."""

_HARNESSES: Final = frozenset({"claude", "codex", "opencode", "gemini", "node"})
"""A harness may be the first process of a container."""

_REDIS_SOCKET: Final = re.compile(r"unixsocket[: ](/.*?/redis\.sock)(?: |$)")


@dataclass(frozen=True, slots=True)
class Process:
    """One line of the list."""

    uid: int
    pid: int
    parent: int
    command: str


@dataclass(frozen=True, slots=True)
class Stale:
    """A process that nobody needs."""

    process: Process
    fault: Fault
    why: str


def examine_processes(paths: RuntimePaths, uid: int) -> list[Finding]:
    """What has been stale for a while."""
    give_up_s = time.monotonic() + SECOND_LOOK_S
    lasting: set[Stale] | None = None
    try:
        while lasting is None or (lasting and time.monotonic() < give_up_s):
            if lasting is not None:
                time.sleep(_PAUSE_S)
            found = set(stale(list_processes(), paths, uid))
            lasting = found if lasting is None else lasting & found
    except (OSError, subprocess.SubprocessError) as error:
        return [PROCESSES_UNKNOWN.found("processes", f"ps: {error}")]
    if not lasting:
        return [fine("processes", "none is left over")]
    return [
        one.fault.found("processes", f"process {one.process.pid} {one.why}", PID=one.process.pid)
        for one in sorted(lasting, key=lambda one: one.process.pid)
    ]


def list_processes() -> list[Process]:
    """All processes of the machine. Raises OSError or SubprocessError."""
    listed = subprocess.run(
        ["ps", "-axwwo", "uid=,pid=,ppid=,args="],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=LIST_S,
        check=True,
    )
    return parse(listed.stdout.decode(errors="replace"))


def parse(text: str) -> list[Process]:
    """The lines of `ps`; what is no such line is passed over."""
    found = []
    for line in text.splitlines():
        columns = line.split(None, 3)
        if len(columns) == 4 and all(column.isdecimal() for column in columns[:3]):
            uid, pid, parent = map(int, columns[:3])
            found.append(Process(uid, pid, parent, columns[3]))
    return found


def stale(processes: list[Process], paths: RuntimePaths, uid: int) -> Iterator[Stale]:
    """Adapters without a harness, daemons without a lock, servers without a daemon."""
    by_pid = {process.pid: process for process in processes}
    for process in processes:
        if process.uid != uid:
            continue
        if _is_adapter(process):
            if _parent_is_gone(process, by_pid):
                yield Stale(process, ADAPTER_ORPHANED, "is an adapter without a harness")
        elif _is_daemon(process):
            if not _holds_a_lock(process, paths):
                yield Stale(process, DAEMON_STRAY, "is a daemon without the lock")
        elif (socket_path := _redis_socket(process)) is not None and _is_left(socket_path):
            yield Stale(process, REDIS_STRAY, f"is a Redis at {socket_path} without a daemon")


def _arguments_of(process: Process, program: str) -> list[str] | None:
    """What a Python program was given, however it was started; None when it is another."""
    words = process.command.split()
    if words and Path(words[0]).name == program:
        return words[1:]
    if not words or not Path(words[0]).name.lower().startswith("python"):
        return None
    for number, word in enumerate(words[1:], 1):
        if word == "-m":
            return words[number + 2 :] if words[number + 1 : number + 2] == [program] else None
        if not word.startswith("-"):
            return words[number + 1 :] if Path(word).name == program else None
    return None


def _is_adapter(process: Process) -> bool:
    return (_arguments_of(process, "agentbus") or [])[:1] == ["mcp"]


def _is_daemon(process: Process) -> bool:
    return _arguments_of(process, "actors") is not None


def _parent_is_gone(process: Process, by_pid: dict[int, Process]) -> bool:
    parent = by_pid.get(process.parent)
    if parent is None:
        return True
    name = Path(parent.command.split()[0]).name
    return name in _INITS or (parent.pid == 1 and name not in _HARNESSES)


def _holds_a_lock(process: Process, paths: RuntimePaths) -> bool:
    """Of this bus, or of another one (another HOME, a demo, a test).

    Which lock that is, is told by what it has open, or where nothing tells that by its data
    directory.
    """
    if any(
        _is_held_by(lock, process.pid)
        for lock in (paths.lock, *open_files(process.pid))
        if lock.name == paths.lock.name
    ):
        return True
    _, separator, given = process.command.partition(" --config ")
    try:
        config = load_config(Path(given.removesuffix(" --foreground")) if separator else None)
    except ConfigError:
        return False
    return _is_held_by(config.data_directory / "lock", process.pid)


def _is_held_by(lock: Path, pid: int) -> bool:
    return _is_held(lock) and holder_pid(lock) == pid


def _is_held(lock: Path) -> bool:
    try:
        return lock.is_file() and DaemonLock(lock).held_by_another()
    except (OSError, BusError):
        return False


def _redis_socket(process: Process) -> Path | None:
    found = _REDIS_SOCKET.search(process.command)
    return None if found is None else Path(found[1])


def _is_left(socket_path: Path) -> bool:
    """Whether it was a daemon's once and none is there; others may name a socket like ours."""
    folder = socket_path.parent
    was_ours = not folder.exists() or (folder / "redis.json").exists()
    return was_ours and not _is_held(RuntimePaths(folder).lock)
