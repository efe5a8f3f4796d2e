"""A whole bus inside the test's process, so that the test owns its clock."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from actors.system import System, database_path
from agentbus.config import load_config
from agentbus.encoding import encode
from agentbus.ids import new_id
from agentbus.limits import HEARTBEAT_SECONDS, MIB, PROTOCOL_VERSION
from agentbus.protocol.jsonrpc import Notification
from agentbus.transport.client import Client
from agentbus.transport.singleton import DaemonLock, RuntimePaths, prepare_directory
from tests.bus_fixture import ANSWER_WITHIN_S, BusSession
from tests.clock import FakeClock
from tests.eventually import PATIENCE_S, eventually

T = TypeVar("T")


class InProcessBus:
    """A running `System` with a clock that stands still until `clock.advance`."""

    def __init__(
        self, folder: Path, *, beyond_bounds: dict[str, Any] | None = None, **settings: Any
    ) -> None:
        """`beyond_bounds`: settings that a file may not have, such as a tiny budget."""
        config_path = folder / "config.json"
        config_path.write_bytes(encode({"data_directory": str(folder / "data"), **settings}))
        self.config = replace(load_config(config_path), **(beyond_bounds or {}))
        self.config.data_directory.mkdir()
        self.clock = FakeClock()
        self.paths = RuntimePaths(folder / "run")
        prepare_directory(self.paths, folder.stat().st_uid)
        self._lock = DaemonLock(self.paths.lock)
        assert self._lock.acquire()
        self._clients: list[Client] = []
        self.start()

    def start(self) -> None:
        """Anew after `stop`, on the same folders."""
        self.system = System(self.config, self.paths, self._lock, self.clock)
        self.system.start()
        eventually(lambda: self.heartbeat() == "ready", 30.0, what="ready")

    def status(self) -> Any:
        with Client.connect(self.paths.socket, PATIENCE_S) as client:
            return client.request("status", {}, 10.0)

    @property
    def database(self) -> Path:
        return database_path(self.config)

    def heartbeat(self) -> str:
        with Client.connect(self.paths.socket, PATIENCE_S) as client:
            return str(client.request("heartbeat", {}, PATIENCE_S)["state"])

    def after_cleanup(self, look: Callable[[], T], *, what: str) -> T:
        """What `look` gives when a cleanup has done what is due: where an earlier one still ran at
        its time, that is the one after it."""

        def look_or_pass_time() -> T:
            found = look()
            if not found:
                self.clock.advance(HEARTBEAT_SECONDS)  # a session that looks is never silent
            return found

        return eventually(look_or_pass_time, what=what)

    def attach(
        self, agent: str = "Sam", conversation: str | None = None, **changes: Any
    ) -> BusSession:
        """A conversation on a connection of its own; the same conversation again resumes it.

        `changes` are other members of the `attach` frame.
        """
        notifications: list[Notification] = []
        client = Client.connect(self.paths.socket, ANSWER_WITHIN_S, notifications.append)
        self._clients.append(client)
        hello = {"protocol": PROTOCOL_VERSION, "version": "0", "pid": 1}
        client.request("hello", hello, ANSWER_WITHIN_S)
        frame = {
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

    def close(self) -> None:
        for client in self._clients:
            client.close()
        clean = self.system.stop()
        self._lock.release()
        assert clean, "something was still busy after the grace"


@contextmanager
def in_process_bus(**settings: Any) -> Iterator[InProcessBus]:
    """In folders of its own, with paths that are short enough for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="ab-", dir="/tmp"))
    try:
        bus = InProcessBus(folder, **settings)
        try:
            yield bus
        finally:
            bus.close()
    finally:
        shutil.rmtree(folder)
