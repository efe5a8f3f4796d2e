"""What the clients of a crash test did and saw of directed work; a part of the history.

A client appends only what is its own, on its own thread. Times are seconds since the history began.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from tests.crash.attempts import Attempt, Outcome, outcome_of

PeerKind = Literal["send", "reply", "ack", "progress", "human"]
Way = Literal["wait", "collect", "recent", "replies"]


@dataclass(slots=True)
class Claim:
    """A delivery as a complete result of `wait` carried it.

    `incarnation`: which process, or connection, of the client got it. `token`: None for an adapter,
    which keeps it to itself.
    """

    client: str
    incarnation: int
    delivery_id: str
    message_id: str
    kind: str
    mark: str
    attempt: int
    token: str | None
    began_s: float
    ended_s: float


@dataclass(slots=True)
class PeerOperation:
    """A writing operation, with all attempts under its key. `token`: the one it was done under."""

    client: str
    kind: PeerKind
    mark: str
    key: str
    to: tuple[str, ...] = ()
    delivery_id: str | None = None
    finishes: bool = False
    fenced: bool = False
    """It was refused because its client did not have the work any more."""
    tokens: list[str | None] = field(default_factory=list)
    """Of each attempt."""
    attempts: list[Attempt] = field(default_factory=list)
    answers: list[dict[str, Any]] = field(default_factory=list)

    @property
    def outcome(self) -> Outcome:
        return outcome_of(self.attempts)

    @property
    def message_id(self) -> str | None:
        return self.answers[0].get("message_id") if self.answers else None


@dataclass(frozen=True, slots=True)
class Shown:
    """A response as a complete result showed it. `marked`: the result said that it was shown
    before, with or without its text."""

    client: str
    incarnation: int
    message_id: str
    way: Way
    marked: bool
    at_s: float


@dataclass(frozen=True, slots=True)
class Decided:
    """What a person decided about paused work."""

    delivery_id: str
    action: str
    outcome: Outcome


@dataclass(slots=True)
class PeerHistory:
    """Of one run."""

    operations: list[PeerOperation] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    shown: list[Shown] = field(default_factory=list)
    decided: list[Decided] = field(default_factory=list)
    agents: dict[str, str] = field(default_factory=dict)
    """Client -> the agent whose session it is. A client's name is its conversation."""

    def about(self, subject: str) -> list[tuple[float, str]]:
        """Readable lines of what happened to a mark, a message or a delivery."""
        lines: list[tuple[float, str]] = []
        for operation in self.operations:
            if subject not in (operation.mark, operation.message_id, operation.delivery_id):
                continue
            for attempt in operation.attempts:
                about = f" to {', '.join(operation.to)}" if operation.to else ""
                about += f" for {operation.delivery_id}" if operation.delivery_id else ""
                line = (
                    f"{operation.client} {operation.kind} {operation.mark}{about}, "
                    f"key {operation.key}: {attempt.outcome} ({attempt.said})"
                )
                lines.append((attempt.began_s, line))
        for claim in self.claims:
            if subject in (claim.mark, claim.message_id, claim.delivery_id):
                lines.append(
                    (
                        claim.ended_s,
                        f"{claim.client}/{claim.incarnation} holds {claim.delivery_id}, "
                        f"{claim.kind} {claim.mark}, attempt {claim.attempt}",
                    )
                )
        for one in self.shown:
            if subject == one.message_id:
                how = "mentioned" if one.marked else "shown"
                lines.append((one.at_s, f"{one.client}/{one.incarnation}: {how} by {one.way}"))
        return lines
