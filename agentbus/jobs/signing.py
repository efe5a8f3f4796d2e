"""How a callback proves who sent it: two signatures over the exact bytes of its body.

Owns the headers. The first signature covers the body alone, as receivers expect it; the second one
also the time, so that a receiver can refuse what was recorded long ago. Pure; any thread.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from typing import Final

from agentbus.errors import ForbiddenError

SIGNATURE_HEADER: Final = "x-signature"
TIMESTAMP_HEADER: Final = "x-signature-timestamp"
"""Whole seconds since the epoch, as digits."""

TIMED_SIGNATURE_HEADER: Final = "x-signature-timed"
"""Over the timestamp's digits, a full stop and the body."""

TOLERANCE_S: Final = 300
"""How far the sender's clock may be from the receiver's, and how long a delivery may take."""

_SCHEME: Final = "sha256="
_SECONDS: Final = re.compile(r"[0-9]{1,15}")


def sign(secret: str, body: bytes, now_s: int) -> dict[str, str]:
    """The headers for one attempt at delivering the body."""
    return {
        SIGNATURE_HEADER: _signature(secret, body),
        TIMESTAMP_HEADER: str(now_s),
        TIMED_SIGNATURE_HEADER: _signature(secret, _timed(str(now_s), body)),
    }


def verify(
    secret: str,
    body: bytes,
    headers: Mapping[str, str],
    now_s: int,
    *,
    needs_timestamp: bool = False,
) -> None:
    """Raises ForbiddenError that says which proof is wrong.

    `headers` are by lower-case name. A timestamp is checked where there is one; a sender that knows
    only the first signature has none, unless `needs_timestamp`.
    """
    given = headers.get(SIGNATURE_HEADER)
    if given is None:
        raise ForbiddenError(f"no {SIGNATURE_HEADER}")
    if not _equal(given, _signature(secret, body)):
        raise ForbiddenError(f"{SIGNATURE_HEADER} does not fit the body")
    timestamp, timed = headers.get(TIMESTAMP_HEADER), headers.get(TIMED_SIGNATURE_HEADER)
    if timestamp is None and timed is None and not needs_timestamp:
        return
    if timestamp is None or timed is None:
        raise ForbiddenError(f"no {TIMESTAMP_HEADER} with {TIMED_SIGNATURE_HEADER}")
    if not _equal(timed, _signature(secret, _timed(timestamp, body))):
        raise ForbiddenError(f"{TIMED_SIGNATURE_HEADER} does not fit")
    if not _SECONDS.fullmatch(timestamp):  # signed all the same: a tool writes what it likes
        raise ForbiddenError(f"{TIMESTAMP_HEADER} is no whole number of seconds")
    if abs(now_s - int(timestamp)) > TOLERANCE_S:
        raise ForbiddenError(f"{TIMESTAMP_HEADER} is more than {TOLERANCE_S} s away")


def _timed(timestamp: str, body: bytes) -> bytes:
    return timestamp.encode("utf-8", "replace") + b"." + body


def _signature(secret: str, body: bytes) -> str:
    # The exact bytes of an environment variable that is not UTF-8, too.
    key = secret.encode("utf-8", "surrogateescape")
    return _SCHEME + hmac.new(key, body, hashlib.sha256).hexdigest()


def _equal(given: str, right: str) -> bool:
    """In a time that does not tell where they differ."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), right.encode())
