"""What every setting is called, is by default and may be; and the check of one value.

Owns every settable number and its bounds: `SETTINGS` is the single source, documentation and
`agentbus-admin config` are made from it. Never reads a file (that is config.py), never clamps.
Pure: runs on whichever thread asks.
"""

from __future__ import annotations

import codecs
import os
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from agentbus.encoding import encode
from agentbus.limits import KIB, NAME_BYTES, PREFETCH_MIB_MAX

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"
Kind: TypeAlias = Literal[
    "folder", "executable", "integer", "number", "boolean", "choice", "argv", "names", "labels"
]

ARGV_BYTES = 32 * KIB
"""Of all entries of `inspection_command` together, as UTF-8."""

LABEL_CHARACTERS = 80
_SHOWN_CHARACTERS = 80


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table. `minimum` and `maximum` bound numbers; for lists, the entry count."""

    name: str
    default: Json
    kind: Kind
    meaning: str
    minimum: float | None = None
    maximum: float | None = None
    allowed: tuple[str, ...] = ()
    unit: str = ""

    @property
    def expected(self) -> str:
        """What may be written, as the end of the sentence "write ..."."""
        match self.kind:
            case "folder":
                return "the path of a folder, as text that is not empty"
            case "executable":
                return "the name or path of an executable, as text that is not empty"
            case "integer":
                return f"a whole number from {self.minimum} to {self.maximum}"
            case "number":
                return f"a number from {self.minimum} to {self.maximum}"
            case "boolean":
                return "true or false"
            case "choice":
                return "one of " + ", ".join(f'"{choice}"' for choice in self.allowed)
            case "argv":
                return (
                    f"a list of at most {self.maximum} texts, the first of them not empty, "
                    f"{ARGV_BYTES} bytes in all; or [] for none"
                )
            case "names":
                return (
                    '"*" for all, or a list of agent names (NFC, no control characters, '
                    f"1 to {NAME_BYTES} bytes)"
                )
            case "labels":
                return (
                    f"a list of at most {self.maximum} texts of 1 to {LABEL_CHARACTERS} "
                    "characters, none of them a control character"
                )


def _integer(
    name: str, default: int, minimum: int, maximum: int, unit: str, meaning: str
) -> Setting:
    return Setting(name, default, "integer", meaning, minimum, maximum, unit=unit)


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "data_directory",
        "~/.local/share/agentbus",
        "folder",
        "SQLite file, logs and working data of the private Redis; changing it migrates nothing",
    ),
    Setting(
        "redis_executable",
        "redis-server",
        "executable",
        "a path is the only candidate; a plain name is looked up on PATH",
    ),
    _integer("redis_budget_mib", 512, 64, 65536, "MiB", "Redis dataset budget"),
    _integer("sqlite_budget_mib", 2048, 64, 1048576, "MiB", "budget of logical retained row data"),
    _integer(
        "message_retention_hours", 168, 1, 8760, "hours", "maximum age of an ordinary message"
    ),
    _integer(
        "cleanup_free_percent", 25, 5, 90, "percent", "free share to reach after capacity cleanup"
    ),
    _integer(
        "cleanup_interval_seconds", 60, 5, 3600, "seconds", "periodic age and tombstone cleanup"
    ),
    _integer(
        "cursor_idle_hours", 72, 1, 720, "hours", "expiry of a subscription without explicit use"
    ),
    _integer(
        "tombstone_min_hours", 72, 72, 720, "hours", "minimum age of a tombstone before purge"
    ),
    _integer(
        "dedup_retention_hours", 72, 1, 720, "hours", "receipt lifetime from first acceptance"
    ),
    _integer("max_message_kib", 64, 1, 1024, "KiB", "complete serialized envelope"),
    _integer(
        "send_messages_per_second", 100, 1, 10000, "per second", "accepted mutations per session"
    ),
    _integer(
        "send_kib_per_second", 1024, 64, 65536, "KiB/s", "accepted mutation bytes per session"
    ),
    _integer("prefetch_messages", 256, 1, 4096, "messages", "queued deliveries per adapter"),
    _integer("prefetch_mib", 4, 1, PREFETCH_MIB_MAX, "MiB", "queued delivery bytes per adapter"),
    _integer(
        "recv_default_count", 100, 1, 1000, "messages", "records when `receive` names no count"
    ),
    _integer("recv_max_count", 1000, 1, 10000, "messages", "largest count accepted"),
    _integer(
        "recv_max_wait_seconds", 60, 0, 300, "seconds", "largest wait accepted; omitted means 0"
    ),
    Setting(
        "discovery_enabled",
        True,
        "boolean",
        "the agent directory; the senders of messages stay visible either way",
    ),
    Setting(
        "inspection_command",
        [],
        "argv",
        "command that may refuse content; run directly, never through a shell",
        maximum=64,
    ),
    Setting(
        "inspection_timeout_seconds",
        5.0,
        "number",
        "deadline of one inspection; fractions allowed",
        minimum=0.1,
        maximum=60,
        unit="seconds",
    ),
    Setting(
        "log_level",
        "info",
        "choice",
        "least severity logged; payloads are never logged",
        allowed=("debug", "info", "warn", "error"),
    ),
    _integer(
        "result_default_kib",
        40,
        4,
        4096,
        "KiB",
        "ceiling of one `receive`, `search` or `history` result when the caller names none",
    ),
    Setting(
        "search_engine",
        "auto",
        "choice",
        "`auto` takes Redis search where it is found, else SQLite; `redis` refuses to do without",
        allowed=("auto", "redis", "sqlite"),
    ),
    Setting(
        "sqlite_synchronous",
        "full",
        "choice",
        "`normal` trades safety at power loss for speed",
        allowed=("full", "normal"),
    ),
    _integer(
        "talk_max_depth", 3, 1, 16, "levels", "first depth of a question over talk that is refused"
    ),
    _integer("talk_timeout_seconds", 60, 1, 600, "seconds", "deadline of one question over talk"),
    Setting(
        "talk_peers",
        [],
        "names",
        "who may ask over talk and be asked; [] switches it off; read again for every question",
    ),
    _integer("peer_lease_seconds", 30, 5, 300, "seconds", "how long claimed work stays claimed"),
    _integer("peer_window_seconds", 600, 30, 86400, "seconds", "inactivity of claimed work"),
    _integer("peer_max_extensions", 6, 0, 100, "times", "extensions of one claim"),
    _integer("peer_reply_due_seconds", 900, 60, 604800, "seconds", "when a reply is overdue"),
    Setting("peer_allow", "*", "names", "whom this user's agents may address with `peer send`"),
    Setting("capabilities", [], "labels", "advertised by this user's sessions", maximum=50),
    _integer("job_idle_seconds", 600, 5, 86400, "seconds", "a job silent for so long is lost"),
    _integer("job_total_seconds", 86400, 60, 604800, "seconds", "longest life of a job"),
)


class RefusedError(Exception):
    """A value that a setting cannot have; `why` continues the sentence "KEY is VALUE"."""

    def __init__(self, why: str = "") -> None:
        super().__init__(why)
        self.why = why


def check_setting(row: Setting, value: Json, base: Path) -> Any:
    """The value in force for a value as written; `base` is the folder of the file.

    Raises RefusedError.
    """
    return _CHECKS[row.kind](row, value, base)


def home() -> Path:
    """The user's home folder. Raises RefusedError."""
    try:
        folder = Path.home()
    except RuntimeError:
        folder = Path()
    if not folder.is_absolute():
        raise RefusedError(", but HOME is not the absolute path of a folder")
    return folder


def _check_folder(row: Setting, value: Json, base: Path) -> Path:
    return Path(_absolute(_text(value), base))


def _check_executable(row: Setting, value: Json, base: Path) -> str:
    text = _text(value)
    return _absolute(text, base) if "/" in text else text


def _check_integer(row: Setting, value: Json, base: Path) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise RefusedError(f", which is {type_name(value)}")
    _check_range(row, value)
    return value


def _check_number(row: Setting, value: Json, base: Path) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise RefusedError(f", which is {type_name(value)}")
    _check_range(row, value)
    return float(value)


def _check_boolean(row: Setting, value: Json, base: Path) -> bool:
    if not isinstance(value, bool):
        raise RefusedError(f", which is {type_name(value)}")
    return value


def _check_choice(row: Setting, value: Json, base: Path) -> str:
    if not isinstance(value, str) or value not in row.allowed:
        raise RefusedError
    return value


def _check_argv(row: Setting, value: Json, base: Path) -> tuple[str, ...]:
    argv = _texts(row, value)
    if argv and not argv[0]:
        raise RefusedError(", which names no program")
    size_bytes = sum(len(entry.encode()) for entry in argv)
    if size_bytes > ARGV_BYTES:
        raise RefusedError(f", which is {size_bytes} bytes")
    if argv and "/" in argv[0]:
        return (_absolute(argv[0], base), *argv[1:])
    return argv


def _check_names(row: Setting, value: Json, base: Path) -> Literal["*"] | tuple[str, ...]:
    if value == "*":
        return "*"
    names = _texts(row, value)
    for name in names:
        if (
            name == "*"
            or not 1 <= len(name.encode()) <= NAME_BYTES
            or not unicodedata.is_normalized("NFC", name)
            or any(unicodedata.category(character) == "Cc" for character in name)
        ):
            raise RefusedError(f", where {shown(name)} is no agent name")
    return names


def _check_labels(row: Setting, value: Json, base: Path) -> tuple[str, ...]:
    labels = _texts(row, value)
    for label in labels:
        if not 1 <= len(label) <= LABEL_CHARACTERS:
            raise RefusedError(f", where one text has {len(label)} characters")
        if any(unicodedata.category(character) == "Cc" for character in label):
            raise RefusedError(f", where {shown(label)} holds control characters")
    return labels


_CHECKS: Mapping[Kind, Callable[[Setting, Json, Path], Any]] = MappingProxyType(
    {
        "folder": _check_folder,
        "executable": _check_executable,
        "integer": _check_integer,
        "number": _check_number,
        "boolean": _check_boolean,
        "choice": _check_choice,
        "argv": _check_argv,
        "names": _check_names,
        "labels": _check_labels,
    }
)


def _check_range(row: Setting, value: float) -> None:
    if row.minimum is not None and value < row.minimum:
        raise RefusedError(", which is too small")
    if row.maximum is not None and value > row.maximum:
        raise RefusedError(", which is too large")


def _text(value: Json) -> str:
    if not isinstance(value, str):
        raise RefusedError(f", which is {type_name(value)}")
    if not value:
        raise RefusedError(", which is empty")
    return value


def _texts(row: Setting, value: Json) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise RefusedError(f", which is {type_name(value)}")
    texts = tuple(entry for entry in value if isinstance(entry, str))
    if len(texts) != len(value):
        raise RefusedError(", where an entry is not text")
    if row.maximum is not None and len(texts) > row.maximum:
        raise RefusedError(f", which has {len(texts)} entries")
    return texts


def _absolute(text: str, base: Path) -> str:
    """`~/` is the home, anything else relative is relative to the configuration file's folder."""
    if text.startswith("~/"):
        base, text = home(), text[2:].lstrip("/")
    elif text.startswith("~"):
        raise RefusedError(", where only ~/ is known (./~ for a name that starts with it)")
    absolute = os.path.abspath(base / text)
    if not absolute.isascii():
        try:
            absolute.encode()
        except UnicodeEncodeError:
            raise RefusedError(", which leads to a path that is not UTF-8") from None
    return absolute


def type_name(value: Json) -> str:
    """What a person calls the JSON type of `value`, with its article."""
    match value:
        case None:
            return "null"
        case bool():
            return "a truth value"
        case int():
            return "a whole number"
        case float():
            return "a number with a fraction part"
        case str():
            return "text"
        case list():
            return "a list"
        case _:
            return "an object"


def shown(value: Json) -> str:
    """The value as JSON, on one line, bounded: a message is for a terminal."""
    text = printable(encode(value).decode())
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"


codecs.lookup("unicode_escape")
"""Loads the codec: at the first odd character there may be no descriptor left to load it with."""


def printable(text: str) -> str:
    """The text with everything escaped that could move a cursor or forge a line."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )
