"""The adapter's own stdio transport, because the SDK's cannot tell when a result has left.

    stdio = open_stdio()                        # in the event loop, once per process
    async with stdio:
        loop.add_signal_handler(signal.SIGTERM, stdio.stop)
        await server.run(stdio.read, stdio.write, options)

`Server.run` returns when the client closes its end of input or output, or after `stop()`: running
handlers are then cancelled. Leaving the block flushes queued output for `FLUSH_SECONDS`, abandons
the rest, and settles every delivery that is left. How a handler takes part: see handoff.py.

    stdio.write.queued_bytes      unread output; skip progress notifications unless it is 0
    len(stdio.write.exchanges)    requests without a complete answer; bound it at the tool call

This module owns the two file descriptors and reading. It knows no tool, installs no signal handler
and never prints. All of it runs in the thread of the event loop, but for one daemon thread that
reads where reads cannot be polled (terminal, file).

Output that the client does not read is bounded: beyond `OUT_BUFFER_BYTES` no further line is read.
"""

from __future__ import annotations

import asyncio
import contextvars
import fcntl
import os
import select
from collections import deque
from contextvars import Context
from types import TracebackType
from typing import Self

import anyio
from mcp.shared.dispatcher import as_request_id, coerce_request_id
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from mcp_types import JSONRPCMessage, JSONRPCNotification, JSONRPCRequest

from agentbus.adapter.blocking import READ_BYTES, BlockingReader, is_pollable
from agentbus.adapter.handoff import current_exchange
from agentbus.adapter.inbound import LineSplitter, Refusal, decode_line
from agentbus.adapter.outbound import FLUSH_SECONDS, WriteSide
from agentbus.errors import UnavailableError
from agentbus.limits import OUT_BUFFER_BYTES

__all__ = ["FLUSH_SECONDS", "ReadSide", "StdioTransport", "WriteSide", "claim_stdio", "open_stdio"]

_WAITING_MESSAGES = 256
"""Reading pauses while the SDK has so many messages still to take."""


class ReadSide:
    """The `read_stream` of `Server.run`. Made and used in the thread of the event loop."""

    def __init__(self, fd: int, write: WriteSide) -> None:
        self.last_context: Context | None = None
        """The context in which the SDK handles the message it took last."""
        self._fd = fd
        self._write = write
        self._loop = asyncio.get_running_loop()
        self._base_context = contextvars.copy_context()
        self._lines = LineSplitter()
        self._messages: deque[tuple[Context, SessionMessage]] = deque()
        self._wake = asyncio.Event()
        self._eof = False
        self._stopped = False
        self._watching = False
        self._hangup = select.poll()
        self._hangup.register(fd, getattr(select, "POLLRDHUP", 0))
        self._reader: BlockingReader | None = None
        write.bind(self)
        if is_pollable(fd):
            os.set_blocking(fd, False)
            self._regulate()
        else:
            self._reader = BlockingReader(fd, self._loop, self._feed)

    async def receive(self) -> SessionMessage:
        while not self._messages:
            if self.ended:
                raise anyio.EndOfStream
            self._wake.clear()
            await self._wake.wait()
        self.last_context, message = self._messages.popleft()
        self._regulate()
        return message

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def aclose(self) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        await self.aclose()

    @property
    def ended(self) -> bool:
        return self._eof or self._stopped

    def is_open(self) -> bool:
        """Ask the OS too: the end of the input may stand behind bytes that are still unread."""
        return not self._eof and not self._hangup.poll(0)

    def stop(self) -> None:
        """End the session as if the client had closed our input, without waiting for it."""
        self._stopped = True
        self._messages.clear()
        self._regulate()
        self._wake.set()

    def output_changed(self) -> None:
        self._regulate()

    def close(self) -> None:
        """The last call on this object."""
        self.stop()
        if self._reader is None:  # the thread may be blocked in a read of the descriptor
            os.set_blocking(self._fd, True)  # other processes may have this file
            os.close(self._fd)

    def _regulate(self) -> None:
        """Read on, or pause while the client or the SDK takes nothing."""
        wanted = (
            not self.ended
            and len(self._messages) < _WAITING_MESSAGES
            and self._write.queued_bytes <= OUT_BUFFER_BYTES
        )
        if self._reader is not None:
            self._reader.allow(wanted)
        elif wanted and not self._watching:
            self._loop.add_reader(self._fd, self._readable)
            self._watching = True
        elif self._watching and not wanted:
            self._loop.remove_reader(self._fd)
            self._watching = False

    def _readable(self) -> None:
        try:
            data = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:  # reset by a client that died
            data = b""
        self._feed(data)

    def _feed(self, data: bytes) -> None:
        """Decode at once, so that a cancel counts from the moment its bytes were read."""
        self._eof = not data
        for line in self._lines.feed(data) if data else self._lines.finish():
            if self._stopped:  # perhaps just now: a refusal may find the output closed
                return
            decoded = decode_line(line)
            if isinstance(decoded, Refusal):
                self._write.refuse(decoded)
            elif decoded is not None:
                self._accept(decoded)
        self._regulate()
        self._wake.set()

    def _accept(self, message: JSONRPCMessage) -> None:
        context = self._base_context.copy()
        metadata = None
        if isinstance(message, JSONRPCRequest):
            exchange = self._write.exchanges.open(coerce_request_id(message.id))
            context.run(current_exchange.set, exchange)

            async def unanswered() -> None:
                self._write.unanswered(exchange)

            metadata = ServerMessageMetadata(on_request_unanswered=unanswered)
        elif (
            isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled"
        ):
            request_id = as_request_id((message.params or {}).get("requestId"))
            if request_id is not None:
                self._write.cancel(request_id)
        self._messages.append((context, SessionMessage(message, metadata)))


class StdioTransport:
    """Both sides over two descriptors of its own. Make it in the event loop, use it as a block."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self.write = WriteSide(write_fd)
        self.read = ReadSide(read_fd, self.write)

    def stop(self) -> None:
        """Make `Server.run` return soon. Call it in the event loop, from a signal handler too."""
        self.read.stop()

    async def close(self, flush_s: float = FLUSH_SECONDS) -> None:
        """Flush, settle what is left, release the descriptors."""
        self.read.stop()
        try:
            await self.write.close(flush_s)
        finally:
            self.read.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        await self.close()


def claim_stdio() -> tuple[int, int]:
    """Move stdin and stdout to descriptors of our own: `(read_fd, write_fd)`.

    Descriptor 0 then reads nothing and 1 writes to stderr, so neither a stray print nor a child
    process can touch the protocol.
    """
    try:
        read_fd = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3)
        write_fd = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3)
    except OSError:
        raise UnavailableError(
            "stdin or stdout is closed; an MCP client must start this program with both open"
        ) from None
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    try:
        os.dup2(2, 1)
    except OSError:  # no stderr
        os.dup2(null, 1)
    os.close(null)
    return read_fd, write_fd


def open_stdio() -> StdioTransport:
    """The transport over the stdin and stdout of this process."""
    return StdioTransport(*claim_stdio())
