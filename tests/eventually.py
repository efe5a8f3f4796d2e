"""Waiting for a condition, with a deadline and without fixed sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

PATIENCE_S: Final = 20.0
"""For what takes a moment, on a machine that does something else meanwhile. Only a failing test
waits that long."""

POLL_S: Final = 0.005


def eventually(look: Callable[[], T], within_s: float = PATIENCE_S, *, what: str = "") -> T:
    """The first true value that `look` gives; AssertionError when the time is over."""
    deadline_s = time.monotonic() + within_s
    while True:
        value = look()
        if value:
            return value
        if time.monotonic() >= deadline_s:
            raise AssertionError(f"not within {within_s:g} s: {what or look}; last {value!r}")
        time.sleep(POLL_S)
