"""What the human desk is told: requests of people, and the ledger's answers to what it submitted.

No behaviour. Only the front door asks it:

    front door -> HumanDesk -> ReceiptLedger -> HumanDesk -> the person's command
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from actors.base import Reply
from actors.issued_session_messages import ToIssuedSession
from agentbus.protocol.people import PersonsRequest


@dataclass(frozen=True, slots=True)
class PersonAsked:
    request: PersonsRequest
    reply_to: Reply


HumanDeskMessage: TypeAlias = PersonAsked | ToIssuedSession
