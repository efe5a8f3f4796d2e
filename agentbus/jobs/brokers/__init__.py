"""Brokers that keep the events of jobs: one module each, found by the scheme of a URL.

Imports a broker's library only when its URL is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from agentbus.errors import ValidationError
from agentbus.jobs.brokers.base import JobTransport
from agentbus.protocol.jobs import JobCallback


def _bus(url: str, callback: JobCallback | None) -> JobTransport:
    from agentbus.jobs.brokers.local_bus import BusTransport

    return BusTransport(url, callback)


def _redis(url: str, callback: JobCallback | None) -> JobTransport:
    from agentbus.jobs.brokers.redis_streams import RedisTransport

    return RedisTransport(url)


def _nats(url: str, callback: JobCallback | None) -> JobTransport:
    from agentbus.jobs.brokers.nats_jetstream import NatsTransport

    return NatsTransport(url)


SCHEMES: Final[dict[str, Callable[[str, JobCallback | None], JobTransport]]] = {
    "agentbus": _bus,
    "redis": _redis,
    "rediss": _redis,
    "nats": _nats,
    "tls": _nats,
}
"""What makes a transport of a URL that begins so."""


def open_transport(url: str, callback: JobCallback | None = None) -> JobTransport:
    """Raises ValidationError for a URL that no broker here has; connects to nothing yet.

    `callback`: where the events of an emitter's job are posted to by the broker; only the local bus
    does that, the others leave it to whoever follows.
    """
    try:
        scheme = urlsplit(url).scheme
    except ValueError:  # its text may hold a password
        raise ValidationError("the broker URL cannot be read; look at its brackets") from None
    if scheme not in SCHEMES:
        raise ValidationError(
            f"the broker URL begins with {scheme or 'no scheme'}; known are {', '.join(SCHEMES)}"
        )
    return SCHEMES[scheme](url, callback)
