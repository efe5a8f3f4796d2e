"""What people and parents ask about jobs: which there are, their events, cancels, dead letters.

Owns the requests that wait for a job, and a reader of its own, on its own thread. A follower asks
again for each page, so a slow one holds nothing here. Never changes anything: cancels and replays
are the ledger's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, assert_never

from actors.base import Address, BusActor, Reply
from actors.job_messages import (
    JobAdvanced,
    JobAsked,
    JobDeskMessage,
    JobFollowed,
    JobUnfollowed,
    JobWaitDue,
)
from actors.job_stream import JobDirectory
from actors.messages import LedgerMessage, Submit
from actors.timer import Timer, TimerHandle
from agentbus.encoding import raw
from agentbus.envelope import rfc3339
from agentbus.errors import OverloadedError, UnavailableError
from agentbus.jobs.events import check_job_id
from agentbus.limits import JOB_WAITS_MAX
from agentbus.protocol.jobs import (
    DeadLettersList,
    DeadLettersReplay,
    JobAwaitCancel,
    JobCancel,
    JobEvents,
    JobList,
)
from agentbus.store.jobs.changes import CancelJob, ReplayCallbacks
from agentbus.store.jobs.reading import Entry, JobReader
from agentbus.store.jobs.rows import JobRow

Waiting = JobEvents | JobAwaitCancel


@dataclass(frozen=True, slots=True)
class _Wait:
    request: Waiting
    reply_to: Reply
    due: TimerHandle


class JobDeskActor(BusActor[JobDeskMessage]):
    """1. A wait is answered once: as soon as there is something, else at its end.
    2. Before it waits, a request has looked; the job's actor wakes it for what came in between.
    """

    def __init__(
        self,
        open_store: Callable[[], JobReader],
        jobs: JobDirectory,
        ledger: Address[LedgerMessage],
        timer: Timer,
    ) -> None:
        super().__init__()
        self._open_store = open_store
        self._jobs = jobs
        self._ledger = ledger
        self._timer = timer
        self._store: JobReader
        self._waits: dict[int, _Wait] = {}
        self._of_job: dict[str, set[int]] = {}
        self._last_number = 0

    @property
    def waiting(self) -> int:
        """How many requests wait; any thread may ask."""
        return len(self._waits)

    def on_start(self) -> None:
        self._store = self._open_store()

    def on_stop(self) -> None:
        for wait in self._waits.values():
            wait.due.cancel()
            wait.reply_to.set_exception(UnavailableError("the bus is stopping; ask again"))
        self._store.close()

    def on_failure(self, *_: object) -> None:
        self.on_stop()

    def receive(self, message: JobDeskMessage) -> None:
        match message:
            case JobAsked():
                self._serve(message)
            case JobAdvanced(job_id):
                for number in tuple(self._of_job.get(job_id, ())):
                    answer = self._look(self._waits[number].request)
                    if answer is not None:
                        self._take(number).set(answer)
            case JobWaitDue(number):
                if number in self._waits:
                    request = self._waits[number].request
                    self._take(number).set(self._look(request, last_chance=True))
            case _:
                assert_never(message)

    def _serve(self, asked: JobAsked) -> None:
        request, reply_to = asked.request, asked.reply_to
        match request:
            case JobList(only_open, limit):
                rows = self._store.jobs(limit, only_open=only_open)
                counts = self._store.callback_counts()
                reply_to.set({"jobs": [_job_data(row) for row in rows], "callbacks": counts})
            case JobEvents() | JobAwaitCancel():
                answer = self._look(request, last_chance=not request.wait_ms)
                if answer is not None:
                    reply_to.set(answer)
                else:
                    self._wait(request, reply_to)
            case JobCancel(job_id, reason, ahead):
                change = CancelJob(check_job_id(job_id), reason, ahead)
                self._ledger.tell(Submit(change, reply_to))
            case DeadLettersList(limit):
                letters = self._store.dead_letters(limit)
                reply_to.set({"dead_letters": [_letter_data(entry) for entry in letters]})
            case DeadLettersReplay(callback_id):
                self._ledger.tell(Submit(ReplayCallbacks(callback_id), reply_to))
            case _:
                assert_never(request)

    def _look(self, request: Waiting, *, last_chance: bool = False) -> dict[str, Any] | None:
        """The answer, if there is something to tell; at the last chance in any case."""
        match request:
            case JobEvents(job_id, from_seq, count):
                page = self._store.job_events(job_id, from_seq, count)
                if not page.events and not page.is_last and not last_chance:
                    return None
                return {
                    "events": [raw(event.encode()) for event in page.events],
                    "missing": [list(pair) for pair in page.missing],
                    "next": page.next_seq,
                    "closed": page.is_last,
                }
            case JobAwaitCancel(job_id):
                job = self._store.job(job_id)
                reason = None if job is None else job.cancel_reason
                closed = job is not None and not job.is_open
                if reason is None and not closed and not last_chance:
                    return None
                return {"cancel": reason, "closed": closed}

    def _wait(self, request: Waiting, reply_to: Reply) -> None:
        if len(self._waits) >= JOB_WAITS_MAX:
            raise OverloadedError(
                f"{JOB_WAITS_MAX} requests wait for jobs already; ask again, or without wait_ms"
            )
        self._last_number += 1
        number = self._last_number
        due = self._timer.deliver_after(request.wait_ms / 1000, self.address, JobWaitDue(number))
        self._waits[number] = _Wait(request, reply_to, due)
        self._of_job.setdefault(request.job_id, set()).add(number)
        from_seq = request.from_ if isinstance(request, JobEvents) else 0
        self._jobs.tell(request.job_id, JobFollowed(self.address, from_seq))

    def _take(self, number: int) -> Reply:
        wait = self._waits.pop(number)
        wait.due.cancel()
        job_id = wait.request.job_id
        numbers = self._of_job[job_id]
        numbers.discard(number)
        if not numbers:
            del self._of_job[job_id]
            self._jobs.tell(job_id, JobUnfollowed(self.address))
        return wait.reply_to


def _job_data(row: JobRow) -> dict[str, Any]:
    return {
        "job_id": row.id,
        "state": row.state,
        "outcome": row.outcome,
        "code": row.code,
        "synthetic": bool(row.synthetic),
        "last_seq": row.last_seq,
        "opened_at": rfc3339(row.opened_at_us),
        "last_event_at": rfc3339(row.last_event_us),
        "closed_at": None if row.closed_at_us is None else rfc3339(row.closed_at_us),
        "cancel": row.cancel_reason,
    }


def _letter_data(entry: Entry) -> dict[str, Any]:
    row = entry.row
    return {
        "id": row.id,
        "job_id": row.job,
        "seq": row.seq,
        "terminal": bool(row.terminal),
        "url": entry.callback.url,
        "attempts": row.attempts,
        "error": row.last_error,
        "created_at": rfc3339(row.created_at_us),
        "dead_at": None if row.dead_at_us is None else rfc3339(row.dead_at_us),
    }
