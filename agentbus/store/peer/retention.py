"""What becomes of deliveries whose message falls to retention.

Owns that open work ends with its message, and how long the record of a delivery outlasts it. Never
decides which messages go. Runs on the ledger's thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from peewee import SQL, fn

from agentbus.encoding import encode
from agentbus.ids import MessageId, Sequence
from agentbus.store.accounting import row_bytes_sql
from agentbus.store.peer import deliveries
from agentbus.store.peer.changes import DeliveryChanged
from agentbus.store.schema import (
    PLACE,
    Consultation,
    Delivery,
    Intervention,
    Message,
    NoticeShown,
    Presented,
    Table,
    text,
)
from agentbus.store.work import Work

_SELECT_MESSAGE_IDS = text(
    Message.select(Message.message_id).where(
        Message.sequence.in_(SQL("(SELECT value FROM json_each(?))"))
    )
)
_IS_AWAITED = fn.COALESCE(
    fn.MAX(Delivery.reply_state.in_((SQL("'awaiting'"), SQL("'overdue'")))), SQL("0")
)
_SELECT_GONE = text(
    Delivery.select(Delivery.message_id, fn.MAX(Delivery.created_at_us), fn.COUNT(SQL("*")))
    .where(Delivery.sequence < PLACE)
    .group_by(Delivery.sequence)
    .having(_IS_AWAITED <= PLACE)
    .order_by(Delivery.sequence)
    .limit(PLACE)
)
_SELECT_DELIVERIES = text(
    Delivery.select(Delivery.id).where(
        Delivery.message_id.in_(SQL("(SELECT value FROM json_each(?))"))
    )
)


class _Removal:
    """Remove the rows of a table that have one of these values, and account for it."""

    def __init__(self, table: Table, column: Any) -> None:
        among = column.in_(SQL("(SELECT value FROM json_each(?))"))
        size = fn.COALESCE(fn.SUM(row_bytes_sql(table)), SQL("0"))
        self._size = text(table.select(size).where(among))
        self._delete = text(table.delete().where(among))

    def execute(self, work: Work, values: Iterable[str]) -> None:
        among = (_list(values),)
        freed_bytes = int(work.execute(self._size, among).fetchone()[0])
        if freed_bytes:
            work.execute(self._delete, among)
            work.counters.logical_bytes -= freed_bytes


_OF_MESSAGES = (
    _Removal(Delivery, Delivery.message_id),
    _Removal(Presented, Presented.message_id),
)
_OF_DELIVERIES = (
    _Removal(Intervention, Intervention.delivery),
    _Removal(NoticeShown, NoticeShown.delivery),
    _Removal(Consultation, Consultation.delivery),
)


def message_ids(work: Work, sequences: Iterable[Sequence]) -> list[MessageId]:
    """Of messages that are still there."""
    rows = work.execute(_SELECT_MESSAGE_IDS, (_list(sequences),)).fetchall()
    return [MessageId(row[0]) for row in rows]


def close_deliveries(work: Work, messages: Iterable[MessageId]) -> list[DeliveryChanged]:
    """End the open work of messages that are removed now; nobody could be shown them any more."""
    facts = []
    for message_id in messages:
        for row in deliveries.of_message(work, message_id):
            if row.is_open:
                awaited = row.reply_state in ("awaiting", "overdue", "unanswered")
                row = deliveries.change(
                    work,
                    row,
                    state="cancelled",
                    token=None,
                    lease_expires_us=None,
                    deadline_us=None,
                    reply_state="cancelled" if awaited else row.reply_state,
                    cause="retention",
                    cancelled_reason="retention",
                )
                facts.append(DeliveryChanged(deliveries.view(row)))
    return facts


def remove_deliveries(
    work: Work, oldest: Sequence, max_rows: int, made_until_us: int | None = None
) -> int:
    """Remove deliveries of messages before `oldest`, which are gone, with all that belongs to them.

    Oldest first, and a message's all at once. With `made_until_us` not those that were made later,
    nor those whose sender is still to be told that nobody has answered. Returns how many deliveries
    were removed.
    """
    gone: list[MessageId] = []
    removed_rows = 0
    with_awaited = made_until_us is None
    candidates = work.execute(_SELECT_GONE, (oldest, with_awaited, max_rows)).fetchall()
    for message_id, made_at_us, rows in candidates:
        if made_until_us is not None and made_at_us > made_until_us:
            break
        if gone and removed_rows + rows > max_rows:
            break
        gone.append(message_id)
        removed_rows += rows
    if not gone:
        return 0
    ids = [row[0] for row in work.execute(_SELECT_DELIVERIES, (_list(gone),)).fetchall()]
    for removal in _OF_MESSAGES:
        removal.execute(work, gone)
    for removal in _OF_DELIVERIES:
        removal.execute(work, ids)
    return removed_rows


def _list(values: Iterable[str | int]) -> str:
    """As the parameter of `json_each`."""
    return encode(list(values)).decode()
