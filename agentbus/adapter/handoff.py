"""When records count as handed to the client: the contract between tool handlers and transport.

A tool handler that gives out records makes a `Delivery` and puts it into `current_delivery`, in the
task that runs the handler (a child task has its own copy of the variable, which nobody reads):

    current_delivery.set(Delivery(on_settle=report, on_begin=announce))
    return CallToolResult(...)

The transport settles it exactly once, whatever becomes of the call, and calls `on_settle(delivery)`
in the event loop. Before it gives the first byte to the OS it calls `on_begin(delivery)`, so that
somebody who outlives this process can know what the client may have seen. Only
`Outcome.HANDED_OFF` acknowledges; after every other outcome the records go back into the queue,
marked `redelivered` when `delivery.bytes_left`. A handler that after all
returns something else than the records settles the delivery itself, with `ERROR_RESPONSE`; it need
not catch cancellation. (A handler that is interrupted by the end of the session while it unwinds
from a cancel is not reported; nothing of it has left, and detaching requeues.)

This module owns the words and the bookkeeping. It never touches a file descriptor and imports no
SDK. Everything in it runs in the thread of the event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum

_log = logging.getLogger(__name__)


class Outcome(StrEnum):
    """What became of a result that carried records."""

    HANDED_OFF = "handed_off"
    """The OS took the last byte; up to that write the client had not cancelled and was there."""
    CANCELLED = "cancelled"
    """The client cancelled the call before the last byte; it ignores the answer."""
    BROKEN = "broken"
    """The client closed its end of the output."""
    ERROR_RESPONSE = "error_response"
    """An error went out in the place of the result."""
    UNANSWERED = "unanswered"
    """The call ended without any answer."""
    SHUTDOWN = "shutdown"
    """The session ended first."""


@dataclass(eq=False, slots=True)
class Delivery:
    """Records on their way out in one result. Subclass it to carry what `on_settle` needs."""

    on_settle: Callable[[Delivery], None]
    on_begin: Callable[[Delivery], None] | None = None
    outcome: Outcome | None = field(default=None, init=False)
    bytes_left: bool = field(default=False, init=False)
    """Whether any byte of the result may have left: the client may have seen part of it."""
    begun: bool = field(default=False, init=False)
    """Whether the first byte was about to leave, which is before `bytes_left`."""

    @property
    def handed_off(self) -> bool:
        return self.outcome is Outcome.HANDED_OFF

    def begin(self) -> None:
        """The next thing that happens is the write of the first byte. Later calls do nothing."""
        if self.begun:
            return
        self.begun = True
        if self.on_begin is None:
            return
        try:
            self.on_begin(self)
        except Exception:
            _log.exception("a delivery that is about to leave could not be announced")

    def settle(self, outcome: Outcome) -> None:
        """The first outcome stays; later ones change nothing."""
        if self.outcome is not None:
            return
        self.outcome = outcome
        try:
            self.on_settle(self)
        except Exception:
            # The caller is in the middle of moving frames; a failing report must not stop it.
            _log.exception("the report of a delivery that was %s failed", outcome)


current_delivery: ContextVar[Delivery | None] = ContextVar("current_delivery", default=None)
"""The delivery of the request that this task answers."""


@dataclass(eq=False, slots=True)
class Exchange:
    """One request of the client, open until the last byte of its answer has left.

    Not the request id but this object identifies a request: clients may use an id twice.
    """

    key: Hashable
    cancelled: bool = False


current_exchange: ContextVar[Exchange | None] = ContextVar("current_exchange", default=None)
"""The request that this task answers; set by the transport for each request it reads."""


class OpenExchanges:
    """The requests without a complete answer, by id. Knowing them makes a late cancel harmless."""

    def __init__(self) -> None:
        self._by_key: dict[Hashable, list[Exchange]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_key.values()))

    def open(self, key: Hashable) -> Exchange:
        exchange = Exchange(key)
        self._by_key.setdefault(key, []).append(exchange)
        return exchange

    def close(self, exchange: Exchange) -> None:
        """Closing twice is harmless."""
        same_key = self._by_key.get(exchange.key, [])
        if exchange in same_key:
            same_key.remove(exchange)
        if not same_key:
            self._by_key.pop(exchange.key, None)

    def cancel(self, key: Hashable) -> list[Exchange]:
        """Mark every open request of that id: of two, nobody can tell which one was meant, and
        delivering again is better than losing."""
        cancelled = list(self._by_key.get(key, ()))
        for exchange in cancelled:
            exchange.cancelled = True
        return cancelled
