"""The other ends of jobs, as real servers: scripted HTTP, NATS, Redis, S3, the bus itself."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from agentbus.encoding import encode
from agentbus.launch import ensure_daemon
from agentbus.projection.finding import DEFAULT_EXECUTABLE, find_redis
from agentbus.transport.client import Client
from agentbus.transport.singleton import DaemonLock, RuntimePaths, holder_pid
from tests.eventually import eventually

START_S = 30.0


@dataclass(frozen=True, slots=True)
class Got:
    """A request as it arrived. Header names are lower-case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """What to answer, and what to wait for before; None for `status` closes the connection."""

    status: int | None = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    before: Callable[[], object] = lambda: None


class ScriptedServer:
    """Answers by its script, then with the last entry again; a path of `pages` always with its own.

    `got` are the requests so far.
    """

    def __init__(self, *script: Answer, pages: dict[str, Answer] | None = None) -> None:
        self.got: list[Got] = []
        self._pages = pages or {}
        self._script = script or (Answer(),)
        self._lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                self.raw_requestline = self.rfile.readline(65537)
                if not self.raw_requestline or not self.parse_request():
                    self.close_connection = True
                    return
                server._answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.port = self._http.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def __enter__(self) -> ScriptedServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        length = int(handler.headers.get("content-length") or 0)
        headers = {name.lower(): value for name, value in handler.headers.items()}
        got = Got(handler.command, handler.path, headers, handler.rfile.read(length))
        with self._lock:
            self.got.append(got)
            scripted = self._script[min(len(self.got), len(self._script)) - 1]
        answer = self._pages.get(handler.path, scripted)
        answer.before()
        handler.close_connection = True
        if answer.status is None:
            return
        try:
            handler.send_response_only(answer.status)
            for name, value in {"content-length": str(len(answer.body)), **answer.headers}.items():
                handler.send_header(name, value)
            handler.end_headers()
            handler.wfile.write(answer.body)
        except OSError:
            pass  # the client has gone, which is what some tests are about


@dataclass
class Server:
    """A server process in a folder of its own; `url` is the same after each start."""

    url: str
    command: list[str]
    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        eventually(self._answers, START_S, what=f"{self.command[0]} on {self.port}")

    def kill(self) -> None:
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "log").read_text()
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True


class BusServer(Server):
    """The bus itself, started as tools start it: by whoever needs it first."""

    def start(self) -> None:
        ensure_daemon(self._paths, self._config_path, deadline_s=START_S).close()
        eventually(lambda: self._state() == "ready", START_S, what="ready")

    def kill(self) -> None:
        pid = holder_pid(self._paths.lock)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not DaemonLock(self._paths.lock).held_by_another())

    def stop(self) -> None:
        """In order, so that its Redis ends too."""
        with Client.connect(self._paths.socket, START_S) as client:
            client.request("stop", {}, START_S)
        eventually(lambda: not DaemonLock(self._paths.lock).held_by_another(), START_S)

    def _state(self) -> object:
        with Client.connect(self._paths.socket, START_S) as client:
            return client.request("heartbeat", {}, START_S)["state"]

    @property
    def _paths(self) -> RuntimePaths:
        return RuntimePaths(self.folder / "run")

    @property
    def _config_path(self) -> Path:
        return self.folder / "config.json"


@contextmanager
def bus_server(**settings: Any) -> Iterator[BusServer]:
    """A bus of one's own that this process and its children find by its URL."""
    folder = Path(tempfile.mkdtemp(prefix="ab-", dir="/tmp"))
    values = {
        "data_directory": str(folder / "data"),
        "send_messages_per_second": 10_000,
        "send_kib_per_second": 65_536,
        **settings,
    }
    (folder / "config.json").write_bytes(encode(values))
    server = BusServer(f"agentbus:{folder}/config.json", [], folder, port=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTBUS_RUNTIME_DIR", str(folder / "run"))
        try:
            server.start()
            yield server
            server.start()  # where the test has killed it
            server.stop()
        finally:
            shutil.rmtree(folder)


def free_port() -> int:
    """Below those that systems give to whoever lets them choose, which other tests do meanwhile:
    nobody has it until the server of this test listens there, or while that is not running."""
    while True:
        port = random.randrange(10_000, 32_768)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


@contextmanager
def nats_server() -> Iterator[Server]:
    """NATS with JetStream on the disk."""
    executable = shutil.which("nats-server")
    if executable is None:
        pytest.skip("needs nats-server (on Debian: apt install nats-server)")
    with _served(
        "nats",
        lambda port, folder: [
            *(executable, "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(folder / "store")),
        ],
    ) as server:
        yield server


@contextmanager
def redis_server() -> Iterator[Server]:
    """A Redis-compatible server on TCP that keeps every write, as a parent would set it up."""
    executable = find_redis(DEFAULT_EXECUTABLE)[0].executable
    with _served(
        "redis",
        lambda port, folder: [
            *(str(executable), "--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder)),
            *("--save", "", "--appendonly", "yes", "--appendfsync", "always"),
        ],
    ) as server:
        yield server


@contextmanager
def s3_server() -> Iterator[Server]:
    """S3 as moto serves it."""
    with _served(
        "http",
        lambda port, folder: [
            *(sys.executable, "-W", "ignore", "-m", "moto.server"),
            *("-H", "127.0.0.1", "-p", str(port)),
        ],
    ) as server:
        yield server


@contextmanager
def _served(scheme: str, command: Callable[[int, Path], list[str]]) -> Iterator[Server]:
    folder = Path(tempfile.mkdtemp(prefix="ab-", dir="/tmp"))
    port = free_port()
    server = Server(f"{scheme}://127.0.0.1:{port}", command(port, folder), folder, port)
    try:
        server.start()
        yield server
    finally:
        if server.process is not None and server.process.poll() is None:
            server.kill()
        shutil.rmtree(folder)
