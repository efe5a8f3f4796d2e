"""What is told of memories that changed, beside the messages of a receive.

Owns the notices that wait to be told: the newest of each memory, bounded, the oldest given up first
(they move no cursor; the memory itself is always there to read). Used in the thread of the event
loop only.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from agentbus.encoding import encode
from agentbus.limits import KIB, MEMORY_CHANGES

NOTICES_BYTES: Final = 32 * KIB
"""Of all that wait, beside `MEMORY_CHANGES` of them: more would crowd out what was sent."""

TOLD_KEPT: Final = 1000
"""Memories whose last told change is remembered: a new attachment lists what changed since the one
before it, told or not."""


class MemoryNotices:
    """See the module. A notice is told until a result that carried it was handed off."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[dict[str, Any], int]] = {}  # memory id -> notice and size
        self._size_bytes = 0
        self._told: dict[str, tuple[str, int]] = {}  # memory id -> what it was told of last

    def add(self, notice: dict[str, Any]) -> None:
        """The newest of its memory; an older one is forgotten, and what was told ignored."""
        memory_id = notice["memory_id"]
        waiting = self._waiting.get(memory_id)
        known = self._told.get(memory_id) if waiting is None else _change(waiting[0])
        if known == _change(notice):
            return
        self._remove(memory_id)
        size_bytes = len(encode(notice))
        self._waiting[memory_id] = notice, size_bytes
        self._size_bytes += size_bytes
        while len(self._waiting) > MEMORY_CHANGES or self._size_bytes > NOTICES_BYTES:
            self._remove(next(iter(self._waiting)))

    def of(self, channels: Collection[str], size_bytes: int) -> tuple[dict[str, Any], ...]:
        """Those of these channels (of all when none are named), oldest first, as far as they fit.

        At least one, however little room there is.
        """
        chosen: list[dict[str, Any]] = []
        for notice, size in self._waiting.values():
            if channels and notice["channel"] not in channels:
                continue
            size_bytes -= size
            if chosen and size_bytes < 0:
                break
            chosen.append(notice)
        return tuple(chosen)

    def told(self, notices: Collection[dict[str, Any]]) -> None:
        """A result with these was handed off; one that came meanwhile still waits."""
        for notice in notices:
            waiting = self._waiting.get(notice.get("memory_id", ""))
            if waiting is not None and waiting[0] is notice:
                memory_id = notice["memory_id"]
                self._remove(memory_id)
                self._told.pop(memory_id, None)
                self._told[memory_id] = _change(notice)
                if len(self._told) > TOLD_KEPT:
                    del self._told[next(iter(self._told))]

    def _remove(self, memory_id: str) -> None:
        _, size_bytes = self._waiting.pop(memory_id, (None, 0))
        self._size_bytes -= size_bytes


def _change(notice: dict[str, Any]) -> tuple[str, int]:
    """What happened to the memory, however it is told."""
    return notice["kind"], notice["revision"]
