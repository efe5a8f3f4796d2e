"""Whether a series went up: its slope after the warm-up, over the whole time that is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import linear_regression, mean

WARM_UP_SHARE = 1 / 4
"""Caches fill, pools reach their size, the first retained messages come."""

TOLERATED_SHARE = 0.05
"""Of the mean, as a rise over the whole run."""

TOLERATED = {"fds": 3.0, "threads": 2.0, "RSS MiB": 4.0, "CPU %": 5.0, "WAL MiB": 64.0}
"""Or so much, by the last words of the name: series of few units have a large share in one."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`rise`: what the fitted line gains from the end of the warm-up to the end of the run."""

    name: str
    mean: float
    largest: float
    rise: float
    flat: bool


def judge(name: str, at_s: Sequence[float], values: Sequence[float]) -> Verdict:
    """A fall is flat, too. At least two samples after the warm-up are needed."""
    begin_s = at_s[0] + (at_s[-1] - at_s[0]) * WARM_UP_SHARE
    kept = [(at, value) for at, value in zip(at_s, values, strict=True) if at >= begin_s]
    times_s, later = [at for at, _ in kept], [value for _, value in kept]
    rise = linear_regression(times_s, later).slope * (times_s[-1] - times_s[0])
    absolute = next((most for unit, most in TOLERATED.items() if name.endswith(unit)), 0.0)
    return Verdict(
        name=name,
        mean=mean(later),
        largest=max(later),
        rise=rise,
        flat=rise <= max(absolute, TOLERATED_SHARE * mean(later)),
    )
