"""When to clean up, which slice comes next, and what is said when nothing more can be removed.

Owns the schedule, the slice in progress and which budgets are exhausted, in plain memory, on the
shared dispatcher. Never deletes anything itself: a slice is a change like any other and takes its
turn in the ledger's mailbox, so that cleanup cannot starve a send.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, assert_never

from actors.base import Address
from actors.cleanup_messages import (
    CapacityChanged,
    CapacityReached,
    CatchUpDidNotFit,
    CleanupDue,
    EvictionEnded,
    LiftBackstop,
    MeasureRedis,
    PruneSettled,
    PruneWhileFenced,
    RedisMeasured,
    RestEnded,
    WarnAgain,
    WatchCapacity,
)
from actors.messages import (
    CleanupMessage,
    LedgerMessage,
    ProjectorMessage,
    ReadinessChanged,
    RegistrarMessage,
    Submit,
    SubscriptionsExpired,
)
from actors.pool import PooledActor
from actors.replies import TellReply
from actors.supervisor_messages import (
    CatchUpFailed,
    SupervisorMessage,
)
from actors.timer import Timer, TimerHandle
from agentbus.config import Config
from agentbus.limits import KIB, PRUNE_ROWS
from agentbus.rules.capacity import (
    Budget,
    all_clear,
    goal_bytes,
    largest_mutation_bytes,
    rebuild_surplus_bytes,
    warning,
)
from agentbus.store.changes import PruneSlice, PruneWhat

_log = logging.getLogger(__name__)

ROUND: tuple[PruneWhat, ...] = (
    "messages_by_age",
    "tombstones",
    "subscriptions",
    "receipts",
    "deliveries",
)

WARN_EVERY_S = 86_400.0

REST_S = 1.0
"""After a refused slice. On a disk that takes nothing more, what waits finds no room again at once,
and a round for it would be refused at once."""

REDIS_SHARE = 4
"""Redis takes 0.8 (without search) to 3.6 (with it) bytes for one in SQLite (measured).
So at most a quarter of what is too much in Redis is removed before it is measured again, and no
more than three quarters of the share that it is of everything: what need not go stays."""

STEP_BYTES = 64 * KIB
"""No less is removed between two measurements: a quarter of a quarter never ends."""


@dataclass(frozen=True, slots=True)
class CleanupOutlets:
    """What the scheduler acts through. `used_bytes` is what SQLite holds, from any thread;
    `announce` sends a notice to every live session."""

    ledger: Address[LedgerMessage]
    projector: Address[ProjectorMessage]
    registrar: Address[RegistrarMessage]
    supervisor: Address[SupervisorMessage]
    used_bytes: Callable[[], int]
    announce: Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class CleanupStatistics:
    """Counters since start, and the budgets that are exhausted now."""

    rounds: int
    removed_rows: int
    removed_for_room: int
    exhausted: tuple[Budget, ...]


class CleanupSchedulerActor(PooledActor[CleanupMessage]):
    """One round per interval, and one at once when a budget is full.

    1. At most one slice is with the ledger, or one question with the projector, at any time.
    2. A round is every kind of age cleanup, slice by slice, until nothing is left to remove; then,
       for each budget that is still full, the oldest messages of all until its goal is reached.
    3. A round that is still running when the next is due goes on; the next one is left out.
    4. A slice that was refused (the bus recovers, the disk fails) ends the round; the next interval
       tries again, or what waits for room, after `REST_S`.
    5. A budget is exhausted from the end of a round that could not make room for what waited until
       one that finds room for any mutation. The sessions hear of both, and once a day in between.
    6. When a rebuild of Redis does not fit, slices are removed under its fence.
    """

    def __init__(self, outlets: CleanupOutlets, timer: Timer, config: Config) -> None:
        super().__init__()
        self._outlets = outlets
        self._timer = timer
        self._config = config
        self._limits: dict[Budget, int] = {
            "sqlite": config.sqlite_budget_bytes,
            "redis": config.redis_budget_bytes,
        }
        self._busy = False
        self._resting = False  # after a slice that was refused
        self._left: deque[PruneWhat] = deque()
        self._reached: dict[Budget, int] = {}  # full or exhausted: how much must be free there
        self._evicting: set[Budget] = set()
        self._none_left = False  # of ordinary messages
        self._dataset_bytes: int | None = None  # None: to be measured
        self._measure_at_bytes: int | None = None  # of what SQLite holds: again when it is so low
        self._measured_patiently = False
        self._holding = False  # the ledger was told to let mutations wait for Redis
        self._refill: _Refill | None = None
        self._exhausted: dict[Budget, TimerHandle] = {}
        self._rounds = self._removed_rows = self._removed_for_room = 0

    def on_start(self) -> None:
        self._outlets.ledger.tell(WatchCapacity(self.address))
        self._outlets.projector.tell(WatchCapacity(self.address))
        every_s = float(self._config.cleanup_interval_seconds)
        self._timer.deliver_every(every_s, self.address, CleanupDue())

    def cleanup_statistics(self) -> CleanupStatistics:
        """Whole numbers; any thread may ask."""
        return CleanupStatistics(
            self._rounds,
            self._removed_rows,
            self._removed_for_room,
            tuple(sorted(self._exhausted)),
        )

    def receive(self, message: CleanupMessage) -> None:
        match message:
            case CleanupDue():
                self._begin_round()
            case ReadinessChanged(state):
                if state == "ready":
                    self._begin_round()
            case PruneSettled():
                self._settled(message)
            case CapacityReached(budget, needed_bytes):
                self._capacity_reached(budget, needed_bytes)
            case RedisMeasured(dataset_bytes):
                self._measured(dataset_bytes)
            case CatchUpDidNotFit():
                self._put_off()
                self._refill = _Refill(message)
                self._go_on()
            case RestEnded():
                self._resting = False
                if self._reached:
                    self._begin_round()
            case WarnAgain(budget):
                self._warn(budget)
            case _:
                assert_never(message)

    # --- a round ---

    def _begin_round(self) -> None:
        if self._busy or self._left or self._refill is not None:
            return
        self._rounds += 1
        self._left.extend(ROUND)
        for budget in self._exhausted:
            self._reached[budget] = largest_mutation_bytes(self._config.max_message_kib)
        self._go_on()

    def _capacity_reached(self, budget: Budget, needed_bytes: int) -> None:
        if budget in self._exhausted:
            self._tell_ledger()  # it was asked before it knew; the next round tries again
            return
        self._reached[budget] = max(needed_bytes, self._reached.get(budget, 0))
        if budget == "redis" and not self._holding:
            self._holding = True
            self._tell_ledger()
        if not self._resting:
            self._begin_round()

    def _go_on(self) -> None:
        """Whatever comes next, if nothing is in progress."""
        if self._busy:
            return
        if self._refill is not None:
            self._make_room_to_refill(self._refill)
        elif self._left:
            self._prune(PruneSlice(self._left[0], PRUNE_ROWS))
        elif "redis" in self._reached and self._is_unmeasured():
            self._measure()
        elif self._reached:
            self._evict()

    def _prune(self, change: PruneSlice) -> None:
        self._busy = True
        self._outlets.ledger.tell(Submit(change, self._settles(change)))

    def _settles(self, change: PruneSlice) -> TellReply[CleanupMessage]:
        return TellReply(
            self.address,
            lambda result: PruneSettled(change.what, result, None),
            lambda error: PruneSettled(change.what, None, error),
        )

    def _settled(self, message: PruneSettled) -> None:
        self._busy = False
        result = message.result
        if result is None:
            _log.info("cleanup was put off: %s", type(message.error).__name__)
            if self._refill is not None:
                self._give_up_refill(self._refill)
            self._put_off()
            self._rest()
            return
        self._removed_rows += result.removed_rows
        if result.expired:
            self._outlets.registrar.tell(SubscriptionsExpired(result.expired))
        if message.what == "messages_by_capacity":
            self._removed_for_room += result.removed_rows
            self._none_left = not result.removed_rows
            if self._refill is not None:
                self._refill.removed_rows += result.removed_rows
        elif self._left and not result.more:
            self._left.popleft()
        self._go_on()

    def _put_off(self) -> None:
        """What is left of the round is for the next one."""
        self._left.clear()
        self._end_eviction()
        self._tell_ledger()

    def _rest(self) -> None:
        if not self._resting:
            self._resting = True
            self._timer.deliver_after(REST_S, self.address, RestEnded())

    # --- capacity ---

    def _is_unmeasured(self) -> bool:
        step_bytes = self._measure_at_bytes
        return self._dataset_bytes is None or (
            step_bytes is not None and self._outlets.used_bytes() <= step_bytes
        )

    def _measure(self, *, patient: bool = False) -> None:
        self._busy = True
        self._measured_patiently = patient
        self._outlets.ledger.tell(MeasureRedis(patient))

    def _measured(self, dataset_bytes: int | None) -> None:
        self._busy = False
        self._dataset_bytes, self._measure_at_bytes = dataset_bytes, None
        if dataset_bytes is None:
            self._put_off()
        elif self._holding and dataset_bytes < self._limits["redis"]:
            self._holding = False
            self._tell_ledger()
        self._go_on()

    def _evict(self) -> None:
        """The next slice for what is full, or the end of the round."""
        full = {
            budget for budget, needed in self._reached.items() if not self._fits(budget, needed)
        }
        self._evicting |= full
        surplus = max(map(self._surplus_bytes, self._evicting), default=0)
        if surplus > 0 and not self._none_left:
            self._prune(PruneSlice("messages_by_capacity", PRUNE_ROWS, surplus))
        elif "redis" in full and not self._measured_patiently:
            self._measure(patient=True)
        else:
            self._end_round(full)

    def _fits(self, budget: Budget, needed_bytes: int) -> bool:
        return self._used_bytes(budget) + needed_bytes <= self._limits[budget]

    def _surplus_bytes(self, budget: Budget) -> int:
        """Logical bytes that the next slice removes for this budget."""
        goal = goal_bytes(
            self._limits[budget], self._config.cleanup_free_percent, self._reached[budget]
        )
        surplus = self._used_bytes(budget) - goal
        if budget == "sqlite" or surplus <= 0:
            return surplus
        used_bytes = self._outlets.used_bytes()
        if self._measure_at_bytes is None:
            share_bytes = used_bytes * surplus // self._used_bytes(budget)
            step_bytes = min(surplus // REDIS_SHARE, share_bytes * 3 // 4)
            self._measure_at_bytes = used_bytes - max(step_bytes, min(surplus, STEP_BYTES))
        return used_bytes - self._measure_at_bytes

    def _used_bytes(self, budget: Budget) -> int:
        if budget == "sqlite":
            return self._outlets.used_bytes()
        assert self._dataset_bytes is not None, "measured before it is compared"
        return self._dataset_bytes

    def _end_round(self, full: set[Budget]) -> None:
        for budget in sorted(full - self._exhausted.keys()):
            self._exhaust(budget)
        for budget in sorted(self._exhausted.keys() & self._reached.keys() - full):
            self._exhausted.pop(budget).cancel()
            _log.warning("%s_budget_mib has room again", budget)
            self._outlets.announce(all_clear(budget))
        self._end_eviction()
        self._tell_ledger()

    def _end_eviction(self) -> None:
        self._reached.clear()
        self._evicting.clear()
        self._none_left = self._measured_patiently = self._holding = False
        self._dataset_bytes = self._measure_at_bytes = None

    def _exhaust(self, budget: Budget) -> None:
        _log.warning("%s_budget_mib is exhausted: nothing is left that may be removed", budget)
        self._exhausted[budget] = self._timer.deliver_every(
            WARN_EVERY_S, self.address, WarnAgain(budget)
        )
        self._warn(budget)

    def _warn(self, budget: Budget) -> None:
        if budget in self._exhausted:
            config = self._config
            limit_mib = config.sqlite_budget_mib if budget == "sqlite" else config.redis_budget_mib
            self._outlets.announce(warning(budget, limit_mib, config.path))

    def _tell_ledger(self) -> None:
        waiting: frozenset[Budget] = frozenset({"redis"} if self._holding else ())
        self._outlets.ledger.tell(CapacityChanged(waiting, frozenset(self._exhausted)))

    # --- a rebuild that does not fit ---

    def _make_room_to_refill(self, refill: _Refill) -> None:
        order = refill.order
        used_bytes = self._outlets.used_bytes()
        if refill.goal_bytes is None:
            self._none_left = False
            goal = goal_bytes(self._limits["redis"], self._config.cleanup_free_percent, 1)
            refill.goal_bytes = used_bytes - rebuild_surplus_bytes(
                order.retained_bytes, order.dataset_bytes, order.filled, goal
            )
        surplus = used_bytes - refill.goal_bytes
        if surplus > 0 and not self._none_left:
            self._busy = True
            change = PruneSlice("messages_by_capacity", PRUNE_ROWS, surplus)
            self._outlets.ledger.tell(PruneWhileFenced(order.epoch, change, self._settles(change)))
            return
        self._refill = None
        self._end_eviction()
        if not refill.removed_rows:
            self._outlets.projector.tell(LiftBackstop())
            if "redis" not in self._exhausted:
                self._exhaust("redis")
        self._tell_ledger()
        self._outlets.supervisor.tell(EvictionEnded(order.epoch))

    def _give_up_refill(self, refill: _Refill) -> None:
        """The slice was refused: the disk fails, or another epoch has begun, which asks anew."""
        self._refill = None
        self._outlets.supervisor.tell(
            CatchUpFailed(refill.order.epoch, "no room could be made for a full Redis")
        )


@dataclass(slots=True)
class _Refill:
    """Room that is being made so that Redis can be filled. `goal_bytes`: of what SQLite holds."""

    order: CatchUpDidNotFit
    goal_bytes: int | None = None
    removed_rows: int = 0
