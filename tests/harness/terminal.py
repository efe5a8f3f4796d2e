"""A program in a terminal of its own: what it shows, and a person who types.

    terminal = Terminal([codex, "--no-daemon"], cwd=work, env=environment)
    terminal.wait_for("What shall we do")
    terminal.type_line("Follow script-1.")
    terminal.close()

Owns the pseudo-terminal, the thread that reads it and answers what a terminal is asked, and the
end of everything that was started in its session. What is shown is text without its positions: good
enough to wait for words, not to look at a screen.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

SHOWN_WITHIN_S = 30.0
RETYPED_AFTER_S = 8.0
TYPED_TIMES = 4
ERASE_LINE = "\x15"
"""Control-U, of what may have been taken after all."""

_ROWS, _COLUMNS = 40, 140

# The session leader takes the terminal on its stdin as the controlling one, then becomes the
# program.
_TAKE_TERMINAL = (
    "import fcntl, os, sys, termios;"
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
    "os.execv(sys.argv[1], sys.argv[1:])"
)

_ANSWERS = {
    b"\x1b[6n": b"\x1b[1;1R",  # where is the cursor
    b"\x1b[c": b"\x1b[?62;c",  # which terminal is it
    b"\x1b[?u": b"\x1b[?0u",  # which keys does it tell apart
    b"\x1b]10;?": b"\x1b]10;rgb:ffff/ffff/ffff\x1b\\",  # its colours
    b"\x1b]11;?": b"\x1b]11;rgb:0000/0000/0000\x1b\\",
}

_FORWARD = re.compile(r"\x1b\[\d*C")
_CONTROL = re.compile(
    r"\x1b(?:\[[0-9;:?<>=]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][A-Z0-9]|[=>78MPc])"
)


class Terminal:
    """See the module."""

    def __init__(self, command: Sequence[str], cwd: Path, env: Mapping[str, str]) -> None:
        self._ours, theirs = os.openpty()
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
        self._shown = b""
        self._changed = threading.Condition()
        self.process = subprocess.Popen(
            [sys.executable, "-c", _TAKE_TERMINAL, *command],
            cwd=cwd,
            env=dict(env),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self._reader = threading.Thread(target=self._read, name="terminal")
        self._reader.start()

    def shown(self, since: int = 0) -> str:
        """All that was shown from this `mark` on."""
        with self._changed:
            text = self._shown[since:].decode(errors="replace")
        return _CONTROL.sub("", _FORWARD.sub(" ", text))

    def mark(self) -> int:
        """Now, for `shown` and `wait_for`."""
        with self._changed:
            return len(self._shown)

    def wait_for(self, words: str, since: int = 0, within_s: float = SHOWN_WITHIN_S) -> None:
        """Until the words have been shown, with any spaces between them."""
        if not self._comes(words, since, within_s):
            raise AssertionError(f"{words!r} was not shown:\n{self.shown()[-3000:]}")

    def _comes(self, words: str, since: int, within_s: float) -> bool:
        pattern = re.compile(r"\s*".join(map(re.escape, words.split())))
        deadline_s = time.monotonic() + within_s
        while not pattern.search(self.shown(since)):
            with self._changed:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or not self._changed.wait(left_s):
                    return False
        return True

    def type(self, keys: str) -> None:
        with suppress(OSError):  # it has ended: the test will see that
            os.write(self._ours, keys.encode())

    def type_line(self, line: str) -> None:
        """Type it, and Enter once it is shown: keys that come in one piece count as pasted.

        A window that still loads may throw keys away, so they are typed again.
        """
        since = self.mark()
        for _ in range(TYPED_TIMES - 1):
            self.type(line)
            if self._comes(line, since, RETYPED_AFTER_S):
                break
            self.type(ERASE_LINE)
        else:
            self.type(line)
            self.wait_for(line, since)
        self.type("\r")

    def hang_up(self) -> None:
        """What the system does to all processes of a window that is closed."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGHUP)

    def wait_still(self, for_s: float = 1.0, within_s: float = SHOWN_WITHIN_S) -> None:
        """Until nothing has been shown for a while: some programs throw away what was typed before
        their dialog stood, or fail on it."""
        deadline_s = time.monotonic() + within_s
        with self._changed:
            while self._changed.wait(for_s):
                assert time.monotonic() < deadline_s, "what it shows goes on changing"

    def wait_ended(self, within_s: float = SHOWN_WITHIN_S) -> int:
        return self.process.wait(within_s)

    def close(self) -> None:
        """End it as closing the window does, by force when that is not enough."""
        for number in (signal.SIGHUP, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(5.0)
                break
        self._reader.join()
        os.close(self._ours)

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._ours, 65536)
            except OSError:  # Linux: nobody has the other end open any more
                return
            if not data:
                return
            for query, answer in _ANSWERS.items():
                if query in data:
                    self.type(answer.decode())
            with self._changed:
                self._shown += data
                self._changed.notify_all()
