"""An asyncio client of the daemon, for the adapter: many requests at once, notifications.

Owns: one connection, the requests that wait on it, bounded output. Never: reconnects, retries,
sends heartbeats by itself. Lives on one event loop; nothing here may be called from another thread.

    client = await AsyncClient.connect(path, on_notification, timeout_s=1.0)
    client = await AsyncClient.adopt(connected_socket, on_notification, unread)  # from launch.py
    result = await client.request(method, params, timeout_s=30.0)   # timeout None: none
    client.notify(method, params)
    client.closed      # asyncio.Future[str]: done when the connection is gone, with the reason
    client.close()

Errors: as in client.py. When the connection goes, every waiting request gets `NoAnswerError`.
`on_notification(notification)` is called on the loop, in order of arrival, and must not block.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentbus import limits
from agentbus.errors import BusError, OverloadedError
from agentbus.protocol import jsonrpc
from agentbus.protocol.frames import FrameBuffer, FrameTooLargeError
from agentbus.protocol.jsonrpc import ErrorResponse, Notification, ProtocolError, Response
from agentbus.transport.client import NoAnswerError, check_frame_size, connect_socket, no_daemon

_log = logging.getLogger(__name__)


class AsyncClient(asyncio.Protocol):
    """See the module. Made by `connect` or `adopt`."""

    def __init__(self, on_notification: Callable[[Notification], None], unread: bytes) -> None:
        self._on_notification = on_notification
        self._unread = unread
        self._transport: asyncio.Transport | None = None
        self._buffer = FrameBuffer()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._last_id = 0
        self._close_reason: str | None = None
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @classmethod
    async def connect(
        cls, path: Path, on_notification: Callable[[Notification], None], *, timeout_s: float
    ) -> AsyncClient:
        """Raises UnavailableError when no daemon listens there; never starts one."""
        try:
            connected = await asyncio.to_thread(connect_socket, path, timeout_s)
        except OSError as error:
            raise no_daemon(path, error) from None
        return await cls.adopt(connected, on_notification)

    @classmethod
    async def adopt(
        cls,
        connected: socket.socket,
        on_notification: Callable[[Notification], None],
        unread: bytes = b"",
    ) -> AsyncClient:
        """Take over a connected socket, and what was read from it already."""
        connected.setblocking(False)
        _, client = await asyncio.get_running_loop().create_unix_connection(
            lambda: cls(on_notification, unread), sock=connected
        )
        return client

    async def request(
        self, method: str, params: dict[str, Any], timeout_s: float | None = None
    ) -> Any:
        """The result; raises the BusError that was answered, or NoAnswerError."""
        self._last_id += 1
        request_id = self._last_id
        self._write(jsonrpc.encode_request(request_id, method, params), method)
        answer: asyncio.Future[Any] = self.closed.get_loop().create_future()
        self._waiting[request_id] = answer
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise NoAnswerError(
                f"{method}: no answer from the daemon in {timeout_s:g} s", sent=True
            ) from None
        finally:
            self._waiting.pop(request_id, None)

    def notify(self, method: str, params: dict[str, Any]) -> None:
        """Send what wants no answer."""
        self._write(jsonrpc.encode_notification(method, params), method)

    def close(self, reason: str = "closed by the client") -> None:
        """Disconnect; waiting requests get NoAnswerError at once."""
        if self._close_reason is None:
            self._close_reason = reason
            if self._transport is not None:
                self._transport.abort()
            self._fail_waiting(reason)

    def _write(self, frame: bytes, method: str) -> None:
        check_frame_size(frame, method)
        transport = self._transport
        if transport is None or self._close_reason is not None:
            reason = self._close_reason or "not connected"
            raise NoAnswerError(f"{method}: no connection to the daemon: {reason}", sent=False)
        if transport.get_write_buffer_size() + len(frame) > limits.OUT_BUFFER_BYTES:
            raise OverloadedError(f"{method}: the daemon does not take our output; wait, try again")
        transport.write(frame)

    def _fail_waiting(self, reason: str) -> None:
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(
                    NoAnswerError(f"connection to the daemon lost: {reason}", sent=True)
                )
        self._waiting.clear()

    def _settle(self, request_id: object, result: Any, error: BusError | None) -> None:
        answer = self._waiting.pop(request_id, None) if isinstance(request_id, int) else None
        if answer is None or answer.done():
            return  # it was given up
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        unread, self._unread = self._unread, b""
        if unread:  # before the loop reads on
            self.data_received(unread)

    def data_received(self, data: bytes) -> None:
        try:
            frames = self._buffer.feed(data)
        except FrameTooLargeError as error:
            self.close(f"daemon: {error.message}")
            return
        for frame in frames:
            try:
                message = jsonrpc.parse(frame)
            except ProtocolError as error:
                self.close(f"the daemon's frame is no JSON-RPC: {error.message}")
                return
            if isinstance(message, Response):
                self._settle(message.id, message.result, None)
            elif isinstance(message, ErrorResponse):
                self._failed(message)
            elif isinstance(message, Notification):
                self._notified(message)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._close_reason is None:
            self._close_reason = str(exc) if exc else "the daemon closed the connection"
        self._fail_waiting(self._close_reason)
        if not self.closed.done():
            self.closed.set_result(self._close_reason)

    def _failed(self, response: ErrorResponse) -> None:
        error = jsonrpc.error_from_response(response)
        if response.id is None:  # it could not tell which of our frames was wrong
            _log.error("the daemon refused a frame: %s", error.message)
        self._settle(response.id, None, error)

    def _notified(self, notification: Notification) -> None:
        try:
            self._on_notification(notification)
        except Exception:
            _log.exception("notification %s failed in the client", notification.method)
