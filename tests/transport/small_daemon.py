"""A daemon that is nothing but lock, socket and heartbeat; run by the tests as a program.

    python -m tests.transport.small_daemon

Takes its orders from the environment: AGENTBUS_RUNTIME_DIR; SMALL_DAEMON_STARTS, a file that gets
one line per start; SMALL_DAEMON_FAULT, `configuration` or `crash`; SMALL_DAEMON_MARKER, any text.
The method `stop` ends it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from agentbus.clock import SystemClock
from agentbus.protocol.jsonrpc import Notification, Request
from agentbus.transport.connection import Connection
from agentbus.transport.listener import Listener
from agentbus.transport.reply import Reply
from agentbus.transport.singleton import (
    EXIT_ALREADY_RUNNING,
    EXIT_CONFIGURATION,
    DaemonLock,
    bind_socket,
    prepare_directory,
    remove_socket,
    runtime_directory,
)


class Stopper:
    """Handler that knows `stop` and `facts`."""

    def __init__(self, vanish: Callable[[], None]) -> None:
        self.stopped = threading.Event()
        self._vanish = vanish

    def connected(self, connection: Connection) -> None: ...

    def disconnected(self, connection: Connection) -> None: ...

    def notification(self, connection: Connection, notification: Notification) -> None: ...

    def request(self, connection: Connection, request: Request, reply: Reply) -> None:
        if request.method == "stop":
            self._vanish()  # before the answer: whoever gets that finds nobody any more
            reply.set()
            self.stopped.set()
        else:
            reply.set(
                {
                    "pid": os.getpid(),
                    "session": os.getsid(0),
                    "cwd": os.getcwd(),
                    "stdin": os.fstat(0).st_rdev,
                    "stdout": os.fstat(1).st_rdev,
                    "marker": os.environ.get("SMALL_DAEMON_MARKER"),
                }
            )


def main() -> int:
    uid = os.getuid()
    paths = runtime_directory(os.environ, uid)
    if starts := os.environ.get("SMALL_DAEMON_STARTS"):
        with Path(starts).open("a") as file:
            file.write(f"{os.getpid()}\n")
    match os.environ.get("SMALL_DAEMON_FAULT"):
        case "configuration":
            line = "agentbus: config.json: unknown key 'colour'; remove it"
            print(f"noise before\n{line}", file=sys.stderr)
            return EXIT_CONFIGURATION
        case "crash":
            print("out of luck", file=sys.stderr)
            return 1
    prepare_directory(paths, uid)
    lock = DaemonLock(paths.lock)
    if not lock.acquire():
        return EXIT_ALREADY_RUNNING
    handler = Stopper(vanish=partial(remove_socket, paths, lock))
    listener = Listener(bind_socket(paths, lock, uid), handler, dict, clock=SystemClock())
    listener.start()
    handler.stopped.wait()
    listener.close(1.0)
    lock.release()
    return 0


if __name__ == "__main__":
    sys.exit(main())
