"""Whose Redis listens on the socket path: the record of the instance that we started.

An instance carries a random token from its first moment (in a setting that has no effect here), and
the record beside the socket holds the same token, so that not even a crash between starting the
process and noting its pid leaves an instance that nobody owns. What lacks the token is foreign and
is never stopped, cleared or written to.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import redis

from agentbus.encoding import decode_trusted, encode
from agentbus.projection.connection import Ask

TOKEN_SETTING = "syslog-ident"
"""Free text that CONFIG GET reports and Redis uses only for logging to syslog, which is off."""


@dataclass(frozen=True, slots=True)
class Record:
    """What is known about our instance. `pid` and `mark` are None until it has been started."""

    token: str
    settings: dict[str, Any]
    pid: int | None = None
    mark: str | None = None
    facts: dict[str, Any] | None = None


def write_record(path: Path, record: Record) -> None:
    """Replace the record at once and whole."""
    draft = path.with_suffix(".new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(encode(asdict(record)))
    draft.replace(path)


def read_record(path: Path) -> Record | None:
    """The record, or None when there is none that makes sense."""
    with suppress(FileNotFoundError, ValueError, TypeError):
        return Record(**decode_trusted(path.read_bytes()))
    return None


def token_of(ask: Ask) -> str | None:
    """The token of whatever answers; None when it has none or does not say."""
    try:
        reply = ask("CONFIG", "GET", TOKEN_SETTING)
        [value] = reply.values() if isinstance(reply, dict) else reply[1::2]
    except (redis.ResponseError, ValueError):
        return None
    return value.decode() if isinstance(value, bytes) else str(value)
