"""A server as old peers are: strict about keys, without a version in its answers. For tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from agentbus.encoding import decode_strict, encode

KNOWN = {"fromInstance", "prompt", "depth", "protocolVersion", "capabilities"}


@dataclass
class LegacyServer:
    """`script` makes the body of an answer of a question, or its status with it."""

    script: Callable[[dict[str, Any]], bytes | tuple[int, bytes]]
    kind: str = "cc-telegram-bridge"
    instance: str = "old"
    secret: str | None = None
    port: int = 0
    asked: list[dict[str, Any]] = field(default_factory=list)

    def answer(self, headers: Any, body: bytes) -> tuple[int, bytes]:
        document = decode_strict(body)
        self.asked.append(document)
        if not document.keys() <= KNOWN:
            return 400, encode({"success": False, "error": "unrecognized key"})
        if self.secret is not None and headers["Authorization"] != f"Bearer {self.secret}":
            return 401, encode({"success": False, "error": "unauthorized"})
        answer = self.script(document)
        return answer if isinstance(answer, tuple) else (200, answer)


@contextmanager
def legacy_server(server: LegacyServer) -> Iterator[LegacyServer]:
    """It listens while the context lasts."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self._send(*server.answer(self.headers, body))

        def do_GET(self) -> None:
            health = {"kind": server.kind, "instance": server.instance, "status": "ok", "pid": 1}
            self._send(200, encode(health))

        def log_message(self, format: str, *args: Any) -> None:
            return None

        def _send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        server.port = http.server_address[1]
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            http.shutdown()
            thread.join()
