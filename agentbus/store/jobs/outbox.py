"""The outbox: events that are still to be posted, and those that could not be.

Owns its rows and what an attempt makes of them. An entry is written in the transaction of its
event; a delivered one is removed. Never posts anything. Runs on the ledger's thread.
"""

from __future__ import annotations

from typing import NamedTuple

from agentbus.errors import NotFoundError
from agentbus.store.accounting import row_bytes
from agentbus.store.changes import Done
from agentbus.store.jobs.changes import (
    CallbackId,
    CallbacksWaiting,
    OutboxState,
    ReplayCallbacks,
    SettleCallback,
)
from agentbus.store.jobs.rows import JobRow
from agentbus.store.schema import PLACE, OutboxEntry, insert_text, text
from agentbus.store.work import Work

ERROR_CHARACTERS = 500
"""Of what a receiver said, as it is kept."""


class OutboxRow(NamedTuple):
    """Columns in the order of the table."""

    id: CallbackId
    job: str
    seq: int
    terminal: bool
    state: OutboxState
    attempts: int
    next_at_us: int
    last_error: str | None
    created_at_us: int
    dead_at_us: int | None
    body: bytes


ENTRIES = OutboxEntry.select(*(getattr(OutboxEntry, name) for name in OutboxRow._fields))
_IS_DEAD = OutboxEntry.dead_at_us.is_null(False)
_SELECT = text(ENTRIES.where(OutboxEntry.id == PLACE))
_SELECT_DEAD = text(OutboxEntry.select(OutboxEntry.id).where(_IS_DEAD).order_by(OutboxEntry.id))
_INSERT = insert_text(OutboxEntry)
_CHANGING = ("state", "attempts", "next_at_us", "last_error", "dead_at_us")
_UPDATE = text(
    OutboxEntry.update({getattr(OutboxEntry, name): PLACE for name in _CHANGING}).where(
        OutboxEntry.id == PLACE
    )
)
_DELETE = text(OutboxEntry.delete().where(OutboxEntry.id == PLACE))


def queue_callback(work: Work, job: JobRow, body: bytes) -> None:
    """The last event of a job, which its callback is to be told of."""
    row = (
        *(
            None,
            job.id,
            job.last_seq,
            not job.is_open,
            "pending",
            0,
            work.now_us,
            None,
            work.now_us,
        ),
        *(None, body),
    )
    work.insert(_INSERT, row)


def settle_callback(work: Work, change: SettleCallback) -> Done:
    """Whether the entry was there; one that is gone was delivered, or removed."""
    found = work.execute(_SELECT, (change.callback_id,)).fetchone()
    if found is None:
        return Done(False)
    row = OutboxRow(*found)
    if change.error is None:
        delete(work, row)
        return Done(True)
    is_dead = change.next_at_us is None
    _change(
        work,
        row._replace(
            state="dead" if is_dead else "pending",
            attempts=row.attempts + 1,
            next_at_us=row.next_at_us if change.next_at_us is None else change.next_at_us,
            last_error=change.error[:ERROR_CHARACTERS],
            dead_at_us=work.now_us if is_dead else None,
        ),
        row,
    )
    return Done(True)


def replay_callbacks(work: Work, change: ReplayCallbacks) -> Done:
    """How many there are to be tried again."""
    if change.callback_id is None:
        found = [number for (number,) in work.execute(_SELECT_DEAD).fetchall()]
    else:
        found = [change.callback_id]
    for number in found:  # one body in memory at a time
        columns = work.execute(_SELECT, (number,)).fetchone()
        if columns is None or OutboxRow(*columns).state != "dead":
            raise NotFoundError(
                f"there is no dead letter {number}; agentbus-admin deadletters list shows those "
                "that there are"
            )
        row = OutboxRow(*columns)
        again = row._replace(state="pending", attempts=0, next_at_us=work.now_us, dead_at_us=None)
        _change(work, again, row)
    return Done({"replayed": len(found)}, (CallbacksWaiting(),) if found else ())


def delete(work: Work, row: OutboxRow) -> None:
    work.execute(_DELETE, (row.id,))
    work.counters.logical_bytes -= row_bytes(row)


def _change(work: Work, changed: OutboxRow, row: OutboxRow) -> None:
    work.execute(_UPDATE, (*(getattr(changed, name) for name in _CHANGING), row.id))
    work.counters.logical_bytes += row_bytes(changed) - row_bytes(row)
