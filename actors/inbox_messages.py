"""The messages of inboxes: what they are told, by whom, and what they tell others.

No behaviour. The ring of a direct message:

    Attachment -> ReceiptLedger -> Inbox (of recipient and sender) -> Attachment, WaitKeeper
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from actors.base import Address, Reply
from agentbus.identity import Attachment
from agentbus.ids import AgentId, DeliveryId, LeaseToken, MessageId, SessionId
from agentbus.store.peer.changes import (
    AbandonLease,
    Claimed,
    CloseWindow,
    DeliveryChanged,
    DeliveryView,
    MarkReplyLate,
)

# --- what an inbox tells ---


@dataclass(frozen=True, slots=True)
class PeerWaiting:
    """So many deliveries could be claimed by this session now, or are held by it."""

    session_id: SessionId
    count: int


@dataclass(frozen=True, slots=True)
class RequestAdvanced:
    """Something happened to a request that is being collected: a reply, an end, a lateness."""

    message_id: MessageId


@dataclass(frozen=True, slots=True)
class DeliveryArrived:
    """There may be something new to claim.

    `session_id`: for whom; None: for any session of the agent. `freed`: nothing has come, but what
    kept something back is over.
    """

    agent_id: AgentId
    session_id: SessionId | None = None
    freed: bool = False


# --- Inbox ---


@dataclass(frozen=True, slots=True)
class DeliveryAsked:
    """`wait` of an agent: a delivery, or the end of `wait_ms`. Answers a `Claimed`.

    `number` names it for `AskCancelled`; a session waits once, a newer one ends the older. `only`:
    it is to claim this delivery and no other.
    """

    attachment: Attachment
    number: int
    wait_ms: int
    reply_to: Reply
    only: DeliveryId | None = None


@dataclass(frozen=True, slots=True)
class AskCancelled:
    """Nobody waits for this answer any more. No claim is made for it from now on; what one that is
    under way brings is for the next wait of its session."""

    attachment: Attachment
    number: int


@dataclass(frozen=True, slots=True)
class AskDue:
    """The time of a wait is up."""

    session_id: SessionId
    number: int


@dataclass(frozen=True, slots=True)
class ClaimSettled:
    """The ledger's answer to the claim that was made for this wait."""

    attachment: Attachment
    number: int
    claimed: Claimed | None
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class LeasesRenewed:
    """The holder's adapter is alive and still has these."""

    attachment: Attachment
    leases: tuple[tuple[DeliveryId, LeaseToken], ...]


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """A session of this agent is attached; `watcher` hears what waits for it."""

    attachment: Attachment
    watcher: Address[PeerWaiting | RequestAdvanced]


@dataclass(frozen=True, slots=True)
class SessionClosed:
    attachment: Attachment


@dataclass(frozen=True, slots=True)
class RequestWatched:
    """A session collects the answers to a request of its agent; it is told of each change."""

    message_id: MessageId
    watcher: Address[RequestAdvanced]


@dataclass(frozen=True, slots=True)
class RequestUnwatched:
    message_id: MessageId
    watcher: Address[RequestAdvanced]


@dataclass(frozen=True, slots=True)
class InboxLoaded:
    """What the ledger had for this agent; None: it did not say, the inbox asks again."""

    deliveries: tuple[DeliveryView, ...] | None


@dataclass(frozen=True, slots=True)
class LoadDue:
    """Ask the ledger again what there is."""


@dataclass(frozen=True, slots=True)
class CountsDue:
    """Sessions may be told again what waits for them."""


@dataclass(frozen=True, slots=True)
class LeaseDue:
    """A lease was not renewed in time, if it is still this one."""

    delivery_id: DeliveryId
    token: LeaseToken


@dataclass(frozen=True, slots=True)
class WindowDue:
    """Nothing was heard of claimed work in time, if its deadline is still this one."""

    delivery_id: DeliveryId
    token: LeaseToken
    deadline_us: int


@dataclass(frozen=True, slots=True)
class ReplyDue:
    """A reply should be there by now, or the request is given up."""

    delivery_id: DeliveryId


Upkeep: TypeAlias = AbandonLease | CloseWindow | MarkReplyLate
"""What an inbox has the ledger do when a time is up."""


@dataclass(frozen=True, slots=True)
class UpkeepRefused:
    """The ledger could not take a change of the inbox's own now; it is tried again."""

    change: Upkeep


InboxMessage: TypeAlias = (
    DeliveryAsked
    | AskCancelled
    | AskDue
    | ClaimSettled
    | LeasesRenewed
    | SessionOpened
    | SessionClosed
    | RequestWatched
    | RequestUnwatched
    | DeliveryChanged
    | InboxLoaded
    | LoadDue
    | CountsDue
    | LeaseDue
    | WindowDue
    | ReplyDue
    | UpkeepRefused
)
