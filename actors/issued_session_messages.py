"""What a session that the daemon issues is told: the ledger's answers to what it submitted.

No behaviour. `agent` is its name, for a desk that has several of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from agentbus.store.changes import SessionBound


@dataclass(frozen=True, slots=True)
class SessionIssued:
    """There is a session; what waits for it can be submitted."""

    agent: str
    bound: SessionBound


@dataclass(frozen=True, slots=True)
class WriteDone:
    """What was submitted last is committed."""

    agent: str
    result: Any


@dataclass(frozen=True, slots=True)
class WriteRefused:
    """What was submitted last, or the session for it, was refused."""

    agent: str
    error: BaseException


ToIssuedSession: TypeAlias = SessionIssued | WriteDone | WriteRefused
