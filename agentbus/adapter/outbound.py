"""The side of the transport that writes, and the only place that knows when a result has left.

`WriteSide.send` parks the task of one request until the last byte of its frame was taken by the OS,
so nothing is ever reported early; reading and other requests go on meanwhile. Frames leave in the
order of their `send`, and a frame that has begun is always completed.

Pipes and sockets are written without blocking from the event loop. Everything else (terminal, file)
is written by one daemon thread, a chunk at a time; all state stays with the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

import anyio
from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.message import SessionMessage
from mcp_types import (
    INTERNAL_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
)

from agentbus.adapter.blocking import BlockingWriter, is_pollable
from agentbus.adapter.handoff import (
    Delivery,
    Exchange,
    OpenExchanges,
    Outcome,
    current_delivery,
    current_exchange,
)
from agentbus.adapter.inbound import Refusal
from agentbus.encoding import encode_line
from agentbus.errors import ValidationError
from agentbus.failpoints import reach

_log = logging.getLogger(__name__)

FLUSH_SECONDS = 0.5
"""How long `close` waits for a client to take what is queued. Clients kill after 2 s or more."""

_WRITE_BYTES = 256 * 1024
_REFUSALS_QUEUED_BYTES = 1024 * 1024
"""With so much unread output, bad lines stay unanswered: their sender reads nothing anyway."""


class Input(Protocol):
    """What the writing side must know of the reading side."""

    @property
    def ended(self) -> bool:
        """No further request will be read; the session is about to end."""

    def is_open(self) -> bool:
        """Whether the client still holds its end of our input."""

    def stop(self) -> None: ...

    def output_changed(self) -> None:
        """`queued_bytes` has grown or shrunk: reading may have to pause, or may go on."""


@dataclass(eq=False, slots=True)
class _Frame:
    data: memoryview
    done: asyncio.Future[None]
    exchange: Exchange | None = None
    delivery: Delivery | None = None
    written_bytes: int = 0
    started: bool = False
    """Given to the OS, at least in part: from then on it can only be completed."""

    def start(self) -> None:
        self.started = True
        if self.delivery is not None:
            self.delivery.bytes_left = True

    def settle(self, outcome: Outcome) -> None:
        if self.delivery is not None:
            self.delivery.settle(outcome)

    def finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


class WriteSide:
    """The `write_stream` of `Server.run`. Made and used in the thread of the event loop."""

    def __init__(self, fd: int) -> None:
        self.exchanges = OpenExchanges()
        self.queued_bytes = 0
        """Not yet taken by the OS. Optional output (progress) is best skipped unless this is 0."""
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self._input: Input | None = None
        self._frames: deque[_Frame] = deque()
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False
        self._broken = False
        self._watching = False
        self._writer: BlockingWriter | None = None
        if is_pollable(fd):
            os.set_blocking(fd, False)
        else:
            self._writer = BlockingWriter(fd, self._loop, self._written_by_thread)

    def bind(self, source: Input) -> None:
        self._input = source

    async def send(self, item: SessionMessage, /) -> None:
        """Return when the last byte has left, or when the client does not want it any more."""
        message = item.message
        exchange, delivery = _answered_by_this_task(message)
        if delivery is not None and isinstance(message, JSONRPCError):
            delivery.settle(Outcome.SHUTDOWN if self._ending else Outcome.ERROR_RESPONSE)
            delivery = None
        if self._closed:
            if delivery is not None:
                delivery.settle(Outcome.BROKEN if self._broken else Outcome.SHUTDOWN)
            raise anyio.BrokenResourceError
        if exchange is not None and exchange.cancelled:
            # Read before this answer, although the SDK has not come to handle the cancel yet.
            self._end_exchange(exchange, delivery, Outcome.CANCELLED)
            return
        try:
            data = _encode(message)
        except TypeError as error:
            if exchange is None:
                raise ValidationError(f"not encodable as JSON: {error}") from None
            if delivery is not None:
                delivery.settle(Outcome.ERROR_RESPONSE)
                delivery = None
            problem = f"the result is not encodable as JSON: {error}"
            data = _encode_error(_reply_id(message), INTERNAL_ERROR, problem)
        frame = self._enqueue(data, exchange, delivery)
        if self._ending:
            return  # `close` flushes; parking here would only delay the end of the session
        try:
            await frame.done
        except asyncio.CancelledError:
            if not frame.started and not self._ending:
                self._drop(frame, Outcome.CANCELLED)
            raise

    async def aclose(self) -> None:
        """The SDK sends nothing more. What is queued still leaves: see `close`."""
        self._closed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        await self.aclose()

    def refuse(self, refusal: Refusal) -> None:
        """Answer a line that never becomes a request."""
        if self._closed or self.queued_bytes > _REFUSALS_QUEUED_BYTES:
            return
        self._enqueue(_encode_error(refusal.request_id, refusal.code, refusal.message))

    def cancel(self, request_id: RequestId) -> None:
        """The client has cancelled: it ignores an answer that is not complete yet.

        An answer whose last byte has left is not open any more, so the cancel is ignored: some
        clients cancel every answered call, and withdrawing would deliver to them for ever.
        """
        cancelled = self.exchanges.cancel(coerce_request_id(request_id))
        for frame in [frame for frame in self._frames if frame.exchange in cancelled]:
            if frame.started:
                frame.settle(Outcome.CANCELLED)
            else:
                self._drop(frame, Outcome.CANCELLED)

    def unanswered(self, exchange: Exchange) -> None:
        """The SDK is done with a request and has written nothing. Runs in the request's task."""
        outcome = Outcome.CANCELLED if exchange.cancelled else Outcome.UNANSWERED
        self._end_exchange(exchange, current_delivery.get(), outcome)

    async def close(self, flush_s: float = FLUSH_SECONDS) -> None:
        """Give queued frames so long to leave, then abandon them. The last call on this object."""
        self._closed = True
        try:
            async with asyncio.timeout(flush_s):
                await self._idle.wait()
        except TimeoutError:
            _log.warning("%d bytes of output were never read by the client", self.queued_bytes)
        finally:
            self._abandon(Outcome.SHUTDOWN)
            self._release_fd()

    @property
    def _ending(self) -> bool:
        return self._closed or (self._input is not None and self._input.ended)

    def _enqueue(
        self, data: bytes, exchange: Exchange | None = None, delivery: Delivery | None = None
    ) -> _Frame:
        frame = _Frame(memoryview(data), self._loop.create_future(), exchange, delivery)
        self._frames.append(frame)
        self.queued_bytes += len(data)
        self._idle.clear()
        if not self._watching:
            self._pump()
        self._output_changed()
        return frame

    def _pump(self) -> None:
        """Write until the OS takes no more."""
        while self._frames:
            frame = self._frames[0]
            chunk = frame.data[frame.written_bytes : frame.written_bytes + _WRITE_BYTES]
            if frame.delivery is not None:
                frame.delivery.begin()
            if self._writer is not None:
                if self._writer.submit(chunk):
                    frame.start()
                return
            # Before the write: a client that ends as soon as it has its result did have it.
            is_heard = self._is_heard(frame)
            try:
                if frame.delivery is not None:
                    reach("before_handoff_write")
                written_bytes = os.write(self._fd, chunk)
            except BlockingIOError:
                self._watch(True)
                return
            except OSError:
                self._fail()
                return
            self._advance(frame, written_bytes, is_heard)
        self._watch(False)

    def _written_by_thread(self, written_bytes: int | None) -> None:
        if self._broken or not self._frames:
            return  # abandoned meanwhile
        if written_bytes is None:
            self._fail()
            return
        self._advance(self._frames[0], written_bytes, self._is_heard(self._frames[0]))
        self._pump()

    def _is_heard(self, frame: _Frame) -> bool:
        """Whether somebody is there to get a delivery. Of what is none nobody needs to know."""
        return frame.delivery is not None and self._input is not None and self._input.is_open()

    def _advance(self, frame: _Frame, written_bytes: int, is_heard: bool) -> None:
        frame.start()
        frame.written_bytes += written_bytes
        self.queued_bytes -= written_bytes
        if frame.written_bytes == len(frame.data):
            self._frames.popleft()
            if frame.delivery is not None:
                # The handoff: nothing buffers behind this file descriptor but the OS.
                frame.settle(Outcome.HANDED_OFF if is_heard else Outcome.SHUTDOWN)
            self._forget(frame)
        self._output_changed()

    def _drop(self, frame: _Frame, outcome: Outcome) -> None:
        """Take back a frame that has not started."""
        if frame in self._frames:
            self._frames.remove(frame)
            self.queued_bytes -= len(frame.data)
            self._output_changed()
        frame.settle(outcome)
        self._forget(frame)

    def _forget(self, frame: _Frame) -> None:
        if frame.exchange is not None:
            self.exchanges.close(frame.exchange)
        frame.finish()
        if not self._frames:
            self._idle.set()

    def _end_exchange(
        self, exchange: Exchange, delivery: Delivery | None, outcome: Outcome
    ) -> None:
        self.exchanges.close(exchange)
        if delivery is not None:
            delivery.settle(outcome)

    def _fail(self) -> None:
        """The client has closed its end: the session is over, although our input may be open."""
        self._broken = True
        self._closed = True
        self._abandon(Outcome.BROKEN)
        if self._input is not None:
            self._input.stop()

    def _abandon(self, outcome: Outcome) -> None:
        self._watch(False)
        frames, self._frames = self._frames, deque()
        self.queued_bytes = 0
        for frame in frames:
            frame.settle(outcome)
            self._forget(frame)
        self._idle.set()

    def _output_changed(self) -> None:
        if self._input is not None:
            self._input.output_changed()

    def _watch(self, wanted: bool) -> None:
        if wanted and not self._watching:
            self._loop.add_writer(self._fd, self._pump)
        elif self._watching and not wanted:
            self._loop.remove_writer(self._fd)
        self._watching = wanted

    def _release_fd(self) -> None:
        if self._writer is not None:
            self._writer.stop()  # it may be blocked in a write, so the descriptor stays open
            return
        os.set_blocking(self._fd, True)  # other processes may have this file
        os.close(self._fd)


def _answered_by_this_task(
    message: JSONRPCMessage,
) -> tuple[Exchange | None, Delivery | None]:
    """Tasks inherit the variables, so a notification sent by a handler sees them too."""
    if isinstance(message, JSONRPCResponse | JSONRPCError):
        return current_exchange.get(), current_delivery.get()
    return None, None


def _reply_id(message: JSONRPCMessage) -> RequestId | None:
    return message.id if isinstance(message, JSONRPCResponse | JSONRPCError) else None


def _encode(message: JSONRPCMessage) -> bytes:
    """Far cheaper than a walk of the SDK's models over a large result, and just as complete."""
    fields: dict[str, Any] = {"jsonrpc": "2.0"}
    if isinstance(message, JSONRPCResponse):
        fields |= {"id": message.id, "result": message.result}
    elif isinstance(message, JSONRPCError):
        fields |= {"id": message.id, "error": message.error.model_dump(exclude_none=True)}
    else:
        if isinstance(message, JSONRPCRequest):
            fields["id"] = message.id
        fields["method"] = message.method
        if message.params is not None:
            fields["params"] = message.params
    return encode_line(fields)


def _encode_error(request_id: RequestId | None, code: int, text: str) -> bytes:
    error = ErrorData(code=code, message=text)
    return _encode(JSONRPCError(jsonrpc="2.0", id=request_id, error=error))
