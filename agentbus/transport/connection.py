"""One client's socket in the daemon: input buffer, bounded output, liveness.

Owns: the order and the bound of a connection's output. Never: reads from the socket or closes its
descriptor (listener.py does, on the transport thread), knows what a frame means.

    connection.send(frame) -> bool                      # control frame, from any thread
    connection.send_many(frames) -> bool
    connection.deliver(frames) -> bool                  # after every control frame
    connection.close(reason); connection.close_when_sent(reason)
    connection.peer.pid, .peer.uid, .last_seen_s, .queued_bytes, .closed, .close_reason
    connection.context                                  # the handler's own state, None at first
    with corked(): ...                                  # this thread's control frames go out at the
                                                        # end, one system call per connection

Invariants
1. A frame is written whole before another begins; control frames overtake queued deliveries, never
   the frame that is being written.
2. Nothing queued: the sender's own thread writes, and the transport thread is not woken.
3. More than `out_buffer_bytes` queued: the client does not read, and its connection is closed.
4. Only the transport thread closes the descriptor, so no thread writes into a reused one.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from agentbus import limits
from agentbus.protocol.frames import FrameBuffer
from agentbus.transport.peer import Peer

WRITE_BYTES: Final = 64 * limits.KIB
"""Frames are joined up to this size for one write. It bounds what a control frame can stand behind
in this process; the kernel's own buffer is of the same order."""


class Connection:
    """See the module. `attend` asks the transport thread to look at this connection."""

    __slots__ = (
        "_attend",
        "_closed",
        "_control",
        "_deliveries",
        "_draining",
        "_lock",
        "_out_buffer_bytes",
        "_partial",
        "_queued_bytes",
        "_write_wanted",
        "close_reason",
        "context",
        "frames",
        "last_seen_s",
        "peer",
        "peer_gone",
        "socket",
    )

    def __init__(
        self,
        connected: socket.socket,
        peer: Peer,
        attend: Callable[[Connection], None],
        *,
        now_s: float,
        out_buffer_bytes: int = limits.CONNECTION_OUT_BUFFER_BYTES,
    ) -> None:
        self.socket = connected
        self.peer = peer
        self.frames = FrameBuffer()
        self.last_seen_s = now_s
        self.context: Any = None
        self.close_reason: str | None = None
        self.peer_gone = False
        """Closed because nobody is there to write to; what they sent before may still be unread."""
        self._attend = attend
        self._out_buffer_bytes = out_buffer_bytes
        self._lock = threading.Lock()
        self._control: deque[bytes] = deque()
        self._deliveries: deque[bytes] = deque()
        self._partial: memoryview | None = None
        self._queued_bytes = 0
        self._write_wanted = False
        self._draining = False
        self._closed = False

    @property
    def closed(self) -> bool:
        """No frame is accepted any more."""
        return self._closed or self._draining

    @property
    def draining(self) -> bool:
        """Waits only for its last frames to be taken by the client."""
        return self._draining and not self._closed

    @property
    def write_wanted(self) -> bool:
        """Output waits for the socket to take more."""
        return self._write_wanted

    @property
    def queued_bytes(self) -> int:
        """Output that the operating system has not taken yet."""
        return self._queued_bytes

    def send(self, frame: bytes) -> bool:
        """Send a control frame. False: the connection is closed and the frame is dropped."""
        corked_frames = _cork.frames
        if corked_frames is not None:
            corked_frames.setdefault(self, []).append(frame)
            return not self.closed
        return self._put((frame,), self._control)

    def send_many(self, frames: Sequence[bytes]) -> bool:
        """Send control frames in this order, at once."""
        self._uncork()
        return self._put(frames, self._control)

    def deliver(self, frames: Sequence[bytes]) -> bool:
        """Send frames that every control frame may overtake."""
        self._uncork()
        return self._put(frames, self._deliveries)

    def close(self, reason: str) -> None:
        """Drop what is queued and disconnect. The first reason is kept. From any thread."""
        with self._lock:
            self._close_locked(reason)

    def close_when_sent(self, reason: str) -> None:
        """Accept nothing more, drop queued deliveries, disconnect when the rest is sent."""
        self._uncork()
        with self._lock:
            if self._closed or self._draining:
                return
            self._queued_bytes -= sum(map(len, self._deliveries))
            self._deliveries.clear()
            self.close_reason = reason
            self._draining = True
            self._write_locked()
            self._attend(self)

    def flush(self) -> None:
        """Write what the socket takes now. For the transport thread, when it is writable."""
        with self._lock:
            self._write_locked()

    def _uncork(self) -> None:
        """What this thread collected for this connection comes first."""
        corked_frames = _cork.frames
        if corked_frames:
            frames = corked_frames.pop(self, None)
            if frames:
                self._put(frames, self._control)

    def _put(self, frames: Iterable[bytes], queue: deque[bytes]) -> bool:
        with self._lock:
            if self._closed or self._draining:
                return False
            idle = self._queued_bytes == 0
            for frame in frames:
                queue.append(frame)
                self._queued_bytes += len(frame)
            if idle:
                self._write_locked()
            if self._queued_bytes > self._out_buffer_bytes:
                self._close_locked(
                    f"client does not read: more than {self._out_buffer_bytes} bytes unsent"
                )
            return not self._closed

    def _write_locked(self) -> None:
        while not self._closed:
            if self._partial is None:
                self._partial = self._next_write()
                if self._partial is None:
                    self._write_wanted = False
                    if self._draining:
                        self._close_locked("all sent")
                    return
            try:
                written = self.socket.send(self._partial)
            except BlockingIOError:
                if not self._write_wanted:
                    self._write_wanted = True
                    self._attend(self)
                return
            except OSError as error:
                self.peer_gone = True
                self._close_locked(f"write failed: {error.strerror}")
                return
            self._queued_bytes -= written
            self._partial = self._partial[written:] if written < len(self._partial) else None

    def _next_write(self) -> memoryview | None:
        """Whole frames, control first, joined while they are small."""
        frames: list[bytes] = []
        size_bytes = 0
        for queue in (self._control, self._deliveries):
            while queue and (not frames or size_bytes + len(queue[0]) <= WRITE_BYTES):
                size_bytes += len(queue[0])
                frames.append(queue.popleft())
        if not frames:
            return None
        return memoryview(frames[0] if len(frames) == 1 else b"".join(frames))

    def _close_locked(self, reason: str) -> None:
        if self._closed:
            return
        self._closed = True
        if self.close_reason is None:
            self.close_reason = reason
        self._control.clear()
        self._deliveries.clear()
        self._partial = None
        self._queued_bytes = 0
        self._write_wanted = False
        with contextlib.suppress(OSError):  # the peer may have gone first
            self.socket.shutdown(socket.SHUT_RDWR)
        self._attend(self)


class _CorkState(threading.local):
    frames: dict[Connection, list[bytes]] | None = None


_cork = _CorkState()


class corked:
    """Collect this thread's control frames and send them at the end of the block.

    A thread that answers many requests at once (a group commit) then makes one system call per
    connection, and gives up the interpreter lock as often, instead of once per answer.
    """

    __slots__ = ("_outermost",)

    def __enter__(self) -> None:
        self._outermost = _cork.frames is None
        if self._outermost:
            _cork.frames = {}

    def __exit__(self, *_: object) -> None:
        if not self._outermost:
            return
        collected, _cork.frames = _cork.frames, None
        for connection, frames in (collected or {}).items():
            connection.send_many(frames)  # not corked any more: written now
