"""How long and how often the adapter repeats what failed, before it tells the agent.

Repeated is what can succeed later by itself: the daemon is away or recovering, the attachment is
stale, another one still holds the session, an outcome is unknown. Never what was denied.
Used in the thread of the event loop.
"""

from __future__ import annotations

import asyncio
import random

from agentbus.adapter.link import Link
from agentbus.errors import BusError, UnavailableError, UnknownOutcomeError
from agentbus.limits import ADAPTER_RETRY_SECONDS

_RETRIED = frozenset({"unavailable", "stale_attachment", "session_already_connected", "unknown"})
_PAUSE_S = 0.05
_PAUSE_MAX_S = 2.0


class Retry:
    """How often a failed attempt is repeated: for `ADAPTER_RETRY_SECONDS`, with growing pauses.

    `until_s`, a time of the event loop, is when there must be an answer in any case.
    """

    def __init__(self, link: Link, until_s: float = float("inf")) -> None:
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._until_s = until_s
        self._stops = link.stops
        self.succeeded()
        self.uncertain = False
        """An attempt may have been carried out although it was not answered."""

    def succeeded(self) -> None:
        """Later failures begin a new series."""
        self._pause_s = _PAUSE_S
        self._deadline_s = min(self._loop.time() + ADAPTER_RETRY_SECONDS, self._until_s)

    async def after(self, error: BusError) -> None:
        """Pause before the next attempt, or raise the error because there is none."""
        if error.code == "unknown" or getattr(error, "sent", False):
            self.uncertain = True
        if error.code not in _RETRIED:
            raise error
        self._check_not_stopped()
        pause_s = self._pause_s * random.uniform(1, 1.5)
        hint_s = (error.retry_after_ms or 0) / 1000 * random.uniform(1, 1.5)
        self._pause_s = min(self._pause_s * 2, _PAUSE_MAX_S)
        left_s = self._deadline_s - self._loop.time()
        if pause_s > left_s:
            raise error
        await self._link.pause(pause_s, min(hint_s, left_s))
        self._check_not_stopped()  # the next attempt would start the bus again

    def _check_not_stopped(self) -> None:
        if self._link.stops != self._stops:
            raise UnavailableError(
                "the bus was stopped while this call was under way; the next call starts it again"
            )

    def outcome(self, error: BusError, what: str, repeat: str) -> BusError:
        """What to tell at last of a mutation: that it is unknown, where it may have been done.

        `repeat`: how to repeat the call so that it has one effect at most.
        """
        if not self.uncertain or error.code not in _RETRIED:
            return error
        return UnknownOutcomeError(
            f"{what}: whether it was accepted is not known ({error.message}); repeat the call "
            f"{repeat}, it then has one effect at most"
        )
