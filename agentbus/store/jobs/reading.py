"""What people, parents and the daemon's own helpers read about jobs.

Owns these queries. Events become what a follower is sent; nothing is kept, so a slow follower
holds nothing here. The rules of `Reader` hold: one thread, short transactions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from peewee import SQL, fn

from agentbus.encoding import decode_trusted
from agentbus.limits import JOB_EVENTS_BYTES
from agentbus.protocol.jobs import JobCallback, parse_callback
from agentbus.store.jobs.changes import CallbackId, JobView
from agentbus.store.jobs.outbox import OutboxRow
from agentbus.store.jobs.rows import JOBS, JobRow
from agentbus.store.reader import Reader
from agentbus.store.schema import (
    IS_OPEN_JOB,
    IS_PENDING,
    PLACE,
    Job,
    JobEvent,
    Message,
    OutboxEntry,
    text,
)

_CHUNK = 64
"""Events read at once, so that a page of large ones overshoots by little."""

_HEADS_MAX = 1000
"""Jobs whose next callback is looked at together: one receiver that hangs may have many of them,
and those of others are to be found behind."""

_JOB = text(JOBS.where(Job.id == PLACE))
_NEWEST = text(JOBS.order_by(Job.opened_at_us.desc(), Job.id).limit(PLACE))
_NEWEST_OPEN = text(JOBS.where(IS_OPEN_JOB).order_by(Job.opened_at_us.desc(), Job.id).limit(PLACE))
_OPEN = text(JOBS.where(IS_OPEN_JOB).order_by(Job.opened_at_us))
_EVENTS = text(
    JobEvent.select(JobEvent.seq, Message.envelope)
    .join(Message, on=(Message.sequence == JobEvent.sequence))
    .where((JobEvent.channel == PLACE) & (JobEvent.seq >= PLACE))
    .order_by(JobEvent.seq)
    .limit(PLACE)
)
# A page of bodies could be large: they are read one by one.
_ENTRY_COLUMNS = (
    *(getattr(OutboxEntry, name) for name in OutboxRow._fields if name != "body"),
    SQL("x''"),
)
_BODY = text(OutboxEntry.select(OutboxEntry.body).where(OutboxEntry.id == PLACE))
_FIRST_PENDING = (
    OutboxEntry.select(fn.MIN(OutboxEntry.id)).where(IS_PENDING).group_by(OutboxEntry.job)
)
_HEADS = text(
    OutboxEntry.select(*_ENTRY_COLUMNS, Job.callback)
    .join(Job, on=(Job.id == OutboxEntry.job))
    .where(OutboxEntry.id.in_(_FIRST_PENDING))
    .order_by(OutboxEntry.next_at_us, OutboxEntry.id)
    .limit(SQL(str(_HEADS_MAX)))
)
_DEAD = text(
    OutboxEntry.select(*_ENTRY_COLUMNS, Job.callback)
    .join(Job, on=(Job.id == OutboxEntry.job))
    .where(OutboxEntry.dead_at_us.is_null(False))
    .order_by(OutboxEntry.id)
    .limit(PLACE)
)
_COUNTS = text(
    OutboxEntry.select(OutboxEntry.state, fn.COUNT(SQL("*"))).group_by(OutboxEntry.state)
)


class Entry(NamedTuple):
    """An entry of the outbox and where it is posted to."""

    row: OutboxRow
    callback: JobCallback

    @property
    def callback_id(self) -> CallbackId:
        return self.row.id


@dataclass(frozen=True, slots=True)
class EventPage:
    """Events of a job, each as the text of its JSON, and sequences that were passed over between
    them or before them. `is_last`: the job has ended and nothing comes after these."""

    events: tuple[str, ...]
    missing: tuple[tuple[int, int], ...]
    next_seq: int
    is_last: bool


class JobReader(Reader):
    """See the module."""

    def job(self, job_id: str) -> JobRow | None:
        rows = self._all(_JOB, job_id)
        return JobRow(*rows[0]) if rows else None

    def jobs(self, limit: int, *, only_open: bool) -> list[JobRow]:
        """The newest first."""
        return [JobRow(*row) for row in self._all(_NEWEST_OPEN if only_open else _NEWEST, limit)]

    def open_jobs(self) -> list[JobView]:
        """All that have not ended, the oldest first."""
        return [JobRow(*row).view() for row in self._all(_OPEN)]

    def job_events(self, job_id: str, from_seq: int, count: int) -> EventPage:
        """Up to so many, and up to a megabyte. Nothing of a job that is not known."""
        with self._snapshot():
            job = self.job(job_id)
            if job is None or job.channel is None:
                return EventPage((), (), from_seq, is_last=False)
            events: list[str] = []
            missing: list[tuple[int, int]] = []
            next_seq, size_bytes = from_seq, 0
            while len(events) < count and size_bytes < JOB_EVENTS_BYTES:
                wanted = min(_CHUNK, count - len(events))
                found = self._all(_EVENTS, job.channel, next_seq, wanted)
                for seq, envelope in found:
                    if size_bytes >= JOB_EVENTS_BYTES:
                        break
                    if seq > next_seq:
                        missing.append((next_seq, seq - 1))
                    events.append(decode_trusted(envelope)["content"])
                    next_seq = seq + 1
                    size_bytes += len(envelope)
                if len(found) < wanted:
                    break
            return EventPage(
                tuple(events),
                tuple(missing),
                next_seq,
                is_last=not job.is_open and next_seq > job.last_seq,
            )

    def first_callbacks(self) -> Iterator[Entry]:
        """Of jobs the first event to be posted, as the others wait for it; the one that is due
        first comes first. Without their bodies."""
        return map(_entry, self._all(_HEADS))

    def with_body(self, entry: Entry) -> Entry:
        """The same entry with what is to be posted."""
        [(body,)] = self._all(_BODY, entry.callback_id)
        return entry._replace(row=entry.row._replace(body=body))

    def dead_letters(self, limit: int) -> list[Entry]:
        """The oldest first, without their bodies."""
        return [_entry(row) for row in self._all(_DEAD, limit)]

    def callback_counts(self) -> dict[str, int]:
        """How many entries of the outbox there are in each state."""
        return {"pending": 0, "dead": 0, **dict(self._all(_COUNTS))}


def _entry(columns: tuple[Any, ...]) -> Entry:
    return Entry(OutboxRow(*columns[:-1]), parse_callback(decode_trusted(columns[-1])))
