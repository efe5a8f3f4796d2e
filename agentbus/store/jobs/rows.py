"""The row of a job: read, inserted, changed, with its accounting.

Owns the statements. Never decides what a job may do. Runs on the ledger's thread.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from agentbus.ids import ChannelId, Sequence, SessionId
from agentbus.store.accounting import row_bytes
from agentbus.store.jobs.changes import JobChanged, JobOutcome, JobState, JobView
from agentbus.store.schema import PLACE, Job, JobEvent, insert_text, text
from agentbus.store.work import Work

NOTHING_YET = -1


class JobRow(NamedTuple):
    """Columns in the order of the table."""

    id: str
    channel: ChannelId | None
    state: JobState
    last_seq: int
    last_event_us: int
    opened_at_us: int
    closed_at_us: int | None
    outcome: JobOutcome | None
    code: str | None
    synthetic: bool
    cancel_requested_us: int | None
    cancel_reason: str | None
    session: SessionId | None
    callback: str | None

    @property
    def is_open(self) -> bool:
        return self.state == "open"

    def view(self) -> JobView:
        return JobView(
            self.id,
            self.state,
            self.last_seq,
            self.last_event_us,
            self.opened_at_us,
            self.cancel_reason,
        )


JOBS = Job.select(*(getattr(Job, name) for name in JobRow._fields))
_SELECT = text(JOBS.where(Job.id == PLACE))
_INSERT = insert_text(Job)
_UPDATE = text(
    Job.update({getattr(Job, name): PLACE for name in JobRow._fields[1:]}).where(Job.id == PLACE)
)
_DELETE = text(Job.delete().where(Job.id == PLACE))
_SELECT_EVENT = text(
    JobEvent.select(JobEvent.sequence, JobEvent.fingerprint).where(
        (JobEvent.channel == PLACE) & (JobEvent.seq == PLACE)
    )
)


def load(work: Work, job_id: str) -> JobRow | None:
    row = work.execute(_SELECT, (job_id,)).fetchone()
    return JobRow(*row) if row is not None else None


def new_row(work: Work, job_id: str) -> JobRow:
    """Of a job that nothing has happened in; not written."""
    return JobRow(
        id=job_id,
        channel=None,
        state="open",
        last_seq=NOTHING_YET,
        last_event_us=work.now_us,
        opened_at_us=work.now_us,
        closed_at_us=None,
        outcome=None,
        code=None,
        synthetic=False,
        cancel_requested_us=None,
        cancel_reason=None,
        session=None,
        callback=None,
    )


def insert(work: Work, row: JobRow) -> JobChanged:
    work.insert(_INSERT, row)
    return JobChanged(row.view())


def change(work: Work, row: JobRow, **columns: Any) -> JobRow:
    """Write these columns; the row as it is then."""
    changed = row._replace(**columns)
    work.execute(_UPDATE, (*changed[1:], row.id))
    work.counters.logical_bytes += row_bytes(changed) - row_bytes(row)
    return changed


def delete(work: Work, row: JobRow) -> None:
    work.execute(_DELETE, (row.id,))
    work.counters.logical_bytes -= row_bytes(row)


def event_of(work: Work, row: JobRow, seq: int) -> tuple[Sequence, bytes] | None:
    """The message and the fingerprint of an event that is kept."""
    found = work.execute(_SELECT_EVENT, (row.channel, seq)).fetchone()
    return None if found is None else (Sequence(found[0]), bytes(found[1]))
