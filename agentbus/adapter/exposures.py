"""What clients may have seen of one session, on disk before the first byte of a result leaves.

Owns a small file per session in the runtime folder. The daemon is told the same (conversation.py),
and commits it when the attachment ends; the file is for when it cannot be told or is killed in the
same moment as this process: whichever adapter attaches the session next reads it, and marks what
comes again. It is not synced: it has to outlive processes, not the machine.

Each state is one line, appended whole, so the last complete line is the newest. Positions at or
below what the ledger has stored say nothing, so an old file does no harm. Used in the thread of the
event loop: a line goes to the system's cache, which takes some microseconds.
"""

from __future__ import annotations

import logging
import os
import re
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from agentbus.encoding import decode_strict, encode_line
from agentbus.errors import ValidationError

_log = logging.getLogger(__name__)

FILE_BYTES: Final = 16 * 1024
"""Written anew beyond that."""

READ_BYTES: Final = 4 * 1024 * 1024
"""More than any that was written by this module."""

KEPT_S: Final = 31 * 24 * 3600.0
"""Longer than a subscription can go unused; files of sessions that nobody resumes go after it."""

_SAFE_NAME = re.compile(r"[0-9A-Za-z-]{1,64}")


class Exposures:
    """Of one session of one bus. A folder that cannot be written costs marks, never a message."""

    def __init__(self, folder: Path, bus_id: str, session_id: str) -> None:
        if _SAFE_NAME.fullmatch(session_id) is None:
            raise ValidationError(f"the daemon gave a session id that is none: {session_id!r}")
        self._folder = folder
        self._path = folder / session_id
        self._bus_id = bus_id
        self._noted: dict[int, int] = {}
        self._has_folder = False

    def read(self) -> dict[int, int]:
        """Subscription -> position up to which somebody may have seen messages.

        Only what other adapters have noted beyond what this one has.
        """
        try:
            descriptor = _open(self._path, os.O_RDONLY)
            with open(descriptor, "rb") as file:
                text = file.read(READ_BYTES)
        except OSError:
            return {}
        complete, _, _ = text.rpartition(b"\n")
        try:
            state = decode_strict(complete.rpartition(b"\n")[2])
            if state["bus_id"] != self._bus_id:
                return {}
            exposed = {int(subscription): int(top) for subscription, top in state["exposed"]}
            if not all(0 <= top < 2**63 for top in exposed.values()):
                raise ValidationError("not a position")
        except (ValidationError, TypeError, KeyError, ValueError):
            _log.warning("%s holds no positions; ignored", self._path)
            return {}
        news = {at: top for at, top in exposed.items() if top > self._noted.get(at, 0)}
        self._noted.update(news)
        return news

    def note(self, exposed: Mapping[int, int]) -> None:
        """From now on this is the newest of these subscriptions; the others stay as they are."""
        self._noted.update(exposed)
        state = {"bus_id": self._bus_id, "exposed": list(self._noted.items())}
        try:
            self._write(encode_line(state))
        except OSError as error:
            _log.warning("what a result exposes was not noted: %s", error)

    def forget(self) -> None:
        """The ledger has stored all of it."""
        self._noted.clear()
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _write(self, line: bytes) -> None:
        if not self._has_folder:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            _remove_old(self._folder)
            self._has_folder = True
        descriptor = _open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            if os.fstat(descriptor).st_size <= FILE_BYTES:
                line = b"\n" + line  # whatever was cut off before is no part of it
                if os.write(descriptor, line) < len(line):
                    raise OSError(f"no room for {self._path}")
                return
        finally:
            os.close(descriptor)
        replacement = self._path.with_suffix(".new")
        with open(replacement, "wb", opener=lambda path, mode: os.open(path, mode, 0o600)) as file:
            file.write(line)
        replacement.replace(self._path)


def _open(path: Path, flags: int) -> int:
    """Waits for nobody. Raises OSError where there is something else than a file."""
    flags |= os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is not a file")
    return descriptor


def _remove_old(folder: Path) -> None:
    """Files of sessions that nobody has resumed for longer than their subscriptions can live."""
    oldest_s = time.time() - KEPT_S
    for path in folder.iterdir():
        with suppress(OSError):
            if path.stat().st_mtime < oldest_s:
                path.unlink()
