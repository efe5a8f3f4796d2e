"""A bus in a temporary folder: nothing of it is the user's, nothing of it stays.

Owns the folder and the processes that belong to it. Blocks; one thread at a time.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from agentbus.encoding import encode_pretty
from agentbus.errors import BusError, InternalError
from agentbus.transport.client import Client
from agentbus.transport.singleton import (
    DaemonLock,
    RuntimePaths,
    holder_pid,
    runtime_directory,
)

ASK_S: Final = 5.0
END_S: Final = 10.0


class ThrowawayBus:
    """`with ThrowawayBus() as bus:` ... its processes get `bus.environment`."""

    def __init__(self, keep: bool = False) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="agentbus-demo-"))
        self._keep = keep
        self.config = self.folder / "config.json"
        self.data_directory = self.folder / "data"
        self.config.write_text(encode_pretty({"data_directory": str(self.data_directory)}))
        self.environment = {
            **os.environ,
            "AGENTBUS_RUNTIME_DIR": str(self.folder / "run"),
        }
        self.paths: RuntimePaths = runtime_directory(self.environment, os.getuid())

    def __enter__(self) -> ThrowawayBus:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_daemon()
        if not self._keep:
            shutil.rmtree(self.folder, ignore_errors=True)
            # Where the temporary folder's own path is too long for a socket.
            shutil.rmtree(self.paths.directory, ignore_errors=True)

    def ask(self, method: str) -> Any:
        """A question to the daemon. Raises BusError."""
        with Client.connect(self.paths.socket, ASK_S) as client:
            return client.request(method, {}, ASK_S)

    def kill_daemon(self) -> int:
        """SIGKILL, as if the machine's memory had run out. Returns the pid that it had."""
        pid = self._running_pid()
        if pid is None:
            raise InternalError("there is no daemon to kill")
        os.kill(pid, signal.SIGKILL)
        self._wait_gone(pid)
        return pid

    def _end_daemon(self) -> None:
        """In order if it can be, by force if not; Redis goes with the daemon that owns it."""
        pid = self._running_pid()
        if pid is None:
            return
        redis_pid: int | None = None
        try:
            redis_pid = (self.ask("status").get("redis") or {}).get("pid")
            self.ask("stop")
            self._wait_gone(pid)
        except BusError:
            for hanging in (pid, redis_pid):
                if hanging is not None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(hanging, signal.SIGKILL)

    def _running_pid(self) -> int | None:
        """The lock's holder. Only a held lock makes its pid the one of a living process."""
        if not self.paths.directory.is_dir() or not DaemonLock(self.paths.lock).held_by_another():
            return None
        return holder_pid(self.paths.lock)

    def _wait_gone(self, pid: int) -> None:
        deadline_s = time.monotonic() + END_S
        while self._running_pid() == pid:
            if time.monotonic() >= deadline_s:
                raise InternalError(f"daemon {pid} is still there after {END_S:g} s")
            time.sleep(0.01)
