"""What uvicorn's HTTP does not insist on: time limits, small heads, and one meaning per request.

Owns a connection until its request is known to be whole and unambiguous, and what is answered when
it is not. Never looks at a path, a body or a secret. Runs on the server's event loop.

1. The head is complete within its time and `HEAD_BYTES`, the body within its time.
2. A head that two programs could read in two ways is refused before anything of it is parsed.
3. A connection carries one request. What comes behind it is never read as another one.
4. Every refusal is an answer of the talk protocol, and then the connection is closed.
5. A client that sends on while it is answered has a moment to take the answer: a socket that is
   closed with input unread would take the answer away again.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Literal, cast

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from agentbus.limits import KIB
from agentbus.rules.talk import TALK_CODE
from agentbus.talk.schema import encode_response, failure

HEAD_BYTES: Final = 8 * KIB
CONNECTIONS: Final = 256

_END_OF_HEAD: Final = b"\r\n\r\n"
_BARE_LINE_FEED: Final = re.compile(rb"(?<!\r)\n")
_TOKEN: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a connection may stay in each phase. `answer_s`: for the answer to be made, and the
    client to take it; `linger_s`: for a client that sends on to take its refusal."""

    answer_s: float
    head_s: float = 5.0
    body_s: float = 10.0
    linger_s: float = 2.0


class GuardedProtocol(H11Protocol):
    """See the module. Made per server by `guarded`."""

    instance: str
    patience: Patience

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._head = bytearray()
        self._phase: Literal["head", "body", "answer", "over"] = "head"
        self._lingering = _LingeringTransport(transport, self.loop, self.patience.linger_s)
        super().connection_made(cast(asyncio.Transport, self._lingering))
        self._deadline = self.loop.call_later(self.patience.head_s, self._too_slow)
        if len(self.connections) > CONNECTIONS:
            self._refuse("instance_unavailable", "too many connections; try again shortly")

    def connection_lost(self, exc: Exception | None) -> None:
        self._phase = "over"
        self._deadline.cancel()
        self._lingering.lost()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        match self._phase:
            case "head":
                self._head += data
                self._look_at_head()
            case "body":
                self._pass_on(data)
            case "answer" | "over":
                return  # of no interest, whatever it is

    def send_400_response(self, msg: str) -> None:
        """What uvicorn calls when h11 cannot make sense of the input."""
        self._refuse("invalid_request", "this is not a well-formed HTTP/1.1 request")

    def shutdown(self) -> None:
        """The server stops; who has not asked all of its question yet is not waited for."""
        if self._phase in ("head", "body"):
            self._refuse("instance_unavailable", "the server is being stopped")
            self.transport.abort()
        else:
            super().shutdown()

    # --- the head ---

    def _look_at_head(self) -> None:
        end = self._head.find(_END_OF_HEAD)
        if max(len(self._head) if end < 0 else end, 0) > HEAD_BYTES:
            text = f"the head of the request is over {HEAD_BYTES} bytes"
            self._refuse("request_too_large", text, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        elif _BARE_LINE_FEED.search(self._head, 0, len(self._head) if end < 0 else end):
            self._refuse("invalid_request", "lines must end in CR LF")
        elif end >= 0:
            wrong = what_is_ambiguous(bytes(self._head[:end]))
            if wrong is not None:
                self._refuse("invalid_request", wrong)
                return
            data, self._head = bytes(self._head), bytearray()
            self._phase = "body"
            self._wait(self.patience.body_s)
            # For the application: h11 and uvicorn do not keep the target as it was written.
            self.app_state = {**self.app_state, "target": data.split(b" ", 2)[1]}
            self._pass_on(data)

    # --- the body ---

    def _pass_on(self, data: bytes) -> None:
        super().data_received(data)
        cycle = self._current()
        if self._phase == "body" and cycle is not None and not cycle.more_body:
            self._phase = "answer"
            self._lingering.input_is_complete = True
            self._wait(self.patience.answer_s)
            # uvicorn stops reading while a long body waits, and would not see a client vanish.
            self.flow.resume_reading()

    def _current(self) -> RequestResponseCycle | None:
        """None before the request; uvicorn's own annotation leaves that out."""
        return self.cycle

    def _wait(self, seconds: float) -> None:
        self._deadline.cancel()
        self._deadline = self.loop.call_later(seconds, self._too_slow)

    def _too_slow(self) -> None:
        if self._phase == "answer" or self.transport.is_closing():
            self.transport.abort()
        else:
            patience = self.patience
            limit_s = patience.head_s if self._phase == "head" else patience.body_s
            text = f"the {self._phase} of the request did not come within {limit_s:g} s"
            self._refuse("timeout", text)

    def _refuse(self, code: str, error: str, status: HTTPStatus | None = None) -> None:
        """Answer and close. The application, if it was asked already, hears that it is over."""
        self._phase = "over"
        self._deadline.cancel()
        cycle = self._current()
        if cycle is not None:
            cycle.disconnected = True
            cycle.message_event.set()
        if self.transport.is_closing():
            return
        if cycle is None or not cycle.response_started:
            body = encode_response(failure(self.instance, code, error))
            self.transport.write(_response(status or HTTPStatus(TALK_CODE[code].status), body))
        self.transport.close()


def guarded(instance: str, patience: Patience) -> type[GuardedProtocol]:
    """The protocol of one server; uvicorn takes a class and makes one object per connection."""
    members = {"instance": instance, "patience": patience}
    return type(GuardedProtocol.__name__, (GuardedProtocol,), members)


def what_is_ambiguous(head: bytes) -> str | None:
    """Why this head, without its last empty line, could be read in two ways; None if it cannot."""
    request_line, *lines = head.split(b"\r\n")
    words = request_line.split(b" ")
    if len(words) != 3 or not all(words):
        return "the request line must be method, target and version"
    values: dict[bytes, list[bytes]] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or _TOKEN.fullmatch(name) is None:
            return "a header line must be a name, a colon and a value, on one line"
        values.setdefault(name.lower(), []).append(value.strip(b" \t"))
    lengths = values.get(b"content-length", [])
    codings = values.get(b"transfer-encoding", [])
    if lengths and codings:
        return "Content-Length and Transfer-Encoding do not go together"
    if len(lengths) > 1 or not all(length.isdigit() for length in lengths):
        return "Content-Length must be one number"
    if codings and (codings[0].lower() != b"chunked" or len(codings) > 1):
        return "Transfer-Encoding must be chunked, or left out"
    if codings and words[2] != b"HTTP/1.1":
        return "Transfer-Encoding needs HTTP/1.1"
    repeated = [
        name
        for name in (b"host", b"authorization", b"origin", b"content-type")
        if len(values.get(name, [])) > 1
    ]
    return f"{repeated[0].decode()} must be given once" if repeated else None


def _response(status: HTTPStatus, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n"
        "content-type: application/json\r\n"
        f"content-length: {len(body)}\r\n"
        "connection: close\r\n\r\n"
    )
    return head.encode() + body


class _LingeringTransport:
    """A transport whose `close` lets the client take the answer before its input is thrown away."""

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, linger_s: float
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._linger_s = linger_s
        self._closing = False
        self._end: asyncio.TimerHandle | None = None
        self.input_is_complete = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._closing or self._transport.is_closing()

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        if self.input_is_complete or self._transport.is_closing():
            self._transport.close()
            return
        self._transport.write_eof()
        self._transport.resume_reading()
        self._end = self._loop.call_later(self._linger_s, self._transport.abort)

    def lost(self) -> None:
        """The connection is gone."""
        self._closing = True
        if self._end is not None:
            self._end.cancel()
