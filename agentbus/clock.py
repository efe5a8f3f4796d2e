"""The one way to read time, so that rules of 72 hours and 30 seconds can be tested at once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

SHIFT_VARIABLE: Final = "AGENTBUS_TEST_CLOCK_SHIFT"
"""Names the file of a `ShiftedClock`."""


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


class ShiftedClock(SystemClock):
    """For crash tests: the wall clock is wrong by what a file says, in seconds, at each look."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def wall_us(self) -> int:
        return super().wall_us() + round(float(self._path.read_text()) * 1_000_000)


def machine_clock() -> SystemClock:
    """The machine's clocks; shifted where the environment names a file, which only tests do."""
    path = os.environ.get(SHIFT_VARIABLE)
    return ShiftedClock(Path(path)) if path else SystemClock()
