"""Stopping and killing another process, so that it has happened when the call returns.

`os.kill` only marks the signal as pending. Until each thread of the process has acted on it, which
on a busy machine takes a while, the process may still answer.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from agentbus.processes import start_mark
from tests.eventually import eventually

ACTED_WITHIN_S = 30.0
_PROC = Path("/proc")


def freeze(pid: int) -> None:
    """SIGSTOP; afterwards no thread of the process runs until it is sent SIGCONT."""
    os.kill(pid, signal.SIGSTOP)
    wait_frozen(pid)


def wait_frozen(pid: int) -> None:
    """The same for a process that somebody else stops, or that stops itself."""
    eventually(lambda: _is_frozen(pid), ACTED_WITHIN_S, what=f"process {pid} stands still")


def kill(pid: int) -> None:
    """SIGKILL; afterwards its sockets, files and locks are free, though it may be a zombie."""
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: start_mark(pid) is None, ACTED_WITHIN_S, what=f"process {pid} is gone")


def _is_frozen(pid: int) -> bool:
    if not (_PROC / "self").exists():  # macOS
        return _said_by_ps(pid).startswith("T")
    try:
        stats = [(task / "stat").read_bytes() for task in (_PROC / str(pid) / "task").iterdir()]
    except (FileNotFoundError, ProcessLookupError):  # a thread has just ended
        return False
    # After the name, which may hold anything, comes the state.
    return all(stat.rpartition(b")")[2].split()[0] == b"T" for stat in stats)


def _said_by_ps(pid: int) -> str:
    command = ["ps", "-o", "stat=", "-p", str(pid)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
