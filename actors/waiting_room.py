"""Mutations that wait for room, and what the ledger knows of the budgets.

Owns the queue: in the order of the mailbox, so that of one sender no later mutation passes an
earlier one. It is bounded by what may be in flight. Decides nothing but whether to wait; never
touches the store. Runs on the ledger's thread.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from actors.base import Address
from actors.cleanup_messages import CapacityChanged, CapacityReached
from actors.messages import CleanupMessage, Submit
from agentbus.rules.capacity import Budget


@dataclass(frozen=True, slots=True)
class Held:
    """`inspected`: the command has allowed it, as far as there is one."""

    submit: Submit
    inspected: bool


class WaitingRoom:
    """Who waits, and for which budgets.

    1. While somebody waits, whoever is new waits behind.
    2. The scheduler hears of a full budget once until it has answered.
    3. Without a scheduler nobody makes room, so nobody waits.
    """

    def __init__(self) -> None:
        self._held: deque[Held] = deque()
        self._capacity = CapacityChanged()
        self._watcher: Address[CleanupMessage] | None = None
        self._told = False

    def __len__(self) -> int:
        return len(self._held)

    def watched_by(self, watcher: Address[CleanupMessage]) -> None:
        self._watcher = watcher

    def changed(self, capacity: CapacityChanged) -> None:
        self._capacity = capacity
        self._told = False

    @property
    def is_open(self) -> bool:
        """Whether a new mutation may go on without a further question."""
        return not self._held and not self._capacity.waiting and not self._is_exhausted("redis")

    @property
    def refusing(self) -> Budget | None:
        """The budget for which no new mutation at all is taken.

        Only that of Redis: what fits into SQLite is known for each mutation alone.
        """
        return "redis" if self._is_exhausted("redis") else None

    def hold(self, submit: Submit, *, inspected: bool) -> None:
        self._held.append(Held(submit, inspected))

    def put_back(self, submits: list[Submit], needed_bytes: int) -> bool:
        """They found no room in SQLite and wait for it at the front; False if none can be made."""
        if self._is_exhausted("sqlite") or self._watcher is None:
            return False
        self._held.extendleft(Held(submit, inspected=True) for submit in reversed(submits))
        if not self._told:
            self._told = True
            self._watcher.tell(CapacityReached("sqlite", needed_bytes))
        return True

    def next(self) -> Held | None:
        """Who may try now."""
        if not self._held or self._capacity.waiting:
            return None
        return self._held.popleft()

    def abandon(self) -> list[Submit]:
        """All who wait, for the ledger to answer."""
        submits = [held.submit for held in self._held]
        self._held.clear()
        return submits

    def _is_exhausted(self, budget: Budget) -> bool:
        return budget in self._capacity.exhausted
