"""What the clients of a crash test did and saw, as it happened; the only thing that is judged.

Every message has a `mark` of its own in its content. A client appends only what is its own, on its
own thread; reading is for when all clients have ended. Times are seconds since the history began.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from tests.crash.attempts import Attempt, Outcome, outcome_of
from tests.crash.peer_history import PeerHistory

Kind = Literal["send", "edit", "delete"]

COMMON_WORD = "conversation"
"""In every content, so that one search finds all."""


def content_of(mark: str, padding: int = 0) -> str:
    return f"{mark} {COMMON_WORD}" + " x" * padding


def mark_of(content: str) -> str:
    return content.partition(" ")[0]


@dataclass(slots=True)
class Operation:
    """One mutation, with all attempts under its operation id."""

    client: str
    kind: Kind
    mark: str
    operation_id: str
    channel: str
    memory_id: str | None = None
    attempts: list[Attempt] = field(default_factory=list)
    answers: list[dict[str, Any]] = field(default_factory=list)

    @property
    def outcome(self) -> Outcome:
        return outcome_of(self.attempts)

    @property
    def message_id(self) -> str | None:
        if self.memory_id is not None:
            return self.memory_id
        return self.answers[0]["message_id"] if self.answers else None

    @property
    def accepted_s(self) -> float | None:
        """When the first success was known."""
        return min(
            (one.ended_s for one in self.attempts if one.outcome == "ok" and one.ended_s),
            default=None,
        )


@dataclass(slots=True)
class Subscribed:
    """A subscription from one subscribe to its end. `number` counts those of the client."""

    client: str
    channel: str
    number: int
    from_sequence: int
    open: bool = True
    """Still subscribed at the end: everything retained must have come."""


@dataclass(frozen=True, slots=True)
class Handed:
    """One message as a complete result carried it."""

    client: str
    subscription: int
    channel: str
    mark: str
    message_id: str
    sequence: int
    redelivered: bool
    result: int
    at_s: float


@dataclass(frozen=True, slots=True)
class Gap:
    """What a result said was removed before it was read."""

    client: str
    subscription: int
    channel: str
    first: int
    last: int
    cause: str
    result: int
    at_s: float


@dataclass(slots=True)
class Fault:
    """What was done to the bus, and until when."""

    kind: str
    what: str
    began_s: float
    ended_s: float | None = None


@dataclass(slots=True)
class History:
    """Everything of one run."""

    operations: list[Operation] = field(default_factory=list)
    subscriptions: list[Subscribed] = field(default_factory=list)
    handed: list[Handed] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    peer: PeerHistory = field(default_factory=PeerHistory)
    stuck: list[str] = field(default_factory=list)
    """What did not end in time although nothing was wrong with it any more."""
    began_s: float = field(default_factory=time.monotonic)

    def now_s(self) -> float:
        return time.monotonic() - self.began_s

    def as_data(self) -> dict[str, Any]:
        return asdict(self)

    def about(self, subject: str, around_s: float = 1.0) -> list[str]:
        """Readable lines of what happened to a mark or message id, and the faults around it."""
        lines: list[tuple[float, str]] = []
        for operation in self.operations:
            if subject not in (operation.mark, operation.message_id):
                continue
            for attempt in operation.attempts:
                line = (
                    f"{operation.client} {operation.kind} {operation.mark} on {operation.channel}, "
                    f"operation {operation.operation_id}: {attempt.outcome} ({attempt.said})"
                )
                if attempt.ended_s is not None:
                    line += f" after {attempt.ended_s - attempt.began_s:.3f} s"
                lines.append((attempt.began_s, line))
        for one in self.handed:
            if subject in (one.mark, one.message_id):
                again = ", redelivered" if one.redelivered else ""
                line = f"{one.client} got {one.mark} ({one.sequence}) in result {one.result}{again}"
                lines.append((one.at_s, line))
        lines += self.peer.about(subject)
        times = [at_s for at_s, _ in lines]
        for fault in self.faults:
            ended_s = fault.ended_s if fault.ended_s is not None else fault.began_s
            if any(fault.began_s - around_s <= at_s <= ended_s + around_s for at_s in times):
                lines.append((fault.began_s, f"-- {fault.what} until {ended_s:.3f}"))
        return [f"{at_s:8.3f}  {line}" for at_s, line in sorted(lines)]
