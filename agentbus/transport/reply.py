"""The answer that a request still owes, and the bounds on requests in flight.

Owns: that a request is answered at most once, and the count of requests and bytes being worked on.
Never: waits. `Reply` is used from whichever thread settles the request.

    reply.set(value)             # encodes; `value` may hold encoding.raw fragments
    reply.set_json(result_json)  # ready JSON, not looked into
    reply.set_exception(error)   # BusError, ProtocolError; anything else is answered `internal`

Only the first answer counts. An answer to a closed connection is dropped. Shape of a Pykka future,
so a test can pass one instead.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Final

from agentbus import limits
from agentbus.errors import BusError, InternalError, TooLargeError
from agentbus.protocol import jsonrpc
from agentbus.protocol.jsonrpc import ProtocolError, RequestId
from agentbus.transport.connection import Connection

_log = logging.getLogger(__name__)

REQUEST_OVERHEAD_BYTES: Final = 1024
"""Charged for each request in flight beside its frame, so that tiny ones are bounded as well."""


@dataclass(slots=True)
class _Share:
    """What one connection has in flight."""

    by_attachment: dict[Hashable, int]
    charged_bytes: int = 0


class Reply:
    """Settles one request. Made by `InFlight.admit` only."""

    __slots__ = ("_answered", "_in_flight", "attachment", "charged_bytes", "connection", "id")

    def __init__(
        self,
        connection: Connection,
        request_id: RequestId,
        in_flight: InFlight,
        attachment: Hashable,
        charged_bytes: int,
    ) -> None:
        self.connection = connection
        self.id = request_id
        self.attachment = attachment
        self.charged_bytes = charged_bytes
        self._in_flight = in_flight
        self._answered = False

    def set(self, value: Any = None) -> None:
        """Answer with a result."""
        try:
            frame = jsonrpc.encode_response(self.id, value)
        except TypeError as error:  # what orjson raises for values that JSON cannot carry
            _log.error("result of request %r is not JSON: %s", self.id, error)
            self.set_exception(error)
            return
        self._send(frame)

    def set_json(self, result_json: bytes) -> None:
        """Answer with a result that is JSON already."""
        self._send(jsonrpc.encode_response_json(self.id, result_json))

    def set_exception(self, error: BaseException) -> None:
        """Answer with an error. The text of an unforeseen one stays in the log."""
        if not isinstance(error, BusError | ProtocolError):
            error = InternalError("the bus failed on this request; its log has the details")
        self._send(jsonrpc.encode_error(self.id, error))

    def _send(self, frame: bytes) -> None:
        if len(frame) > limits.FRAME_BYTES + 1:
            too_large = TooLargeError(
                f"result of {len(frame)} bytes; a frame holds {limits.FRAME_BYTES}, ask for less"
            )
            frame = jsonrpc.encode_error(self.id, too_large)
        if self._in_flight.settle(self):
            self.connection.send(frame)

    def _take(self) -> bool:
        """Whether this is the first answer. Under the lock of `InFlight`."""
        first = not self._answered
        self._answered = True
        return first


class InFlight:
    """Requests of the whole daemon that have no answer yet, per connection and attachment."""

    def __init__(
        self,
        *,
        total_bytes: int = limits.IN_FLIGHT_BYTES,
    ) -> None:
        self._total_bytes = total_bytes
        self._lock = threading.Lock()
        self._shares: dict[Connection, _Share] = {}
        self._charged_bytes = 0

    @property
    def charged_bytes(self) -> int:
        """Bytes charged for all requests in flight."""
        return self._charged_bytes

    def admit(
        self,
        connection: Connection,
        request_id: RequestId,
        attachment: Hashable,
        frame_bytes: int,
        at_most: int = limits.IN_FLIGHT_PER_ATTACHMENT,
    ) -> Reply | None:
        """The reply to settle, or None when a bound is reached and `overloaded` is the answer."""
        charged_bytes = frame_bytes + REQUEST_OVERHEAD_BYTES
        with self._lock:
            share = self._shares.get(connection)
            if share is None:
                share = self._shares[connection] = _Share({})
            count = share.by_attachment.get(attachment, 0)
            if count >= at_most:
                return None
            if self._charged_bytes + charged_bytes > self._total_bytes:
                return None
            share.by_attachment[attachment] = count + 1
            share.charged_bytes += charged_bytes
            self._charged_bytes += charged_bytes
        return Reply(connection, request_id, self, attachment, charged_bytes)

    def settle(self, reply: Reply) -> bool:
        """Give back what the request was charged. False: it had been answered before."""
        with self._lock:
            if not reply._take():
                return False
            share = self._shares.get(reply.connection)
            if share is not None:
                count = share.by_attachment[reply.attachment] - 1
                if count:
                    share.by_attachment[reply.attachment] = count
                else:
                    del share.by_attachment[reply.attachment]
                share.charged_bytes -= reply.charged_bytes
                self._charged_bytes -= reply.charged_bytes
            return True

    def forget(self, connection: Connection) -> None:
        """The connection is gone: its requests are no longer counted, their answers go nowhere.

        This also ends the account of requests whose actor died without answering.
        """
        with self._lock:
            share = self._shares.pop(connection, None)
            if share is not None:
                self._charged_bytes -= share.charged_bytes

    def requests(self) -> int:
        """How many requests have no answer yet."""
        with self._lock:
            return sum(sum(share.by_attachment.values()) for share in self._shares.values())
