"""What the judge compares a history with, and what it finds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.crash.journal import Entry

ALLOWED = (
    "ok",
    "recovered",
    "never_happened",
    "failed",
    "removed",
    "marked",
    "claimed",
    "taken_over",
    "fenced",
    "answered",
    "shown_again",
)
FORBIDDEN = (
    "lost",
    "doubled",
    "unexpected",
    "out_of_order",
    "skipped",
    "memory",
    "disagreement",
    "lease",
    "stale",
    "stuck",
)


@dataclass(frozen=True, slots=True)
class Stored:
    """One row of the database: a message, or one revision of a memory."""

    sequence: int
    message_id: str
    channel: str
    mark: str
    revision: int = 1
    position: int = 0
    """The sequence of the creation; 0: its own."""
    memory: bool = False
    live: bool = True

    @property
    def at(self) -> int:
        return self.position or self.sequence


@dataclass(frozen=True, slots=True)
class Removed:
    """A range that the database says was removed."""

    channel: str
    first: int
    last: int
    cause: str


@dataclass(slots=True)
class Truth:
    """What the bus holds at the end, by each way to look at it. None: nobody looked that way."""

    rows: list[Stored]
    removed: list[Removed] = field(default_factory=list)
    may_remove: bool = False
    """Whether anything was old enough for its removal, by the clocks that the bus was shown."""
    streams: dict[str, list[str]] | None = None
    history: dict[str, list[str]] | None = None
    found: list[str] | None = None
    direct: list[Stored] = field(default_factory=list)
    """Messages in inboxes."""
    journal: list[Entry] = field(default_factory=list)
    sessions: dict[str, str] = field(default_factory=dict)
    """Session id -> conversation, which is the name of a client."""
    agents: dict[str, str] = field(default_factory=dict)
    """Agent id -> name."""
    complaints: list[str] = field(default_factory=list)
    """What a check of the database itself found: integrity, counters."""


@dataclass(frozen=True, slots=True)
class Finding:
    kind: str
    subject: str
    text: str


@dataclass(slots=True)
class Verdict:
    """All findings, and how many ids there were of each harmless class."""

    findings: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, subject: str, text: str) -> None:
        self.findings.append(Finding(kind, subject, text))
        self.counts[kind] += 1

    @property
    def clean(self) -> bool:
        return not self.findings

    def summary(self) -> str:
        return " ".join(f"{name}={self.counts[name]}" for name in (*ALLOWED, *FORBIDDEN))
