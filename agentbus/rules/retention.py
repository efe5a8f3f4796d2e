"""How long things live: one reading of every lifetime, and where a removal ends.

Owns the edge: what began at `t` and lives for `h` hours exists up to, not including, `t + h`. That
holds for messages, receipts and idle subscriptions alike. Never deletes anything itself. Pure; runs
on the ledger's thread.
"""

from __future__ import annotations

from collections.abc import Iterable

HOUR_US = 3_600_000_000


def end_us(began_us: int, lifetime_hours: int) -> int:
    """The first microsecond at which it is over."""
    return began_us + lifetime_hours * HOUR_US


def over_since_us(now_us: int, lifetime_hours: int) -> int:
    """What began at this microsecond or earlier is over now."""
    return now_us - lifetime_hours * HOUR_US


def age_cut(times_us: Iterable[int], cutoff_us: int) -> int:
    """How many of the first, in sequence order, are removed: up to the first that is young enough.

    Never beyond it, even if the clock went back and a later one is older: a removal is always a
    prefix of its channel, which is what lets one pair of sequences describe a gap.
    """
    count = 0
    for time_us in times_us:
        if time_us > cutoff_us:
            break
        count += 1
    return count


def capacity_cut(sizes_bytes: Iterable[int], free_bytes: int) -> int:
    """How many of the first, in sequence order, are removed: the fewest that free so much."""
    count = 0
    for size_bytes in sizes_bytes:
        if free_bytes <= 0:
            break
        free_bytes -= size_bytes
        count += 1
    return count
