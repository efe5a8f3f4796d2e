"""The configuration in force: the file is read strictly, once, into an immutable `Config`.

Never writes a file, never clamps a value, never takes a setting from the environment. What a
setting may be is in settings.py. Runs on whichever thread asks.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from agentbus.encoding import decode_strict, encode_canonical
from agentbus.errors import ValidationError
from agentbus.limits import MIB
from agentbus.settings import (
    SETTINGS,
    Json,
    RefusedError,
    Setting,
    check_setting,
    home,
    printable,
    shown,
    type_name,
)

__all__ = [
    "SETTINGS",
    "Config",
    "ConfigError",
    "Json",
    "Setting",
    "Source",
    "default_path",
    "load_config",
]

Source: TypeAlias = Literal["default", "file"]

DATABASE_NAME = "agentbus.sqlite3"
"""The file of the bus in its data directory."""

FILE_BYTES = MIB
"""No sensible configuration is larger; a wrong path (a database, a log) is not read whole."""


class ConfigError(ValidationError):
    """The configuration cannot be used; fatal at start. The message is one line for a person."""

    def __init__(self, file: Path, problem: str, *, key: str | None = None) -> None:
        super().__init__(f"{printable(str(file))}: {problem}")
        self.key = key


READ_AGAIN = frozenset({"talk_peers"})
"""What its user reads from the file each time: a change of it concerns no running daemon."""

_BY_NAME: Mapping[str, Setting] = MappingProxyType({row.name: row for row in SETTINGS})


@dataclass(frozen=True, slots=True)
class Config:
    """The effective configuration; one attribute per setting, named like it.

    `path` is absolute, whether or not the file exists. Lists are tuples, `data_directory` is
    absolute, `redis_executable` is absolute when it names a path.
    """

    data_directory: Path
    redis_executable: str
    redis_budget_mib: int
    sqlite_budget_mib: int
    message_retention_hours: int
    cleanup_free_percent: int
    cleanup_interval_seconds: int
    cursor_idle_hours: int
    tombstone_min_hours: int
    dedup_retention_hours: int
    max_message_kib: int
    send_messages_per_second: int
    send_kib_per_second: int
    prefetch_messages: int
    prefetch_mib: int
    recv_default_count: int
    recv_max_count: int
    recv_max_wait_seconds: int
    discovery_enabled: bool
    inspection_command: tuple[str, ...]
    inspection_timeout_seconds: float
    log_level: Literal["debug", "info", "warn", "error"]
    result_default_kib: int
    search_engine: Literal["auto", "redis", "sqlite"]
    sqlite_synchronous: Literal["full", "normal"]
    talk_max_depth: int
    talk_timeout_seconds: int
    talk_peers: Literal["*"] | tuple[str, ...]
    peer_lease_seconds: int
    peer_window_seconds: int
    peer_max_extensions: int
    peer_reply_due_seconds: int
    peer_allow: Literal["*"] | tuple[str, ...]
    capabilities: tuple[str, ...]
    job_idle_seconds: int
    job_total_seconds: int
    path: Path
    source: Mapping[str, Source] = field(compare=False)

    @property
    def sqlite_budget_bytes(self) -> int:
        return self.sqlite_budget_mib * MIB

    @property
    def redis_budget_bytes(self) -> int:
        return self.redis_budget_mib * MIB

    def effective(self) -> dict[str, Json]:
        """Every setting with the value in force, ready for JSON."""
        return {row.name: _as_json(getattr(self, row.name)) for row in SETTINGS}

    def fingerprint(self) -> str:
        """Equal exactly when all values that are read once are, whatever the file looks like."""
        read_once = {k: value for k, value in self.effective().items() if k not in READ_AGAIN}
        return hashlib.sha256(encode_canonical(read_once)).hexdigest()


def default_path() -> Path:
    """Where the configuration is looked for when nobody names a file. Raises ConfigError."""
    relative = Path(".config", "agentbus", "config.json")
    try:
        return home() / relative
    except RefusedError as refused:
        raise ConfigError("~" / relative, f"not found{refused.why}; set it") from None


def load_config(path: Path | None = None) -> Config:
    """Read the file (None: the default one). No file means all defaults. Raises ConfigError."""
    file = Path(os.path.abspath(path)) if path is not None else default_path()
    text = _read(file)
    given = {} if text is None else _decode(text, file)
    for key, value in given.items():
        if key not in _BY_NAME:
            raise ConfigError(
                file,
                f"unknown key {shown(key)} with the value {shown(value)}; {_advice(key)}",
                key=key,
            )
    values: dict[str, Any] = {}
    for row in SETTINGS:
        value = given.get(row.name, row.default)
        try:
            values[row.name] = check_setting(row, value, file.parent)
        except RefusedError as refused:
            raise ConfigError(
                file,
                f"{row.name} is {shown(value)}{refused.why}; write {row.expected}",
                key=row.name,
            ) from None
    _check_combinations(values, file)
    source: dict[str, Source] = {
        row.name: "file" if row.name in given else "default" for row in SETTINGS
    }
    return Config(**values, path=file, source=MappingProxyType(source))


# There is nothing to check for `prefetch_mib` against `max_message_kib`: the smallest prefetch
# (1 MiB) holds the largest message (1024 KiB). A test keeps the two bounds together.
def _check_combinations(values: Mapping[str, Any], file: Path) -> None:
    default_count, max_count = values["recv_default_count"], values["recv_max_count"]
    if default_count > max_count:
        raise ConfigError(
            file,
            f"recv_default_count is {default_count}, more than recv_max_count, which is "
            f"{max_count}; lower the first or raise the second",
            key="recv_default_count",
        )


def _read(file: Path) -> bytes | None:
    """The file's bytes; None if there is no file. Never blocks on a pipe, never reads a giant."""
    try:
        status = os.stat(file)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(file, "not a regular file; name a JSON file")
        with open(file, "rb") as stream:
            text = stream.read(FILE_BYTES + 1)
    except FileNotFoundError:
        if file.is_symlink():
            raise ConfigError(file, "a symbolic link to nothing; repair or remove it") from None
        return None
    except OSError as error:
        raise ConfigError(
            file, f"cannot be read ({error.strerror}); repair the path or its permissions"
        ) from None
    except ValueError as error:
        raise ConfigError(file, f"not a usable path ({error}); name another") from None
    if len(text) > FILE_BYTES:
        raise ConfigError(file, f"larger than {FILE_BYTES} bytes; name a configuration file")
    return text


def _decode(text: bytes, file: Path) -> dict[str, Json]:
    if not text.strip():
        raise ConfigError(file, "the file is empty; write {} or remove it")
    try:
        value = decode_strict(text)
    except ValidationError as error:
        raise ConfigError(file, f"{printable(error.message)}; correct the file") from None
    if not isinstance(value, dict):
        raise ConfigError(
            file,
            f"the document is {shown(value)}, which is {type_name(value)}; "
            'write an object: {"setting": value}',
        )
    return value


def _advice(unknown_key: str) -> str:
    near = difflib.get_close_matches(unknown_key[:200], _BY_NAME, n=1)
    return f"did you mean {near[0]}? Otherwise remove it" if near else "remove it"


def _as_json(value: Path | str | float | tuple[str, ...]) -> Json:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        return list(value)
    return value
