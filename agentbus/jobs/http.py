"""One HTTP exchange with an address that was looked at first.

Owns the connection of one request. The host is resolved once, each address is judged, and exactly
that address is connected to, so that a name cannot change its meaning between the two. Never
follows a redirect, never uses a proxy, never takes longer than its total time. Blocks the caller's
thread.
"""

from __future__ import annotations

import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

import httpcore2

from agentbus.errors import ValidationError
from agentbus.jobs.errors import DeliveryRefusedError, SinkError

Address: TypeAlias = IPv4Address | IPv6Address
Judge: TypeAlias = Callable[[str, Address], None]
"""Raises DeliveryRefusedError for an address that this host must not lead to."""

CONNECT_S: Final = 3.0
TOTAL_S: Final = 10.0

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_NAT64: Final = IPv6Network("64:ff9b::/96")
_METADATA: Final = frozenset(
    map(
        ip_address,
        # Where clouds hand out credentials; the first is link-local besides.
        ("169.254.169.254", "fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "192.0.0.192"),
    )
)


class NoAnswerError(SinkError):
    """No connection, or it broke, or time was up: the other side may have acted all the same."""


@dataclass(frozen=True, slots=True)
class Target:
    """A URL taken apart. `host` is lower-case and without brackets."""

    url: str
    scheme: str
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """As the Host header has it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Response:
    """What was answered; `chunks` can be read once, inside the `with`. Header names are
    lower-case."""

    status: int
    headers: Mapping[str, str]
    chunks: Iterator[bytes]

    def glimpse(self) -> bytes:
        """The first bytes of the body, for a person; none where they do not come."""
        try:
            return next(self.chunks, b"")
        except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException):
            return b""

    def read(self, max_bytes: int) -> bytes:
        """The whole body. Raises DeliveryRefusedError when it is longer."""
        body = bytearray()
        for chunk in self.chunks:
            body += chunk
            if len(body) > max_bytes:
                raise DeliveryRefusedError(f"the answer is longer than {max_bytes} bytes")
        return bytes(body)


def parse_url(url: str, what: str = "the URL") -> Target:
    """Raises ValidationError for all but an http or https URL with a host and nothing secret."""
    try:
        url.encode("ascii")
        if not url.isprintable() or " " in url:
            raise ValueError("it holds blanks or control characters")
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        if host and ":" in host:
            host = str(ip_address(host))  # one spelling, to compare with
    except UnicodeEncodeError:
        raise ValidationError(f"{what} is not ASCII; percent-encode it, and its host too") from None
    except ValueError as error:
        raise ValidationError(f"{what} cannot be read: {error}") from None
    if parts.scheme not in _DEFAULT_PORTS:
        raise ValidationError(f"{what} must begin with http:// or https://")
    if not host or "%" in host or "\\" in parts.netloc:
        raise ValidationError(f"{what} has no host that could be looked up")
    if "@" in parts.netloc:
        raise ValidationError(f"{what} must not hold a user name or a password")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    port = _DEFAULT_PORTS[parts.scheme] if port is None else port
    return Target(url, parts.scheme, host.lower(), port, path)


def refuse_metadata(allowed: Iterable[str]) -> Judge:
    """The judge of callbacks: private addresses are right, but none where nobody's parent lives.

    Link-local, metadata, multicast and unspecified addresses are refused, unless the address itself
    is on the list: a name on it can be made to lead anywhere.
    """
    named = frozenset(allowed)

    def judge(host: str, address: Address) -> None:
        plain = unmapped(address)
        if str(plain) in named:
            return
        if (
            plain.is_link_local
            or plain.is_multicast
            or plain.is_unspecified
            or plain in _METADATA
            or plain == IPv4Address("255.255.255.255")
        ):
            raise DeliveryRefusedError(
                f"{host} leads to {address}, a link-local, metadata or group address; "
                "list that address itself to allow it"
            )

    return judge


def unmapped(address: Address) -> Address:
    """The IPv4 address inside an IPv6 one that only carries it."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address.sixtofour is not None:
            return address.sixtofour
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFF_FFFF)
        if address.scope_id is not None:
            return IPv6Address(int(address))
    return address


@contextmanager
def exchange(
    method: str,
    target: Target,
    judge: Judge,
    *,
    headers: Mapping[str, str] | None = None,
    body: bytes | Iterable[bytes] = b"",
    connect_s: float = CONNECT_S,
    total_s: float = TOTAL_S,
    tls: ssl.SSLContext | None = None,
) -> Iterator[Response]:
    """One request and its answer, whatever its status.

    Raises NoAnswerError, and what `judge` raises.
    """
    deadline = _Deadline(total_s)
    given = {"host": target.authority, "connection": "close", **(headers or {})}
    if isinstance(body, bytes) and method not in ("GET", "HEAD"):
        given["content-length"] = str(len(body))
    request = httpcore2.Request(
        method,
        httpcore2.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.path),
        headers=[*given.items()],
        content=body,
    )
    with httpcore2.HTTPConnection(
        request.url.origin,
        ssl_context=tls,
        network_backend=_PinnedBackend(judge, connect_s, deadline),
    ) as connection:
        try:
            response = connection.handle_request(request)
            try:
                yield Response(
                    response.status,
                    {
                        name.decode("latin-1").lower(): value.decode("latin-1")
                        for name, value in response.headers
                    },
                    response.iter_stream(),
                )
            finally:
                with suppress(httpcore2.NetworkError, httpcore2.TimeoutException):
                    response.close()
        except httpcore2.TimeoutException as error:
            what = "no connection" if isinstance(error, httpcore2.ConnectTimeout) else "no answer"
            raise NoAnswerError(f"{what} from {target.authority} in time") from None
        except (httpcore2.NetworkError, httpcore2.ProtocolError, ssl.SSLError) as error:
            raise NoAnswerError(
                f"{target.authority}: {str(error) or type(error).__name__}"
            ) from None


class _Deadline:
    def __init__(self, total_s: float) -> None:
        self._end_s = time.monotonic() + total_s

    def left_s(self, most_s: float | None = None) -> float:
        left_s = self._end_s - time.monotonic()
        if left_s <= 0:
            raise httpcore2.ReadTimeout
        return left_s if most_s is None else min(left_s, most_s)


class _PinnedBackend(httpcore2.NetworkBackend):
    """Connects to an address that was judged, and to no other."""

    def __init__(self, judge: Judge, connect_s: float, deadline: _Deadline) -> None:
        self._judge = judge
        self._connect_s = connect_s
        self._deadline = deadline
        self._sockets = httpcore2.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Any = None,
    ) -> httpcore2.NetworkStream:
        connecting = _Deadline(self._deadline.left_s(self._connect_s))
        addresses = _resolve(host, port, connecting)
        for address in addresses:
            self._judge(host, address)
        failure: Exception = httpcore2.ConnectError(f"{host} has no address")
        for address in addresses:
            try:
                stream = self._sockets.connect_tcp(
                    str(address), port, connecting.left_s(), None, socket_options
                )
            except httpcore2.ConnectError as error:
                failure = error
            else:
                return _TimedStream(stream, self._deadline, connecting)
        raise failure


class _TimedStream(httpcore2.NetworkStream):
    """A stream whose every step ends with the whole exchange's time."""

    def __init__(
        self, stream: httpcore2.NetworkStream, deadline: _Deadline, connecting: _Deadline
    ) -> None:
        self._stream = stream
        self._deadline = deadline
        self._connecting = connecting

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._deadline.left_s())

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, self._deadline.left_s())

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.NetworkStream:
        secured = self._stream.start_tls(ssl_context, server_hostname, self._connecting.left_s())
        return _TimedStream(secured, self._deadline, self._connecting)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _resolve(host: str, port: int, deadline: _Deadline) -> list[Address]:
    """Every address of the host, in the system's order, each once.

    On a thread of its own, because the system's resolver knows no deadline.
    """
    try:
        return [ip_address(host)]
    except ValueError:
        pass
    answers: queue.SimpleQueue[list[Address] | OSError] = queue.SimpleQueue()

    def look_up() -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            answers.put(OSError(f"{host} is not known ({error})"))
        else:
            answers.put(list(dict.fromkeys(ip_address(entry[4][0]) for entry in found)))

    threading.Thread(target=look_up, name="resolve", daemon=True).start()
    try:
        answer = answers.get(timeout=deadline.left_s())
    except queue.Empty:
        raise httpcore2.ConnectTimeout from None
    if isinstance(answer, OSError):
        raise httpcore2.ConnectError(str(answer))
    return answer
