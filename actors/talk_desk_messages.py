"""What the talk desk is told: questions for agents, and what becomes of them.

No behaviour. The ring of such a question:

    front door -> Registrar -> TalkDesk -> ReceiptLedger -> Inbox -> TalkDesk -> the talk server
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from actors.base import Reply
from actors.inbox_messages import RequestAdvanced
from actors.issued_session_messages import ToIssuedSession
from actors.messages import Link, ReadinessChanged
from actors.peer_messages import CollectDue
from agentbus.envelope import Recipient
from agentbus.ids import SessionId
from agentbus.protocol.talk import TalkAsk


@dataclass(frozen=True, slots=True)
class DelegationAsked:
    """`recipient`: the agent, if a session of it is attached. `link`: who is told the rest."""

    ask: TalkAsk
    recipient: Recipient | None
    link: Link
    reply_to: Reply


@dataclass(frozen=True, slots=True)
class ResultAsked:
    """What has become of a question?"""

    message_id: str
    reply_to: Reply


@dataclass(frozen=True, slots=True)
class DepthAsked:
    """At which depth do these sessions ask, one of which is the caller? Only if it may."""

    sessions: tuple[SessionId, ...]
    reply_to: Reply


TalkDeskMessage: TypeAlias = (
    DelegationAsked
    | ResultAsked
    | DepthAsked
    | CollectDue
    | RequestAdvanced
    | ReadinessChanged
    | ToIssuedSession
)
