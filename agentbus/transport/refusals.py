"""Why the last start of the daemon was refused, for whoever asks while none runs.

Owns one small file in the runtime folder: written by a daemon whose start is refused, removed by
the next one that begins. An aid for people: nothing is decided by it, and where it cannot be
written or read there is just no reason to tell. Plain functions, any thread, both sides.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import Final

from agentbus.errors import BusError
from agentbus.transport.singleton import RuntimePaths, check_directory

REFUSAL_BYTES: Final = 4096
"""Of the text that is kept."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """One line that says what has to be changed. `at_us` is wall time."""

    text: str
    at_us: int


def note_refusal(paths: RuntimePaths, text: str) -> None:
    """Keep the text of a refused start, where there is a safe runtime folder."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    with contextlib.suppress(BusError, OSError):
        check_directory(paths, os.getuid())
        descriptor = os.open(paths.refusal, flags, 0o600)
        with open(descriptor, "wb") as file:
            file.write(text.encode(errors="replace")[:REFUSAL_BYTES])


def forget_refusal(paths: RuntimePaths) -> None:
    """A new start has begun."""
    with contextlib.suppress(OSError):
        paths.refusal.unlink()


def last_refusal(paths: RuntimePaths) -> Refusal | None:
    """What the last start was refused for; None when it was not, or nobody knows."""
    try:
        check_directory(paths, os.getuid())
        with paths.refusal.open("rb") as file:
            text = file.read(REFUSAL_BYTES).decode(errors="replace")
            at_us = os.fstat(file.fileno()).st_mtime_ns // 1000
    except (BusError, OSError):
        return None
    return Refusal(text, at_us) if text else None
