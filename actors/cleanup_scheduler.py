"""When to clean up, and which slice comes next.

Owns the schedule and the slice in progress, in plain memory, on the shared dispatcher. Never
deletes anything itself: a slice is a change like any other and takes its turn in the ledger's
mailbox, so that cleanup cannot starve a send.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from typing import assert_never

from actors.base import Address
from actors.messages import (
    CleanupDue,
    CleanupMessage,
    LedgerMessage,
    PruneSettled,
    ReadinessChanged,
    RegistrarMessage,
    Submit,
    SubscriptionsExpired,
)
from actors.pool import PooledActor
from actors.replies import TellReply
from actors.timer import Timer
from agentbus.limits import PRUNE_ROWS
from agentbus.store.changes import PruneSlice, PruneWhat

_log = logging.getLogger(__name__)

ROUND: tuple[PruneWhat, ...] = ("messages_by_age", "tombstones", "subscriptions", "receipts")


@dataclass(frozen=True, slots=True)
class CleanupStatistics:
    """Counters since start."""

    rounds: int
    removed_rows: int


class CleanupSchedulerActor(PooledActor[CleanupMessage]):
    """One round per interval: each kind, slice by slice, until nothing is left to remove.

    1. At most one slice is with the ledger at any time.
    2. A round that is still running when the next is due goes on; the next one is left out.
    3. A slice that was refused (the bus recovers) ends the round; the next interval tries again.
    """

    def __init__(
        self,
        ledger: Address[LedgerMessage],
        registrar: Address[RegistrarMessage],
        timer: Timer,
        interval_s: float,
    ) -> None:
        super().__init__()
        self._ledger = ledger
        self._registrar = registrar
        self._timer = timer
        self._interval_s = interval_s
        self._left: deque[PruneWhat] = deque()
        self._rounds = 0
        self._removed_rows = 0

    def on_start(self) -> None:
        self._timer.deliver_every(self._interval_s, self.address, CleanupDue())

    def cleanup_statistics(self) -> CleanupStatistics:
        """Whole numbers; any thread may ask."""
        return CleanupStatistics(self._rounds, self._removed_rows)

    def receive(self, message: CleanupMessage) -> None:
        match message:
            case CleanupDue():
                self._begin_round()
            case ReadinessChanged(state):
                if state == "ready":
                    self._begin_round()
            case PruneSettled():
                self._settled(message)
            case _:
                assert_never(message)

    def _begin_round(self) -> None:
        if not self._left:
            self._rounds += 1
            self._left.extend(ROUND)
            self._next_slice()

    def _next_slice(self) -> None:
        if self._left:
            reply = TellReply(
                self.address,
                lambda result: PruneSettled(result, None),
                lambda error: PruneSettled(None, error),
            )
            self._ledger.tell(Submit(PruneSlice(self._left[0], PRUNE_ROWS), reply))

    def _settled(self, message: PruneSettled) -> None:
        result = message.result
        if result is None:
            _log.info("cleanup was put off: %s", type(message.error).__name__)
            self._left.clear()
            return
        self._removed_rows += result.removed_rows
        if result.expired:
            self._registrar.tell(SubscriptionsExpired(result.expired))
        if not result.more:
            self._left.popleft()
        self._next_slice()
