"""The one way to read time, so that rules of 72 hours and 30 seconds can be tested at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Wall time for what is stored, monotonic time for deadlines within one process."""

    def wall_us(self) -> int:
        """Microseconds since the Unix epoch; may jump."""
        ...

    def monotonic_s(self) -> float:
        """Seconds from an arbitrary start; never goes back."""
        ...

    def on_jump(self, wake: Callable[[], None]) -> None:
        """Call `wake` whenever time moved other than by passing (only a test's clock does that)."""
        ...


class SystemClock:
    """The machine's clocks."""

    def wall_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic_s(self) -> float:
        return time.monotonic()

    def on_jump(self, wake: Callable[[], None]) -> None:
        return None
