"""Readiness of the whole bus: starting, recovering, ready, stopping, and what follows a failure.

Owns the state, the recovery epoch and the list of last errors, in plain memory, on the shared
dispatcher. Never touches a store; it orders the fence and the catch-up, and announces the result.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, assert_never

from actors.base import Address, Reply
from actors.cleanup_messages import CatchUpDidNotFit, EvictionEnded
from actors.health import Readiness, Work
from actors.messages import (
    CleanupMessage,
    Fence,
    LedgerMessage,
    ProjectorMessage,
    ReadinessChanged,
    RegistrarMessage,
    SearchWith,
    StartRedis,
    Unfence,
)
from actors.pool import PooledActor
from actors.supervisor_messages import (
    CatchUpFailed,
    CatchUpProgressed,
    CaughtUp,
    Crashed,
    HealthAsked,
    ProjectionLost,
    RedisRefused,
    RedisStarted,
    RetryCatchUp,
    StopAsked,
    SupervisorMessage,
)
from actors.timer import Timer
from agentbus.clock import Clock
from agentbus.envelope import rfc3339
from agentbus.errors import BusError
from agentbus.ids import NO_EPOCH, RecoveryEpoch
from agentbus.rules.query import EngineName
from agentbus.store.connection import DatabaseUnusable

_log = logging.getLogger(__name__)

RETRY_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Between attempts to catch up; the last one repeats."""

RETRY_AFTER_MS = 200
RETRY_AFTER_MAX_MS = 5000
"""What callers are told while the bus is not ready: a recovery takes a second or so. Where it will
take longer they hear so, but come back often enough to hear of its end by themselves."""

ERRORS_KEPT = 20


@dataclass(frozen=True, slots=True)
class Outlets:
    """What the supervisor can do to the process as a whole. All are quick and thread-safe."""

    announce: Callable[[ReadinessChanged], None]
    stop: Callable[[StopAsked], None]
    give_up: Callable[[str], None]
    refuse: Callable[[BusError | DatabaseUnusable], None]


@dataclass(slots=True)
class Wiring:
    """Filled in by system.py before the start: the supervisor and its actors know each other."""

    ledger: Address[LedgerMessage] | None = None
    projector: Address[ProjectorMessage] | None = None
    registrar: Address[RegistrarMessage] | None = None
    cleanup: Address[CleanupMessage] | None = None
    waits: Address[ReadinessChanged] | None = None
    outlets: Outlets | None = None


@dataclass(slots=True)
class _Health:
    state: Readiness = "starting"
    epoch: RecoveryEpoch = NO_EPOCH
    work: Work | None = None
    progress: tuple[int, int] | None = None
    retry_after_ms: int = RETRY_AFTER_MS
    redis: dict[str, Any] | None = None
    errors: deque[tuple[int, str]] = field(default_factory=lambda: deque(maxlen=ERRORS_KEPT))


class SupervisorActor(PooledActor[SupervisorMessage]):
    """One table of what happens when something fails.

    | What failed            | What follows                                                        |
    |------------------------|---------------------------------------------------------------------|
    | projection             | fence, new epoch, replay or rebuild, again after a pause if need be |
    | a rebuild, as Redis is |                                                                     |
    | full                   | capacity cleanup under the fence, then the rebuild anew             |
    | an attachment, channel,|                                                                     |
    | inbox or inspector     | replaced by whoever started it; noted here                          |
    | any other actor        | the daemon ends: the next one starts from what is on disk           |

    1. Epochs only grow. An answer for an older epoch is ignored.
    2. `ready` is announced after the ledger was told to accept changes again.
    """

    def __init__(self, wiring: Wiring, timer: Timer, clock: Clock) -> None:
        super().__init__()
        self._wiring = wiring
        self._timer = timer
        self._clock = clock
        self._health = _Health()
        self._failures = 0  # of catching up, in a row
        self._work_since_s = 0.0

    def on_start(self) -> None:
        self._health.work = "starting Redis"
        assert self._wiring.projector is not None
        self._wiring.projector.tell(StartRedis())

    def receive(self, message: SupervisorMessage) -> None:
        match message:
            case ProjectionLost(reason):
                self._projection_lost(reason)
            case RedisStarted(engine):
                self._redis_started(engine)
            case RedisRefused(error):
                assert self._wiring.outlets is not None
                self._wiring.outlets.refuse(error)
            case CatchUpProgressed():
                if message.epoch == self._health.epoch and self._is_recovering():
                    self._progressed(message)
            case CaughtUp():
                self._caught_up(message)
            case CatchUpFailed(epoch, reason):
                self._catch_up_failed(epoch, reason)
            case CatchUpDidNotFit():
                self._did_not_fit(message)
            case RetryCatchUp(epoch) | EvictionEnded(epoch):
                if epoch == self._health.epoch and self._is_recovering():
                    self._begin_epoch(self._health.state)
            case Crashed(actor, error):
                self._actor_crashed(actor, error)
            case HealthAsked(reply_to):
                self._tell_health(reply_to)
            case StopAsked():
                self._stop_asked(message)
            case _:
                assert_never(message)

    def _redis_started(self, engine: EngineName) -> None:
        if self._health.state == "starting":
            assert self._wiring.ledger is not None
            self._wiring.ledger.tell(SearchWith(engine, self.address))
            self._begin_epoch("starting")

    def _projection_lost(self, reason: str) -> None:
        self._note(f"projection lost: {reason}")
        if self._health.state == "ready":
            self._begin_epoch("recovering")

    def _begin_epoch(self, state: Readiness) -> None:
        """Raise the fence; it makes the ledger ask the projector to catch up."""
        self._health.epoch = RecoveryEpoch(self._health.epoch + 1)
        self._health.work, self._health.progress = None, None
        self._health.retry_after_ms = RETRY_AFTER_MS
        self._enter(state)
        assert self._wiring.ledger is not None
        self._wiring.ledger.tell(Fence(self._health.epoch, RETRY_AFTER_MS))

    def _caught_up(self, message: CaughtUp) -> None:
        if message.epoch != self._health.epoch or not self._is_recovering():
            return
        self._failures = 0
        self._health.work, self._health.progress = None, None
        self._health.retry_after_ms = RETRY_AFTER_MS
        self._health.redis = message.redis
        assert self._wiring.ledger is not None
        self._wiring.ledger.tell(Unfence(message.epoch))
        self._enter("ready")

    def _progressed(self, message: CatchUpProgressed) -> None:
        health = self._health
        if message.work != health.work:
            health.work = message.work
            self._work_since_s = self._clock.monotonic_s()
        health.progress = (message.done, message.total) if message.total else None
        if message.done:
            so_far_s = self._clock.monotonic_s() - self._work_since_s
            self._hint(so_far_s * (message.total - message.done) / message.done)

    def _hint(self, left_s: float) -> None:
        """Let callers know how long it will take, as far as that is news."""
        health = self._health
        hint_ms = min(max(RETRY_AFTER_MS, round(left_s * 1000)), RETRY_AFTER_MAX_MS)
        if health.retry_after_ms / 2 < hint_ms < health.retry_after_ms * 2:
            return
        health.retry_after_ms = hint_ms
        if self._wiring.registrar is not None:
            self._wiring.registrar.tell(ReadinessChanged(health.state, health.epoch, hint_ms))

    def _catch_up_failed(self, epoch: RecoveryEpoch, reason: str) -> None:
        if epoch != self._health.epoch or not self._is_recovering():
            return
        self._note(f"recovery failed: {reason}")
        self._health.work, self._health.progress = "waiting to try again", None
        pause_s = RETRY_PAUSES_S[min(self._failures, len(RETRY_PAUSES_S) - 1)]
        self._failures += 1
        self._hint(pause_s)
        self._timer.deliver_after(pause_s, self.address, RetryCatchUp(epoch))

    def _did_not_fit(self, message: CatchUpDidNotFit) -> None:
        """Nobody reads SQLite now and nothing is accepted: the time to remove what is too much."""
        if message.epoch != self._health.epoch or not self._is_recovering():
            return
        self._health.work, self._health.progress = "making room in Redis", None
        self._note("recovery: Redis has no memory left for all that is retained; making room")
        assert self._wiring.cleanup is not None
        self._wiring.cleanup.tell(message)

    def _actor_crashed(self, actor: str, error: BaseException) -> None:
        self._note(f"{actor} failed: {type(error).__name__}")
        if actor.startswith(("AttachmentActor", "InspectorActor")):
            return
        if actor.startswith(("ChannelActor", "InboxActor")):
            if self._health.state == "ready":
                self._enter("ready")  # attachments watch their channels and inboxes anew
            return
        assert self._wiring.outlets is not None
        self._wiring.outlets.give_up(f"{actor} failed: {type(error).__name__}")

    def _stop_asked(self, message: StopAsked) -> None:
        if self._health.state != "stopping":
            self._enter("stopping")
        assert self._wiring.outlets is not None
        self._wiring.outlets.stop(message)

    def _enter(self, state: Readiness) -> None:
        self._health.state = state
        _log.info("bus is %s, epoch %d", state, self._health.epoch)
        change = ReadinessChanged(state, self._health.epoch, self._health.retry_after_ms)
        for address in (self._wiring.registrar, self._wiring.cleanup, self._wiring.waits):
            if address is not None:
                address.tell(change)
        if self._wiring.outlets is not None:
            self._wiring.outlets.announce(change)

    def _is_recovering(self) -> bool:
        return self._health.state in ("starting", "recovering")

    def _note(self, what: str) -> None:
        _log.warning("%s", what)
        self._health.errors.append((self._clock.wall_us(), what))

    def _tell_health(self, reply_to: Reply) -> None:
        health = self._health
        progress = health.progress
        reply_to.set(
            {
                "state": health.state,
                "epoch": health.epoch,
                "work": health.work,
                "progress": None
                if progress is None
                else {"done": progress[0], "total": progress[1]},
                "redis": health.redis,
                "errors": [{"at": rfc3339(at_us), "what": what} for at_us, what in health.errors],
            }
        )
