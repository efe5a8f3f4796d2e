"""A blocking client of the daemon, for command lines and for starting the daemon.

Owns: one connection and the matching of answers to requests. Never: starts a daemon, retries.
Belongs to one thread at a time. Imports nothing that is slow to load.

    client = Client.connect(path, timeout_s=1.0)       # or Client(connected_socket)
    result = client.request(method, params, timeout_s=5.0)
    asked = client.begin(method, params, timeout_s=5.0)   # several at once, finished in any order
    result = client.finish(asked, timeout_s=5.0)
    client.notify(method, params)
    client.wait_notification(timeout_s)                # the next one, after those already called
    client.take_unread() -> bytes; client.detach() -> socket.socket; client.close()

Errors: what the daemon answered is raised as the BusError it was. `NoAnswerError` (code
`unavailable`) when there is no answer: its `sent` tells whether the request may have been carried
out, which for a mutation means the outcome is unknown.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from agentbus import limits
from agentbus.errors import ForbiddenError, TooLargeError, UnavailableError
from agentbus.protocol import jsonrpc
from agentbus.protocol.frames import FrameBuffer
from agentbus.protocol.jsonrpc import ErrorResponse, Message, Notification, ProtocolError, Response
from agentbus.transport.peer import peer_of

READ_BYTES: Final = 256 * limits.KIB

NotificationCallback = Callable[[Notification], None]


class NoAnswerError(UnavailableError):
    """No answer will come. `sent`: the request had left, so it may have been carried out."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


def check_frame_size(frame: bytes, method: str) -> None:
    """Refuse what the daemon would close the connection for."""
    if len(frame) > limits.FRAME_BYTES + 1:  # the newline is not counted
        raise TooLargeError(
            f"{method}: request of {len(frame)} bytes; a frame holds {limits.FRAME_BYTES}"
        )


def no_daemon(path: Path, error: OSError | None = None) -> UnavailableError:
    """Nobody listens there."""
    cause = f" ({error.strerror or error})" if error else ""
    return UnavailableError(f"no daemon answers at {path}{cause}; start it: agentbus daemon")


def connect_socket(path: Path, timeout_s: float) -> socket.socket:
    """A connected socket whose other end is a process of our own user.

    Raises OSError as `connect` does (nobody listens, no such file), ForbiddenError for a foreign
    process.
    """
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connected.settimeout(timeout_s)
        connected.connect(os.fspath(path))
        uid = peer_of(connected).uid
        if uid != os.getuid():
            raise ForbiddenError(f"the process at {path} belongs to user {uid}, not to us")
    except BaseException:
        connected.close()
        raise
    return connected


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that was sent and whose answer is to come."""

    request_id: int
    method: str


class Client:
    """See the module. Notifications go to `on_notification` while a request waits."""

    def __init__(
        self, connected: socket.socket, on_notification: NotificationCallback | None = None
    ) -> None:
        self._socket = connected
        self._on_notification = on_notification
        self._buffer = FrameBuffer()
        self._unread: list[bytes] = []  # complete frames, oldest last
        self._last_id = 0
        self._begun: dict[int, Response | ErrorResponse | None] = {}

    @classmethod
    def connect(
        cls,
        path: Path,
        timeout_s: float,
        on_notification: NotificationCallback | None = None,
    ) -> Client:
        """Raises UnavailableError when no daemon listens there."""
        try:
            return cls(connect_socket(path, timeout_s), on_notification)
        except OSError as error:
            raise no_daemon(path, error) from None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def interrupt(self) -> None:
        """From any thread: what is being waited for here ends with NoAnswerError."""
        with suppress(OSError):  # it is closed already
            self._socket.shutdown(socket.SHUT_RDWR)

    def take_unread(self) -> bytes:
        """What was read behind the last answer: notifications come at any time."""
        frames, self._unread = self._unread[::-1], []
        return b"".join(frame + b"\n" for frame in frames) + self._buffer.take_pending()

    def detach(self) -> socket.socket:
        """Give the connection away, after `take_unread`: input read already would be lost."""
        if self._unread or self._buffer.pending_bytes:
            raise AssertionError("a connection with unread input cannot be given away")
        return self._socket

    def request(self, method: str, params: dict[str, Any], timeout_s: float) -> Any:
        """The result; raises the BusError that was answered, or NoAnswerError."""
        deadline_s = time.monotonic() + timeout_s
        return self.finish(self.begin(method, params, timeout_s), deadline_s - time.monotonic())

    def begin(self, method: str, params: dict[str, Any], timeout_s: float) -> Asked:
        """Send a request whose answer is not waited for yet; `finish` or `give_up` is next."""
        self._last_id += 1
        frame = jsonrpc.encode_request(self._last_id, method, params)
        check_frame_size(frame, method)
        self._send(frame, method, time.monotonic() + timeout_s)
        self._begun[self._last_id] = None
        return Asked(self._last_id, method)

    def finish(self, asked: Asked, timeout_s: float) -> Any:
        """The result of a request that was begun; raises as `request` does."""
        deadline_s = time.monotonic() + timeout_s
        try:
            while (answer := self._begun[asked.request_id]) is None:
                message = self._receive(deadline_s)
                if message is None:
                    raise NoAnswerError(
                        f"{asked.method}: no answer from the daemon in {timeout_s:.3g} s", sent=True
                    )
                self._take(message)
        finally:
            del self._begun[asked.request_id]
        if isinstance(answer, ErrorResponse):
            raise jsonrpc.error_from_response(answer)
        return answer.result

    def give_up(self, asked: Asked) -> None:
        """Nobody wants the answer of this one any more."""
        self._begun.pop(asked.request_id, None)

    def _take(self, message: Message) -> None:
        if isinstance(message, Notification):
            if self._on_notification is not None:
                self._on_notification(message)
        elif isinstance(message, ErrorResponse) and message.id is None:
            raise jsonrpc.error_from_response(message)  # of a frame that nobody could read
        elif isinstance(message, Response | ErrorResponse) and message.id in self._begun:
            self._begun[message.id] = message
        # else the answer to a request that was given up

    def notify(self, method: str, params: dict[str, Any], timeout_s: float = 5.0) -> None:
        """Send what wants no answer."""
        frame = jsonrpc.encode_notification(method, params)
        check_frame_size(frame, method)
        self._send(frame, method, time.monotonic() + timeout_s)

    def wait_notification(self, timeout_s: float) -> Notification | None:
        """The next notification, None when the time is over."""
        deadline_s = time.monotonic() + timeout_s
        while (message := self._receive(deadline_s)) is not None:
            if isinstance(message, Notification):
                return message
        return None

    def _send(self, frame: bytes, method: str, deadline_s: float) -> None:
        try:
            self._socket.settimeout(max(0.001, deadline_s - time.monotonic()))
            self._socket.sendall(frame)
        except OSError as error:  # also when the time is over
            self.close()  # half a frame may have left
            raise NoAnswerError(
                f"{method}: cannot send to the daemon: {error}", sent=False
            ) from None

    def _receive(self, deadline_s: float) -> Message | None:
        """The next message, None when the time is over."""
        while not self._unread:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return None
            try:
                self._socket.settimeout(left_s)
                data = self._socket.recv(READ_BYTES)
            except TimeoutError:
                return None
            except OSError as error:
                raise NoAnswerError(f"connection to the daemon lost: {error}", sent=True) from None
            if not data:
                raise NoAnswerError("the daemon closed the connection", sent=True)
            self._unread = self._buffer.feed(data)
            self._unread.reverse()
        try:
            return jsonrpc.parse(self._unread.pop())
        except ProtocolError as error:
            self.close()
            raise NoAnswerError(f"the daemon's answer is no JSON-RPC: {error}", sent=True) from None
