"""The rows of deliveries: loading, inserting, changing, and what an inbox sees of one.

Owns the SQL of the table and the exact accounting of its rows, texts that change their length
included. Never decides what a delivery becomes. Runs on the ledger's thread.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from peewee import SQL, fn

from agentbus.envelope import PeerKind
from agentbus.ids import (
    AgentId,
    DeliveryId,
    InterventionId,
    LeaseToken,
    MessageId,
    Sequence,
    SessionId,
)
from agentbus.limits import PEER_PAGE_MAX
from agentbus.store.accounting import row_bytes
from agentbus.store.peer.changes import (
    DeliveryChanged,
    DeliveryState,
    DeliveryView,
    ReplyCause,
    ReplyState,
)
from agentbus.store.schema import (
    BY_SEQUENCE,
    IS_HELD,
    IS_OPEN,
    IS_UNANSWERED,
    PLACE,
    Delivery,
    NoticeShown,
    insert_text,
    text,
)
from agentbus.store.work import Work


class DeliveryRow(NamedTuple):
    """A whole row, columns in the order of the table; see `schema.Delivery`."""

    id: DeliveryId
    message_id: MessageId
    sequence: Sequence
    kind: PeerKind
    thread: str
    reply_to: str | None
    depth: int
    parent: DeliveryId | None
    sender_agent: AgentId
    sender_session: SessionId
    recipient_agent: AgentId
    recipient_session: SessionId | None
    reassigned_from: DeliveryId | None
    created_at_us: int
    changed_at_us: int
    state: DeliveryState
    holder: SessionId | None
    holder_generation: int | None
    token: LeaseToken | None
    attempt: int
    lease_expires_us: int | None
    deadline_us: int | None
    extensions: int
    progressed_at_us: int | None
    intervention: InterventionId | None
    reply_state: ReplyState | None
    reply_due_us: int | None
    unanswered_us: int | None
    reply_message_id: MessageId | None
    late_reply_message_id: MessageId | None
    cause: ReplyCause | None
    cancelled_reason: str | None

    @property
    def is_open(self) -> bool:
        return self.state in ("queued", "leased", "paused")


_CHANGING = DeliveryRow._fields.index("changed_at_us")
"""The columns before this one stay as they were inserted."""

_ROWS = Delivery.select(*(getattr(Delivery, name) for name in DeliveryRow._fields))
_INSERT = insert_text(Delivery)
_UPDATE = text(
    Delivery.update(
        {getattr(Delivery, name): PLACE for name in DeliveryRow._fields[_CHANGING:]}
    ).where(Delivery.id == PLACE)
)
_SELECT = text(_ROWS.where(Delivery.id == PLACE))
_SELECT_OF_MESSAGE = text(_ROWS.where(Delivery.message_id == PLACE).order_by(Delivery.id))
_SELECT_HELD = text(_ROWS.where((Delivery.holder == PLACE) & IS_HELD).order_by(Delivery.id))
_SELECT_CLAIMED = text(
    _ROWS.where(
        (Delivery.recipient_agent == PLACE)
        & IS_OPEN
        & Delivery.state.in_((SQL("'leased'"), SQL("'paused'")))
        & Delivery.recipient_session.is_null()
    ).limit(SQL("1"))
)
_QUEUED = _ROWS.where(
    (Delivery.recipient_agent == PLACE)
    & IS_OPEN
    & (Delivery.state == SQL("'queued'"))
    & (Delivery.sender_session != PLACE)
).order_by(Delivery.sequence, Delivery.id)
_TO_SESSION = Delivery.recipient_session == PLACE
_SELECT_NEXT_OF_SESSION = text(_QUEUED.where(_TO_SESSION).limit(SQL("1")))
_SELECT_NEXT = text(
    _QUEUED.where(_TO_SESSION | Delivery.recipient_session.is_null()).limit(SQL("1"))
)
_SELECT_UNTOLD = text(
    _ROWS.where(
        (Delivery.sender_agent == PLACE)
        & IS_UNANSWERED
        & Delivery.reply_state.in_((SQL("'overdue'"), SQL("'unanswered'")))
        & Delivery.late_reply_message_id.is_null()
        & ~fn.EXISTS(
            NoticeShown.select(SQL("1")).where(
                (NoticeShown.session == PLACE)
                & (NoticeShown.delivery == Delivery.id)
                & (NoticeShown.reply_state == Delivery.reply_state)
            )
        )
    )
    .order_by(BY_SEQUENCE, Delivery.id)
    .limit(SQL(str(PEER_PAGE_MAX)))
)
_SELECT_OPEN_OF_AGENT = text(
    _ROWS.where(
        ((Delivery.recipient_agent == PLACE) & IS_OPEN)
        | (
            (Delivery.sender_agent == PLACE)
            & IS_UNANSWERED
            & Delivery.reply_state.in_((SQL("'awaiting'"), SQL("'overdue'")))
        )
    ).order_by(SQL("rowid"))
)


def load(work: Work, delivery_id: str) -> DeliveryRow | None:
    return _one(work, _SELECT, delivery_id)


def of_message(work: Work, message_id: str) -> list[DeliveryRow]:
    """All deliveries of a message, those that were made by a reassignment included."""
    return [DeliveryRow(*row) for row in work.execute(_SELECT_OF_MESSAGE, (message_id,)).fetchall()]


def held_by(work: Work, session_id: SessionId) -> DeliveryRow | None:
    """What the session works on: leased to it, paused in its hands, or lapsed and claimed by nobody
    since. A lease counts more than a pause, and both more than what has lapsed."""
    rows = [DeliveryRow(*row) for row in work.execute(_SELECT_HELD, (session_id,)).fetchall()]
    return min(rows, key=lambda row: ("leased", "paused", "queued").index(row.state), default=None)


def claimed_of_agent(work: Work, agent_id: AgentId) -> DeliveryRow | None:
    """What is addressed to the agent, not to one session of it, and is leased or paused."""
    return _one(work, _SELECT_CLAIMED, agent_id)


def next_queued(
    work: Work, agent_id: AgentId, session_id: SessionId, *, of_session_only: bool = False
) -> DeliveryRow | None:
    """The oldest that the session could claim; it never gets what it has sent itself."""
    sql = _SELECT_NEXT_OF_SESSION if of_session_only else _SELECT_NEXT
    return _one(work, sql, agent_id, session_id, session_id)


def untold(work: Work, agent_id: AgentId, session_id: SessionId) -> list[DeliveryRow]:
    """Requests of the agent whose replies are late, as this session has not been told yet."""
    rows = work.execute(_SELECT_UNTOLD, (agent_id, session_id)).fetchall()
    return [DeliveryRow(*row) for row in rows]


def open_of_agent(work: Work, agent_id: AgentId) -> list[DeliveryRow]:
    """What it has to do, and its own requests that a reply is still awaited for."""
    rows = work.execute(_SELECT_OPEN_OF_AGENT, (agent_id, agent_id)).fetchall()
    return [DeliveryRow(*row) for row in rows]


def insert(work: Work, row: DeliveryRow) -> DeliveryChanged:
    work.insert(_INSERT, row)
    return DeliveryChanged(view(row))


def change(work: Work, row: DeliveryRow, **columns: Any) -> DeliveryRow:
    """Write these columns; the row as it is then."""
    changed = row._replace(**{"changed_at_us": work.now_us, **columns})
    before, after = row[_CHANGING:], changed[_CHANGING:]
    work.execute(_UPDATE, (*after, row.id))
    work.counters.logical_bytes += row_bytes(after) - row_bytes(before)
    return changed


def view(row: DeliveryRow) -> DeliveryView:
    return DeliveryView(
        delivery_id=row.id,
        message_id=row.message_id,
        sequence=row.sequence,
        created_us=row.created_at_us,
        kind=row.kind,
        sender_agent=row.sender_agent,
        sender_session=row.sender_session,
        recipient_agent=row.recipient_agent,
        recipient_session=row.recipient_session,
        state=row.state,
        holder=row.holder,
        token=row.token,
        attempt=row.attempt,
        lease_expires_us=row.lease_expires_us,
        deadline_us=row.deadline_us,
        extensions=row.extensions,
        reply_state=row.reply_state,
        reply_due_us=row.reply_due_us,
        unanswered_us=row.unanswered_us,
    )


def _one(work: Work, sql: str, *values: object) -> DeliveryRow | None:
    row = work.execute(sql, values).fetchone()
    return DeliveryRow(*row) if row is not None else None
