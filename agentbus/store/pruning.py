"""One bounded slice of cleanup: the oldest messages, old tombstones, receipts, idle subscriptions,
records of direct messages that are gone.

Owns what such a slice removes and the ranges it records, so that no reader misses a message without
being told. Never decides when to clean up. Runs on the ledger's thread.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TypeAlias

from peewee import SQL

from agentbus.failpoints import reach
from agentbus.ids import ChannelId, Sequence, SessionId
from agentbus.rules.capacity import goal_bytes
from agentbus.rules.retention import age_cut, capacity_cut, over_since_us
from agentbus.store.accounting import row_bytes_sql
from agentbus.store.changes import (
    Done,
    Fact,
    GapCause,
    MessagesRemoved,
    PruneResult,
    PruneSlice,
    SubscriptionExpired,
    SubscriptionRow,
)
from agentbus.store.peer.retention import close_deliveries, message_ids, remove_deliveries
from agentbus.store.schema import (
    PLACE,
    TOMBSTONE,
    Message,
    Receipt,
    RemovedMessages,
    Subscription,
    insert_text,
    text,
)
from agentbus.store.subscribing import SUBSCRIPTION_ROWS, expired_if_idle
from agentbus.store.work import Work

_SELECT_OLDEST = text(
    Message.select(Message.sequence, Message.channel, Message.sent_at_us, row_bytes_sql(Message))
    .where((Message.sequence >= PLACE) & (Message.memory == SQL("0")))
    .order_by(Message.sequence)
    .limit(PLACE)
)
_DELETE_MESSAGE = text(Message.delete().where(Message.sequence == PLACE))
_SELECT_LAST_RANGE = text(
    RemovedMessages.select(RemovedMessages.from_sequence, RemovedMessages.cause)
    .where(RemovedMessages.channel == PLACE)
    .order_by(RemovedMessages.from_sequence.desc())
    .limit(SQL("1"))
)
_EXTEND_RANGE = text(
    RemovedMessages.update({RemovedMessages.to_sequence: PLACE}).where(
        (RemovedMessages.channel == PLACE) & (RemovedMessages.from_sequence == PLACE)
    )
)
_INSERT_RANGE = insert_text(RemovedMessages)
_SELECT_TOMBSTONES = text(
    Message.select(Message.sequence, Message.ended_sequence, row_bytes_sql(Message))
    .where(TOMBSTONE & (Message.tombstoned_at_us <= PLACE))
    .order_by(Message.tombstoned_at_us)
    .limit(PLACE)
)
_SELECT_EXPIRED_RECEIPTS = text(
    Receipt.select(Receipt.session, Receipt.operation_id, row_bytes_sql(Receipt))
    .where(Receipt.expires_at_us <= PLACE)
    .order_by(Receipt.expires_at_us)
    .limit(PLACE)
)
_DELETE_RECEIPT = text(
    Receipt.delete().where((Receipt.session == PLACE) & (Receipt.operation_id == PLACE))
)
_SELECT_IDLE = text(
    SUBSCRIPTION_ROWS.select_extend(Subscription.session)
    .where(Subscription.expired_at_us.is_null() & (Subscription.last_used_us <= PLACE))
    .limit(PLACE)
)


_NO_MESSAGE = Sequence(2**63 - 1)
"""Stands for the oldest message where there is none: everything before it is gone."""

_OldestRow: TypeAlias = tuple[Sequence, ChannelId, int, int]
"""Of an ordinary message: its sequence, channel, time in microseconds and size in bytes."""


def prune_slice(work: Work, change: PruneSlice) -> Done:
    """Remove at most `max_rows` rows of one sort."""
    match change.what:
        case "messages_by_age":
            return _messages_by_age(work, change.max_rows)
        case "messages_by_capacity":
            return _messages_by_capacity(work, change.max_rows, change.free_bytes)
        case "tombstones":
            return _tombstones(work, change.max_rows)
        case "receipts":
            return _receipts(work, change.max_rows)
        case "subscriptions":
            return _subscriptions(work, change.max_rows)
        case "deliveries":
            return _deliveries(work, change.max_rows)


def _messages_by_age(work: Work, max_rows: int) -> Done:
    rows = _oldest(work, max_rows)
    cutoff_us = over_since_us(work.now_us, work.config.message_retention_hours)
    over = rows[: age_cut((row[2] for row in rows), cutoff_us)]
    return Done(PruneResult(len(over), len(over) == max_rows), _remove(work, over, "age"))


def _messages_by_capacity(work: Work, max_rows: int, free_bytes: int) -> Done:
    """The oldest of the whole bus, whoever has not read them.

    Where SQLite is what is full, before them what is kept of direct messages that are gone: a
    hundred deliveries take far more room than their message, and live messages would pay for them.
    """
    rows = _oldest(work, max_rows)
    if not rows or _is_above_goal(work):
        oldest = rows[0][0] if rows else _NO_MESSAGE
        removed_rows = remove_deliveries(work, oldest, max_rows)
        if removed_rows or not rows:
            return Done(PruneResult(removed_rows, removed_rows >= max_rows))
    gone = rows[: capacity_cut((row[3] for row in rows), free_bytes)]
    return Done(PruneResult(len(gone), len(gone) == max_rows), _remove(work, gone, "capacity"))


def _is_above_goal(work: Work) -> bool:
    config = work.config
    goal = goal_bytes(config.sqlite_budget_bytes, config.cleanup_free_percent, needed_bytes=0)
    return work.counters.logical_bytes > goal


def _deliveries(work: Work, max_rows: int) -> Done:
    """A delivery can be asked about for as long again as its message is retained."""
    oldest = _oldest(work, 1)
    made_until_us = over_since_us(work.now_us, 2 * work.config.message_retention_hours)
    removed_rows = remove_deliveries(
        work, oldest[0][0] if oldest else _NO_MESSAGE, max_rows, made_until_us
    )
    return Done(PruneResult(removed_rows, removed_rows >= max_rows))


def _oldest(work: Work, max_rows: int) -> list[_OldestRow]:
    """The first ordinary messages in the order of their commits."""
    return work.execute(_SELECT_OLDEST, (work.staged.ordinary_from, max_rows)).fetchall()


def _remove(work: Work, rows: list[_OldestRow], cause: GapCause) -> tuple[Fact, ...]:
    """Remove these, which are the first: so it is a prefix of every channel that it concerns."""
    if not rows:
        return ()
    direct = message_ids(work, [row[0] for row in rows if work.changing(row[1]).kind == "inbox"])
    work.connection.executemany(_DELETE_MESSAGE, [(row[0],) for row in rows])
    reach("during_eviction")
    work.counters.logical_bytes -= sum(row[3] for row in rows)
    work.staged.ordinary_from = Sequence(rows[-1][0] + 1)
    removed: defaultdict[ChannelId, list[Sequence]] = defaultdict(list)
    for sequence, channel_id, _, _ in rows:
        removed[channel_id].append(sequence)
    return (
        *(
            _removed(work, channel_id, tuple(sequences), cause)
            for channel_id, sequences in removed.items()
        ),
        *close_deliveries(work, direct),
    )


def _removed(
    work: Work, channel_id: ChannelId, sequences: tuple[Sequence, ...], cause: GapCause
) -> MessagesRemoved:
    """Record a removal: the channel's counters and its last range, extended if of the same cause.

    Sequences of one channel are never dense, so "the next removal" is what makes two ranges one.
    """
    channel = work.changing(channel_id)
    channel.retained -= len(sequences)
    channel.removed_through = sequences[-1]
    last = work.execute(_SELECT_LAST_RANGE, (channel_id,)).fetchone()
    if last is not None and last[1] == cause:
        work.execute(_EXTEND_RANGE, (sequences[-1], channel_id, last[0]))
    else:
        work.insert(_INSERT_RANGE, (channel_id, sequences[0], sequences[-1], cause))
    return MessagesRemoved(channel_id, channel.name, sequences[-1], sequences, cause)


def _tombstones(work: Work, max_rows: int) -> Done:
    """Old revisions and deleted memories. Nobody sees them any more, so there is no fact.

    Nothing can bring them back: a rebuild reads live rows, and a replay is only done for a Redis
    that was told of their end (`purged_through`).
    """
    cutoff_us = over_since_us(work.now_us, work.config.tombstone_min_hours)
    rows = work.execute(_SELECT_TOMBSTONES, (cutoff_us, max_rows)).fetchall()
    work.connection.executemany(_DELETE_MESSAGE, [(row[0],) for row in rows])
    work.counters.logical_bytes -= sum(row[2] for row in rows)
    work.counters.purged_through = max([work.counters.purged_through, *(row[1] for row in rows)])
    return Done(PruneResult(len(rows), len(rows) == max_rows))


def _receipts(work: Work, max_rows: int) -> Done:
    rows = work.execute(_SELECT_EXPIRED_RECEIPTS, (work.now_us, max_rows)).fetchall()
    work.connection.executemany(_DELETE_RECEIPT, [(row[0], row[1]) for row in rows])
    work.counters.logical_bytes -= sum(row[2] for row in rows)
    return Done(PruneResult(len(rows), len(rows) == max_rows))


def _subscriptions(work: Work, max_rows: int) -> Done:
    cutoff_us = over_since_us(work.now_us, work.config.cursor_idle_hours)
    rows = work.execute(_SELECT_IDLE, (cutoff_us, max_rows)).fetchall()
    expired: list[SubscriptionExpired] = []
    for *row, session_id in rows:
        expired_if_idle(work, SessionId(session_id), SubscriptionRow(*row), expired)
    return Done(PruneResult(len(rows), len(rows) == max_rows, tuple(expired)), tuple(expired))
