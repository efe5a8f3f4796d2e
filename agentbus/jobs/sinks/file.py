"""Events as lines appended to a file, which several jobs may share.

Owns its descriptor. Every line is whole: a write that fails is taken back, and what a killed writer
left of a line is dropped by the next one. Writers take turns by a lock on the file. The emitter's
thread.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Literal, TypeAlias

from agentbus.errors import ValidationError
from agentbus.jobs.errors import SinkError
from agentbus.jobs.events import EVENT_BYTES, Event, encode_event, is_terminal

Sync: TypeAlias = Literal["terminal", "each"]
"""Which events are on the disk, not only with the operating system, when `emit` returns."""

_BLOCK_BYTES: Final = 64 * 1024


class FileSink:
    """Appends one line per event to `path`, which is made if it is not there."""

    def __init__(self, path: Path, sync: Sync = "terminal") -> None:
        """Raises ValidationError for what is no regular file, SinkError for other trouble."""
        self._path = path
        self._sync = sync
        try:
            self._descriptor, is_new = _open(path)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise ValidationError(f"{path} is a symbolic link; name the file itself") from None
            raise SinkError(f"{path} cannot be opened: {error.strerror}") from None
        try:
            if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
                raise ValidationError(f"{path} is not a regular file")
            with self._turn():
                self._drop_torn_tail()
            if is_new:
                _sync_folder(path.parent)
        except BaseException:
            os.close(self._descriptor)
            raise

    def emit(self, event: Event) -> None:
        line = encode_event(event) + b"\n"
        with self._turn():
            self._drop_torn_tail()
            self._append(line)
            if self._sync == "each" or is_terminal(event):
                os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        except OSError as error:
            raise SinkError(f"{self._path} cannot be written: {error.strerror}") from None

    def _append(self, line: bytes) -> None:
        """All of the line or nothing of it."""
        start = os.fstat(self._descriptor).st_size
        left = memoryview(line)
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError:
            with suppress(OSError):  # then the next writer drops it
                os.ftruncate(self._descriptor, start)
            raise

    def _drop_torn_tail(self) -> None:
        end = os.fstat(self._descriptor).st_size
        if end == 0 or os.pread(self._descriptor, 1, end - 1) == b"\n":
            return
        kept = end_of_lines(self._descriptor, end, EVENT_BYTES)
        if kept is None or (kept == 0 and os.pread(self._descriptor, 1, 0) != b"{"):
            raise ValidationError(f"{self._path} is no file of events; name another one")
        os.ftruncate(self._descriptor, kept)


def end_of_lines(descriptor: int, end: int, within_bytes: int) -> int | None:
    """Behind the last whole line of a file of so many bytes: 0 where there is none, and None where
    there is none so near its end."""
    position = end
    while position > 0 and end - position <= within_bytes:
        start = max(0, position - _BLOCK_BYTES)
        found = os.pread(descriptor, position - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        position = start
    return 0 if position == 0 else None


def _open(path: Path) -> tuple[int, bool]:
    flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600), True
    except FileExistsError:
        return os.open(path, flags), False


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
