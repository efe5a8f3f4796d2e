"""A whole bus of one's own for a test: folders, configuration, daemon process, private Redis.

    with ThrowAwayBus(send_messages_per_second=10000) as bus:      # settings of the configuration
        sam = bus.attach("Sam")
        sam.call("subscribe", channel="general")
        receipt = sam.call("send", channel="general", content="hello")

`throw_away_bus` is the fixture. The daemon is a real process and so are its signals and its exit
code; `start` after `stop` or `kill` uses the same folders. `close` leaves no process and no file.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from agentbus import __version__
from agentbus.config import load_config
from agentbus.encoding import encode
from agentbus.errors import UnavailableError
from agentbus.ids import new_id
from agentbus.limits import MIB, PROTOCOL_VERSION
from agentbus.processes import end_group
from agentbus.projection.launching import RedisSettings
from agentbus.projection.ownership import read_record
from agentbus.protocol.jsonrpc import Notification
from agentbus.transport.client import Client, NotificationCallback
from agentbus.transport.singleton import DaemonLock, RuntimePaths
from tests.eventually import PATIENCE_S, eventually

ROOT = Path(__file__).resolve().parent.parent

READY_WITHIN_S = 30.0
"""A start on a busy machine, the start of Redis included."""

ANSWER_WITHIN_S = PATIENCE_S
HEARTBEAT_WITHIN_S = 5.0
"""Nothing that a daemon does keeps it from answering one."""

_POLL_S = 0.01


class BusSession:
    """One attached conversation on a connection of its own. Belongs to one thread.

    `facts` is the answer to `attach`. What the daemon says unasked is kept in `notifications`, in
    order, until `wait_for` takes it out.
    """

    def __init__(
        self, client: Client, facts: dict[str, Any], notifications: list[Notification]
    ) -> None:
        self.client = client
        self.facts = facts
        self.attachment: list[Any] = [facts["session_id"], facts["generation"]]
        self.notifications = notifications
        self._pulls = 0

    def call(self, operation: str, **arguments: Any) -> Any:
        """An operation of the agent; `send` gets a fresh operation id unless it is given one."""
        if operation == "send":
            arguments.setdefault("operation_id", new_id())
        return self.request(operation, args=arguments)

    def request(self, method: str, **params: Any) -> Any:
        """Any request of this attachment; raises the BusError that was answered."""
        wait_s = params.get("wait_ms", 0) / 1000
        params = {"attachment": self.attachment, **params}
        return self.client.request(method, params, wait_s + ANSWER_WITHIN_S)

    def notify(self, method: str, **params: Any) -> None:
        self.client.notify(method, {"attachment": self.attachment, **params})

    def wait_served(self) -> None:
        """After a recovery a session hears that the bus is ready a moment later than heartbeats say
        so; until then it is refused."""
        eventually(self._is_served, what="a served session")

    def _is_served(self) -> bool:
        try:
            self.call("whoami")
        except UnavailableError:
            return False
        return True

    def pull(
        self,
        after: dict[int, int],
        *,
        count: int = 1000,
        max_bytes: int = MIB,
        wait_ms: int = 0,
        include_own: bool = False,
    ) -> list[dict[str, Any]]:
        """The deliveries after the given position of each subscription."""
        self._pulls += 1
        answer = self.request(
            "pull",
            number=self._pulls,
            after=[list(item) for item in after.items()],
            count=count,
            max_bytes=max_bytes,
            wait_ms=wait_ms,
            include_own=include_own,
        )
        return list(answer["deliveries"])

    def wait_for(self, method: str, within_s: float = ANSWER_WITHIN_S) -> dict[str, Any]:
        """Take out the oldest notification of that method, as soon as there is one."""
        deadline_s = time.monotonic() + within_s
        while True:
            for notification in self.notifications:
                if notification.method == method:
                    self.notifications.remove(notification)
                    return notification.params
            told = self.client.wait_notification(max(0.0, deadline_s - time.monotonic()))
            if told is None:
                seen = [notification.method for notification in self.notifications]
                raise AssertionError(f"no {method} within {within_s:g} s; only {seen}")
            self.notifications.append(told)

    def close(self) -> None:
        """Drop the connection, as an adapter that dies does."""
        self.client.close()

    def __enter__(self) -> BusSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ThrowAwayBus:
    """See the module. Entering it starts the daemon; use `start` yourself to have it later.

    `command` is what the daemon is started with, its configuration apart. `environment` is what any
    other process of this bus (an adapter, a command line) has to be started with, `config_path` the
    configuration it has to be given.
    """

    def __init__(self, *, extra_environment: dict[str, str] | None = None, **settings: Any) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="ab-", dir="/tmp"))  # sockets: short paths
        self.runtime = RuntimePaths(self.directory / "run")
        self.data_directory = self.directory / "data"
        self.config_path = self.directory / "config.json"
        self.configure(**settings)
        home = self.directory / "home"
        home.mkdir()
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("XDG_")},
            "AGENTBUS_RUNTIME_DIR": str(self.runtime.directory),
            "HOME": str(home),
            "PYTHONPATH": str(ROOT),
            **(extra_environment or {}),
        }
        self.command = [sys.executable, "-m", "actors", "--foreground"]
        self.daemon: subprocess.Popen[bytes] | None = None
        self._log = self.directory / "daemon.log"
        self._clients: list[Client] = []

    def configure(self, **settings: Any) -> None:
        """Replace the configuration; a daemon that runs keeps the one that it has read."""
        values = {"data_directory": str(self.data_directory), **settings}
        self.config_path.write_bytes(encode(values))
        self.config = load_config(self.config_path)

    # --- the daemon ---

    def start(self, within_s: float = READY_WITHIN_S) -> None:
        """Start the daemon and wait until it is ready to accept."""
        self.launch()
        self.wait_ready(within_s)

    def launch(self) -> None:
        """Start the daemon without waiting for it."""
        if self.daemon is not None:
            raise AssertionError("the daemon of this bus was already started; end it first")
        with self._log.open("ab") as log:
            self.daemon = subprocess.Popen(
                [*self.command, "--config", self.config_path],
                env=self.environment,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def wait_ready(self, within_s: float = READY_WITHIN_S) -> None:
        """Until the bus says `ready`; fails at once, with its log, when the daemon has ended."""
        deadline_s = time.monotonic() + within_s
        while time.monotonic() < deadline_s:
            if self.daemon is not None and self.daemon.poll() is not None:
                raise AssertionError(f"daemon ended ({self.daemon.returncode}):\n{self.log()}")
            if self.state() == "ready":
                return
            time.sleep(_POLL_S)
        raise AssertionError(f"the bus is {self.state()} after {within_s:g} s:\n{self.log()}")

    def state(self) -> str | None:
        """The readiness that a heartbeat reports; None when nobody answers."""
        try:
            with Client.connect(self.runtime.socket, timeout_s=HEARTBEAT_WITHIN_S) as client:
                return str(client.request("heartbeat", {}, HEARTBEAT_WITHIN_S)["state"])
        except UnavailableError:
            return None

    def stop(self, within_s: float = PATIENCE_S) -> int:
        """Ask the daemon to end, as a service manager does; its exit code."""
        return self._end(signal.SIGTERM, within_s)

    def kill(self) -> None:
        """End the daemon without a chance to do anything; its Redis goes on, as after a crash."""
        self._end(signal.SIGKILL, PATIENCE_S)

    def wait_ended(self, within_s: float = PATIENCE_S) -> int:
        """Wait for a daemon that ends by itself (a failpoint, a `stop` request); its exit code."""
        assert self.daemon is not None, "no daemon was started"
        try:
            code = self.daemon.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the daemon still runs:\n{self.log()}") from None
        self.daemon = None
        return code

    def _end(self, number: signal.Signals, within_s: float) -> int:
        assert self.daemon is not None, "no daemon was started"
        self.daemon.send_signal(number)
        return self.wait_ended(within_s)

    def redis_pid(self) -> int | None:
        """The process id of this bus's Redis, None when there is none on record."""
        record = read_record(self._redis().record_path)
        return record.pid if record else None

    def log(self) -> str:
        """Everything that the daemons of this bus have logged."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    # --- its clients ---

    def client(self, on_notification: NotificationCallback | None = None) -> Client:
        """A new connection that has said hello as a command line does; closed with the bus."""
        client = Client.connect(self.runtime.socket, ANSWER_WITHIN_S, on_notification)
        self._clients.append(client)
        hello = {"protocol": PROTOCOL_VERSION, "version": __version__, "pid": os.getpid()}
        client.request("hello", hello, ANSWER_WITHIN_S)
        return client

    def attach(
        self, agent: str = "Sam", *, conversation: str | None = None, **changes: Any
    ) -> BusSession:
        """A conversation of `agent` on a new connection; give `conversation` again to resume it.

        `changes` are other members of the `attach` frame.
        """
        notifications: list[Notification] = []
        client = self.client(notifications.append)
        frame: dict[str, Any] = {
            "agent": agent,
            "application": "test",
            "conversation": conversation or new_id(),
            "identity_source": "argument",
            "window_messages": 256,
            "window_bytes": 4 * MIB,
            **changes,
        }
        facts = client.request("attach", frame, ANSWER_WITHIN_S)
        return BusSession(client, facts, notifications)

    # --- its end ---

    def close(self) -> None:
        """End everything that belongs to this bus, however it fares, and remove its files."""
        for client in self._clients:
            client.close()
        if self.daemon is not None:
            self.daemon.terminate()
            try:
                self.daemon.wait(10.0)
            except subprocess.TimeoutExpired:
                self.daemon.kill()
                self.daemon.wait()
            self.daemon = None
        record = read_record(self._redis().record_path)
        if record is not None and record.pid is not None and record.mark is not None:
            end_group(record.pid, record.mark, grace_s=1.0)
        shutil.rmtree(self.directory)

    def _redis(self) -> RedisSettings:
        return RedisSettings(
            executable=self.config.redis_executable,
            search_engine=self.config.search_engine,
            budget_bytes=self.config.redis_budget_mib * MIB,
            data_directory=self.data_directory,
            runtime_directory=self.runtime.directory,
        )

    def __enter__(self) -> ThrowAwayBus:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            error.add_note(f"log of the daemon:\n{self.log()[-4000:]}")
        self.close()


def stop_daemon(runtime: RuntimePaths, within_s: float = PATIENCE_S) -> None:
    """End a daemon that an adapter or a client has started, if there is one; then it has gone."""
    if runtime.socket.exists():
        with Client.connect(runtime.socket, ANSWER_WITHIN_S) as client:
            client.request("stop", {}, ANSWER_WITHIN_S)
        lock = DaemonLock(runtime.lock)
        eventually(lambda: not lock.held_by_another(), within_s, what="end of the daemon")


@pytest.fixture
def throw_away_bus() -> Iterator[ThrowAwayBus]:
    """A ready bus with default settings."""
    with ThrowAwayBus() as bus:
        yield bus
