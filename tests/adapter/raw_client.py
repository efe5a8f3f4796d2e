"""A client without any SDK: it can stop reading, close one end, break lines and reuse ids."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Literal

from agentbus.encoding import decode_trusted, encode_line
from tests.eventually import PATIENCE_S, eventually

Channel = Literal["pipe", "socketpair"]
MODERN_META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


class RawClient:
    """Speaks newline-delimited JSON-RPC with a child process over pipes or socket pairs."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        channel: Channel = "pipe",
        stderr: IO[bytes] | None = None,
    ) -> None:
        child_stdin, self._write_fd = _open_channel(channel)
        self._read_fd, child_stdout = _open_channel(channel)
        self.process = subprocess.Popen(
            argv,
            stdin=child_stdin,
            stdout=child_stdout,
            stderr=stderr,
            env={**os.environ, **env},
        )
        os.close(child_stdin)
        os.close(child_stdout)
        self._unread = b""
        self._last_id = 0

    def send_bytes(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._write_fd, view) :]

    def send(self, message: Mapping[str, Any]) -> None:
        self.send_bytes(encode_line({"jsonrpc": "2.0", **message}))

    def request(self, method: str, params: Any = None, *, request_id: Any = None) -> Any:
        """Send a request without waiting; returns its id."""
        if request_id is None:
            self._last_id += 1
            request_id = self._last_id
        fields = {"id": request_id, "method": method}
        self.send(fields if params is None else {**fields, "params": params})
        return request_id

    def notify(self, method: str, params: Any = None) -> None:
        self.send({"method": method} if params is None else {"method": method, "params": params})

    def call(self, tool: str, *, request_id: Any = None, meta: Any = None, **arguments: Any) -> Any:
        params: dict[str, Any] = {"name": tool, "arguments": arguments}
        if meta is not None:
            params["_meta"] = meta
        return self.request("tools/call", params, request_id=request_id)

    def cancel(self, request_id: Any) -> None:
        self.notify("notifications/cancelled", {"requestId": request_id})

    def receive(self, within_s: float = PATIENCE_S) -> Any:
        """The next message. Raises EOFError at the end, TimeoutError after `within_s`."""
        deadline = time.monotonic() + within_s
        chunks = [self._unread]
        while b"\n" not in chunks[-1]:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._read_fd], [], [], left)[0]:
                raise TimeoutError(b"".join(chunks)[:200])
            chunk = os.read(self._read_fd, 1 << 20)
            if not chunk:
                raise EOFError
            chunks.append(chunk)
        line, _, self._unread = b"".join(chunks).partition(b"\n")
        return decode_trusted(line)

    def receive_rest(self) -> list[Any]:
        """Everything up to the end of the stream."""
        messages = []
        try:
            while True:
                messages.append(self.receive())
        except EOFError:
            return messages

    def read_bytes(self, count: int) -> bytes:
        return os.read(self._read_fd, count)

    def initialize(self, version: str = "2025-11-25") -> Any:
        info = {"name": "raw", "version": "1"}
        params = {"protocolVersion": version, "capabilities": {}, "clientInfo": info}
        self.request("initialize", params, request_id="initialize")
        answer = self.receive()
        self.notify("notifications/initialized")
        return answer

    def discover(self) -> Any:
        """Open a session of the era without handshake; later calls need `meta=MODERN_META`."""
        self.request("server/discover", {"_meta": MODERN_META}, request_id="discover")
        return self.receive()

    def close_read(self) -> None:
        if self._read_fd >= 0:
            os.close(self._read_fd)
            self._read_fd = -1

    def close_write(self) -> None:
        if self._write_fd >= 0:
            os.close(self._write_fd)
            self._write_fd = -1

    def wait_exit(self, within_s: float = PATIENCE_S) -> int:
        return self.process.wait(within_s)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.close_read()
        self.close_write()


class EventLog:
    """What the probe server has written down; the only way to look into it from outside."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def all(self, event: str, **fields: Any) -> list[dict[str, Any]]:
        wanted = {"event": event, **fields}
        complete, _, _ = self.path.read_bytes().rpartition(b"\n")
        events = [decode_trusted(line) for line in complete.splitlines()]
        return [event for event in events if wanted.items() <= event.items()]

    def expect(self, event: str, *, at_least: int = 1, **fields: Any) -> dict[str, Any]:
        """Wait for an event; returns the newest of its kind."""
        found: list[dict[str, Any]] = []

        def is_there() -> bool:
            found[:] = self.all(event, **fields)
            return len(found) >= at_least

        try:
            eventually(is_there, what=f"{event} {fields}")
        except AssertionError as error:
            error.add_note(self.path.read_text())
            raise
        return found[-1]


def _open_channel(channel: Channel) -> tuple[int, int]:
    """`(reading end, writing end)`; Node's children get socket pairs where others get pipes."""
    if channel == "pipe":
        return os.pipe()
    reading, writing = socket.socketpair()
    return reading.detach(), writing.detach()
