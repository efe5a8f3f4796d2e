"""What has come of one job, from wherever: judged, in the order of its arrival, waited for.

Owns the queue between who receives events (a thread of its own, mostly) and who reads them. Knows
nothing of transports. `put` may be called from any thread; one thread reads.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import Final

from agentbus.errors import ConflictError, JobClosedError
from agentbus.jobs.events import Event, Terminal, check_job_id, fingerprint, is_terminal
from agentbus.rules.jobs import JobOrder, Missing, Verdict

UNREAD_MAX: Final = 10_000
"""Events that wait for a slow reader before who brings them, and so their tool, waits too."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """An event, and the sequences that were passed over just before it."""

    event: Event
    missing: Missing | None = None


class JobInbox:
    """The events of one job. Its id is what the parent chose; another one in an event is kept
    beside it, as `source_job_id`."""

    def __init__(self, job_id: str, from_seq: int = 0) -> None:
        """`from_seq`: what is below it is not waited for, so it is not missing."""
        self.job_id = check_job_id(job_id)
        self._order = JobOrder(from_seq)
        self._arrived: deque[Arrival] = deque()
        self._changed = threading.Condition()
        self._terminal: Terminal | None = None
        self._is_ending = False

    @property
    def terminal(self) -> Terminal | None:
        """The event that ended the job, once it has come."""
        return self._terminal

    @property
    def next_seq(self) -> int:
        """One more than the highest sequence that has come."""
        return self._order.next_seq

    def put(self, event: Event) -> bool:
        """Whether it is new; a repeat of what came before is not.

        Raises ConflictError for other content under a known sequence, JobClosedError for a new
        event after the terminal one.
        """
        if event.job_id != self.job_id:
            event = replace(event, job_id=self.job_id, source_job_id=event.job_id)
        mark = fingerprint(event)
        with self._changed:
            match self._order.judge(event.seq, mark):
                case Verdict.REPEATED:
                    return False
                case Verdict.CONFLICT:
                    raise ConflictError(
                        f"job {self.job_id} has another event with sequence {event.seq}"
                    )
                case Verdict.CLOSED:
                    raise JobClosedError(f"job {self.job_id} has had its terminal event")
                case Verdict.NEW:
                    pass
            ends = is_terminal(event)
            missing = self._order.take(event.seq, mark, is_terminal=ends)
            self._arrived.append(Arrival(event, missing))
            if ends:
                self._terminal = event  # type: ignore[assignment]  # what is_terminal says
            self._changed.notify_all()
            return True

    def wait_room(self) -> None:
        """Wait while too many are unread; for who can wait before it takes the next event."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._arrived) < UNREAD_MAX or self._is_ending)

    def lift_bound(self) -> None:
        """The tool has ended: what is still on its way may come, though nobody reads now."""
        with self._changed:
            self._is_ending = True
            self._changed.notify_all()

    def next(self, within_s: float) -> Arrival | None:
        """The next one; None when none comes in time."""
        deadline_s = time.monotonic() + within_s
        with self._changed:
            while not self._arrived:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    return None
                self._changed.wait(left_s)
            if len(self._arrived) == UNREAD_MAX:
                self._changed.notify_all()
            return self._arrived.popleft()

    def wait_terminal(self, within_s: float) -> Terminal | None:
        """The terminal event as soon as it is there, however much is unread before it."""
        with self._changed:
            self._changed.wait_for(lambda: self._terminal is not None, within_s)
            return self._terminal
