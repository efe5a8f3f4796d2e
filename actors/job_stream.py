"""One job: when it is lost, and who follows it.

Owns the monotonic deadlines of an open job and its followers, in plain memory, on the shared
dispatcher. Never blocks and never decides that a job has ended: a commit does, and what comes too
late changes nothing there. Wall times of rows are read once, when a job is restored.
`JobDirectory` is the only one that starts and ends these actors.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import assert_never

from actors.base import Address, Crashed
from actors.job_messages import (
    JobAdvanced,
    JobDue,
    JobFollowed,
    JobRestored,
    JobStreamMessage,
    JobUnfollowed,
    LossSettled,
)
from actors.messages import LedgerMessage, Submit
from actors.pool import Dispatcher, PooledActor
from actors.replies import TellReply
from actors.timer import Timer, TimerHandle
from agentbus.clock import Clock
from agentbus.jobs.events import LOST, Failed, event_data, timestamp
from agentbus.store.jobs.changes import CloseLostJob, ForgetJob, JobChanged, JobGone, JobView

RETRY_S = 2.0
"""Before a loss that the ledger could not write, as while the bus recovers, is tried again."""

_US = 1_000_000


@dataclass(frozen=True, slots=True)
class JobNeighbours:
    """Whom a job tells, and how long it may be silent and live."""

    ledger: Address[LedgerMessage]
    timer: Timer
    clock: Clock
    idle_s: float
    total_s: float


class JobStreamActor(PooledActor[JobStreamMessage]):
    """1. A job's silence runs from when its last commit was told, its life from when its first was;
       a jump of the wall clock moves neither. After a restart both go on from the wall times of
       its row, held between nothing and all of it.
    2. A follower is woken for every commit, and at once for what it may have missed before it
       registered. It reads by itself: a slow one holds nothing here but its place in a set.
    3. Of a job that was cancelled before it began nothing is kept when its silence is over.
    """

    def __init__(self, job_id: str, neighbours: JobNeighbours, directory: JobDirectory) -> None:
        super().__init__()
        self._job_id = job_id
        self._neighbours = neighbours
        self._directory = directory
        self._followers: set[Address[JobAdvanced]] = set()
        self._job: JobView | None = None
        self._idle_at_s = self._total_at_s = 0.0
        self._due: TimerHandle | None = None
        self._losing = False  # what a deadline called for is at the ledger

    @property
    def job(self) -> JobView | None:
        """The job as this actor knows it; for whoever takes its place."""
        return self._job

    @property
    def followers(self) -> tuple[Address[JobAdvanced], ...]:
        """Any thread may ask."""
        return tuple(self._followers)

    def on_stop(self) -> None:
        self._cancel_due()

    def on_failure(self, *_: object) -> None:
        self._cancel_due()

    def receive(self, message: JobStreamMessage) -> None:
        match message:
            case JobChanged(job):
                self._changed(job)
            case JobRestored(job):
                self._restored(job)
            case JobGone():
                self._job = None
                self._cancel_due()
            case JobFollowed(watcher, from_seq):
                self._followers.add(watcher)
                if self._has_news(from_seq):
                    watcher.tell(JobAdvanced(self._job_id))
            case JobUnfollowed(watcher):
                self._followers.discard(watcher)
            case JobDue():
                self._due = None
                self._look_at_deadlines()
            case LossSettled():
                self._loss_settled(message)
            case _:
                assert_never(message)
        if self._job is None and not self._followers:
            self._directory.retire(self._job_id, self)

    def _changed(self, job: JobView) -> None:
        now_s, before = self._neighbours.clock.monotonic_s(), self._job
        if before is None or (before.last_seq, before.opened_us) != (job.last_seq, job.opened_us):
            self._idle_at_s = now_s + self._neighbours.idle_s
        if before is None or before.opened_us != job.opened_us:
            self._total_at_s = now_s + self._neighbours.total_s
        self._follow(job)
        for follower in tuple(self._followers):
            if follower.alive:
                follower.tell(JobAdvanced(self._job_id))
            else:
                self._followers.discard(follower)

    def _restored(self, job: JobView) -> None:
        if self._job is not None:
            return  # something was committed meanwhile, and told
        neighbours = self._neighbours
        now_s = neighbours.clock.monotonic_s()
        self._idle_at_s = now_s + self._left_s(job.last_event_us, neighbours.idle_s)
        self._total_at_s = now_s + self._left_s(job.opened_us, neighbours.total_s)
        self._follow(job)

    def _left_s(self, since_us: int, whole_s: float) -> float:
        passed_s = (self._neighbours.clock.wall_us() - since_us) / _US
        return min(max(0.0, whole_s - passed_s), whole_s)

    def _follow(self, job: JobView) -> None:
        if job.state == "closed":
            self._job = None
            self._cancel_due()
        else:
            self._job = job
            self._arm()

    def _has_news(self, from_seq: int) -> bool:
        """A closed job is not known here any more, so there may be."""
        job = self._job
        return job is None or job.last_seq >= from_seq or job.cancel_reason is not None

    # --- deadlines ---

    def _arm(self) -> None:
        """Later is cheap: the message then comes too early once, and is sent again for the rest."""
        if self._due is None and not self._losing:
            at_s = min(self._idle_at_s, self._total_at_s)
            self._due = self._neighbours.timer.deliver_at(at_s, self.address, JobDue())

    def _cancel_due(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _look_at_deadlines(self) -> None:
        job, now_s = self._job, self._neighbours.clock.monotonic_s()
        if job is None:
            return
        if now_s < min(self._idle_at_s, self._total_at_s):
            self._arm()
            return
        if job.last_seq < 0:
            self._submit(ForgetJob(job.job_id))
        elif now_s >= self._total_at_s:
            self._lose(job, f"no terminal event within {self._neighbours.total_s:g} s")
        else:
            self._lose(job, f"no event for {self._neighbours.idle_s:g} s")

    def _lose(self, job: JobView, why: str) -> None:
        event = Failed(
            job_id=job.job_id,
            seq=job.last_seq + 1,
            ts=timestamp(self._neighbours.clock.wall_us()),
            code=LOST,
            message=why,
            synthetic=True,
        )
        self._submit(CloseLostJob(job.job_id, event_data(event)))

    def _submit(self, change: CloseLostJob | ForgetJob) -> None:
        self._losing = True
        reply = TellReply[JobStreamMessage](
            self.address,
            lambda done: LossSettled(change, done),
            lambda error: LossSettled(change, False, error),
        )
        self._neighbours.ledger.tell(Submit(change, reply))

    def _loss_settled(self, settled: LossSettled) -> None:
        """All that made it void has been told before."""
        self._losing = False
        if self._job is None:
            return
        if settled.error is None:
            self._arm()
        else:
            self._due = self._neighbours.timer.deliver_after(RETRY_S, self.address, JobDue())


class JobDirectory:
    """Job id -> its actor, started at the first look and ended with the job. Thread-safe.

    Everything is told under one lock, so that an actor whose mailbox is empty when it retires
    misses nothing: what comes next finds a new one. An actor that crashed is replaced at once, as
    its deadlines went with it.
    """

    def __init__(
        self, dispatcher: Dispatcher, neighbours: Callable[[], JobNeighbours], crashed: Crashed
    ) -> None:
        self._dispatcher = dispatcher
        self._neighbours = neighbours
        self._notify_crash = crashed
        self._lock = threading.RLock()
        self._jobs: dict[str, tuple[Address[JobStreamMessage], JobStreamActor]] = {}

    def tell(self, job_id: str, *messages: JobStreamMessage) -> None:
        """In this order, to the actor of that job."""
        with self._lock:
            known = self._jobs.get(job_id)
            if known is None or not known[0].alive:
                known = self._jobs[job_id] = self._start(job_id)
            for message in messages:
                known[0].tell(message)

    def restore(self, jobs: Iterable[JobView]) -> None:
        """Those that are open when the daemon starts."""
        for job in jobs:
            self.tell(job.job_id, JobRestored(job))

    def retire(self, job_id: str, actor: JobStreamActor) -> None:
        """An actor has nothing more to do; it ends if nothing has been told to it meanwhile."""
        with self._lock:
            known = self._jobs.get(job_id)
            if known is not None and known[1] is actor and actor.mailbox_is_empty():
                del self._jobs[job_id]
                known[0].stop()

    def statistics(self) -> dict[str, int]:
        with self._lock:
            return {"actors": len(self._jobs)}

    def _start(self, job_id: str) -> tuple[Address[JobStreamMessage], JobStreamActor]:
        actor = JobStreamActor(job_id, self._neighbours(), self)

        def crashed(name: str, error: BaseException) -> None:
            again: list[JobStreamMessage] = [
                JobFollowed(follower, from_seq=0) for follower in actor.followers
            ]
            if actor.job is not None:
                again.append(JobRestored(actor.job))
            if again:
                self.tell(job_id, *again)
            self._notify_crash(name, error)

        return self._dispatcher.start(actor, label=job_id, crashed=crashed), actor
