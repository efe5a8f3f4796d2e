"""What a reader of a job may take: new, seen before, in conflict, or after the end.

Owns the judgement on sequence numbers and terminal events. Never looks into an event and keeps no
text. Pure; whoever holds a `JobOrder` calls it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

JOB_CHANNEL_PREFIX = "job/"
"""Of the channel that carries a job on the bus; reserved."""


def channel_of(job_id: str) -> str:
    """The name of the channel that carries a job on the bus."""
    return JOB_CHANNEL_PREFIX + job_id


class Verdict(Enum):
    """What an arriving event is."""

    NEW = "new"
    REPEATED = "repeated"
    """The same sequence and the same content: the first answer still holds."""

    CONFLICT = "conflict"
    """The same sequence with other content."""

    CLOSED = "job_closed"
    """New, but the job has had its terminal event."""


@dataclass(frozen=True, slots=True)
class Missing:
    """Sequences that were passed over, both ends included."""

    first: int
    last: int


class JobOrder:
    """What has been seen of one job, in the order of its arrival. Not thread-safe: one owner."""

    __slots__ = ("_seen", "next_seq", "terminal_seq")

    def __init__(self, from_seq: int = 0) -> None:
        self._seen: dict[int, bytes] = {}
        self.next_seq = from_seq
        self.terminal_seq: int | None = None

    def judge(self, seq: int, fingerprint: bytes) -> Verdict:
        """What the event is; remembers nothing of it yet."""
        known = self._seen.get(seq)
        if known is not None:
            return Verdict.REPEATED if known == fingerprint else Verdict.CONFLICT
        return Verdict.NEW if self.terminal_seq is None else Verdict.CLOSED

    def take(self, seq: int, fingerprint: bytes, *, is_terminal: bool) -> Missing | None:
        """Remember a new event; what was passed over just before it."""
        self._seen[seq] = fingerprint
        if is_terminal:
            self.terminal_seq = seq
        missing = Missing(self.next_seq, seq - 1) if seq > self.next_seq else None
        self.next_seq = max(self.next_seq, seq + 1)
        return missing
