"""The write-ahead log as a crash left it, looked at before SQLite opens the database.

Owns the difference between a log that merely ends in an unfinished write and one that has lost
commits. SQLite makes none: it reads up to the first frame that is not sound and silently drops the
rest, which after one flipped bit may be hundreds of commits. Reads only; runs on the thread of
whoever opens the database, at about 40 MiB a second, and only when there is something in the log.

With `synchronous` full every commit is on disk before the next one begins, so a crash leaves at
most one commit behind the last sound frame. Two or more of them mean that something else has
damaged the file. With `normal` a loss of power may leave any number, and nothing can be told.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from agentbus.limits import MIB

CHECKED_BYTES: Final = 128 * MIB
"""Twice what the log should ever reach; of a larger one only the header is looked at."""

_HEADER: Final = struct.Struct(">8I")
_FRAME: Final = struct.Struct(">6I")
_MAGIC: Final = 0x377F0682  # the lowest bit tells the byte order of the checksums
_VERSION: Final = 3007000
_WORD: Final = 0xFFFF_FFFF
_PIECE_BYTES: Final = MIB


class LogDamaged(Exception):
    """The log has lost commits; the text says how that shows."""


@dataclass(frozen=True, slots=True)
class LogState:
    """What lies beside the database. `torn`: its last write is not all there."""

    present: bool
    size_bytes: int
    torn: bool = False


def log_path(database: Path) -> Path:
    """Where SQLite keeps the log of this database."""
    return database.with_name(f"{database.name}-wal")


def look_at_log(database: Path, *, every_commit_synced: bool) -> LogState:
    """Raises LogDamaged, and OSError when the log cannot be read."""
    try:
        log = log_path(database).open("rb")
    except FileNotFoundError:
        return LogState(False, 0)
    with log:
        size_bytes = log.seek(0, 2)
        log.seek(0)
        return LogState(
            True,
            size_bytes,
            size_bytes > 0 and _is_torn(log, size_bytes, 1 if every_commit_synced else None),
        )


def _is_torn(log: IO[bytes], size_bytes: int, may_be_lost: int | None) -> bool:
    """`may_be_lost`: so many commits by a loss of power alone, None for any number."""
    encoded = log.read(_HEADER.size)
    if len(encoded) < _HEADER.size:
        return True  # killed in its very first write
    magic, version, page_bytes, _, salt_1, salt_2, *checksum = _HEADER.unpack(encoded)
    order = ">" if magic & 1 else "<"
    sums = _checksum(order, encoded[:24], (0, 0))
    if magic & ~1 != _MAGIC or version != _VERSION or list(sums) != checksum:
        if _is_zero(encoded) and all(map(_is_zero, _pieces(log))):
            return True  # the power went when the file had been lengthened, but not yet written
        raise LogDamaged("its header is not one of a write-ahead log")
    if size_bytes > CHECKED_BYTES:
        return False
    page_bytes = 65536 if page_bytes == 1 else page_bytes
    sound = True
    lost_commits = 0
    while len(frame := log.read(_FRAME.size + page_bytes)) == _FRAME.size + page_bytes:
        _, pages_after_commit, *salts, sum_1, sum_2 = _FRAME.unpack_from(frame)
        if salts != [salt_1, salt_2]:
            sound = False  # left over from before the log began anew, or damaged
            continue
        if sound:
            sums = _checksum(order, frame[_FRAME.size :], _checksum(order, frame[:8], sums))
            sound = sums == (sum_1, sum_2)
        if not sound and pages_after_commit:
            lost_commits += 1
    if may_be_lost is not None and lost_commits > may_be_lost:
        raise LogDamaged(f"it is damaged in the middle, with {lost_commits} commits behind that")
    return lost_commits > 0 or bool(frame)


def _checksum(order: str, content: bytes, sums: tuple[int, int]) -> tuple[int, int]:
    """Section 4.2 of SQLite's file format."""
    words = struct.unpack(f"{order}{len(content) // 4}I", content)
    sum_1, sum_2 = sums
    for first, second in zip(words[::2], words[1::2], strict=True):
        sum_1 = (sum_1 + first + sum_2) & _WORD
        sum_2 = (sum_2 + second + sum_1) & _WORD
    return sum_1, sum_2


def _pieces(log: IO[bytes]) -> Iterator[bytes]:
    while piece := log.read(_PIECE_BYTES):
        yield piece


def _is_zero(content: bytes) -> bool:
    return content.count(0) == len(content)
