"""What the demonstration says, and the list of what it has proven so far.

Owns the output format. What came over the bus is escaped before it reaches a terminal.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from agentbus.settings import printable

MARKS = {True: "proven", False: "NOT PROVEN"}


@dataclass(frozen=True, slots=True)
class Proof:
    """One promise of the bus, whether it held here, and the evidence."""

    promise: str
    held: bool
    evidence: str


class Transcript:
    """Lines with the time since the start, and proofs collected for the end."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._began_s = time.monotonic()
        self.proofs: list[Proof] = []

    def scene(self, title: str) -> None:
        """A heading."""
        self._write(f"\n{title}")

    def say(self, line: str) -> None:
        """One thing that happened, now."""
        self._write(f"  {time.monotonic() - self._began_s:7.3f} s  {printable(line)}")

    def check(self, promise: str, held: bool, evidence: str) -> None:
        """Note whether a promise held."""
        self.proofs.append(Proof(promise, held, evidence))

    def summary(self) -> bool:
        """Print what was proven; whether that was everything."""
        self._write("\nWhat this run has proven")
        for proof in self.proofs:
            self._write(f"  [{MARKS[proof.held]}] {proof.promise}")
            self._write(f"           {printable(proof.evidence)}")
        return bool(self.proofs) and all(proof.held for proof in self.proofs)
