"""What the cleanup scheduler is told and what it tells others; the mailboxes are in messages.py.

No behaviour. Commands are imperative, events are past participles. Numbers name their unit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from actors.base import Address, Reply
from agentbus.ids import RecoveryEpoch
from agentbus.rules.capacity import Budget
from agentbus.store.changes import PruneResult, PruneSlice, PruneWhat

if TYPE_CHECKING:
    from actors.messages import CleanupMessage

# --- to the scheduler ---


@dataclass(frozen=True, slots=True)
class CleanupDue:
    """The interval is over."""


@dataclass(frozen=True, slots=True)
class PruneSettled:
    """The ledger's answer to one slice."""

    what: PruneWhat
    result: PruneResult | None
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class CapacityReached:
    """A budget is full: `needed_bytes` more do not fit."""

    budget: Budget
    needed_bytes: int = 1


@dataclass(frozen=True, slots=True)
class RedisMeasured:
    """The size of the dataset; None while Redis is being recovered."""

    dataset_bytes: int | None


@dataclass(frozen=True, slots=True)
class CatchUpDidNotFit:
    """Redis ran out of memory while it was filled.

    `filled` of it (0 to 1) was there by then and took `dataset_bytes`; `retained_bytes` is the size
    of all that SQLite has for it.
    """

    epoch: RecoveryEpoch
    dataset_bytes: int
    filled: float
    retained_bytes: int


@dataclass(frozen=True, slots=True)
class RestEnded:
    """The pause after a slice that was refused is over."""


@dataclass(frozen=True, slots=True)
class WarnAgain:
    """A budget has been exhausted for another day."""

    budget: Budget


ToScheduler: TypeAlias = (
    CleanupDue
    | PruneSettled
    | CapacityReached
    | RedisMeasured
    | CatchUpDidNotFit
    | RestEnded
    | WarnAgain
)


# --- to the ledger and the projector ---


@dataclass(frozen=True, slots=True)
class WatchCapacity:
    """Whom the ledger and the projector tell of the budgets."""

    watcher: Address[CleanupMessage]


@dataclass(frozen=True, slots=True)
class CapacityChanged:
    """How the budgets stand after a step of cleanup: try again what is held.

    New mutations wait while something is being removed for a budget that is in `waiting`, and are
    refused when they do not fit one that is in `exhausted`.
    """

    waiting: frozenset[Budget] = frozenset()
    exhausted: frozenset[Budget] = frozenset()


@dataclass(frozen=True, slots=True)
class PruneWhileFenced:
    """A slice while the fence of that epoch stands and nobody catches up, because Redis is full."""

    epoch: RecoveryEpoch
    change: PruneSlice
    reply_to: Reply


@dataclass(frozen=True, slots=True)
class MeasureRedis:
    """Tell the watcher how large the dataset is, with garbage of the index given back.

    Travels through the ledger, so that Redis has heard of all that was removed before.

    `patient`: whatever that takes; otherwise it may go on by itself afterwards.
    """

    patient: bool


@dataclass(frozen=True, slots=True)
class LiftBackstop:
    """Nothing is left that may be removed: Redis takes what it needs to be filled."""


ToLedger: TypeAlias = WatchCapacity | CapacityChanged | MeasureRedis | PruneWhileFenced
ToProjector: TypeAlias = WatchCapacity | MeasureRedis | LiftBackstop


# --- to the supervisor ---


@dataclass(frozen=True, slots=True)
class EvictionEnded:
    """What was in the way of catching up in that epoch has been removed, or cannot be."""

    epoch: RecoveryEpoch


ToSupervisor: TypeAlias = CatchUpDidNotFit | EvictionEnded
