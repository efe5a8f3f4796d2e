"""Waiting for a condition, with a deadline and without fixed sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL_S = 0.005


def eventually(look: Callable[[], T], within_s: float = 10.0, *, what: str = "") -> T:
    """The first true value that `look` gives; AssertionError when the time is over."""
    deadline_s = time.monotonic() + within_s
    while True:
        value = look()
        if value:
            return value
        if time.monotonic() >= deadline_s:
            raise AssertionError(f"not within {within_s:g} s: {what or look}; last {value!r}")
        time.sleep(POLL_S)
