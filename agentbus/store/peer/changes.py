"""The vocabulary of peer messaging in the ledger: what may be changed, what is then a fact.

All are plain records; nothing here touches a database. Times are microseconds since the Unix epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from agentbus.envelope import PeerKind, Recipient
from agentbus.errors import ConflictError
from agentbus.identity import Attachment
from agentbus.ids import (
    AgentId,
    DeliveryId,
    InterventionId,
    LeaseToken,
    MessageId,
    Sequence,
    SessionId,
)
from agentbus.protocol.peer import PeerWriting
from agentbus.protocol.peer_frames import LateState
from agentbus.protocol.people import Decision
from agentbus.rules.peer import key_reused
from agentbus.store.mutation import Mutation

DeliveryState = Literal[
    "queued", "leased", "paused", "acked", "rejected", "cancelled", "reassigned"
]
"""The first three are open. A paused one waits for a person, the last four are final."""

ReplyState = Literal["awaiting", "overdue", "replied", "unanswered", "cancelled"]
ReplyCause = Literal["undelivered", "unclaimed", "stuck", "silent", "retention"]
"""Why a reply is still missing; `retention`: the request itself was removed."""

InterventionSource = Literal["human", "checkpoint", "window", "extensions", "attempts"]
"""Who asked for a person: the agent, the checkpoint policy, or a limit that was reached."""

StopStatus = Literal[
    "pause_requested", "pause_observed", "adapter_stop_confirmed", "stopped_unconfirmed"
]
"""Does the holder of paused work know? It was asked; a call of it was answered so; it has gone on
to wait for other work; its lease lapsed without a word."""


# --- changes ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PeerMutation(Mutation):
    """A writing operation of the tool `peer`.

    `token`: proves the lease of the delivery that the operation is about, or answers.
    """

    operation: PeerWriting
    token: LeaseToken | None = None

    @property
    def receipt_key(self) -> tuple[str, str]:
        """Idempotency keys are the agent's: another session of it repeats them just as well."""
        if self._has_key:
            return (self.sender.agent_id, self.operation_id)
        return (self.attachment.session_id, self.operation_id)

    def key_reused(self) -> ConflictError:
        return key_reused(self.operation_id) if self._has_key else Mutation.key_reused(self)

    @property
    def _has_key(self) -> bool:
        return getattr(self.operation, "idempotency_key", None) is not None


@dataclass(frozen=True, slots=True)
class Delegate(PeerMutation):
    """A question over talk: a request to an agent, from a sender that the daemon issues.

    `recipient`: None when no session of that agent is attached; then only a repeat has an answer,
    that of the first time. Nobody's budget is charged, and `peer_allow` is about other senders.
    """

    recipient: Recipient | None = None

    def key_reused(self) -> ConflictError:
        return ConflictError("that idempotencyKey was used for another prompt")


@dataclass(frozen=True, slots=True)
class ClaimDelivery:
    """Give the session its delivery, or the next one that it may have; answers `Claimed`.

    `token` becomes that of the claim. What the session already holds keeps its attempt; so does
    what lapsed and is claimed again by the same attachment. A response that the session was shown
    before is finished on the way and not given. `only`: no other delivery than this one.
    """

    attachment: Attachment
    agent_id: AgentId
    token: LeaseToken
    only: DeliveryId | None = None


@dataclass(frozen=True, slots=True)
class ExtendLease:
    """Remember on disk until when a lease holds. Stale: changes nothing.

    Its result, and that of the two after it, says whether it was not stale. This one alone makes no
    fact: who asked for it knows, and for all others nothing is different.
    """

    delivery_id: DeliveryId
    token: LeaseToken
    expires_us: int


@dataclass(frozen=True, slots=True)
class AbandonLease:
    """The lease lapsed: queued again, or paused after too many attempts. Stale: changes nothing."""

    delivery_id: DeliveryId
    token: LeaseToken


@dataclass(frozen=True, slots=True)
class CloseWindow:
    """Nothing was heard of claimed work until `deadline_us`: paused. Stale: changes nothing."""

    delivery_id: DeliveryId
    token: LeaseToken
    deadline_us: int


@dataclass(frozen=True, slots=True)
class MarkReplyLate:
    """A reply was not there in time. Stale (replied, closed, marked before): changes nothing.

    `reached`: a session that could claim the request is attached. Its result says whether it was
    not stale.
    """

    delivery_id: DeliveryId
    reply_state: LateState
    reached: bool = True


@dataclass(frozen=True, slots=True)
class MarkShown:
    """A result that showed these was handed off: responses, and notices as (delivery, state)."""

    attachment: Attachment
    responses: tuple[MessageId, ...]
    notices: tuple[tuple[DeliveryId, ReplyState], ...] = ()


@dataclass(frozen=True, slots=True)
class ListOpenDeliveries:
    """Answers the `DeliveryView`s that an inbox has to look after, a tuple in the order they were
    made: what its agent has to do, and its requests without an answer. Reads only."""

    agent_id: AgentId


@dataclass(frozen=True, slots=True)
class Decide:
    """A person's decision; answers `{intervention_id, delivery_id, version, action, state}`, and
    `reassigned_to`, the new delivery, where there is one.

    Raises ConflictError when `version` is not the newest or it was decided before.
    `to`: name or id of the new recipient, of a reassignment.
    """

    intervention_id: InterventionId
    version: int
    action: Decision
    decided_by: str
    instructions: str | None = None
    to: str | None = None


PeerChange: TypeAlias = (
    PeerMutation
    | Delegate
    | ClaimDelivery
    | ExtendLease
    | AbandonLease
    | CloseWindow
    | MarkReplyLate
    | MarkShown
    | ListOpenDeliveries
    | Decide
)


# --- facts and results ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeliveryView:
    """A delivery as its inbox needs it. `created_us`: where the times of its reply begin."""

    delivery_id: DeliveryId
    message_id: MessageId
    sequence: Sequence
    created_us: int
    kind: PeerKind
    sender_agent: AgentId
    sender_session: SessionId
    recipient_agent: AgentId
    recipient_session: SessionId | None
    state: DeliveryState
    holder: SessionId | None
    token: LeaseToken | None
    attempt: int
    lease_expires_us: int | None
    deadline_us: int | None
    extensions: int
    reply_state: ReplyState | None
    reply_due_us: int | None
    unanswered_us: int | None

    @property
    def is_open(self) -> bool:
        return self.state in ("queued", "leased", "paused")

    @property
    def awaits_reply(self) -> bool:
        """A time is running after which its sender is told, or the request given up."""
        return self.reply_state in ("awaiting", "overdue")


@dataclass(frozen=True, slots=True)
class DeliveryChanged:
    """A delivery was made or is different now. Told to the inboxes of recipient and sender."""

    delivery: DeliveryView


@dataclass(frozen=True, slots=True)
class Claimed:
    """Result of ClaimDelivery.

    `delivery`: what `wait` shows of it, without the token. `notices`: replies that are late, which
    this session has not been told of yet. `blocked`: something else than emptiness kept it from a
    delivery (paused or leased work of the same recipient), in words.
    """

    delivery: dict[str, Any] | None
    token: LeaseToken | None
    notices: tuple[dict[str, Any], ...] = ()
    blocked: str | None = None
