"""A process that ends the runs of a command when the process that started them is killed.

Owns one small process, and the pipe that it reads: a process group that begins, one that has ended.
The pipe's end comes only with its owner's, however that ended, and what still runs then is killed.
Never decides anything, never hinders a run: without it a run goes on as it is. Any thread.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from typing import Final

_log = logging.getLogger(__name__)

_END_S: Final = 2.0
"""How long the process may take to end once its pipe has."""

PROGRAM: Final = """
import os, signal, sys
running = set()
for line in sys.stdin:
    group = int(line)
    (running.add if group > 0 else running.discard)(abs(group))
for group in running:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
"""


class Guard:
    """One running guard; `close` ends it, and every group that was not told to have ended."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)  # a guard that hangs must not hold up a run
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-ISE", "-c", PROGRAM],
                stdin=reader,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # whoever kills our group does not kill it first
                cwd="/",
            )
        except OSError as error:
            _log.warning(
                "if this process is killed, its commands will run on: %s",
                error.strerror,
            )
        finally:
            os.close(reader)

    def began(self, group: int) -> None:
        """A run has begun, as the leader of that process group."""
        self._tell(group)

    def ended(self, group: int) -> None:
        """Nothing of that group is left."""
        self._tell(-group)

    def close(self) -> None:
        """When no run is under way any more; twice is once."""
        if self._writer >= 0:
            os.close(self._writer)
            self._writer = -1
        if self._process is not None:
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _tell(self, number: int) -> None:
        try:
            os.write(self._writer, b"%d\n" % number)  # whole or not at all: it is that short
        except OSError:
            # It hangs or has gone. One that has missed a word could end a group that is not ours.
            if self._process is not None:
                self._process.kill()
