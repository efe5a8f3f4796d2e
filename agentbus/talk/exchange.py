"""One HTTP request and its response over a loopback connection, within one time limit.

Owns the connection for the time of the exchange. Never looks into a body, follows no redirect,
sends nothing twice. Blocks its caller.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import h11

READ_BYTES: Final = 64 * 1024


class ConnectionFailedError(Exception):
    """Nobody listens there, or the connection ended before there was an answer."""


class MalformedResponseError(Exception):
    """What came back is no HTTP, or more than was asked for."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where to ask: a loopback host and a port."""

    host: str
    port: int

    @property
    def authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def exchange(
    target: Target,
    method: str,
    path: str,
    *,
    headers: Mapping[str, str],
    body: bytes,
    deadline_s: float,
    response_bytes: int,
) -> bytes:
    """The body of the response, whatever its status.

    Raises TimeoutError when `deadline_s` (monotonic) is over, ConnectionFailedError,
    MalformedResponseError.
    """
    try:
        with socket.create_connection((target.host, target.port), left_s(deadline_s)) as connected:
            return _Exchange(connected, deadline_s, response_bytes).run(
                h11.Request(
                    method=method,
                    target=path,
                    headers=[
                        ("host", target.authority),
                        ("connection", "close"),
                        ("content-length", str(len(body))),
                        *headers.items(),
                    ],
                ),
                body,
            )
    except TimeoutError:
        raise
    except OSError as error:
        raise ConnectionFailedError(error.strerror or str(error)) from None


class _Exchange:
    def __init__(self, connected: socket.socket, deadline_s: float, response_bytes: int) -> None:
        self._socket = connected
        self._deadline_s = deadline_s
        self._response_bytes = response_bytes
        self._http = h11.Connection(h11.CLIENT)

    def run(self, request: h11.Request, body: bytes) -> bytes:
        out = [self._http.send(request), self._http.send(h11.Data(body))]
        out.append(self._http.send(h11.EndOfMessage()))
        try:
            self._socket.settimeout(left_s(self._deadline_s))
            self._socket.sendall(b"".join(part or b"" for part in out))
        except TimeoutError:
            raise
        except OSError:
            pass  # a server may answer and close before it has read everything
        return self._response()

    def _response(self) -> bytes:
        received = bytearray()
        try:
            while True:
                match self._http.next_event():
                    case h11.NEED_DATA:
                        self._socket.settimeout(left_s(self._deadline_s))
                        data = self._socket.recv(READ_BYTES)
                        if not data and self._http.their_state is h11.SEND_RESPONSE:
                            raise ConnectionFailedError("the connection ended without an answer")
                        self._http.receive_data(data)
                    case h11.Data(data=data):
                        received += data
                        if len(received) > self._response_bytes:
                            limit = f"the response is over {self._response_bytes} bytes"
                            raise MalformedResponseError(limit)
                    case h11.EndOfMessage() | h11.ConnectionClosed():
                        return bytes(received)
                    case _:
                        continue  # the status is no part of this protocol
        except h11.RemoteProtocolError as error:
            raise MalformedResponseError(f"the response is no HTTP: {error}") from None


def left_s(deadline_s: float) -> float:
    """Until `deadline_s` (monotonic). Raises TimeoutError when it is over."""
    seconds = deadline_s - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds
