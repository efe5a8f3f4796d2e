"""What becomes of jobs whose events fall to retention.

Owns that the row of an event goes with its message, and that a closed job with nothing left goes
whole: its channel, and what is kept of it. Never decides which messages go. Runs on the ledger's
thread.
"""

from __future__ import annotations

from peewee import SQL, fn

from agentbus.ids import ChannelId
from agentbus.store.accounting import row_bytes, row_bytes_sql
from agentbus.store.jobs import outbox, rows
from agentbus.store.jobs.changes import ChannelRemoved, JobGone
from agentbus.store.jobs.outbox import ENTRIES, OutboxRow
from agentbus.store.jobs.rows import JOBS, JobRow
from agentbus.store.schema import (
    PLACE,
    Channel,
    Job,
    JobEvent,
    OutboxEntry,
    RemovedMessages,
    Subscription,
    Table,
    text,
)
from agentbus.store.work import Work

_SELECT_FIRST_EVENTS = text(
    JobEvent.select(JobEvent.channel, JobEvent.seq, JobEvent.sequence, JobEvent.fingerprint)
    .where(JobEvent.channel == PLACE)
    .order_by(JobEvent.seq)
    .limit(PLACE)
)
_DELETE_EVENTS = text(
    JobEvent.delete().where((JobEvent.channel == PLACE) & (JobEvent.seq <= PLACE))
)
_SELECT_OLD_DEAD = text(
    ENTRIES.where(OutboxEntry.dead_at_us <= PLACE).order_by(OutboxEntry.dead_at_us).limit(PLACE)
)
_IS_FOLLOWED = fn.EXISTS(
    Subscription.select(SQL("1")).where(
        (Subscription.channel == Job.channel) & Subscription.expired_at_us.is_null()
    )
)
_HAS_CALLBACKS = fn.EXISTS(OutboxEntry.select(SQL("1")).where(OutboxEntry.job == Job.id))
_Other = Channel.alias("other")
_SELECT_EMPTY = text(  # the newest channel stays, or SQLite would give its id to the next one
    JOBS.join(Channel, on=(Channel.id == Job.channel))
    .where(
        (Job.closed_at_us <= PLACE)
        & (Channel.retained == SQL("0"))
        & (Channel.id < _Other.select(fn.MAX(_Other.id)))
        & ~_IS_FOLLOWED
        & ~_HAS_CALLBACKS
    )
    .order_by(Job.closed_at_us)
    .limit(PLACE)
)


class _OfChannel:
    """Remove the rows of a table that belong to a channel, and account for it."""

    def __init__(self, table: Table, column: object) -> None:
        size = fn.COALESCE(fn.SUM(row_bytes_sql(table)), SQL("0"))
        self._size = text(table.select(size).where(column == PLACE))
        self._delete = text(table.delete().where(column == PLACE))

    def execute(self, work: Work, channel_id: ChannelId) -> None:
        freed_bytes = int(work.execute(self._size, (channel_id,)).fetchone()[0])
        work.execute(self._delete, (channel_id,))
        work.counters.logical_bytes -= freed_bytes


_WITH_CHANNEL = (
    _OfChannel(RemovedMessages, RemovedMessages.channel),
    _OfChannel(Subscription, Subscription.channel),  # those that have expired
    _OfChannel(Channel, Channel.id),
)


def remove_events(work: Work, channel_id: ChannelId, count: int) -> None:
    """The rows of a channel's first events, whose messages are removed now."""
    found = work.execute(_SELECT_FIRST_EVENTS, (channel_id, count)).fetchall()
    if found:
        work.execute(_DELETE_EVENTS, (channel_id, found[-1][1]))
        work.counters.logical_bytes -= sum(map(row_bytes, found))


def remove_jobs(
    work: Work, closed_until_us: int, dead_until_us: int, max_rows: int
) -> tuple[int, list[JobGone | ChannelRemoved]]:
    """Old dead letters, then closed jobs that have nothing left; how many rows, and the facts.

    `closed_until_us`: jobs closed later have events left, as events go in the order of commits.
    """
    dead = work.execute(_SELECT_OLD_DEAD, (dead_until_us, max_rows)).fetchall()
    for columns in dead:
        outbox.delete(work, OutboxRow(*columns))
    facts: list[JobGone | ChannelRemoved] = []
    empty = work.execute(_SELECT_EMPTY, (closed_until_us, max_rows - len(dead))).fetchall()
    for columns in empty:
        job = JobRow(*columns)
        assert job.channel is not None
        channel = work.changing(job.channel)
        for removal in _WITH_CHANNEL:
            removal.execute(work, job.channel)
        rows.delete(work, job)
        work.remove_channel(job.channel)
        facts += (JobGone(job.id), ChannelRemoved(job.channel, channel.name, channel.newest))
    return len(dead) + len(empty), facts
