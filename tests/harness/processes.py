"""Which adapters of a bus and which programs of a test are running, as the system sees it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from agentbus.processes import ancestors
from tests.bus_fixture import ANSWER_WITHIN_S, ThrowAwayBus

_POLL_S = 0.02

ADAPTER_GONE_WITHIN_S = 10.0
"""An adapter has to end within 2 s after its client is gone; the rest is for a busy machine."""


def adapters(bus: ThrowAwayBus) -> dict[int, str]:
    """Process ids and command lines of what was started as `agentbus mcp` for this bus."""
    return _started_as("mcp", bus)


def end_daemons(bus: ThrowAwayBus, within_s: float = 20.0) -> None:
    """In order; also one that an adapter has just begun to start, and that answers nobody yet."""
    deadline_s = time.monotonic() + within_s
    asked: set[int] = set()
    while running := _started_as("actors", bus):
        for pid in running.keys() - asked:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        asked |= running.keys()
        assert time.monotonic() < deadline_s, f"still there after {within_s:g} s: {running}"
        time.sleep(_POLL_S)


def wait_no_adapter(bus: ThrowAwayBus, within_s: float = ADAPTER_GONE_WITHIN_S) -> None:
    deadline_s = time.monotonic() + within_s
    while running := adapters(bus):
        assert time.monotonic() < deadline_s, f"still there after {within_s:g} s: {running}"
        time.sleep(_POLL_S)


def wait_nothing_left(bus: ThrowAwayBus, within_s: float = ADAPTER_GONE_WITHIN_S) -> None:
    """Until nothing but the daemon has the runtime folder of this bus: harnesses, adapters, hooks.

    Only Linux shows what a process was started with; elsewhere it is the adapters that are seen.
    """
    daemon = bus.client().request("status", {}, ANSWER_WITHIN_S)["pid"]
    deadline_s = time.monotonic() + within_s
    while running := _left(bus, daemon):
        assert time.monotonic() < deadline_s, f"still there after {within_s:g} s: {running}"
        time.sleep(_POLL_S)


def _left(bus: ThrowAwayBus, daemon: int) -> dict[int, str]:
    if not Path("/proc/self/environ").exists():
        return adapters(bus)
    wanted = f"AGENTBUS_RUNTIME_DIR={bus.runtime.directory}"
    return {
        pid: command
        for pid, command in _commands()
        if wanted in _environment(pid) and daemon not in (pid, *ancestors(pid))
    }


def _started_as(word: str, bus: ThrowAwayBus) -> dict[int, str]:
    wanted = {word, str(bus.config_path)}
    return {pid: command for pid, command in _commands() if wanted <= set(command.split())}


def end_programs_below(folder: Path) -> None:
    """End, at once, what runs a program that was put into this folder."""
    for pid, command in _commands():
        if command.startswith(f"{folder}/"):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _commands() -> list[tuple[int, str]]:
    if Path("/proc/self/cmdline").exists():
        return [
            (int(folder.name), command.replace("\0", " "))
            for folder in Path("/proc").iterdir()
            if folder.name.isdigit() and (command := _command_line(folder))
        ]
    listed = subprocess.run(
        ["ps", "-axwwo", "pid=,command="], capture_output=True, text=True, check=True
    )
    lines = (line.split(maxsplit=1) for line in listed.stdout.splitlines())
    return [(int(pid), command) for pid, command in lines]


def _environment(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
    except OSError:  # ended meanwhile, or not ours
        return []


def _command_line(folder: Path) -> str:
    try:
        return (folder / "cmdline").read_text(errors="replace")  # empty for a zombie
    except OSError:  # ended meanwhile
        return ""
