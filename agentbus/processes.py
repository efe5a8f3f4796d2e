"""Telling one process from another that later got its pid, and ending exactly that one."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

_POLL_SECONDS = 0.01
_HAS_PROC = Path("/proc/self/stat").exists()  # Linux; macOS has none


def start_mark(pid: int) -> str | None:
    """Text that no other process of this pid ever had; None when there is none (or a zombie)."""
    if _HAS_PROC:
        return _start_mark_from_proc(pid)
    state, _, started = _listed(pid, "stat=,lstart=").partition(" ")
    return started.strip() if started and not state.startswith("Z") else None


def is_running(pid: int, mark: str) -> bool:
    """Whether the process that had `mark` still runs."""
    return start_mark(pid) == mark


def ancestors(pid: int) -> list[int]:
    """The processes that it descends from, its parent first, without the first of the system."""
    found: list[int] = []
    while (parent := _parent(pid)) is not None and parent > 1 and parent not in found:
        found.append(parent)
        pid = parent
    return found


def arguments_of(pid: int) -> list[str]:
    """What the process was started with; nothing when there is none."""
    if _HAS_PROC:
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return []
        return [os.fsdecode(word) for word in words]
    return _listed(pid, "args=").split()  # it does not show where an argument with a space ends


def executable(pid: int) -> Path | None:
    """The program that a process runs; None when that cannot be told, or it was replaced since."""
    if _HAS_PROC:
        try:
            path = Path(os.readlink(f"/proc/{pid}/exe"))
        except OSError:  # it has gone, or is another user's
            return None
    else:
        path = Path(_listed(pid, "comm="))
    return path if path.is_absolute() and path.is_file() else None


def open_files(pid: int) -> list[Path]:
    """What a process of the own user has open; nothing where there is no /proc to tell it."""
    try:
        links = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return []
    found = []
    for link in links:
        with suppress(OSError):  # closed meanwhile
            found.append(Path(os.readlink(link)))
    return found


def end_group(pid: int, mark: str, grace_s: float) -> bool:
    """End the process that leads its group, politely first; whether it is gone afterwards.

    Not for a child of this process: nobody would reap it.
    """
    for signal_number, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
        if not is_running(pid, mark):
            return True
        with suppress(ProcessLookupError):
            os.killpg(pid, signal_number)
        deadline_s = time.monotonic() + patience_s
        while is_running(pid, mark) and time.monotonic() < deadline_s:
            time.sleep(_POLL_SECONDS)
    return not is_running(pid, mark)


def _parent(pid: int) -> int | None:
    if _HAS_PROC:
        fields = _stat_fields(pid)
        return None if fields is None else int(fields[1])
    text = _listed(pid, "ppid=")
    return int(text) if text.isdecimal() else None


def _listed(pid: int, columns: str) -> str:
    """What `ps` says of it, however wide; nothing when there is no such process."""
    listed = subprocess.run(
        ["ps", "-wwo", columns, "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return listed.stdout.strip()


def _stat_fields(pid: int) -> list[str] | None:
    """From the state on; the name before it may hold anything, half a character too."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return stat.rpartition(b")")[2].decode("ascii").split()


def _start_mark_from_proc(pid: int) -> str | None:
    fields = _stat_fields(pid)
    if fields is None:
        return None
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    state, threads, start_ticks = fields[0], int(fields[17]), fields[19]
    # A zombie whose other threads are not gone yet still holds its sockets.
    return None if state in "ZX" and threads <= 1 else f"{boot_id}:{start_ticks}"
