"""A running listener with a handler that records, and a raw socket that speaks to it."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentbus import encoding
from agentbus.clock import Clock, SystemClock
from agentbus.errors import NotFoundError
from agentbus.protocol.jsonrpc import METHOD_NOT_FOUND, Notification, ProtocolError, Request
from agentbus.transport.connection import Connection
from agentbus.transport.listener import Listener
from agentbus.transport.reply import Reply
from tests.eventually import PATIENCE_S

HEARTBEAT_PAYLOAD = {"readiness": "ready"}


class Recorder:
    """Handler of the tests. Methods: `echo` answers its params, `hold` and `handoff` keep the reply
    for the test, `missing` raises a BusError, `crash` an unforeseen one; others do not exist."""

    def __init__(self) -> None:
        self.connections: queue.Queue[Connection] = queue.Queue()
        self.gone: queue.Queue[Connection] = queue.Queue()
        self.held: queue.Queue[Reply] = queue.Queue()
        self.notifications: queue.Queue[Notification] = queue.Queue()

    def connected(self, connection: Connection) -> None:
        self.connections.put(connection)

    def disconnected(self, connection: Connection) -> None:
        self.gone.put(connection)

    def request(self, connection: Connection, request: Request, reply: Reply) -> None:
        match request.method:
            case "echo":
                reply.set(request.params)
            case "hold" | "handoff":
                self.held.put(reply)
            case "missing":
                raise NotFoundError("no such thing")
            case "crash":
                raise RuntimeError("secret text")
            case _:
                raise ProtocolError(METHOD_NOT_FOUND, f"no method {request.method}")

    def notification(self, connection: Connection, notification: Notification) -> None:
        if notification.method == "crash":
            raise RuntimeError("secret text")
        self.notifications.put(notification)


class Server:
    """A listener on a real socket, closed by the fixture that made it."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock | None = None,
        heartbeat_payload: Callable[[], Any] = lambda: HEARTBEAT_PAYLOAD,
        handler: Recorder | None = None,
        **options: Any,
    ) -> None:
        self.path = path
        self.handler = handler or Recorder()
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(path))
        listening.listen(64)
        self.listener = Listener(
            listening,
            self.handler,
            heartbeat_payload,
            clock=clock or SystemClock(),
            **options,
        )
        self.listener.start()

    def client(self) -> RawClient:
        return RawClient(self.path)

    def connection(self) -> Connection:
        """The connection that came next."""
        return self.handler.connections.get(timeout=PATIENCE_S)


class RawClient:
    """A socket that sends any bytes and reads frames."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(str(path))
        self._file = self.socket.makefile("rb")
        self._lock = threading.Lock()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def call(self, request_id: int | str, method: str, **params: Any) -> None:
        frame = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
        self.send(encoding.encode_line(frame))

    def frame(self) -> Any:
        """The next frame, decoded. EOFError at the end of the stream."""
        line = self._file.readline()
        if not line:
            raise EOFError
        assert line.endswith(b"\n"), "torn frame"
        return encoding.decode_trusted(line)

    def at_end(self) -> bool:
        """Whether the daemon closed the connection, all frames read."""
        try:
            return self._file.read(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self._file.close()
        self.socket.close()
