"""The lines of an export: JSON, one record each, in an order that an import can check as it reads.

Owns the format of lines (docs/export.md); which records there are is export_kinds.py's. Touches
neither a file nor a database; any thread.

A header, then per kind all records of it, then a trailer that counts them and has a checksum over
every byte before it, so that a file which was cut or changed is not taken for a whole one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from agentbus.encoding import decode_strict
from agentbus.envelope import rfc3339
from agentbus.errors import ValidationError
from agentbus.limits import JSON_DEPTH, MIB
from agentbus.protocol.fields import ChannelName, Check, Integer, Text, describe
from agentbus.protocol.operations import Send
from agentbus.store.export_kinds import (
    ANY_TEXT,
    CHANNEL_KIND,
    COUNTED,
    ID,
    JSON_LIST,
    JSON_OBJECT,
    NUMBER,
    PEER_KIND,
    Kind,
)

FORMAT_VERSION: Final = 1
HEADER: Final = "agentbus_export"
TRAILER: Final = "end"
BEGINNING: Final = b'{"%s":' % HEADER.encode()
"""The first bytes of an export: they tell it from another file, which must not be overwritten."""

LINE_BYTES: Final = 16 * MIB
"""Far above the largest envelope; a file without line ends is not read whole."""

_LINE_DEPTH: Final = JSON_DEPTH + 3
"""What a sender may nest stands within its envelope, within a record, within a line."""

_HEADER_FIELDS: Final[Mapping[str, Check]] = {
    HEADER: Integer(1),
    "schema": Integer(1),
    "bus_id": ID,
    "exported_at": ANY_TEXT,
    "last_sequence": NUMBER,
    "last_generation": NUMBER,
    "purged_through": NUMBER,
}
_TRAILER_FIELDS: Final[Mapping[str, Check]] = {
    "counts": JSON_OBJECT,
    "sha256": Text(min_bytes=64, max_bytes=64),
}
_BODY: Final = {name: check for name, check in Send.FIELDS.items() if name != "operation_id"}
_OF_ANY: Final[Mapping[str, Check]] = {
    "message_id": ID,
    "revision": COUNTED,
    "sequence": COUNTED,
    "channel_kind": CHANNEL_KIND,
    "sender": JSON_OBJECT,
    "sent_at": ANY_TEXT,
    "depth": NUMBER,
}
_ENVELOPE_FIELDS: Final = {**_OF_ANY, **_BODY}
_DIRECT_FIELDS: Final[Mapping[str, Check]] = {
    **_OF_ANY,
    "channel": ChannelName(),
    "content": ANY_TEXT,
    "type": PEER_KIND,
    "reply_to": ANY_TEXT,
    "thread": ANY_TEXT,
    "to": JSON_LIST,
    "capability": ANY_TEXT,
}
_SENDER_MAY_LACK: Final = ("child", "repository")
_SENDER_FIELDS: Final[Mapping[str, Check]] = dict.fromkeys(
    ("agent", "agent_id", "session_id", "application", "display_name", *_SENDER_MAY_LACK), ANY_TEXT
)
_RECIPIENT_FIELDS: Final[Mapping[str, Check]] = dict.fromkeys(
    ("agent", "agent_id", "session_id"), ANY_TEXT
)
_DIRECT_MAY_LACK: Final = ("reply_to", "capability")
_ENVELOPE_MAY_LACK: Final = tuple(name for name in _BODY if name not in ("channel", "content"))


def decode_line(line: bytes) -> dict[str, Any]:
    """One line as an object. Raises ValidationError."""
    value = decode_strict(line, depth=_LINE_DEPTH)
    if not isinstance(value, dict):
        raise ValidationError(f"must be an object, not {describe(value)}")
    return value


def checked_header(value: dict[str, Any]) -> dict[str, Any]:
    """The first line. Raises ValidationError."""
    if HEADER not in value:
        raise ValidationError(f"is not an export of agentbus: its first line has no {HEADER}")
    if value[HEADER] != FORMAT_VERSION:
        raise ValidationError(
            f"has format version {describe(value[HEADER])}, this program reads {FORMAT_VERSION}; "
            "use the agentbus that wrote it"
        )
    header = _checked(value, _HEADER_FIELDS)
    if header["purged_through"] > header["last_sequence"]:
        raise ValidationError("purged_through is above last_sequence")
    return header


def checked_record(kind: Kind, value: Any) -> dict[str, Any]:
    """The fields of a record. Raises ValidationError that names the field."""
    if kind.later and isinstance(value, dict):
        value = {**kind.later, **value}
    return _checked(value, kind.fields, nullable=kind.nullable)


def checked_trailer(value: Any) -> dict[str, Any]:
    """The last line's content. Raises ValidationError."""
    return _checked(value, _TRAILER_FIELDS)


def check_envelope(envelope: dict[str, Any], sent_at_us: int) -> None:
    """Raises ValidationError for an envelope that the bus cannot have made."""
    if envelope.get("channel_kind") == "inbox":
        checked = _checked(envelope, _DIRECT_FIELDS, "envelope.", may_lack=_DIRECT_MAY_LACK)
    else:
        checked = _checked(envelope, _ENVELOPE_FIELDS, "envelope.", may_lack=_ENVELOPE_MAY_LACK)
    _checked(checked["sender"], _SENDER_FIELDS, "envelope.sender.", may_lack=_SENDER_MAY_LACK)
    for recipient in checked.get("to", ()):
        _checked(recipient, _RECIPIENT_FIELDS, "envelope.to.", may_lack=("session_id",))
    if checked["sent_at"] != rfc3339(sent_at_us):
        raise ValidationError("envelope.sent_at is another time than sent_at_us")


def _checked(
    value: Any,
    fields: Mapping[str, Check],
    prefix: str = "",
    *,
    nullable: frozenset[str] = frozenset(),
    may_lack: tuple[str, ...] = (),
) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValidationError(f"must be an object, not {describe(value)}")
    for name in value:
        if name not in fields:
            raise ValidationError(f"{prefix}{name} is no field of it; known: {', '.join(fields)}")
    checked: dict[str, Any] = {}
    for name, check in fields.items():
        if name not in value:
            if name in may_lack:
                continue
            raise ValidationError(f"{prefix}{name} is missing")
        if value[name] is None and name in nullable:
            checked[name] = None
            continue
        try:
            checked[name] = check(value[name])
        except ValidationError as error:
            raise ValidationError(f"{prefix}{name} {error.message}") from None
    return checked
