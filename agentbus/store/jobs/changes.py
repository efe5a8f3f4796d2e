"""The vocabulary of jobs in the ledger: what may be changed, what is then a fact.

All are plain records; nothing here touches a database. Times are microseconds since the Unix epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from agentbus.errors import ConflictError
from agentbus.ids import ChannelId, Sequence
from agentbus.protocol.jobs import EmitJobEvent, JobCallback
from agentbus.store.mutation import Mutation

JobState = Literal["open", "closed"]
JobOutcome = Literal["succeeded", "failed"]
OutboxState = Literal["pending", "dead"]

CallbackId = int
"""Row id of an entry of the outbox, never reused."""


# --- changes ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AppendJobEvent(Mutation):
    """The next event of a job; the first one opens it, a terminal one closes it.

    Its receipt is the row of the event itself, so a repeat is known as long as the event is kept.
    `callback`: where this event and all later ones are posted to from now on. `after`: the last one
    that there must be, so that of several on their way none passes one that was refused.
    """

    operation: EmitJobEvent
    callback: JobCallback | None = None
    after: int | None = None

    @property
    def receipt_key(self) -> tuple[str, str]:
        return (self.operation.job_id, str(self.operation.event["seq"]))

    def key_reused(self) -> ConflictError:
        job_id, seq = self.receipt_key
        return ConflictError(
            f"job {job_id} has another event with sequence {seq}; is its id in use twice?"
        )


@dataclass(frozen=True, slots=True)
class CloseLostJob:
    """Write the terminal event that the job itself did not, if it is still the next one.

    `event` is a synthetic failure. Anything that came meanwhile makes it void.
    """

    job_id: str
    event: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ForgetJob:
    """A job was to be cancelled and never began: forget that, if it still has not."""

    job_id: str


@dataclass(frozen=True, slots=True)
class CancelJob:
    """Ask a job to end; `ahead`: also one that is not known. The first reason stays."""

    job_id: str
    reason: str
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class SettleCallback:
    """How an attempt to post an event ended: delivered, or with an error.

    `next_at_us`: when to try again; None after the last attempt: it is a dead letter then.
    """

    callback_id: CallbackId
    error: str | None = None
    next_at_us: int | None = None


@dataclass(frozen=True, slots=True)
class ReplayCallbacks:
    """Make dead letters pending again, with all their attempts: this one, or all."""

    callback_id: CallbackId | None


JobChange: TypeAlias = (
    AppendJobEvent | CloseLostJob | ForgetJob | CancelJob | SettleCallback | ReplayCallbacks
)


# --- facts --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as others see it. `last_seq` is -1 before its first event."""

    job_id: str
    state: JobState
    last_seq: int
    last_event_us: int
    opened_us: int
    cancel_reason: str | None


@dataclass(frozen=True, slots=True)
class JobChanged:
    """Something was committed about this job: `job` is how it is now."""

    job: JobView


@dataclass(frozen=True, slots=True)
class JobGone:
    """Nothing is left of this job."""

    job_id: str


@dataclass(frozen=True, slots=True)
class CallbacksWaiting:
    """There is something new in the outbox."""


@dataclass(frozen=True, slots=True)
class ChannelRemoved:
    """A channel of a job that was closed and had nothing left is gone; `through` was its newest."""

    channel_id: ChannelId
    channel: str
    through: Sequence


JobFact: TypeAlias = JobChanged | JobGone | CallbacksWaiting
"""What only those hear who serve jobs."""
