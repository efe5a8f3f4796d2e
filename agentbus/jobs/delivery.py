"""How one event reaches a parent over HTTP: one attempt, and when to make the next.

Owns the destination's checks, the request's exact shape and the judgement of answers. Keeps no
event: whoever calls decides where events wait meanwhile (callback.py in memory). Blocks the
caller's thread for one attempt.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from typing import Final, TypeAlias

from agentbus.errors import ValidationError
from agentbus.jobs.errors import DeliveryRefusedError
from agentbus.jobs.http import (
    CONNECT_S,
    TOTAL_S,
    NoAnswerError,
    Target,
    exchange,
    parse_url,
    refuse_metadata,
)
from agentbus.jobs.signing import sign
from agentbus.settings import printable

BACKOFF_FIRST_MS: Final = 200
BACKOFF_MAX_MS: Final = 30_000
RETRY_AFTER_MAX_MS: Final = 60_000
"""However long a receiver asks us to stay away."""

_RETRIED: Final = frozenset((408, 425, 429))
"""Beside 5xx: the answers that a repeat may change."""

_TOO_LARGE: Final = 413
_ANSWER_BYTES: Final = 2000


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a job's callbacks go. Made by `destination`, which checks it."""

    target: Target
    allowed_hosts: tuple[str, ...]
    secret: str | None = field(repr=False)
    connect_s: float = CONNECT_S
    total_s: float = TOTAL_S


@dataclass(frozen=True, slots=True)
class Delivered:
    """Any 2xx."""


@dataclass(frozen=True, slots=True)
class NotNow:
    """A repeat may help. `retry_after_ms` is what the receiver asked for, capped."""

    why: str
    retry_after_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """No repeat will help. `is_too_large`: the receiver said that it has not taken it for that."""

    why: str
    is_too_large: bool = False


Outcome: TypeAlias = Delivered | NotNow | Refused


def destination(
    url: str,
    allowed_hosts: tuple[str, ...] = (),
    secret: str | None = None,
    *,
    connect_s: float = CONNECT_S,
    total_s: float = TOTAL_S,
) -> Destination:
    """Raises ValidationError for a URL that must not be called, before any work starts.

    The list, where it is not empty, holds host names that are compared whole, in lower case.
    """
    target = parse_url(url, "the callback URL")
    allowed = tuple(_host(name) for name in allowed_hosts)
    if allowed and target.host not in allowed:
        raise ValidationError(
            f"the callback host {target.host} is not one of the allowed hosts: {', '.join(allowed)}"
        )
    if secret == "":
        raise ValidationError("the callback secret is empty; leave it out to send unsigned")
    return Destination(target, allowed, secret, connect_s, total_s)


def attempt(to: Destination, job_id: str, seq: int, body: bytes, now_s: int) -> Outcome:
    """Post the body once. `now_s` is the wall clock, for the signature."""
    headers = {"content-type": "application/json", "idempotency-key": f"{job_id}:{seq}"}
    if to.secret is not None:
        headers |= sign(to.secret, body, now_s)
    try:
        with exchange(
            "POST",
            to.target,
            refuse_metadata(to.allowed_hosts),
            headers=headers,
            body=body,
            connect_s=to.connect_s,
            total_s=to.total_s,
        ) as response:
            if 200 <= response.status < 300:
                return Delivered()
            why = f"{to.target.authority} answered {response.status}"
            if response.status in _RETRIED or response.status >= 500:
                return NotNow(why, _retry_after_ms(response.headers, now_s))
            return Refused(why + _words(response.glimpse()), response.status == _TOO_LARGE)
    except DeliveryRefusedError as error:
        return Refused(error.message)
    except NoAnswerError as error:
        return NotNow(error.message)


def backoff_ms(attempts_made: int, retry_after_ms: int | None, draw: random.Random) -> int:
    """How long to wait after so many attempts: full jitter, and never before the receiver wants."""
    ceiling_ms = min(BACKOFF_MAX_MS, BACKOFF_FIRST_MS * 2 ** min(attempts_made - 1, 20))
    return max(round(draw.uniform(0, ceiling_ms)), retry_after_ms or 0)


def _host(name: str) -> str:
    """A member of the list as hosts are compared: lower case, an IPv6 address without brackets."""
    host = name.strip().lower()
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    try:
        return str(ip_address(host))
    except ValueError:
        pass
    if not host or not host.isascii() or any(mark in host for mark in "/:@ *"):
        raise ValidationError(
            f"allowed host {name!r}: a host name or an address alone, without scheme, port or *"
        )
    return host


def _retry_after_ms(headers: Mapping[str, str], now_s: int) -> int | None:
    given = headers.get("retry-after")
    if given is None:
        return None
    if given.isascii() and given.isdigit():
        seconds = int(given[:9])
    else:
        try:
            moment = parsedate_to_datetime(given)
        except (ValueError, OverflowError):  # a day or a minute beyond every calendar
            return None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        seconds = int((moment - datetime.fromtimestamp(now_s, UTC)).total_seconds())
    return min(max(0, seconds) * 1000, RETRY_AFTER_MAX_MS)


def _words(body: bytes) -> str:
    """What the receiver said about it, for a person."""
    text = body[:_ANSWER_BYTES].decode("utf-8", "replace").strip()
    return f": {printable(text)}" if text else ""
