"""First answers, kept for repeats that name the same idempotency key.

Owns them in memory, bounded in number, size and age. A repeat that comes while the first is being
answered waits for it. Never knows what a question means. Lives on the server's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from agentbus.clock import Clock
from agentbus.errors import ConflictError
from agentbus.limits import MIB
from agentbus.rules.receipts import digest
from agentbus.talk.handler import Answered, NotAnswered

ANSWERS: Final = 1000
ANSWERS_BYTES: Final = 16 * MIB
"""Kept at most; the oldest go first."""


@dataclass(slots=True)
class _Kept:
    fingerprint: bytes
    answer: asyncio.Future[Answered | NotAnswered]
    until_s: float
    size_bytes: int = 0


class Replays:
    """See the module. A key belongs to the caller that used it first."""

    def __init__(self, retention_s: float, clock: Clock) -> None:
        self._retention_s = retention_s
        self._clock = clock
        self._kept: dict[tuple[str, str], _Kept] = {}  # oldest first
        self._size_bytes = 0

    async def once(
        self,
        caller: str,
        key: str,
        prompt: str,
        answer: Callable[[], Awaitable[Answered | NotAnswered]],
    ) -> Answered | NotAnswered:
        """The first answer to this key. Raises ConflictError when it was for another prompt.

        What `answer` raises is no answer, and neither is that nobody was there to give one: those
        who waited hear it, and the key is free again.
        """
        self._forget_old()
        name, fingerprint = (caller, key), digest(prompt.encode())
        kept = self._kept.get(name)
        if kept is not None:
            if kept.fingerprint != fingerprint:
                raise ConflictError("that idempotencyKey was used for another prompt")
            return await asyncio.shield(kept.answer)
        future: asyncio.Future[Answered | NotAnswered] = asyncio.get_running_loop().create_future()
        kept = _Kept(fingerprint, future, self._clock.monotonic_s() + self._retention_s)
        self._kept[name] = kept
        try:
            answered = await answer()
        except BaseException as error:
            del self._kept[name]
            if isinstance(error, Exception):
                future.set_exception(error)
                future.exception()  # nobody may be waiting for it
            else:
                future.cancel()
            raise
        future.set_result(answered)
        if isinstance(answered, NotAnswered) and answered.code == "instance_unavailable":
            del self._kept[name]
            return answered
        kept.size_bytes = _size_bytes(answered)
        self._size_bytes += kept.size_bytes
        self._make_room()
        return answered

    def _forget_old(self) -> None:
        now_s = self._clock.monotonic_s()
        for name, kept in list(self._kept.items()):
            if kept.until_s > now_s:
                return
            self._drop(name, kept)

    def _make_room(self) -> None:
        for name, kept in list(self._kept.items()):
            if len(self._kept) <= ANSWERS and self._size_bytes <= ANSWERS_BYTES:
                return
            self._drop(name, kept)

    def _drop(self, name: tuple[str, str], kept: _Kept) -> None:
        if kept.answer.done():
            self._size_bytes -= kept.size_bytes
            del self._kept[name]


def _size_bytes(answered: Answered | NotAnswered) -> int:
    text = answered.text if isinstance(answered, Answered) else answered.error
    return len(text.encode())
