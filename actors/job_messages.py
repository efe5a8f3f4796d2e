"""The messages of jobs: what their actors are told, by whom, and what they tell.

No behaviour. The ring of an event, beside the one that its message travels as any other:

    Attachment -> ReceiptLedger -> JobStream -> JobDesk -> who follows
                                \\-> CallbackKeeper -> Callback -> the parent's HTTP server
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from actors.base import Address, Reply
from agentbus.jobs.delivery import Outcome
from agentbus.protocol.jobs import JobEventFrame, JobRequest
from agentbus.store.jobs.changes import (
    CallbacksWaiting,
    CloseLostJob,
    ForgetJob,
    JobChanged,
    JobGone,
    JobView,
    SettleCallback,
)
from agentbus.store.jobs.reading import Entry

# --- Attachment ---


@dataclass(frozen=True, slots=True)
class JobEventAsked:
    """An event of the job that this attachment emits for."""

    frame: JobEventFrame
    reply_to: Reply


# --- JobDesk ---


@dataclass(frozen=True, slots=True)
class JobAsked:
    """A person or a parent asks."""

    request: JobRequest
    reply_to: Reply


@dataclass(frozen=True, slots=True)
class JobAdvanced:
    """There may be something new for whoever waits for this job."""

    job_id: str


@dataclass(frozen=True, slots=True)
class JobWaitDue:
    """The time of a wait is over."""

    number: int


JobDeskMessage: TypeAlias = JobAsked | JobAdvanced | JobWaitDue


# --- JobStream ---


@dataclass(frozen=True, slots=True)
class JobRestored:
    """A job as it was when its last actor, or the last daemon, ended."""

    job: JobView


@dataclass(frozen=True, slots=True)
class JobFollowed:
    """Tell `watcher` of everything that happens from now on, and at once when there is an event of
    `from_seq` or later, a cancel or an end that it may not have seen."""

    watcher: Address[JobAdvanced]
    from_seq: int


@dataclass(frozen=True, slots=True)
class JobUnfollowed:
    watcher: Address[JobAdvanced]


@dataclass(frozen=True, slots=True)
class JobDue:
    """One of its deadlines may have passed."""


@dataclass(frozen=True, slots=True)
class LossSettled:
    """What was submitted at a deadline: carried out, void, or (with an error) refused."""

    change: CloseLostJob | ForgetJob
    done: bool
    error: BaseException | None = None


JobStreamMessage: TypeAlias = (
    JobChanged | JobGone | JobRestored | JobFollowed | JobUnfollowed | JobDue | LossSettled
)


# --- CallbackKeeper ---


@dataclass(frozen=True, slots=True)
class CallbackAttempted:
    """One attempt to post this entry is over; `worker` is free again."""

    entry: Entry
    outcome: Outcome
    worker: Address[PostCallback]


@dataclass(frozen=True, slots=True)
class AttemptSettled:
    """The ledger has (or, with an error, has not) written down how an attempt ended."""

    job_id: str
    change: SettleCallback
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class SettleAgain:
    """Try once more to write down how an attempt ended."""

    job_id: str
    change: SettleCallback


@dataclass(frozen=True, slots=True)
class CallbackDue:
    """The next attempt of some entry is due."""


CallbackKeeperMessage: TypeAlias = (
    CallbacksWaiting | CallbackAttempted | AttemptSettled | SettleAgain | CallbackDue
)


# --- Callback ---


@dataclass(frozen=True, slots=True)
class PostCallback:
    """Post this entry once and tell how it went."""

    entry: Entry
    keeper: Address[CallbackKeeperMessage]
