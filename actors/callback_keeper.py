"""Which event is posted to its job's callback when, and what becomes of each attempt.

Owns the order (of one job one event at a time, the oldest first), the pauses between attempts and
the end of them, and a reader of its own, on its own thread. Never posts anything: that are a few
`CallbackActor`s, which may block. What an attempt came to is the ledger's to write.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import assert_never

from actors.base import Address, BusActor
from actors.job_messages import (
    AttemptSettled,
    CallbackAttempted,
    CallbackDue,
    CallbackKeeperMessage,
    PostCallback,
    SettleAgain,
)
from actors.messages import LedgerMessage, Submit
from actors.replies import TellReply
from actors.timer import Timer, TimerHandle
from agentbus.clock import Clock
from agentbus.jobs.delivery import (
    BACKOFF_MAX_MS,
    RETRY_AFTER_MAX_MS,
    Delivered,
    NotNow,
    Outcome,
    Refused,
    backoff_ms,
)
from agentbus.store.jobs.changes import CallbacksWaiting, SettleCallback
from agentbus.store.jobs.reading import Entry, JobReader

WORKERS = 8
"""Attempts at once; each may take 10 s."""

PER_RECEIVER = 2
"""Of them to one receiver, so that one which hangs keeps nobody else waiting."""

TERMINAL_FACTOR = 10
"""The terminal event is tried so many times as often: with three attempts for the others thirty,
some minutes, in which a parent that was restarted is back."""

RETRY_S = 2.0
"""Before the ledger is asked again to write what it could not, as while the bus recovers."""

_WAIT_MAX_US = max(BACKOFF_MAX_MS, RETRY_AFTER_MAX_MS) * 1000
"""No pause is longer, so a time beyond it is of a wall clock that was set back since."""


class CallbackKeeperActor(BusActor[CallbackKeeperMessage]):
    """1. A job's next event is posted when the one before it was delivered or given up.
    2. An entry is not posted again before the ledger has written how its last attempt ended. Only
       a daemon that ends in between repeats one, and its idempotency key makes that harmless.
    3. A receiver has a share of the workers, however many jobs post to it.
    """

    def __init__(
        self,
        open_store: Callable[[], JobReader],
        workers: list[Address[PostCallback]],
        ledger: Address[LedgerMessage],
        timer: Timer,
        clock: Clock,
        draw: random.Random | None = None,
    ) -> None:
        super().__init__()
        self._open_store = open_store
        self._ledger = ledger
        self._timer = timer
        self._clock = clock
        self._draw = draw or random.SystemRandom()
        self._store: JobReader
        self._idle = workers
        self._posting: set[str] = set()  # jobs whose first entry is being posted or settled
        self._busy: Counter[str] = Counter()  # receivers, and how many attempts are under way
        self._due: TimerHandle | None = None

    def on_start(self) -> None:
        self._store = self._open_store()
        self._look()

    def on_stop(self) -> None:
        self._store.close()

    def on_failure(self, *_: object) -> None:
        self._store.close()

    def receive(self, message: CallbackKeeperMessage) -> None:
        match message:
            case CallbacksWaiting() | CallbackDue():
                pass
            case CallbackAttempted(entry, outcome, worker):
                self._idle.append(worker)
                self._busy -= Counter((_receiver(entry),))  # keeps those above nothing
                self._settle(entry.row.job, self._judged(entry, outcome))
            case SettleAgain(job_id, change):
                self._settle(job_id, change)
            case AttemptSettled(job_id, change, error):
                if error is None:
                    self._posting.discard(job_id)
                else:
                    again = SettleAgain(job_id, change)
                    self._timer.deliver_after(RETRY_S, self.address, again)
            case _:
                assert_never(message)
        if self.mailbox_is_empty():
            self._look()

    def _look(self) -> None:
        """Post what is due, as far as somebody is free for it, and wake for what comes next."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        if not self._idle:
            return  # the next one who is free looks again
        now_us, next_us = self._clock.wall_us(), _WAIT_MAX_US
        waits = False
        for entry in self._store.first_callbacks():
            if not self._idle:
                break
            if entry.row.job in self._posting:
                continue
            left_us, receiver = entry.row.next_at_us - now_us, _receiver(entry)
            if 0 < left_us <= _WAIT_MAX_US:
                next_us, waits = min(next_us, left_us), True
            elif self._busy[receiver] < PER_RECEIVER:
                self._posting.add(entry.row.job)
                self._busy[receiver] += 1
                posted = PostCallback(self._store.with_body(entry), self.address)
                self._idle.pop().tell(posted)
        if waits:
            self._due = self._timer.deliver_after(next_us / 1e6, self.address, CallbackDue())

    def _judged(self, entry: Entry, outcome: Outcome) -> SettleCallback:
        attempts = entry.row.attempts + 1
        allowed = entry.callback.max_retries * (TERMINAL_FACTOR if entry.row.terminal else 1)
        match outcome:
            case Delivered():
                return SettleCallback(entry.row.id)
            case Refused(why):
                return SettleCallback(entry.row.id, why)
            case NotNow(why, retry_after_ms):
                if attempts >= allowed:
                    return SettleCallback(entry.row.id, why)
                pause_ms = backoff_ms(attempts, retry_after_ms, self._draw)
                next_at_us = self._clock.wall_us() + pause_ms * 1000
                return SettleCallback(entry.row.id, why, next_at_us)

    def _settle(self, job_id: str, change: SettleCallback) -> None:
        reply = TellReply[CallbackKeeperMessage](
            self.address,
            lambda _: AttemptSettled(job_id, change),
            lambda error: AttemptSettled(job_id, change, error),
        )
        self._ledger.tell(Submit(change, reply))


def _receiver(entry: Entry) -> str:
    """Scheme, host and port of the URL, as they are written there."""
    return "/".join(entry.callback.url.lower().split("/")[:3])
