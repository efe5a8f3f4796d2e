"""A program in a terminal of its own: what it shows, and a person who types.

    terminal = Terminal([codex, "--no-daemon"], cwd=work, env=environment)
    terminal.wait_for("What shall we do")
    terminal.type_line("Follow script-1.")
    terminal.close()

Owns the pseudo-terminal, the thread that reads it and answers what a terminal is asked, and the
end of everything that was started in its session. What is shown can be waited for in two ways: in
what the program writes from some moment on, and on the screen as a person sees it. A program draws
only what differs from before, so words that replace others are waited for on the screen.
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
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pyte

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
    b"\x1b[c": b"\x1b[?62;c",  # which terminal is it
    b"\x1b[?u": b"\x1b[?0u",  # which keys does it tell apart
    b"\x1b]10;?": b"\x1b]10;rgb:ffff/ffff/ffff\x1b\\",  # its colours
    b"\x1b]11;?": b"\x1b]11;rgb:0000/0000/0000\x1b\\",
}
_WHERE_IS_THE_CURSOR = b"\x1b[6n"
_QUERY = re.compile(b"|".join(map(re.escape, (_WHERE_IS_THE_CURSOR, *_ANSWERS))))
_LONGEST_QUERY = max(map(len, _ANSWERS))

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
        self._drawn = 0  # how much of it is on the screen
        self._asked = 0  # and where a query may begin that is not answered
        self._screen = pyte.Screen(_COLUMNS, _ROWS)
        self._pen = pyte.ByteStream(self._screen)
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

    def screen(self) -> str:
        """What stands there now, line by line."""
        with self._changed:
            return "\n".join(self._screen.display)

    def wait_for(self, words: str, since: int = 0) -> None:
        """Until the words have been written from a `mark` on, with any spaces between them."""
        if not self._comes(words, lambda: self.shown(since), SHOWN_WITHIN_S):
            raise AssertionError(f"{words!r} was not shown:\n{self.shown()[-3000:]}")

    def wait_on_screen(self, words: str) -> None:
        """Until the words stand on the screen, with any spaces between them."""
        if not self._comes(words, self.screen, SHOWN_WITHIN_S):
            raise AssertionError(f"{words!r} is not on the screen:\n{self.screen()}")

    def _comes(self, words: str, looked_at: Callable[[], str], within_s: float) -> bool:
        pattern = re.compile(r"\s*".join(map(re.escape, words.split())))
        with self._changed:  # nothing comes between a look and the wait for the next change
            return bool(self._changed.wait_for(lambda: pattern.search(looked_at()), within_s))

    def type(self, keys: str) -> None:
        with suppress(OSError):  # it has ended: the test will see that
            os.write(self._ours, keys.encode())

    def type_line(self, line: str) -> None:
        """Type it, and Enter once it is there: keys that come in one piece count as pasted."""
        self.type_until(line, line, ERASE_LINE)
        self.type("\r")

    def type_until(self, keys: str, words: str, undo: str = "") -> None:
        """Type, until the words stand on the screen.

        A window that still loads may throw keys away, so they are typed again, after `undo`.
        """
        for _ in range(TYPED_TIMES - 1):
            self.type(keys)
            if self._comes(words, self.screen, RETYPED_AFTER_S):
                return
            self.type(undo)
        self.type(keys)
        self.wait_on_screen(words)

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
            self._take(data)

    def _take(self, data: bytes) -> None:
        """Draw it, and answer in the order of the questions, wherever a read has cut them."""
        with self._changed:
            self._shown += data
            while question := _QUERY.search(self._shown, self._asked):
                self._asked = question.end()
                self._draw(question.end())
                self.type(self._answer(question.group()).decode())
            self._asked = max(self._asked, len(self._shown) - _LONGEST_QUERY + 1)
            self._draw(len(self._shown))
            self._changed.notify_all()

    def _draw(self, end: int) -> None:
        self._pen.feed(self._shown[self._drawn : end])
        self._drawn = end

    def _answer(self, question: bytes) -> bytes:
        if question == _WHERE_IS_THE_CURSOR:
            cursor = self._screen.cursor
            return f"\x1b[{cursor.y + 1};{cursor.x + 1}R".encode()
        return _ANSWERS[question]
