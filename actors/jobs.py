"""The actors of jobs, made and started together; system.py wires them to the rest.

Owns which of them there are and where a committed fact of a job goes. Runs on the main thread, but
for `tell`, which the ledger's calls.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any, assert_never

from actors.base import Address, Crashed, start_actor
from actors.callback import CallbackActor
from actors.callback_keeper import WORKERS, CallbackKeeperActor
from actors.job_desk import JobDeskActor
from actors.job_stream import JobDirectory, JobNeighbours
from actors.messages import LedgerMessage
from actors.pool import Dispatcher
from actors.timer import Timer
from agentbus.clock import Clock
from agentbus.config import Config
from agentbus.store.jobs.changes import CallbacksWaiting, JobChanged, JobFact, JobGone
from agentbus.store.jobs.reading import JobReader


class JobActors:
    """Made before the ledger's actor, which tells them facts; started after it."""

    def __init__(
        self,
        open_store: Callable[[], JobReader],
        ledger: Callable[[], Address[LedgerMessage]],
        dispatcher: Dispatcher,
        timer: Timer,
        config: Config,
        clock: Clock,
        crashed: Crashed,
    ) -> None:
        self._open_store = open_store
        self._crashed = crashed
        self._clock = clock
        self._streams = JobDirectory(
            dispatcher,
            lambda: JobNeighbours(
                ledger=ledger(),
                timer=timer,
                clock=clock,
                idle_s=config.job_idle_seconds,
                total_s=config.job_total_seconds,
            ),
            crashed,
        )
        self._ledger = ledger
        self._timer = timer
        self._desk: JobDeskActor
        self._keeper: Address[Any]
        self._workers: list[Address[Any]] = []

    def start(self, begin: Callable[[Any], Address[Any]]) -> Address[Any]:
        """Start all with `begin`, which stops them in turn; the desk's address.

        The workers are nobody's to wait for.
        """
        for number in range(WORKERS):
            worker = CallbackActor(self._clock)
            self._workers.append(start_actor(worker, label=str(number), crashed=self._crashed))
        keeper = CallbackKeeperActor(
            self._open_store, list(self._workers), self._ledger(), self._timer, self._clock
        )
        self._keeper = begin(keeper)
        self._desk = JobDeskActor(self._open_store, self._streams, self._ledger(), self._timer)
        desk = begin(self._desk)
        with closing(self._open_store()) as store:
            self._streams.restore(store.open_jobs())
        return desk

    def stop_workers(self) -> None:
        """Without waiting: an attempt may take long, and is made again by the next daemon."""
        for worker in self._workers:
            worker.stop()

    def tell(self, fact: JobFact) -> None:
        """What was committed, on the ledger's thread."""
        match fact:
            case JobChanged(job):
                self._streams.tell(job.job_id, fact)
            case JobGone(job_id):
                self._streams.tell(job_id, fact)
            case CallbacksWaiting():
                self._keeper.tell(fact)
            case _:
                assert_never(fact)

    def addresses(self) -> list[Address[Any]]:
        """Those that are always there, beside what `begin` was given."""
        return list(self._workers)

    def statistics(self) -> dict[str, int]:
        return {**self._streams.statistics(), "waiting": self._desk.waiting}
