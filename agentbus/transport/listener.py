"""The daemon's socket loop: accepts, reads, answers heartbeats, hands everything else on.

Owns: every connection's descriptor and all reads, on one thread of its own (`transport`).
Never: runs an operation, waits for an actor, blocks on anything but `select`.

    listener = Listener(listening_socket, handler, heartbeat_payload, clock=clock,
                        on_failure=...)      # told when the loop itself fails: the daemon must end
    listener.start(); listener.stop_accepting(); listener.close(flush_s); listener.statistics()
    listener.broadcast(frame)                # to every connection, from any thread

`handler` (see `Handler`) is called on the transport thread and must not block. Heartbeats never
reach it, so nothing that it does elsewhere can delay them.

Bad input: a malformed frame is answered with a JSON-RPC error and the connection goes on; a frame
over the limit is answered and the connection closed, because its place in the stream is lost.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from agentbus import limits
from agentbus.clock import Clock
from agentbus.errors import BusError, OverloadedError
from agentbus.protocol import jsonrpc
from agentbus.protocol.frames import FrameTooLargeError
from agentbus.protocol.jsonrpc import Notification, ProtocolError, Request
from agentbus.transport.acceptor import Acceptor
from agentbus.transport.connection import Connection, corked
from agentbus.transport.peer import Peer
from agentbus.transport.reply import InFlight, Reply

_log = logging.getLogger(__name__)

HEARTBEAT: Final = "heartbeat"
HANDOFF: Final = "handoff"
READ_BYTES: Final = 64 * limits.KIB
LINGER_S: Final = limits.SHUTDOWN_GRACE_SECONDS
"""How long a connection that is to be closed may take to read its last frames."""
_READ = selectors.EVENT_READ
_WRITE = selectors.EVENT_WRITE


class Handler(Protocol):
    """What the daemon does with its connections. Called on the transport thread; never blocks."""

    def connected(self, connection: Connection) -> None: ...

    def request(self, connection: Connection, request: Request, reply: Reply) -> None:
        """Settle `reply` now or later, on any thread. Raising answers the error."""
        ...

    def notification(self, connection: Connection, notification: Notification) -> None: ...

    def disconnected(self, connection: Connection) -> None:
        """Exactly once per connected connection; `connection.close_reason` says why."""
        ...


@dataclass(frozen=True, slots=True)
class TransportStatistics:
    """Counters since start, except those that say "now"."""

    connections_now: int
    accepted: int
    refused: int
    accept_pauses: int
    requests: int
    heartbeats: int
    notifications: int
    malformed: int
    overloaded: int
    in_flight_now: int
    in_flight_bytes_now: int
    queued_bytes_now: int


def _attachment_key(params: dict[str, Any]) -> Hashable:
    """What in-flight is counted by: the `[session_id, generation]` that every frame of an
    attachment names. Everything else of a connection is counted together; the daemon's operations
    judge whether the value is right. Reports are counted apart, in `_reports_key`."""
    match params.get("attachment"):
        case [str() as session_id, int() as generation]:
            return (session_id, generation)
    return None


def _reports_key(params: dict[str, Any]) -> Hashable:
    """A report is answered after the next group commit; a client that takes a backlog quickly has
    many of them under way, and must be able to ask for more meanwhile."""
    return (HANDOFF, _attachment_key(params))


class Listener:
    """See the module. Only `accepted_uid` (default: our own user) may connect."""

    def __init__(
        self,
        listening: socket.socket,
        handler: Handler,
        heartbeat_payload: Callable[[], Any],
        *,
        clock: Clock,
        on_failure: Callable[[Exception], None] | None = None,
        accepted_uid: int | None = None,
        in_flight: InFlight | None = None,
        out_buffer_bytes: int = limits.CONNECTION_OUT_BUFFER_BYTES,
    ) -> None:
        self._handler = handler
        self._heartbeat_payload = heartbeat_payload
        self._clock = clock
        self._on_failure = on_failure
        self._in_flight = in_flight or InFlight()
        self._out_buffer_bytes = out_buffer_bytes
        self._selector = selectors.DefaultSelector()
        self._connections: dict[Connection, int] = {}  # with the events it is registered for
        self._lingering: dict[Connection, float] = {}  # closes at this monotonic time, seconds
        self._attention: deque[Connection] = deque()
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._awake = threading.Event()  # set: the loop will look at what was put before
        self._thread = threading.Thread(target=self._run, name="transport", daemon=True)
        self._accepting = True
        self._close_by_s: float | None = None
        self._requests = self._heartbeats = self._notifications = 0
        self._malformed = self._overloaded = 0
        for waker in (self._wake_receiver, self._wake_sender):
            waker.setblocking(False)
        self._acceptor = Acceptor(
            listening,
            self._selector,
            os.getuid() if accepted_uid is None else accepted_uid,
            self._welcome,
        )
        self._selector.register(self._wake_receiver, _READ, self._drain_wakes)

    # From any thread

    def start(self) -> None:
        """Begin to accept and read, on a thread of our own."""
        self._thread.start()

    def broadcast(self, frame: bytes) -> None:
        """Send a control frame to everybody who is connected."""
        for connection in list(self._connections):
            connection.send(frame)

    def stop_accepting(self) -> None:
        """Take no new connections; those that exist go on."""
        self._accepting = False
        self._wake()

    def close(self, flush_s: float) -> None:
        """Disconnect everybody, after at most `flush_s` for what they have not read yet."""
        self._accepting = False
        self._close_by_s = time.monotonic() + flush_s
        self._wake()
        if self._thread.ident is None:
            self._end()  # it was never started
        else:
            self._thread.join()

    def statistics(self) -> TransportStatistics:
        connections = list(self._connections)
        return TransportStatistics(
            connections_now=len(connections),
            accepted=self._acceptor.accepted,
            refused=self._acceptor.refused,
            accept_pauses=self._acceptor.pauses,
            requests=self._requests,
            heartbeats=self._heartbeats,
            notifications=self._notifications,
            malformed=self._malformed,
            overloaded=self._overloaded,
            in_flight_now=self._in_flight.requests(),
            in_flight_bytes_now=self._in_flight.charged_bytes,
            queued_bytes_now=sum(connection.queued_bytes for connection in connections),
        )

    def _attend(self, connection: Connection) -> None:
        self._attention.append(connection)
        if threading.current_thread() is not self._thread:
            self._wake()

    def _wake(self) -> None:
        if self._awake.is_set():
            return
        self._awake.set()
        try:
            self._wake_sender.send(b"\0")
        except OSError:
            return  # full: it is awake; closed: it has ended

    # On the transport thread

    def _run(self) -> None:
        try:
            while self._close_by_s is None:
                self._turn(self._pause_s())
            for connection in list(self._connections):
                connection.close_when_sent("daemon stops")
                self._settle(connection)
            while self._connections and (left_s := self._close_by_s - time.monotonic()) > 0:
                self._turn(left_s)
        except Exception as error:
            _log.exception("the transport failed; all connections are closed")
            if self._on_failure is not None:
                self._on_failure(error)
        finally:
            self._end()

    def _pause_s(self) -> float | None:
        """Until the next thing that happens by time; None: nothing does. Real time, not `clock`:
        a test's clock that stands still must not keep output from being flushed."""
        due_s = list(self._lingering.values())
        if self._acceptor.again_s is not None:
            due_s.append(self._acceptor.again_s)
        return max(0.0, min(due_s) - time.monotonic()) if due_s else None

    def _turn(self, pause_s: float | None) -> None:
        for key, events in self._selector.select(pause_s):
            target = key.data
            if not isinstance(target, Connection):
                target()
                continue
            if events & _WRITE:
                target.flush()
            if events & _READ and not target.closed:
                self._read(target)
            self._settle(target)
        while self._attention:
            self._settle(self._attention.popleft())
        if not self._accepting:
            self._acceptor.close()
        now_s = time.monotonic()
        self._acceptor.resume_when_due(now_s)
        for connection, due_s in list(self._lingering.items()):
            if due_s <= now_s:
                connection.close("client does not read its last frames")
                self._settle(connection)

    def _drain_wakes(self) -> None:
        self._wake_receiver.recv(64)
        self._awake.clear()  # before the queue is looked at, so that no later put is missed

    def _welcome(self, connected: socket.socket, peer: Peer) -> None:
        connection = Connection(
            connected,
            peer,
            self._attend,
            now_s=self._clock.monotonic_s(),
            out_buffer_bytes=self._out_buffer_bytes,
        )
        self._connections[connection] = _READ
        self._selector.register(connected, _READ, connection)
        self._guarded(connection, self._handler.connected, connection)

    def _read(self, connection: Connection) -> None:
        try:
            data = connection.socket.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            connection.close(f"read failed: {error.strerror}")
            return
        if not data:
            connection.close("client disconnected")
            return
        connection.last_seen_s = self._clock.monotonic_s()
        self._take(connection, data)

    def _take(self, connection: Connection, data: bytes) -> None:
        too_large: FrameTooLargeError | None = None
        try:
            frames = connection.frames.feed(data)
        except FrameTooLargeError as error:
            too_large = error
            frames = error.frames
        with corked():
            for frame in frames:
                if connection.closed and not connection.peer_gone:
                    return
                self._frame(connection, frame)
        if too_large is not None:
            self._malformed += 1
            connection.send(jsonrpc.encode_error(None, too_large))
            connection.close_when_sent(too_large.message)

    def _frame(self, connection: Connection, frame: bytes) -> None:
        try:
            message = jsonrpc.parse(frame)
        except ProtocolError as error:
            self._malformed += 1
            connection.send(jsonrpc.encode_error(error.request_id, error))
            return
        if isinstance(message, Request):
            if message.method == HEARTBEAT:
                self._heartbeats += 1
                connection.send(jsonrpc.encode_response(message.id, self._heartbeat_payload()))
            else:
                self._request(connection, message, len(frame))
        elif isinstance(message, Notification):
            if message.method != HEARTBEAT:
                self._notifications += 1
                self._guarded(connection, self._handler.notification, connection, message)
        else:
            self._malformed += 1  # an answer, but the daemon never asks; there is nobody to tell

    def _request(self, connection: Connection, request: Request, frame_bytes: int) -> None:
        self._requests += 1
        if request.method == HANDOFF:
            key, at_most = _reports_key(request.params), limits.REPORTS_IN_FLIGHT_PER_ATTACHMENT
        else:
            key, at_most = _attachment_key(request.params), limits.IN_FLIGHT_PER_ATTACHMENT
        reply = self._in_flight.admit(connection, request.id, key, frame_bytes, at_most)
        if reply is None:
            self._overloaded += 1
            overloaded = OverloadedError(
                "too many requests in flight; wait for answers, then try again", retry_after_ms=50
            )
            connection.send(jsonrpc.encode_error(request.id, overloaded))
            return
        try:
            self._handler.request(connection, request, reply)
        except (BusError, ProtocolError) as error:
            reply.set_exception(error)
        except Exception as error:
            _log.exception("request %s failed in the transport's handler", request.method)
            reply.set_exception(error)

    def _guarded(self, connection: Connection, call: Callable[..., None], *args: Any) -> None:
        """A handler's fault ends the connection that it concerns, never the loop."""
        try:
            call(*args)
        except Exception:
            _log.exception("transport handler failed; its connection is closed")
            connection.close("internal error")

    def _settle(self, connection: Connection) -> None:
        """Bring the selector in line with what the connection wants now."""
        registered = self._connections.get(connection)
        if registered is None:
            return
        if connection.closed and not connection.draining:
            self._remove(connection)
            return
        if connection.draining:
            wanted = _WRITE
            self._lingering.setdefault(connection, time.monotonic() + LINGER_S)
        else:
            wanted = _READ | _WRITE if connection.write_wanted else _READ
        if wanted != registered:
            self._selector.modify(connection.socket, wanted, connection)
            self._connections[connection] = wanted

    def _read_last_words(self, connection: Connection) -> None:
        """Of a client that died: a report among them says what need not be delivered again."""
        with contextlib.suppress(OSError):
            while data := connection.socket.recv(READ_BYTES):
                self._take(connection, data)

    def _remove(self, connection: Connection) -> None:
        if connection.peer_gone:
            self._read_last_words(connection)
        del self._connections[connection]
        self._lingering.pop(connection, None)
        self._selector.unregister(connection.socket)
        connection.socket.close()
        self._in_flight.forget(connection)
        self._guarded(connection, self._handler.disconnected, connection)

    def _end(self) -> None:
        for connection in list(self._connections):
            connection.close("daemon stops")
            self._remove(connection)
        self._acceptor.close()
        self._selector.close()
        self._wake_receiver.close()
        self._wake_sender.close()
