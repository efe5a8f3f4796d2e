"""Reading and writing where neither can be polled: terminals and files.

Each class runs one daemon thread, which is never joined: a paused terminal must not keep the
process from ending. The threads touch the descriptor only; everything they find out is told to the
event loop, which keeps all state.
"""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from collections.abc import Callable
from queue import SimpleQueue

READ_BYTES = 64 * 1024


def is_pollable(fd: int) -> bool:
    """Whether non-blocking mode may be set: it is shared with every process that has this file."""
    mode = os.fstat(fd).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


class BlockingReader:
    """A daemon thread that reads where a read may block for ever.

    It reads the next chunk when the event loop has decoded the previous one and allows more.
    """

    def __init__(
        self, fd: int, loop: asyncio.AbstractEventLoop, feed: Callable[[bytes], None]
    ) -> None:
        self._fd = fd
        self._loop = loop
        self._feed = feed
        self._allowed = threading.Event()
        self._allowed.set()
        threading.Thread(target=self._run, name="stdin", daemon=True).start()

    def allow(self, allowed: bool) -> None:
        if allowed:
            self._allowed.set()
        else:
            self._allowed.clear()

    def _run(self) -> None:
        data = b"unread"
        while data:
            self._allowed.wait()
            try:
                data = os.read(self._fd, READ_BYTES)
            except OSError:
                data = b""
            self._allowed.clear()  # until `feed` has run in the event loop
            try:
                self._loop.call_soon_threadsafe(self._feed, data)
            except RuntimeError:  # the event loop has ended
                return


class BlockingWriter:
    """A daemon thread that writes one chunk at a time where a write may block for ever.

    `on_written` gets the number of bytes that the OS took, None when it refused.
    """

    def __init__(
        self, fd: int, loop: asyncio.AbstractEventLoop, on_written: Callable[[int | None], None]
    ) -> None:
        self._fd = fd
        self._loop = loop
        self._on_written = on_written
        self._busy = False
        self._chunks: SimpleQueue[memoryview | None] = SimpleQueue()
        threading.Thread(target=self._run, name="stdout", daemon=True).start()

    def submit(self, chunk: memoryview) -> bool:
        """False while the previous chunk is being written; `on_written` will come."""
        if self._busy:
            return False
        self._busy = True
        self._chunks.put(chunk)
        return True

    def stop(self) -> None:
        self._chunks.put(None)

    def _run(self) -> None:
        while (chunk := self._chunks.get()) is not None:
            try:
                written_bytes: int | None = os.write(self._fd, chunk)
            except OSError:
                written_bytes = None
            try:
                self._loop.call_soon_threadsafe(self._done, written_bytes)
            except RuntimeError:  # the event loop has ended before the terminal took the chunk
                return

    def _done(self, written_bytes: int | None) -> None:
        self._busy = False
        self._on_written(written_bytes)
