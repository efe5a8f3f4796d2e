"""Leaving the process tree of whoever starts the daemon.

A session of its own keeps away the signals that are meant for a process group. But a harness may
end all that descends from the MCP server that it has started, and it does so at any time: also
just when the daemon is ready. So the daemon is the grandchild of the process that was started, and
the process between them has ended before the daemon takes its first step; the one that was started
stays only to tell how the start went. Main thread, while there is no other.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress

_FAILED = 1
_ALONE = b"a"


def detach() -> Callable[[int], None]:
    """Goes on in a new process that descends from nobody who is left.

    What is returned takes an exit code and is called once there: the process that was started then
    ends with that code. It ends with 1 if the new process ends without having called it.
    """
    starter, daemon = socket.socketpair()
    between = os.fork()
    if between:
        daemon.close()
        os.waitpid(between, 0)
        os._exit(_told(starter))
    if os.fork():
        os._exit(0)
    starter.close()
    os.setsid()
    daemon.recv(1)  # or the starter was ended meanwhile, which is not our affair

    def tell(code: int) -> None:
        with suppress(OSError):
            daemon.send(bytes((code,)))
        daemon.close()

    return tell


def _told(starter: socket.socket) -> int:
    try:
        starter.send(_ALONE)
        code = starter.recv(1)
    except OSError:  # the new process has been ended before it read
        return _FAILED
    return code[0] if code else _FAILED
