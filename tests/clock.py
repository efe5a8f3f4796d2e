"""A clock that stands still until a test moves it."""

from __future__ import annotations

import threading
from collections.abc import Callable


class FakeClock:
    """Implements `agentbus.clock.Clock`; `advance` moves both clocks and wakes the waiters."""

    def __init__(self, wall_us: int = 1_800_000_000_000_000) -> None:
        self._lock = threading.Lock()
        self._wall_us = wall_us
        self._monotonic_s = 1000.0
        self._wakers: list[Callable[[], None]] = []

    def wall_us(self) -> int:
        with self._lock:
            return self._wall_us

    def monotonic_s(self) -> float:
        with self._lock:
            return self._monotonic_s

    def on_jump(self, wake: Callable[[], None]) -> None:
        with self._lock:
            self._wakers.append(wake)

    def advance(self, seconds: float = 0.0, *, hours: float = 0.0) -> None:
        """Let time pass on both clocks."""
        seconds += hours * 3600
        with self._lock:
            self._wall_us += round(seconds * 1_000_000)
            self._monotonic_s += seconds
            wakers = list(self._wakers)
        for wake in wakers:
            wake()

    def set_wall(self, wall_us: int) -> None:
        """Let the wall clock jump, forwards or back; the monotonic one goes on."""
        with self._lock:
            self._wall_us = wall_us
            wakers = list(self._wakers)
        for wake in wakers:
            wake()
