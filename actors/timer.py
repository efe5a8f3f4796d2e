"""Delivers messages at their deadline; Pykka has no timers.

Owns a heap of deadlines and one plain thread. That thread calls nothing but `Address.tell`, so no
code of an actor can delay another's deadline. `deliver_*`, `cancel` and `stop` run on any thread.
Times are monotonic seconds of the clock that was given.
"""

from __future__ import annotations

import heapq
import logging
import math
import threading
from dataclasses import dataclass
from typing import Any, TypeVar

from actors.base import Address, Crashed, describe_failure
from agentbus.clock import Clock

logger = logging.getLogger(__name__)

M = TypeVar("M")

RESOLUTION_S = 0.001
"""The shortest sleep: keeps rounding of a deadline from turning into a busy loop."""

SWEEP_AT_CANCELLED = 64
"""Cancelled deadlines stay in the heap until they are this many and the greater part of it."""


@dataclass(frozen=True, slots=True)
class TimerStatistics:
    """The timer at one moment."""

    pending: int  # deadlines to come
    delivered: int  # messages told since the start


class TimerHandle:
    """One delivery, or one series of them, that can be called off."""

    __slots__ = ("_timer", "address", "every_s", "message", "pending")

    def __init__(
        self, timer: Timer, address: Address[Any], message: object, every_s: float | None
    ) -> None:
        self._timer = timer
        self.address = address
        self.message = message
        self.every_s = every_s
        self.pending = True  # written under the timer's lock

    def cancel(self) -> bool:
        """True if the message was still to come and now never will; a second call does nothing."""
        return self._timer._cancel(self)


class Timer:
    """The only thing in the daemon that waits for a time. `crashed` is told if its thread ends."""

    def __init__(self, clock: Clock, *, crashed: Crashed | None = None) -> None:
        self._clock = clock
        self._crashed = crashed
        self._changed = threading.Condition()
        # (due_s, order of the call, handle): equal deadlines are delivered in the order they came.
        self._heap: list[tuple[float, int, TimerHandle]] = []
        self._calls = 0
        self._cancelled = 0  # handles in the heap that will not be delivered
        self._delivered = 0
        self._stopped = False
        self._thread = threading.Thread(target=self._guarded_run, name="timer")
        clock.on_jump(self._wake)
        self._thread.start()

    def deliver_at(self, at_monotonic_s: float, address: Address[M], message: M) -> TimerHandle:
        """Tell once, as soon as the clock shows the deadline or later."""
        return self._add(at_monotonic_s, TimerHandle(self, address, message, None))

    def deliver_after(self, after_s: float, address: Address[M], message: M) -> TimerHandle:
        """Tell once, when `after_s` have passed from now."""
        return self.deliver_at(self._clock.monotonic_s() + after_s, address, message)

    def deliver_every(self, every_s: float, address: Address[M], message: M) -> TimerHandle:
        """Tell again and again, first after `every_s`. Beats that were missed are not made up."""
        if not every_s > 0:
            raise ValueError(f"a period must be longer than 0 s, not {every_s}")
        due_s = self._clock.monotonic_s() + every_s
        return self._add(due_s, TimerHandle(self, address, message, every_s))

    def stop(self) -> None:
        """End the thread and wait for it; what was not yet due is never delivered."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join()

    def statistics(self) -> TimerStatistics:
        with self._changed:
            return TimerStatistics(
                pending=len(self._heap) - self._cancelled, delivered=self._delivered
            )

    def _add(self, due_s: float, handle: TimerHandle) -> TimerHandle:
        with self._changed:
            self._push(due_s, handle)
            if self._heap[0][2] is handle:
                self._changed.notify()
        return handle

    def _push(self, due_s: float, handle: TimerHandle) -> None:
        self._calls += 1
        heapq.heappush(self._heap, (due_s, self._calls, handle))

    def _cancel(self, handle: TimerHandle) -> bool:
        with self._changed:
            if not handle.pending:
                return False
            handle.pending = False
            handle.message = None
            self._cancelled += 1
            if self._cancelled >= SWEEP_AT_CANCELLED and 2 * self._cancelled > len(self._heap):
                self._heap = [entry for entry in self._heap if entry[2].pending]
                heapq.heapify(self._heap)
                self._cancelled = 0
            return True

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify()

    def _guarded_run(self) -> None:
        try:
            self._run()
        except BaseException as error:
            logger.error("the timer failed: %s", describe_failure(error))
            if self._crashed is not None:
                self._crashed("timer", error)

    def _run(self) -> None:
        while True:
            with self._changed:
                due = self._take_due()
                while not due and not self._stopped:
                    self._changed.wait(self._sleep_s())
                    due = self._take_due()
                if self._stopped:
                    return
            for address, message in due:
                address.tell(message)

    def _take_due(self) -> list[tuple[Address[Any], object]]:
        """Everything whose time has come, in order of its deadline. Needs the lock."""
        now_s = self._clock.monotonic_s()
        due: list[tuple[Address[Any], object]] = []
        while self._heap and self._heap[0][0] <= now_s:
            due_s, _, handle = heapq.heappop(self._heap)
            if not handle.pending:
                self._cancelled -= 1
                continue
            due.append((handle.address, handle.message))
            if handle.every_s is None:
                handle.pending = False
            else:
                missed = math.floor((now_s - due_s) / handle.every_s)
                self._push(due_s + (missed + 1) * handle.every_s, handle)
        self._delivered += len(due)
        return due

    def _sleep_s(self) -> float | None:
        """How long until the next deadline; None if there is none. Needs the lock."""
        if not self._heap:
            return None
        wait_s = self._heap[0][0] - self._clock.monotonic_s()
        return min(max(wait_s, RESOLUTION_S), threading.TIMEOUT_MAX)
