"""The seam between the server and whatever answers a question.

Owns the shape of both sides of it. Never knows HTTP. A handler runs on the server's event loop and
must not block it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

SPARE_S: Final = 1.0
"""Taken off the time of a question, at most a tenth: its caller, who mostly waits as long and began
before, shall still hear how it ended."""


@dataclass(frozen=True, slots=True)
class Delegation:
    """A question that has passed every check.

    `depth` counts this delegation too: whoever asks on in answering it is at this depth.
    `within_s` is the time that the handler has. With a `key`, a repeat by the same caller is the
    same question.
    """

    delegation_id: str
    from_instance: str
    prompt: str
    depth: int
    within_s: float
    key: str | None = None

    @property
    def work_s(self) -> float:
        """The time for what answers."""
        return self.within_s - min(SPARE_S, self.within_s / 10)


@dataclass(frozen=True, slots=True)
class Answered:
    text: str


@dataclass(frozen=True, slots=True)
class NotAnswered:
    """`code` is one of rules/talk.py, `error` a line for the caller to read."""

    code: str
    error: str


class Handler(Protocol):
    """Answers questions, many at once. `knows_repeats`: it looks after `Delegation.key` itself;
    else the server keeps the answers."""

    @property
    def knows_repeats(self) -> bool: ...

    async def answer(self, delegation: Delegation) -> Answered | NotAnswered:
        """Within `delegation.within_s`, also when the caller has gone meanwhile.

        Raises ConflictError for a key that was used for another prompt.
        """
        ...

    def stop(self) -> None:
        """Give up what is under way, soon: its answer is `instance_unavailable`."""
        ...

    def close(self) -> None:
        """After the last answer."""
        ...
