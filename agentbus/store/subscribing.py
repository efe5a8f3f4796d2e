"""The ledger's answers to channels, subscriptions and the reports that move their cursors.

Owns which subscription a session has in a channel and where its two positions stand. Never decides
what is delivered. Runs on the ledger's thread.

A subscription ends in one of two ways: closed by its session (the row goes), or expired without use
(the row stays, marked, until its notice has been confirmed or the channel is subscribed again).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from agentbus.errors import ConflictError, NotFoundError, ValidationError
from agentbus.ids import ChannelId, Sequence, SessionId
from agentbus.rules import cursors
from agentbus.store.accounting import row_bytes
from agentbus.store.changes import (
    ChannelMade,
    CloseSubscription,
    Done,
    Fact,
    MakeChannel,
    MoveCursors,
    OpenSubscription,
    SubscriptionClosed,
    SubscriptionExpired,
    SubscriptionId,
    SubscriptionOpened,
    SubscriptionRow,
)
from agentbus.store.schema import PLACE, Channel, Session, Subscription, insert_text, text
from agentbus.store.work import ChannelState, Work

SUBSCRIPTION_ROWS = Subscription.select(
    Subscription.id,
    Subscription.channel,
    Channel.name,
    Channel.kind,
    Subscription.handed_off,
    Subscription.confirmed,
    Subscription.last_used_us,
    Subscription.expired_at_us,
).join(Channel, on=(Channel.id == Subscription.channel))
"""Columns in the order of `SubscriptionRow`."""

SELECT_OF_SESSION = text(
    SUBSCRIPTION_ROWS.where(Subscription.session == PLACE).order_by(Subscription.id)
)
_SELECT_OF_CHANNEL = text(
    SUBSCRIPTION_ROWS.where((Subscription.session == PLACE) & (Subscription.channel == PLACE))
)
_SELECT_BY_ID = text(
    SUBSCRIPTION_ROWS.where((Subscription.id == PLACE) & (Subscription.session == PLACE))
)
_INSERT_CHANNEL = insert_text(Channel)
_INSERT_SUBSCRIPTION = insert_text(Subscription)
_DELETE_SUBSCRIPTION = text(Subscription.delete().where(Subscription.id == PLACE))
_MOVE = text(
    Subscription.update(
        {
            Subscription.handed_off: PLACE,
            Subscription.confirmed: PLACE,
            Subscription.last_used_us: PLACE,
        }
    ).where(Subscription.id == PLACE)
)
_EXPIRE = text(
    Subscription.update({Subscription.expired_at_us: PLACE}).where(Subscription.id == PLACE)
)
_READ_MEMORIES = text(
    Session.update(
        {Session.seen_sequence: Session.used_sequence, Session.used_sequence: PLACE}
    ).where(Session.id == PLACE)
)


def make_channel(work: Work, change: MakeChannel) -> Done:
    """Create a channel, or say that it is there already."""
    work.require_current(change.attachment)
    operation = change.operation
    channel = work.channel(operation.name)
    if channel is not None:
        if channel.kind != operation.kind:
            raise ConflictError(
                f"channel {channel.name!r} exists and is of kind {channel.kind}, which never "
                "changes; use it as it is, or choose another name"
            )
        return Done({"channel": channel.name, "kind": channel.kind, "created": False})
    channel = insert_channel(work, operation.name, operation.kind)
    return Done(
        {"channel": channel.name, "kind": channel.kind, "created": True},
        (ChannelMade(channel.channel_id, channel.name, channel.kind),),
    )


def insert_channel(work: Work, name: str, kind: Any) -> ChannelState:
    """The row of a new channel, which the caller knows not to exist."""
    row = (None, name, kind, work.now_us, work.counters.last_sequence, 0, 0, 0)
    channel_id = ChannelId(work.insert(_INSERT_CHANNEL, row))
    channel = ChannelState(channel_id, name, kind, Sequence(0), 0, Sequence(0))
    work.add_channel(channel)
    return channel


def open_subscription(work: Work, change: OpenSubscription) -> Done:
    """Subscribe; a subscription that is there is kept where it stands and renewed."""
    work.require_current(change.attachment)
    session_id = change.attachment.session_id
    channel = work.require_channel(change.operation.channel)
    found = work.execute(_SELECT_OF_CHANNEL, (session_id, channel.channel_id)).fetchone()
    facts: list[Fact] = []
    if found is not None:
        row = expired_if_idle(work, session_id, SubscriptionRow(*found), facts)
        if row.expired_at_us is None:
            row = _move(work, row, renew=True)
            return _opened(row, True, facts)
        facts.append(_delete(work, session_id, row))
    # What was removed before a subscription began is no gap of it.
    start = (
        channel.removed_through
        if change.operation.from_ == "oldest"
        else work.counters.last_sequence
    )
    row = insert_subscription(work, session_id, channel, start)
    facts.append(SubscriptionOpened(session_id, row))
    return _opened(row, False, facts)


def insert_subscription(
    work: Work, session_id: SessionId, channel: ChannelState, position: Sequence
) -> SubscriptionRow:
    """The row of a new subscription; delivery starts after `position`."""
    subscription_id = work.insert(
        _INSERT_SUBSCRIPTION,
        (None, session_id, channel.channel_id, position, position, work.now_us, None),
    )
    return SubscriptionRow(
        subscription_id,
        channel.channel_id,
        channel.name,
        channel.kind,
        position,
        position,
        work.now_us,
        None,
    )


def close_subscription(work: Work, change: CloseSubscription) -> Done:
    """Unsubscribe: the row goes, and with it what a late report could move."""
    work.require_current(change.attachment)
    session_id = change.attachment.session_id
    channel = work.require_channel(change.operation.channel)
    found = work.execute(_SELECT_OF_CHANNEL, (session_id, channel.channel_id)).fetchone()
    if found is None:
        raise NotFoundError(
            f"this session has no subscription of {channel.name!r}; whoami shows those it has"
        )
    fact = _delete(work, session_id, SubscriptionRow(*found))
    return Done({"channel": channel.name}, (fact,))


def move_cursors(work: Work, change: MoveCursors) -> Done:
    """Apply reports. The result is a tuple of the rows as they now stand, skipped ones left out.

    Memories change without a position of their own, so what a session has seen of them is counted
    by its calls: one that reads a memory channel confirms what the one before it has shown.
    """
    work.require_current(change.attachment)
    session_id = change.attachment.session_id
    newest = work.counters.last_sequence
    for position in (*change.handed_off.values(), *change.confirmed.values()):
        if not 0 <= position <= newest:
            raise ValidationError(
                f"a cursor cannot be at sequence {position}, the newest of the bus is {newest}"
            )
    facts: list[Fact] = []
    rows = []
    reads_memories = False
    renewed = frozenset(change.renewed)
    handed_off = dict(change.handed_off)
    for subscription_id, position in change.exposed.items():
        reached = min(position, newest)
        handed_off[subscription_id] = max(handed_off.get(subscription_id, reached), reached)
    for subscription_id in sorted({*handed_off, *change.confirmed, *renewed}):
        found = _by_id(work, session_id, subscription_id)
        if found is None:
            continue
        row = _move(
            work,
            found,
            handed_off.get(subscription_id),
            change.confirmed.get(subscription_id),
        )
        if subscription_id in renewed:
            row = expired_if_idle(work, session_id, row, facts)
            row = _move(work, row, renew=True)
            reads_memories = reads_memories or row.kind == "memory"
        rows.append(row)
    if reads_memories:
        work.execute(_READ_MEMORIES, (newest, session_id))
    for subscription_id in change.expiry_confirmed:
        found = _by_id(work, session_id, subscription_id)
        if found is not None and found.expired_at_us is not None:
            facts.append(_delete(work, session_id, found))
    return Done(tuple(rows), tuple(facts))


def rows_of_session(
    work: Work, session_id: SessionId, facts: list[Fact]
) -> tuple[SubscriptionRow, ...]:
    """All subscriptions of a session, expired ones included; those idle too long expire now."""
    return tuple(
        expired_if_idle(work, session_id, SubscriptionRow(*row), facts)
        for row in work.execute(SELECT_OF_SESSION, (session_id,)).fetchall()
    )


def expired_if_idle(
    work: Work,
    session_id: SessionId,
    row: SubscriptionRow,
    facts: list[Fact] | list[SubscriptionExpired],
) -> SubscriptionRow:
    """Mark the subscription expired if it has been idle for too long, and add the fact."""
    idle_hours = work.config.cursor_idle_hours
    if row.expired_at_us is not None or not cursors.is_idle(
        row.last_used_us, work.now_us, idle_hours
    ):
        return row
    work.execute(_EXPIRE, (work.now_us, row.subscription_id))
    facts.append(
        SubscriptionExpired(
            session_id, row.subscription_id, row.channel_id, row.channel, work.now_us
        )
    )
    return replace(row, expired_at_us=work.now_us)


def _move(
    work: Work,
    row: SubscriptionRow,
    handed_off: Sequence | None = None,
    confirmed: Sequence | None = None,
    *,
    renew: bool = False,
) -> SubscriptionRow:
    if row.expired_at_us is not None:
        return row
    positions = cursors.advance(
        cursors.Positions(row.handed_off, row.confirmed), handed_off, confirmed
    )
    moved = replace(
        row,
        handed_off=positions.handed_off,
        confirmed=positions.confirmed,
        last_used_us=max(row.last_used_us, work.now_us) if renew else row.last_used_us,
    )
    if moved != row:
        work.execute(
            _MOVE, (moved.handed_off, moved.confirmed, moved.last_used_us, row.subscription_id)
        )
    return moved


def _by_id(
    work: Work, session_id: SessionId, subscription_id: SubscriptionId
) -> SubscriptionRow | None:
    row = work.execute(_SELECT_BY_ID, (subscription_id, session_id)).fetchone()
    return SubscriptionRow(*row) if row is not None else None


def _delete(work: Work, session_id: SessionId, row: SubscriptionRow) -> SubscriptionClosed:
    work.execute(_DELETE_SUBSCRIPTION, (row.subscription_id,))
    # The stored row: its numbers, whatever they are, and the session's id.
    work.counters.logical_bytes -= row_bytes((0, session_id, 0, 0, 0, 0, None))
    return SubscriptionClosed(session_id, row.subscription_id, row.channel_id)


def _opened(row: SubscriptionRow, resumed: bool, facts: list[Fact]) -> Done:
    return Done(
        {
            "channel": row.channel,
            "resumed": resumed,
            "subscription_id": row.subscription_id,
            "from_sequence": row.handed_off + 1,
        },
        tuple(facts),
    )
