"""HTTP by hand: what no well-behaved client sends, and exactly what comes back."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from agentbus.encoding import decode_strict, encode

PATIENCE_S = 30.0
SECRET = "0123456789abcdef0123456789abcdef"


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """One response, read to the end of the connection."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return decode_strict(self.body)

    @property
    def code(self) -> Any:
        return self.document.get("errorCode")


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), PATIENCE_S)


def read_answer(connected: socket.socket) -> HttpAnswer | None:
    """Until the server closes; None when it closes without a word."""
    received = b""
    try:
        while data := connected.recv(65536):
            received += data
    except ConnectionResetError:  # closed while something still came to it: the answer is here
        if not received:
            raise
    if not received:
        return None
    head, _, body = received.partition(b"\r\n\r\n")
    status_line, *lines = head.decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    length = int(headers["content-length"])
    assert len(body) in (0, length), "a second response, or half of one"  # 0: HEAD
    return HttpAnswer(int(status_line.split()[1]), headers, body)


def send_raw(port: int, *parts: bytes) -> HttpAnswer:
    """Send these bytes, whatever they are, and read the answer."""
    with connect(port) as connected:
        try:
            for part in parts:
                connected.sendall(part)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has answered already
        answer = read_answer(connected)
        assert answer is not None
        return answer


def head_of(
    body_bytes: int | None,
    *extra: str,
    method: str = "POST",
    target: str = "/api/talk",
    host: str | None = "127.0.0.1",
    content_type: str | None = "application/json",
    secret: str | None = SECRET,
) -> bytes:
    """The head of a request. `body_bytes` None: the length is not told."""
    lines = [f"{method} {target} HTTP/1.1"]
    if host is not None:
        lines.append(f"Host: {host}")
    if content_type is not None:
        lines.append(f"Content-Type: {content_type}")
    if secret is not None:
        lines.append(f"Authorization: Bearer {secret}")
    if body_bytes is not None:
        lines.append(f"Content-Length: {body_bytes}")
    return "\r\n".join([*lines, *extra, "", ""]).encode("latin-1")


def question(**changes: Any) -> dict[str, Any]:
    """A request as version 1 has it."""
    return {
        "fromInstance": "reviewer",
        "prompt": "Please verify",
        "depth": 1,
        "protocolVersion": 1,
        "capabilities": ["structured-errors", "retryable-errors"],
        **changes,
    }


def post(port: int, document: Any, *extra: str, **head: Any) -> HttpAnswer:
    """A request with a length, of a document or of the bytes of one."""
    body = document if isinstance(document, bytes) else encode(document)
    return send_raw(port, head_of(len(body), *extra, **head) + body)


def post_chunked(port: int, body: bytes, chunk_bytes: int = 8192, **head: Any) -> HttpAnswer:
    """The same in chunks, without a length."""
    return send_raw(
        port, head_of(None, "Transfer-Encoding: chunked", **head), *_chunks(body, chunk_bytes)
    )


def _chunks(body: bytes, chunk_bytes: int) -> Iterable[bytes]:
    for start in range(0, len(body), chunk_bytes):
        part = body[start : start + chunk_bytes]
        yield b"%x\r\n%s\r\n" % (len(part), part)
    yield b"0\r\n\r\n"
