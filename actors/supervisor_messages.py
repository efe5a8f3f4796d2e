"""What the supervisor is told: failures, how a catch-up goes, and what people ask of the whole bus.

No behaviour. Commands are imperative, events are past participles. Numbers name their unit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from actors.base import Reply
from actors.cleanup_messages import ToSupervisor
from actors.health import Work
from agentbus.errors import BusError
from agentbus.ids import RecoveryEpoch
from agentbus.rules.query import EngineName
from agentbus.store.connection import DatabaseUnusable


@dataclass(frozen=True, slots=True)
class Crashed:
    """An actor failed; the name is the actor's."""

    actor: str
    error: BaseException


@dataclass(frozen=True, slots=True)
class ProjectionLost:
    """Redis failed or fell silent; nothing that is committed is in danger."""

    reason: str


@dataclass(frozen=True, slots=True)
class RedisStarted:
    """Redis serves, and this is what the daemon searches with from now on."""

    search_engine: EngineName


@dataclass(frozen=True, slots=True)
class RedisRefused:
    """No Redis can be had until a person changes something; the daemon ends and says so."""

    error: BusError | DatabaseUnusable


@dataclass(frozen=True, slots=True)
class CatchUpProgressed:
    """How far the work has come; `total` is 0 where it cannot be counted."""

    epoch: RecoveryEpoch
    work: Work
    done: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """Streams and search agree with SQLite. `redis`: what runs, for status."""

    epoch: RecoveryEpoch
    redis: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CatchUpFailed:
    """The projector could not; it is asked again after a pause."""

    epoch: RecoveryEpoch
    reason: str


@dataclass(frozen=True, slots=True)
class RetryCatchUp:
    epoch: RecoveryEpoch


@dataclass(frozen=True, slots=True)
class HealthAsked:
    """Readiness, progress and last errors, for the reporter."""

    reply_to: Reply


@dataclass(frozen=True, slots=True)
class StopAsked:
    """End the daemon in order; with `reset` also delete all bus data."""

    reply_to: Reply
    reset: bool = False


SupervisorMessage: TypeAlias = (
    Crashed
    | RedisStarted
    | RedisRefused
    | ProjectionLost
    | CatchUpProgressed
    | CaughtUp
    | CatchUpFailed
    | ToSupervisor
    | RetryCatchUp
    | HealthAsked
    | StopAsked
)
