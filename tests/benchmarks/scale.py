"""How large the scenarios are."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeAlias

Readings: TypeAlias = dict[str, float]
"""Of one round: what it is, with its unit, and the value."""

Rounds: TypeAlias = Generator[Readings, None, None]
"""Without end: close it after as many as are wanted."""


@dataclass(frozen=True, slots=True)
class Scale:
    messages: int
    channels: int
    active_channels: int
    sessions: int
    subscribers: int
    fanned_out: int
    """Messages that one sender sends to all subscribers."""
    seconds: float


FULL = Scale(
    messages=100_000,
    channels=5_000,
    active_channels=50,
    sessions=200,
    subscribers=32,
    fanned_out=3_000,
    seconds=2.0,
)
QUICK = Scale(
    messages=3_000,
    channels=300,
    active_channels=10,
    sessions=20,
    subscribers=8,
    fanned_out=300,
    seconds=0.4,
)
