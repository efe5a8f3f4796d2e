"""When are two calls the same call: the fingerprint of what was submitted.

Owns the answer to "is this a repeat". Never looks at daemon times, positions or the operation id
itself. Pure; runs on the attachment's thread.
"""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from hashlib import blake2b
from typing import Any, Protocol

from agentbus.encoding import encode_canonical

FINGERPRINT_BYTES = 16
"""128 bits: chance never makes two payloads of one session and operation id look alike."""

_OWN_KEY = "operation_id"


class Submitted(Protocol):
    """A client operation: a dataclass with its name on the wire."""

    @property
    def NAME(self) -> str: ...


def fingerprint(operation: Submitted) -> bytes:
    """A hash over the canonical JSON of the payload, whatever the order of its object keys.

    Fields at their default are left out, so that an operation which gains an optional field still
    recognises a repeat of a call from before.
    """
    return digest(payload_of(operation))


def payload_of(operation: Submitted) -> bytes:
    """The canonical JSON of what was submitted; its length is what the byte rate is charged."""
    return encode_canonical([operation.NAME, submitted_fields(operation)])


def submitted_fields(operation: Submitted) -> dict[str, Any]:
    """What the caller gave, by field; a field at its default counts as not given."""
    given = {}
    for name, default in _payload_fields(type(operation)):
        value = getattr(operation, name)
        if value != default:
            given[name] = value
    return given


def digest(payload: bytes) -> bytes:
    """The fingerprint of a payload that was encoded before."""
    return blake2b(payload, digest_size=FINGERPRINT_BYTES).digest()


@cache
def _payload_fields(operation: Any) -> tuple[tuple[str, Any], ...]:
    return tuple(
        (field.name, field.default) for field in fields(operation) if field.name != _OWN_KEY
    )
