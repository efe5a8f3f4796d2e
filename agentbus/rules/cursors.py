"""What moves a subscription's two positions, what of a removed range it missed, when it expires.

Owns the invariants `confirmed <= handed_off` and "positions only move forward". Never reads a
store. Pure; runs on the ledger's thread and on those of readers.
"""

from __future__ import annotations

from typing import NamedTuple

from agentbus.ids import Sequence
from agentbus.rules.retention import end_us


class Positions(NamedTuple):
    """Of one subscription: the last sequence handed off, and the last one known to have arrived."""

    handed_off: Sequence
    confirmed: Sequence


def advance(
    now: Positions, handed_off: Sequence | None = None, confirmed: Sequence | None = None
) -> Positions:
    """The positions after a report; an older or repeated report changes nothing.

    What is confirmed was handed off, also when the report of that handoff was lost.
    """
    new_confirmed = now.confirmed if confirmed is None else max(now.confirmed, confirmed)
    new_handed_off = now.handed_off if handed_off is None else max(now.handed_off, handed_off)
    return Positions(max(new_handed_off, new_confirmed), new_confirmed)


def missed(
    position: Sequence, from_sequence: Sequence, to_sequence: Sequence
) -> tuple[Sequence, Sequence] | None:
    """The part of a removed range (both ends inclusive) that lies after `position`.

    A range ends with a message that really was removed, so a part that remains is a true gap.
    """
    if to_sequence <= position:
        return None
    return Sequence(max(from_sequence, position + 1)), to_sequence


def is_idle(last_used_us: int, now_us: int, idle_hours: int) -> bool:
    """Has a subscription gone without explicit use for so long that it is over?"""
    return end_us(last_used_us, idle_hours) <= now_us
