"""The messages that more than one actor knows, and for each mailbox the union of what it takes.

Those of an actor that only the front door asks stand in its own file, those of cleanup and of the
supervisor in cleanup_messages.py and supervisor_messages.py. No behaviour. Commands are imperative,
events are past participles. Numbers name their unit. The ring that a durable change travels, always
by `tell`:

    transport -> Attachment -> ReceiptLedger -> RedisProjector -> Channel -> Attachment -> transport
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from actors.base import Address, Reply
from actors.cleanup_messages import ToLedger, ToProjector, ToScheduler
from actors.health import Readiness
from actors.job_messages import JobEventAsked
from actors.peer_messages import ToPeerDesk
from actors.supervisor_messages import SupervisorMessage
from agentbus.identity import Attachment, SenderBinding
from agentbus.ids import NO_EPOCH, ChannelId, RecoveryEpoch, Sequence, SessionId
from agentbus.inspection import Verdict
from agentbus.protocol.operations import DaemonOperation
from agentbus.protocol.session import (
    Attach,
    CancelPull,
    Credit,
    HandoffReport,
    HeldMemory,
    Hello,
    HookEvent,
    Pull,
    Used,
)
from agentbus.protocol.talk import TalkRequest
from agentbus.rules.query import EngineName
from agentbus.store.changes import (
    Change,
    Fact,
    MemoryRemoved,
    MemoryRevised,
    MoveCursors,
    SessionBound,
    SubscriptionClosed,
    SubscriptionExpired,
    SubscriptionId,
    SubscriptionOpened,
)
from agentbus.store.mutation import Mutation


class Link(Protocol):
    """The daemon's end of one client connection, as far as actors use it. Thread-safe."""

    @property
    def closed(self) -> bool: ...

    @property
    def last_seen_s(self) -> float: ...

    @property
    def queued_bytes(self) -> int: ...

    def send(self, frame: bytes) -> bool: ...

    def deliver(self, frames: list[bytes]) -> bool: ...

    def close(self, reason: str) -> None: ...


# --- to more than one kind of actor ---


@dataclass(frozen=True, slots=True)
class ReadinessChanged:
    """A new state of the whole bus. A larger `epoch` makes older prefetch and reports invalid."""

    state: Readiness
    epoch: RecoveryEpoch
    retry_after_ms: int


STARTING = ReadinessChanged("starting", NO_EPOCH, retry_after_ms=200)
"""What holds until the supervisor has said something."""


# --- Attachment ---


@dataclass(frozen=True, slots=True)
class Request:
    """An operation of this attachment's agent. `size_bytes`: of the frame it came in."""

    operation: DaemonOperation
    attachment: Attachment
    reply_to: Reply


@dataclass(frozen=True, slots=True)
class Wake:
    """The channel has messages up to `head` in the projection.

    `only_session`: the one that sent all of them since the head before, if it was one.
    """

    channel_id: ChannelId
    head: Sequence
    only_session: SessionId | None = None


@dataclass(frozen=True, slots=True)
class CreditGranted:
    credit: Credit


@dataclass(frozen=True, slots=True)
class CallSeen:
    """The conversation made a call: renews subscriptions, confirms earlier handoffs."""

    used: Used


@dataclass(frozen=True, slots=True)
class HandoffReported:
    report: HandoffReport
    reply_to: Reply


@dataclass(frozen=True, slots=True)
class HandingOff:
    """A result of the adapter is about to leave; `HandingOff` of the protocol."""

    exposed: dict[SubscriptionId, Sequence]


@dataclass(frozen=True, slots=True)
class FlushReports:
    """The 20 ms of the oldest unflushed report are over."""


@dataclass(frozen=True, slots=True)
class CursorsCommitted:
    """A flush of this attachment was committed, or (with an error) was not."""

    change: MoveCursors
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class PullAsked:
    pull: Pull
    reply_to: Reply


@dataclass(frozen=True, slots=True)
class CompareHeldMemories:
    """An adapter is about to show memories that it holds, if they are still so."""

    held: tuple[HeldMemory, ...]
    reply_to: Reply


@dataclass(frozen=True, slots=True)
class PullDue:
    """The pull's wait is over."""

    number: int


@dataclass(frozen=True, slots=True)
class PullCancelled:
    cancel: CancelPull


@dataclass(frozen=True, slots=True)
class SubscriptionsChanged:
    """Committed changes of this session's subscriptions, in commit order."""

    facts: tuple[SubscriptionOpened | SubscriptionClosed | SubscriptionExpired, ...]


@dataclass(frozen=True, slots=True)
class RateRefunded:
    """A reserved mutation was not charged: denied, failed or a replay of an earlier one."""

    size_bytes: int


@dataclass(frozen=True, slots=True)
class MutationSettled:
    """A mutation of this attachment was answered; the next one may go to the ledger.

    Only where an inspection command is configured.
    """


@dataclass(frozen=True, slots=True)
class Detached:
    """The registrar has ended this attachment; flush what is pending and stop."""


@dataclass(frozen=True, slots=True)
class NoticePosted:
    """A memory was edited or deleted, and Redis holds it so. Passed on to every watcher."""

    fact: MemoryRevised | MemoryRemoved


AttachmentMessage: TypeAlias = (
    Request
    | Wake
    | CreditGranted
    | CallSeen
    | HandingOff
    | HandoffReported
    | FlushReports
    | CursorsCommitted
    | PullAsked
    | CompareHeldMemories
    | PullDue
    | PullCancelled
    | NoticePosted
    | SubscriptionsChanged
    | RateRefunded
    | MutationSettled
    | ReadinessChanged
    | Detached
    | ToPeerDesk
    | JobEventAsked
)


# --- ReceiptLedger ---


@dataclass(frozen=True, slots=True)
class Submit:
    """One durable change. `reply_to` is answered after the commit, and only then.

    `origin` hears about uncharged mutations (`reserved_bytes`) and about subscription changes.
    """

    change: Change
    reply_to: Reply
    origin: Address[AttachmentMessage] | None = None
    reserved_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Fence:
    """Refuse every change from here on, then ask the projector to catch up."""

    epoch: RecoveryEpoch
    retry_after_ms: int


@dataclass(frozen=True, slots=True)
class Unfence:
    """Accept changes again, unless a newer fence stands."""

    epoch: RecoveryEpoch


@dataclass(frozen=True, slots=True)
class Inspected:
    """The inspection of that ticket has ended."""

    ticket: int
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class SearchWith:
    """The search engine of this run; comes before the first fence.

    `supervisor` hears how the making of its index advances, if it is to be made.
    """

    engine: EngineName
    supervisor: Address[SupervisorMessage]


@dataclass(frozen=True, slots=True)
class FillTextIndex:
    """Make the next slice of the index that this run searches with; `done` of `total` rows are."""

    supervisor: Address[SupervisorMessage]
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class ProjectionAdvanced:
    """So many more bytes of what was committed are in Redis: senders need not be held back."""

    epoch: RecoveryEpoch
    size_bytes: int


LedgerMessage: TypeAlias = (
    Submit
    | Inspected
    | Fence
    | Unfence
    | SearchWith
    | FillTextIndex
    | ProjectionAdvanced
    | ToLedger
)


# --- Inspector ---


@dataclass(frozen=True, slots=True)
class Inspect:
    """Run the inspection command on a mutation and answer its verdict."""

    mutation: Mutation
    reply_to: Reply


InspectorMessage: TypeAlias = Inspect


# --- RedisProjector ---


@dataclass(frozen=True, slots=True)
class Committed:
    """Facts of one transaction, in order; `last_sequence` is the bus's newest.

    `size_bytes`: of the envelopes among the facts.
    """

    facts: tuple[Fact, ...]
    last_sequence: Sequence
    size_bytes: int


@dataclass(frozen=True, slots=True)
class StartRedis:
    """Have a Redis running; once, before anything else."""


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Bring Redis to exactly `through`: by replay where possible, else by a rebuild.

    `ledger` hears from then on how the projection advances.
    """

    epoch: RecoveryEpoch
    through: Sequence
    ledger: Address[LedgerMessage]


@dataclass(frozen=True, slots=True)
class CheckRedis:
    """Find out whether Redis still answers: on a period, and when a reader had trouble."""


ProjectorMessage: TypeAlias = StartRedis | Committed | CatchUp | CheckRedis | ToProjector


# --- Channel ---


@dataclass(frozen=True, slots=True)
class Projected:
    """Redis holds this channel's messages up to `head`; `only_session` as in `Wake`."""

    head: Sequence
    only_session: SessionId | None = None


@dataclass(frozen=True, slots=True)
class Watch:
    """Tell `watcher` of every new head; at once when the head is beyond `after`."""

    watcher: Address[Wake | NoticePosted]
    after: Sequence


@dataclass(frozen=True, slots=True)
class Unwatch:
    watcher: Address[Wake | NoticePosted]


ChannelMessage: TypeAlias = Projected | Watch | Unwatch | NoticePosted


# --- Registrar ---


@dataclass(frozen=True, slots=True)
class Register:
    """A connection wants to carry a session."""

    attach: Attach
    hello: Hello
    link: Link
    reply_to: Reply


@dataclass(frozen=True, slots=True)
class Greeted:
    """An adapter connected; its harness process may have run hooks already."""

    link: Link
    harness_pid: int


@dataclass(frozen=True, slots=True)
class HookSeen:
    """A command hook of a harness process ran."""

    event: HookEvent
    reply_to: Reply


@dataclass(frozen=True, slots=True)
class SessionBindingSettled:
    """The ledger's answer to the bind that the registrar is waiting for."""

    bound: SessionBound | None
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class DetachAsked:
    attachment: Attachment
    reply_to: Reply


@dataclass(frozen=True, slots=True)
class Disconnected:
    link: Link


@dataclass(frozen=True, slots=True)
class Released:
    """This attachment has ended, and the ledger has its last word before it."""

    attachment: Attachment


@dataclass(frozen=True, slots=True)
class LeaveDue:
    """This attachment had long enough to end; nobody waits for it any longer."""

    attachment: Attachment


@dataclass(frozen=True, slots=True)
class AttachmentCrashed:
    """An attachment's actor failed: its connection is closed, so that the adapter attaches anew."""

    attachment: Attachment


@dataclass(frozen=True, slots=True)
class SubscriptionsExpired:
    facts: tuple[SubscriptionExpired, ...]


@dataclass(frozen=True, slots=True)
class SweepLiveness:
    """Release attachments without liveness for 30 s."""


@dataclass(frozen=True, slots=True)
class DirectoryAsked:
    """The live sessions as an agent may see them (`discover`)."""

    query: str
    reply_to: Reply


@dataclass(frozen=True, slots=True)
class RollAsked:
    """Who lives and which hooks speak, as the reporter needs it: a `Roll`."""

    reply_to: Reply


@dataclass(frozen=True, slots=True)
class TalkAsked:
    """A question to the registry of talk. `peer_pid`: who asks, as the kernel knows it."""

    request: TalkRequest
    link: Link
    peer_pid: int | None
    reply_to: Reply


RegistrarMessage: TypeAlias = (
    Register
    | Greeted
    | HookSeen
    | SessionBindingSettled
    | DetachAsked
    | Disconnected
    | Released
    | LeaveDue
    | AttachmentCrashed
    | SubscriptionsExpired
    | SweepLiveness
    | DirectoryAsked
    | RollAsked
    | TalkAsked
    | ReadinessChanged
)


@dataclass(frozen=True, slots=True)
class LiveSession:
    """One live attachment as the registrar knows it. `presence`: other agents may see it."""

    attachment: Attachment
    sender: SenderBinding
    conversation: str
    identity_source: str
    attached_at_us: int
    adapter_pid: int
    presence: bool = True


@dataclass(frozen=True, slots=True)
class HookHeard:
    """The last time that a hook of an application spoke at an event."""

    application: str
    event: str
    at_us: int


@dataclass(frozen=True, slots=True)
class Roll:
    """The live sessions, and the hooks heard since this daemon started."""

    sessions: tuple[LiveSession, ...] = ()
    hooks: tuple[HookHeard, ...] = ()


# --- CleanupScheduler ---


CleanupMessage: TypeAlias = ToScheduler | ReadinessChanged
