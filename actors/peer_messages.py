"""What the part of an attachment that serves `peer` is told.

No behaviour. Waits go on to the inbox of the agent, and claims, replies and the like to the ledger;
see inbox_messages.py for the ring of a direct message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from actors.base import Reply
from actors.inbox_messages import LeasesRenewed, PeerWaiting, RequestAdvanced
from agentbus.ids import DeliveryId, MessageId
from agentbus.protocol.peer_frames import PeerRequest
from agentbus.store.peer.changes import ReplyState


@dataclass(frozen=True, slots=True)
class PeerAsked:
    """An operation of the tool `peer` of this attachment's agent."""

    request: PeerRequest
    reply_to: Reply


@dataclass(frozen=True, slots=True)
class PeerCancelled:
    """Nobody waits any more for the wait or the collection of this number."""

    number: int


@dataclass(frozen=True, slots=True)
class PeerResultShown:
    """A result with these responses and notices was handed off."""

    responses: tuple[MessageId, ...]
    notices: tuple[tuple[DeliveryId, ReplyState], ...]


@dataclass(frozen=True, slots=True)
class CollectDue:
    """The time of a collection is over."""

    number: int


ToPeerDesk: TypeAlias = (
    PeerAsked
    | PeerCancelled
    | PeerResultShown
    | CollectDue
    | LeasesRenewed
    | RequestAdvanced
    | PeerWaiting
)
