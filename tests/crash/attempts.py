"""One call of an operation, and what all calls of it together say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

Outcome = Literal["ok", "fail", "unknown"]


@dataclass(slots=True)
class Attempt:
    """One call. `fail`: the bus said that nothing was done; `unknown`: nobody knows."""

    began_s: float
    ended_s: float | None = None
    outcome: Outcome = "unknown"
    said: str = "not answered"

    def accepted(self, answer: dict[str, Any]) -> None:
        self.outcome, self.said = "ok", "repeat" if answer["duplicate"] else "first"

    def refused(self, error: dict[str, Any]) -> None:
        self.outcome = "unknown" if error["code"] == "unknown" else "fail"
        word = "retryable" if error["retryable"] else "final"
        self.said = f"{word} {error['code']}: {error['message']}"

    @property
    def may_be_repeated(self) -> bool:
        return self.outcome == "unknown" or self.said.startswith("retryable")


def outcome_of(attempts: Iterable[Attempt]) -> Outcome:
    """Accepted once is accepted; otherwise one unknown attempt makes all of it unknown."""
    outcomes = {attempt.outcome for attempt in attempts}
    if "ok" in outcomes:
        return "ok"
    return "unknown" if "unknown" in outcomes else "fail"
