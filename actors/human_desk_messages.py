"""What the human desk is told: requests of people, and the ledger's answers to what it submitted.

No behaviour. Only the front door asks it:

    front door -> HumanDesk -> ReceiptLedger -> HumanDesk -> the person's command
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from actors.base import Reply
from agentbus.protocol.people import PersonsRequest
from agentbus.store.changes import SessionBound


@dataclass(frozen=True, slots=True)
class PersonAsked:
    request: PersonsRequest
    reply_to: Reply


@dataclass(frozen=True, slots=True)
class PersonBound:
    """The person has a session; what waits for it can be submitted."""

    bound: SessionBound


@dataclass(frozen=True, slots=True)
class WriteDone:
    """What was submitted last is committed."""

    result: Any


@dataclass(frozen=True, slots=True)
class WriteRefused:
    """What was submitted last, or the session for it, was refused."""

    error: BaseException


HumanDeskMessage: TypeAlias = PersonAsked | PersonBound | WriteDone | WriteRefused
