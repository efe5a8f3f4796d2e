"""The vocabulary of the ledger: what may be changed, what a change answers, what then is a fact.

A `Change` goes into `LedgerStore.apply`, an `Outcome` comes back for each, in order. `Facts` are
what the rest of the daemon needs to know after the commit: they travel to the projector and on to
the channels, in commit order. All are plain records; nothing here touches a database.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from agentbus.envelope import Body, ChannelKind
from agentbus.errors import BusError
from agentbus.identity import Attachment, SenderBinding, SessionIdentity
from agentbus.ids import AgentId, ChannelId, Generation, MessageId, Sequence, SessionId
from agentbus.protocol.operations import (
    CreateChannel,
    DeleteMemory,
    EditMemory,
    MutatingOperation,
    Send,
    Subscribe,
    Unsubscribe,
)
from agentbus.store.mutation import Mutation
from agentbus.store.peer.changes import DeliveryChanged, PeerChange

GapCause = Literal["age", "capacity"]
PruneWhat = Literal[
    "messages_by_age",
    "messages_by_capacity",
    "tombstones",
    "receipts",
    "subscriptions",
    "deliveries",
]
SubscriptionId = int
"""Row id of a subscription, never reused: a report for an older one cannot move a newer one."""


# --- changes ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendMessage(Mutation):
    """Append a message; in a memory channel it creates a memory."""

    operation: Send


@dataclass(frozen=True, slots=True)
class ReviseMemory(Mutation):
    """Tombstone the live revision and insert the next."""

    operation: EditMemory


@dataclass(frozen=True, slots=True)
class RemoveMemory(Mutation):
    """Tombstone the live revision; nothing follows it."""

    operation: DeleteMemory


@dataclass(frozen=True, slots=True)
class MakeChannel:
    operation: CreateChannel
    attachment: Attachment


@dataclass(frozen=True, slots=True)
class OpenSubscription:
    operation: Subscribe
    attachment: Attachment


@dataclass(frozen=True, slots=True)
class CloseSubscription:
    operation: Unsubscribe
    attachment: Attachment


@dataclass(frozen=True, slots=True)
class MoveCursors:
    """Coalesced handoff reports, confirmations and renewals of one attachment.

    Positions only ever move forward; a subscription that is gone or belongs to another session is
    skipped. `renewed` counts as explicit use: one past its idle limit expires instead.
    `expiry_confirmed`: subscriptions whose expiry notice was handed off and confirmed.
    `exposed`: up to where a client may have seen messages that no report covers; they come again,
    marked. It is a client's word, so what is beyond the newest sequence is cut.
    """

    attachment: Attachment
    handed_off: dict[SubscriptionId, Sequence] = field(default_factory=dict)
    confirmed: dict[SubscriptionId, Sequence] = field(default_factory=dict)
    renewed: tuple[SubscriptionId, ...] = ()
    expiry_confirmed: tuple[SubscriptionId, ...] = ()
    exposed: dict[SubscriptionId, Sequence] = field(default_factory=dict)

    @property
    def holds_in_any_epoch(self) -> bool:
        """Whether nothing of it rests on what the projection showed since the last commit."""
        return not self.handed_off


@dataclass(frozen=True, slots=True)
class BindSession:
    """Find or create agent and session, give the next generation and a display name.

    `names_in_use`: display names of all live attachments; the new name is none of them.
    `parent`: the session that a child belongs to; `role` its task word.
    `preferred_name`: kept if free and the session has none of its own (`/clear` in one process).
    `capabilities`: what its agent can do from now on, sorted; None leaves that as it was.
    """

    agent: str
    identity: SessionIdentity
    names_in_use: frozenset[str]
    parent: SessionId | None = None
    role: str | None = None
    repository: str | None = None
    preferred_name: str | None = None
    capabilities: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class PruneSlice:
    """One bounded slice of cleanup. Nothing else is in the same transaction slice.

    `free_bytes`: by capacity, removal ends as soon as the rows removed were so large in all.
    """

    what: PruneWhat
    max_rows: int
    free_bytes: int = 0


def mutation(
    operation: MutatingOperation, **rest: Any
) -> SendMessage | ReviseMemory | RemoveMemory:
    """The change that an operation asks for."""
    match operation:
        case Send():
            return SendMessage(operation, **rest)
        case EditMemory():
            return ReviseMemory(operation, **rest)
        case DeleteMemory():
            return RemoveMemory(operation, **rest)


Change: TypeAlias = (
    SendMessage
    | ReviseMemory
    | RemoveMemory
    | MakeChannel
    | OpenSubscription
    | CloseSubscription
    | MoveCursors
    | BindSession
    | PruneSlice
    | PeerChange
)


# --- facts --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MessageAppended:
    channel_id: ChannelId
    channel: str
    channel_kind: ChannelKind
    sequence: Sequence
    message_id: MessageId
    sent_at_us: int
    sender: SenderBinding
    body: Body
    envelope: bytes


@dataclass(frozen=True, slots=True)
class MemoryRevised:
    """A memory has a new live revision, of this `sequence`.

    `position` is the sequence of the creation: where the memory stands in its channel for life.
    """

    channel_id: ChannelId
    channel: str
    memory_id: MessageId
    position: Sequence
    sequence: Sequence
    revision: int
    sent_at_us: int
    sender: SenderBinding
    body: Body
    envelope: bytes


@dataclass(frozen=True, slots=True)
class MemoryRemoved:
    """A memory was deleted; `sequence` is the deletion's own, `revision` the last one it had."""

    channel_id: ChannelId
    channel: str
    memory_id: MessageId
    position: Sequence
    sequence: Sequence
    revision: int
    sender: SenderBinding


@dataclass(frozen=True, slots=True)
class ChannelMade:
    channel_id: ChannelId
    channel: str
    kind: ChannelKind


@dataclass(frozen=True, slots=True)
class SubscriptionOpened:
    session_id: SessionId
    subscription: SubscriptionRow


@dataclass(frozen=True, slots=True)
class SubscriptionClosed:
    session_id: SessionId
    subscription_id: SubscriptionId
    channel_id: ChannelId


@dataclass(frozen=True, slots=True)
class SubscriptionExpired:
    session_id: SessionId
    subscription_id: SubscriptionId
    channel_id: ChannelId
    channel: str
    expired_at_us: int


@dataclass(frozen=True, slots=True)
class MessagesRemoved:
    """Everything ordinary of the channel up to `through` is gone, these sequences just now."""

    channel_id: ChannelId
    channel: str
    through: Sequence
    sequences: tuple[Sequence, ...]
    cause: GapCause


Fact: TypeAlias = (
    MessageAppended
    | MemoryRevised
    | MemoryRemoved
    | ChannelMade
    | SubscriptionOpened
    | SubscriptionClosed
    | SubscriptionExpired
    | MessagesRemoved
    | DeliveryChanged
)


# --- outcomes -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Done:
    """Committed. `result` is the answer to the caller (JSON data or one of the records below).

    `charged` is False for a replayed receipt: the caller's rate reservation is given back.
    `error`: what the caller is answered in place of the result, when what it asked for was not done
    and something else was: work that may go on no longer is paused, and its agent told so. Unlike a
    refusal it has been written, and there is no receipt: the same call is judged anew.
    """

    result: Any
    facts: tuple[Fact, ...] = ()
    charged: bool = True
    error: BusError | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing was changed for this one; its neighbours in the batch are not affected."""

    error: BusError


@dataclass(frozen=True, slots=True)
class NoRoom:
    """A new mutation would not fit `sqlite_budget_mib`: nothing was changed for it.

    No later new mutation of the batch was let in either, small as it may be: one sender's come in
    the order in which they were sent. `needed_bytes` is what this one would have added.
    """

    needed_bytes: int


Outcome: TypeAlias = Done | Refused | NoRoom


# --- rows as others see them ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SubscriptionRow:
    """One subscription. `handed_off >= confirmed`; both 0 mean "from the very beginning"."""

    subscription_id: SubscriptionId
    channel_id: ChannelId
    channel: str
    kind: ChannelKind
    handed_off: Sequence
    confirmed: Sequence
    last_used_us: int
    expired_at_us: int | None


@dataclass(frozen=True, slots=True)
class SessionBound:
    """Result of BindSession."""

    session_id: SessionId
    agent_id: AgentId
    agent: str
    identity: SessionIdentity
    display_name: str
    repository: str | None
    generation: Generation
    resumed: bool
    subscriptions: tuple[SubscriptionRow, ...]
    memory_changes: tuple[MemoryChange, ...] = ()


@dataclass(frozen=True, slots=True)
class PruneResult:
    """Result of PruneSlice. `more`: the slice was full, there may be more to remove."""

    removed_rows: int
    more: bool
    expired: tuple[SubscriptionExpired, ...] = ()


@dataclass(frozen=True, slots=True)
class ChannelRow:
    """One channel with its counters. `newest` is 0 where nothing was ever sent."""

    channel_id: ChannelId
    channel: str
    kind: ChannelKind
    retained: int
    newest: Sequence
    removed_through: Sequence


@dataclass(frozen=True, slots=True)
class RemovedRange:
    """A run of removed messages of one channel, all of one cause; both ends inclusive."""

    from_sequence: Sequence
    to_sequence: Sequence
    cause: GapCause


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A retained message as stored; of a memory its live revision.

    `position` is the sequence itself, of a memory that of its creation; `session_id` who sent it,
    of a memory who created it.
    """

    channel_id: ChannelId
    sequence: Sequence
    message_id: MessageId
    session_id: SessionId
    position: Sequence
    memory: bool
    envelope: bytes


@dataclass(frozen=True, slots=True)
class EndedMemory:
    """A memory that was deleted, and where it stood."""

    channel_id: ChannelId
    memory_id: MessageId
    position: Sequence


@dataclass(frozen=True, slots=True)
class MemoryChange:
    """What happened to a memory while a session was away; without `envelope` it was deleted."""

    channel: str
    memory_id: MessageId
    revision: int
    changed_at_us: int
    envelope: bytes | None
