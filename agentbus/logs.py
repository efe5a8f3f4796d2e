"""Diagnostic logs: where they go, how one record looks, and that data cannot disguise itself.

Owns the handler that it installs. Never logs payloads, and so keeps libraries that do (SQL with its
parameters, whole protocol messages) at warnings. Set up once by the main thread of a process; the
handler then serves every thread.
"""

from __future__ import annotations

import logging
import os
import sys
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, TextIO

from agentbus.limits import KIB, LOG_FILE_BYTES, LOG_FILES
from agentbus.settings import printable

RECORD_CHARACTERS = 64 * KIB
"""A longer record is cut, so that one record can never fill the logs."""

OWN_LOGGERS = ("agentbus", "actors")
"""They log at the configured level; everybody else's warnings and errors are logged too."""

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
}


def setup_logging(path: Path | None, level: str) -> None:
    """Log to rotating files at `path`, or to stderr without one; replaces an earlier set-up.

    The folder is made private (0700) and so is every file (0600). `level` is the setting
    `log_level`. Raises OSError if the file cannot be opened.
    """
    handler: logging.Handler
    if path is None:
        handler = _StandardErrorHandler(sys.stderr)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.parent.chmod(0o700)
        handler = _PrivateRotatingFileHandler(path)
    handler.setFormatter(_LineFormatter())
    root = logging.getLogger()
    for earlier in list(root.handlers):
        if isinstance(earlier, _StandardErrorHandler | _PrivateRotatingFileHandler):
            root.removeHandler(earlier)
            earlier.close()
    root.addHandler(handler)
    root.setLevel(max(_LEVELS[level], logging.WARNING))
    for name in OWN_LOGGERS:
        logging.getLogger(name).setLevel(_LEVELS[level])


class _StandardErrorHandler(logging.StreamHandler[TextIO]):
    """A type of our own, so that a second set-up finds exactly what the first one installed."""


class _PrivateRotatingFileHandler(RotatingFileHandler):
    """`LOG_FILES` files of at most `LOG_FILE_BYTES` bytes, readable by their owner only."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            path,
            # The base class adds characters to bytes to see whether a record still fits; a
            # character is up to 4 bytes, so the difference of the longest record is kept free.
            maxBytes=LOG_FILE_BYTES - 3 * RECORD_CHARACTERS,
            backupCount=LOG_FILES - 1,
            encoding="utf-8",
        )

    def handleError(self, record: logging.LogRecord) -> None:
        """Without room for it a record is lost; the next one is tried all the same."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)

    def _open(self) -> Any:
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.fchmod(descriptor, 0o600)
        return os.fdopen(descriptor, "a", encoding=self.encoding)


class _LineFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.123Z INFO agentbus.store message`, then a traceback set in by `  | `.

    Only the formatter makes lines: what comes from data is escaped before, so a message cannot
    forge a record or send a terminal its control characters.
    """

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        milliseconds = int(record.msecs)
        lines = [
            f"{time}.{milliseconds:03d}Z {record.levelname} {record.name} "
            f"{printable(_cut(record.getMessage()))}"
        ]
        if record.exc_info:
            traceback = _cut(self.formatException(record.exc_info))
            lines += [f"  | {printable(line)}" for line in traceback.split("\n")]
        return _cut("\n".join(lines))


def _cut(text: str) -> str:
    surplus = len(text) - RECORD_CHARACTERS
    if surplus <= 0:
        return text
    note = f" [{surplus} characters cut]"
    return text[: RECORD_CHARACTERS - len(note)] + note
