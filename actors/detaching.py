"""Leaving the process tree of whoever starts the daemon.

A session of its own keeps away the signals that are meant for a process group. But a harness may
end all that descends from the MCP server that it has started, and by birth the daemon does. So the
process that was started only tells how the start went, and the daemon is a child of it, whose
parent is gone as soon as it serves. Main thread, while there is no other.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

_FAILED = 1
_SERVES = b"s"


def detach() -> Callable[[], None]:
    """Goes on in a new process; the one before ends when what is returned is called there.

    Its exit code is then 0, and that of the new process if that one ends without having called it.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        os._exit(0 if os.read(reading, 1) == _SERVES else _exit_code(pid))
    os.close(reading)
    os.setsid()

    def serves() -> None:
        with suppress(BrokenPipeError):  # whoever waited was ended meanwhile; we are not its affair
            os.write(writing, _SERVES)
        os.close(writing)

    return serves


def _exit_code(pid: int) -> int:
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else _FAILED  # negative: a signal ended it
