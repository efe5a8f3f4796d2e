"""One bus of its own for a crash test, the processes around it, and what can be done to them.

Owns the folders (the database on a small file system of its own where mounting is allowed), the
file that shifts the daemon's clock, and the clients. Whoever finds no daemon starts one, so this
looks up who it is at the moment: by the lock that it holds.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from agentbus.clock import SHIFT_VARIABLE
from agentbus.errors import BusError
from agentbus.failpoints import VARIABLE
from agentbus.launch import ensure_daemon
from agentbus.transport.client import Client as DaemonClient
from agentbus.transport.singleton import DaemonLock, holder_pid
from tests.bus_fixture import ThrowAwayBus
from tests.crash import journal
from tests.crash.clients import CHANNELS, MEMORIES, AdapterClient, Client, SocketClient
from tests.crash.history import History
from tests.crash.peering import AGENTS, LEASE_S
from tests.crash.person import Person
from tests.eventually import eventually
from tests.exhaustion import CAN_MOUNT, mount, unmount

DISK_BYTES = 48 * 1024 * 1024
ADAPTERS = 3
SOCKETS = 2
READY_WITHIN_S = 60.0
ENDS_WITHIN_S = 180.0
HOOK = ["/bin/sh", "-c", 'cat >/dev/null; echo \'{"decision": "allow"}\'']


FIXED: Final[dict[str, Any]] = {
    "send_messages_per_second": 10_000,
    "send_kib_per_second": 65_536,
    "message_retention_hours": 1,
    "cleanup_interval_seconds": 5,
    "peer_lease_seconds": LEASE_S,
}


class World:
    """See the module. Enter it to have a bus with subscribed clients; `close` leaves nothing."""

    def __init__(
        self, seed: str, *, adapters: int = ADAPTERS, sockets: int = SOCKETS, **settings: Any
    ) -> None:
        rng = random.Random(f"{seed} settings")
        drawn: dict[str, Any] = {
            "prefetch_messages": rng.choice((1, 4, 256)),
            "search_engine": rng.choice(("auto", "auto", "sqlite")),
            "inspection_command": HOOK if rng.random() < 0.25 else [],
        }
        self.bus = ThrowAwayBus(**FIXED, **(drawn | settings))
        self.shift = self.bus.directory / "shift"
        self.clock_was_moved = False
        self.set_clock(0.0)
        self.bus.environment[SHIFT_VARIABLE] = str(self.shift)
        self.disk = self.bus.data_directory
        self.mounted = False
        self.history = History()
        self._log = (self.bus.directory / "adapters.log").open("ab")
        self.memories: list[str] = []
        self._background: list[threading.Thread] = []
        self.adapters = [
            AdapterClient(
                name,
                AGENTS[number % len(AGENTS)],
                f"{seed} {name}",
                self.bus,
                self.history,
                self.memories,
                self._log,
            )
            for number, name in enumerate(f"adapter{number}" for number in range(adapters))
        ]
        self.sockets = [
            SocketClient(
                name,
                AGENTS[number % len(AGENTS)],
                f"{seed} {name}",
                self.bus,
                self.history,
                self.memories,
            )
            for number, name in enumerate(f"socket{number}" for number in range(sockets))
        ]
        self.person = Person(seed, self.bus, self.history)

    @property
    def clients(self) -> list[Client]:
        return [*self.adapters, *self.sockets]

    def prepare(self) -> None:
        """A ready bus, its channels, and every agent subscribed to all of them."""
        if CAN_MOUNT:
            with contextlib.suppress(OSError):
                mount(self.disk, DISK_BYTES)
                self.mounted = True
        self.start_daemon()
        with contextlib.closing(self.bus.attach("setup")) as setup:
            journal.keep(self.bus.data_directory / "agentbus.sqlite3")
            for channel in CHANNELS:
                kind = "memory" if channel == MEMORIES else "ordinary"
                setup.call("create_channel", name=channel, kind=kind)
        beginning = [threading.Thread(target=adapter.begin) for adapter in self.adapters]
        for thread in beginning:
            thread.start()
        for thread in beginning:
            thread.join()

    def start(self) -> None:
        """Let the clients go."""
        for client in self.clients:
            client.start()
        self.person.start()

    def finish(self) -> None:
        """Have a healthy bus, let the clients take what waits, and wait for their end."""
        for thread in self._background:
            thread.join()
        self._have_sound_daemon()
        self.person.ending.set()
        for client in self.clients:
            client.ending.set()
        for client in self.clients:
            client.quiet.wait(ENDS_WITHIN_S)
        for client in self.clients:
            client.may_finish.set()
        for client in self.clients:
            self._has_ended(client)
        self.person.over.set()
        self._has_ended(self.person)

    def _has_ended(self, who: Client | Person) -> None:
        who.join(ENDS_WITHIN_S)
        if who.is_alive():
            self.history.stuck.append(f"{who.name} does not end")
        if who.failure is not None:
            self.history.stuck.append(f"{who.name} failed: {who.failure!r}")

    def _have_sound_daemon(self) -> None:
        """A ready one without failpoints; one that was armed may come up late."""
        deadline_s = time.monotonic() + READY_WITHIN_S
        while time.monotonic() < deadline_s:
            self.end_armed_daemon()
            if self.start_daemon(within_s=5.0) and not self._is_armed(self.daemon_pid()):
                return
        self.history.stuck.append(f"the bus is not ready after {READY_WITHIN_S:g} s")

    # --- the daemon and Redis ---

    def start_daemon(self, failpoints: str = "", within_s: float = READY_WITHIN_S) -> bool:
        """Have a daemon; whether it got ready, of which with failpoints nobody waits to see.

        The failpoints are those of the one that this call starts, if it does.
        """
        environment = self.bus.environment | ({VARIABLE: failpoints} if failpoints else {})
        deadline_s = time.monotonic() + within_s
        while time.monotonic() < deadline_s:
            with contextlib.suppress(BusError):
                ensure_daemon(
                    self.bus.runtime, self.bus.config_path, deadline_s=5.0, env=environment
                ).close()
            if failpoints:
                return False
            if self.bus.state() == "ready":
                return True
            time.sleep(0.02)
        return False

    def end_armed_daemon(self) -> None:
        """It must not outlive its fault, for it may be one that never gets ready."""
        pid = self.daemon_pid()
        if self._is_armed(pid):
            self._end(pid)

    @staticmethod
    def _is_armed(pid: int | None) -> bool:
        return f"{VARIABLE}=" in environment_of(pid)

    def in_background(self, work: Callable[[], object]) -> None:
        """Something that may take seconds, while other faults strike; it has its own time limit."""
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        self._background.append(thread)

    def stop_daemon(self) -> None:
        """Ask it to end; nothing happens when there is none."""
        with (
            contextlib.suppress(BusError),
            DaemonClient.connect(self.bus.runtime.socket, 1.0) as client,
        ):
            client.request("stop", {}, 5.0)

    def daemon_pid(self) -> int | None:
        if not DaemonLock(self.bus.runtime.lock).held_by_another():
            return None
        return _if_it_runs(holder_pid(self.bus.runtime.lock), "actors")

    def redis_pid(self) -> int | None:
        return _if_it_runs(self.bus.redis_pid(), str(self.bus.runtime.redis_socket))

    # --- its surroundings ---

    def set_clock(self, shift_s: float) -> None:
        """From now on the daemon's wall clock is wrong by that."""
        draft = self.shift.with_suffix(".new")
        draft.write_text(str(shift_s))
        draft.replace(self.shift)
        self.clock_was_moved = self.clock_was_moved or shift_s != 0.0

    def fill_disk(self) -> bool:
        """Leave no room for the database. False where it has no file system of its own."""
        if not self.mounted:
            return False
        with contextlib.suppress(OSError), (self.disk / "ballast").open("ab", buffering=0) as file:
            for size_bytes in (1 << 20, 1 << 16, 1 << 12):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(b"\0" * size_bytes)
        return True

    def empty_disk(self) -> None:
        (self.disk / "ballast").unlink(missing_ok=True)

    def close(self) -> None:
        for client in self.adapters:
            if client.process is not None and client.process.poll() is None:
                client.process.kill()
        try:
            eventually(self._is_without_daemon, what="end of the daemon")
        finally:
            self._log.close()
            if self.mounted:
                unmount(self.disk)
            self.bus.close()

    def _is_without_daemon(self) -> bool:
        """Also without one that an adapter had begun to start when it was killed."""
        starting = DaemonLock(self.bus.runtime.start_lock).held_by_another()
        pid = self.daemon_pid()
        self._end(pid)
        return pid is None and not starting

    @staticmethod
    def _end(pid: int | None) -> None:
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def environment_of(pid: int | None) -> str:
    """With which it was started; empty when it is not there."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def _if_it_runs(pid: int | None, word: str) -> int | None:
    """The pid, if a process of that command line has it."""
    if pid is None:
        return None
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return None
    return pid if word in command else None
