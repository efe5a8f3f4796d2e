"""Newline-delimited frames out of a byte stream.

Owns: cutting the stream at newlines and the frame limit, which holds before anything more is
accumulated. Never: decodes a frame, touches a socket. Runs on the one thread that reads the stream;
a buffer belongs to one stream and is not shared.

    buffer = FrameBuffer()                    # limit_bytes=limits.FRAME_BYTES
    frames: list[bytes] = buffer.feed(data)   # complete frames, without their line ends

What counts: a frame is the bytes before a newline. A carriage return directly before the newline is
removed (CRLF) but counts towards the limit; empty lines are skipped.
"""

from __future__ import annotations

from agentbus import limits
from agentbus.errors import TooLargeError


class FrameTooLargeError(TooLargeError):
    """A frame passed the limit. The stream has lost its place: answer, then close it.

    `frames` are the complete frames that came before it in the same piece of input.
    """

    def __init__(self, limit_bytes: int, frames: list[bytes]) -> None:
        super().__init__(
            f"frame is larger than {limit_bytes} bytes; send less in one request, then reconnect"
        )
        self.frames = frames


class FrameBuffer:
    """Collects input until a newline. Holds at most `limit_bytes` plus one piece of input.

    Invariant: the collected pieces contain no newline and are at most `limit_bytes` together, so
    each byte is searched once however small the pieces are.
    """

    __slots__ = ("_limit_bytes", "_pending_bytes", "_pieces")

    def __init__(self, limit_bytes: int = limits.FRAME_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._pieces: list[bytes] = []
        self._pending_bytes = 0

    @property
    def pending_bytes(self) -> int:
        """Bytes of the frame that is not complete yet."""
        return self._pending_bytes

    def feed(self, data: bytes) -> list[bytes]:
        """Take one piece of input, return the frames that it completes.

        Raises FrameTooLargeError as soon as a frame is known to be over the limit, also when its
        newline has not come yet; the buffer is empty after that.
        """
        lines = data.split(b"\n")
        rest = lines.pop()
        frames: list[bytes] = []
        for line in lines:
            if self._pending_bytes + len(line) > self._limit_bytes:
                self._refuse(frames)
            if self._pieces:
                self._pieces.append(line)
                line = b"".join(self._pieces)
                self._clear()
            if line.endswith(b"\r"):
                line = line[:-1]
            if line:
                frames.append(line)
        if rest:
            if self._pending_bytes + len(rest) > self._limit_bytes:
                self._refuse(frames)
            self._pieces.append(rest)
            self._pending_bytes += len(rest)
        return frames

    def take_pending(self) -> bytes:
        """Give away the beginning of the frame that is not complete yet."""
        pending = b"".join(self._pieces)
        self._clear()
        return pending

    def _refuse(self, frames: list[bytes]) -> None:
        self._clear()
        raise FrameTooLargeError(self._limit_bytes, frames)

    def _clear(self) -> None:
        self._pieces.clear()
        self._pending_bytes = 0
