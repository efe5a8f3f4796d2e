"""Read-only questions to the committed state, each one short transaction.

Owns a connection that cannot write, for one thread. Never keeps a transaction open between calls
(that would keep the WAL from being reused) and never keeps what it read: the next call sees what
was committed meanwhile.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peewee import SQL, fn

from agentbus.encoding import encode
from agentbus.ids import AgentId, BusId, ChannelId, MessageId, Sequence, SessionId
from agentbus.rules.cursors import missed
from agentbus.store.accounting import row_bytes_sql
from agentbus.store.changes import (
    ChannelRow,
    EndedMemory,
    RemovedRange,
    StoredMessage,
    SubscriptionRow,
)
from agentbus.store.connection import not_read, open_reader
from agentbus.store.memories import LAST_OF_DELETED
from agentbus.store.schema import (
    IS_OPEN,
    LIVE_MEMORY,
    PLACE,
    Agent,
    Channel,
    Delivery,
    Message,
    Meta,
    Receipt,
    RemovedMessages,
    Session,
    Subscription,
    text,
)
from agentbus.store.subscribing import SELECT_OF_SESSION

LAG_LIMIT = 10_000
"""Counting messages walks an index: at most so many, about a millisecond."""

NO_END = Sequence(2**63 - 1)

_CHANNEL_ROWS = Channel.select(
    Channel.id,
    Channel.name,
    Channel.kind,
    Channel.retained,
    Channel.newest,
    Channel.removed_through,
)
_CHANNELS = text(
    _CHANNEL_ROWS.where(fn.SUBSTR(Channel.name, SQL("1"), PLACE) == PLACE).order_by(Channel.name)
)
_IS_INBOX = Channel.kind == SQL("'inbox'")
_CHANNEL = text(_CHANNEL_ROWS.where(Channel.name == PLACE))

_MESSAGE_ROWS = Message.select(
    Message.channel,
    Message.sequence,
    Message.message_id,
    Message.session,
    Message.position,
    Message.memory,
    Message.envelope,
)
_LIVE = Message.tombstoned_at_us.is_null()
_BETWEEN = (Message.channel == PLACE) & (Message.sequence > PLACE) & (Message.sequence < PLACE)
_OLDEST = text(_MESSAGE_ROWS.where(_BETWEEN & _LIVE).order_by(Message.sequence).limit(PLACE))
_NEWEST = text(_MESSAGE_ROWS.where(_BETWEEN & _LIVE).order_by(Message.sequence.desc()).limit(PLACE))
_DELIVERED = Message.sequence.in_(
    Delivery.select(Delivery.sequence).where(Delivery.recipient_agent == PLACE)
)
_IN_INBOX = (Message.sequence > PLACE) & (Message.sequence < PLACE) & _DELIVERED
_OLDEST_DELIVERED = text(_MESSAGE_ROWS.where(_IN_INBOX).order_by(Message.sequence).limit(PLACE))
_NEWEST_DELIVERED = text(
    _MESSAGE_ROWS.where(_IN_INBOX).order_by(Message.sequence.desc()).limit(PLACE)
)
_SENT_OR_GOT = Message.message_id.in_(
    Delivery.select(Delivery.message_id).where(
        (Delivery.message_id == Message.message_id)
        & ((Delivery.sender_agent == PLACE) | (Delivery.recipient_agent == PLACE))
    )
)
_VISIBLE = text(
    Message.select(Message.sequence).where(
        Message.sequence.in_(SQL("(SELECT value FROM json_each(?))"))
        & (Message.channel.not_in(Channel.select(Channel.id).where(_IS_INBOX)) | _SENT_OR_GOT)
    )
)
_RETAINED_BYTES = text(
    Message.select(fn.COALESCE(fn.SUM(row_bytes_sql(Message)), SQL("0"))).where(_LIVE)
)
_FIRST = text(
    Message.select(Message.sequence)
    .where((Message.channel == PLACE) & _LIVE)
    .order_by(Message.sequence)
    .limit(SQL("1"))
)
_MESSAGE = text(_MESSAGE_ROWS.where((Message.message_id == PLACE) & _LIVE))
_MEMORY = text(_MESSAGE_ROWS.where((Message.message_id == PLACE) & LIVE_MEMORY))
_LIVE_ENVELOPES = text(
    Message.select(Message.sequence, Message.envelope).where(
        Message.sequence.in_(SQL("(SELECT value FROM json_each(?))")) & _LIVE
    )
)
_REVISION = text(
    Message.select(Message.revision).where((Message.message_id == PLACE) & LIVE_MEMORY)
)
_SCAN = text(
    _MESSAGE_ROWS.where((Message.sequence > PLACE) & (Message.memory == SQL("0")))
    .order_by(Message.sequence)
    .limit(PLACE)
)
_SCAN_CHANNEL = text(
    _MESSAGE_ROWS.where(
        (Message.channel == PLACE) & (Message.sequence > PLACE) & (Message.memory == SQL("0"))
    )
    .order_by(Message.sequence)
    .limit(PLACE)
)
_SCAN_MEMORIES = text(
    _MESSAGE_ROWS.where((Message.channel == PLACE) & (Message.position > PLACE) & LIVE_MEMORY)
    .order_by(Message.position)
    .limit(PLACE)
)
_REVISED = text(
    _MESSAGE_ROWS.where((Message.sequence > PLACE) & (Message.position <= PLACE) & LIVE_MEMORY)
)
_DELETED = text(
    Message.select(Message.channel, Message.message_id, Message.position).where(
        (Message.ended_sequence > PLACE) & LAST_OF_DELETED
    )
)


def _count(condition: Any) -> str:
    """How many there are, counted up to a limit."""
    counted = Message.select(SQL("1")).where(condition).limit(PLACE)
    return text(Message.select(fn.COUNT(SQL("*"))).from_(counted))


_BEHIND = (Message.channel == PLACE) & (Message.sequence > PLACE)
_MEMORIES_BEHIND = (Message.channel == PLACE) & (Message.position > PLACE) & LIVE_MEMORY
_OF_OTHERS = Message.session != PLACE
_LAG = _count(_BEHIND)
_MEMORY_LAG = _count(_MEMORIES_BEHIND)
_WAITING = _count(_BEHIND & _OF_OTHERS)
_MEMORIES_WAITING = _count(_MEMORIES_BEHIND & _OF_OTHERS)
_KIND = text(Channel.select(Channel.kind).where(Channel.id == PLACE))
_MEMORY_CHANNELS = text(Channel.select(Channel.id).where(Channel.kind == SQL("'memory'")))
_IS_READ = Channel.id.in_(
    Subscription.select(Subscription.channel).where(Subscription.expired_at_us.is_null())
)
_READ_FIRST = text(
    Channel.select(Channel.id)
    .where(Channel.kind != SQL("'memory'"))
    .order_by(_IS_READ.desc(), Channel.id)
)
_RANGES = text(
    RemovedMessages.select(
        RemovedMessages.from_sequence, RemovedMessages.to_sequence, RemovedMessages.cause
    )
    .where(
        (RemovedMessages.channel == PLACE)
        & (RemovedMessages.to_sequence > PLACE)
        & (RemovedMessages.from_sequence < PLACE)
    )
    .order_by(RemovedMessages.from_sequence)
)
_REMOVED_THROUGH = text(Channel.select(fn.COALESCE(fn.MAX(Channel.removed_through), SQL("0"))))
_REMOVED_BETWEEN = text(
    RemovedMessages.select(
        Channel.name,
        RemovedMessages.channel,
        RemovedMessages.from_sequence,
        RemovedMessages.to_sequence,
        RemovedMessages.cause,
    )
    .join(Channel, on=(Channel.id == RemovedMessages.channel))
    .where((RemovedMessages.to_sequence > PLACE) & (RemovedMessages.from_sequence < PLACE))
    .order_by(RemovedMessages.from_sequence)
)
_SESSION_ROWS = Session.select(
    Session.id,
    Session.display_name,
    Agent.id,
    Agent.name,
    Session.application,
    Session.conversation,
    Session.child,
    Session.parent,
    Session.role,
    Session.repository,
    Session.generation,
    Session.created_at_us,
    Session.last_seen_us,
).join(Agent, on=(Agent.id == Session.agent))
_SESSIONS = text(_SESSION_ROWS.order_by(Session.created_at_us, Session.id))
_SESSION = text(
    _SESSION_ROWS.where(
        (Session.conversation == PLACE)
        & (Session.child == SQL("''"))
        & (SQL("? IS NULL") | (Session.application == PLACE))
    )
    .order_by(Session.last_seen_us.desc())
    .limit(SQL("1"))
)
_META = text(Meta.select(Meta.value).where(Meta.key == PLACE))
_COUNTS = {
    "messages": text(Channel.select(fn.COALESCE(fn.SUM(Channel.retained), SQL("0")))),
    **{
        table._meta.table_name: text(table.select(fn.COUNT(SQL("*"))))
        for table in (Agent, Session, Channel, Subscription, Receipt)
    },
    # With the words of the index, which is short; so is what rests until a person decides.
    "paused_deliveries": text(
        Delivery.select(fn.COUNT(SQL("*"))).where(IS_OPEN & (Delivery.state == SQL("'paused'")))
    ),
}


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session that was ever attached, for administration. `child` is empty for a main one."""

    session_id: SessionId
    display_name: str
    agent_id: AgentId
    agent: str
    application: str
    conversation: str
    child: str
    parent: SessionId | None
    role: str | None
    repository: str | None
    generation: int
    created_at_us: int
    last_seen_us: int


@dataclass(frozen=True, slots=True)
class Page:
    """Messages in sequence order, and what was removed within the part of the channel they cover.

    `more`: the channel goes on beyond this page, in the direction in which it was read.
    `oldest_retained` is the channel's, where something was removed and something is left.
    """

    messages: list[StoredMessage]
    removed: list[RemovedRange]
    more: bool
    oldest_retained: Sequence | None


@dataclass(frozen=True, slots=True)
class RemovedPart:
    """What was removed of one channel, and what it begins with now."""

    channel: str
    removed: RemovedRange
    oldest_retained: Sequence | None

    def as_data(self) -> dict[str, Any]:
        """As the results of tools show a gap."""
        return {
            "channel": self.channel,
            "from_sequence": self.removed.from_sequence,
            "to_sequence": self.removed.to_sequence,
            "cause": self.removed.cause,
            "oldest_retained": self.oldest_retained,
        }


class Reader:
    """See the module's text. Open one per thread."""

    def __init__(self, path: Path) -> None:
        """Open an existing database. Raises DatabaseUnusable."""
        self._connection = open_reader(path)

    def close(self) -> None:
        self._connection.close()

    def subscriptions(self, session_id: SessionId) -> tuple[SubscriptionRow, ...]:
        """All of a session's, those that expired included."""
        return tuple(SubscriptionRow(*row) for row in self._all(SELECT_OF_SESSION, session_id))

    def channels(self, prefix: str = "") -> list[ChannelRow]:
        """Channels whose name begins so, by name."""
        return [ChannelRow(*row) for row in self._all(_CHANNELS, len(prefix), prefix)]

    def channel(self, name: str) -> ChannelRow | None:
        rows = self._all(_CHANNEL, name)
        return ChannelRow(*rows[0]) if rows else None

    def history(
        self,
        channel_id: ChannelId,
        *,
        before: Sequence | None = None,
        after: Sequence | None = None,
        count: int,
        inbox_of: AgentId | None = None,
    ) -> Page:
        """The oldest messages after `after`, else the newest before `before` (or of all).

        Of a memory channel live revisions only, by their own sequences; of an inbox what was sent
        to its agent, which may be stored in the inbox of another recipient.
        """
        low = after if after is not None else Sequence(0)
        high = before if before is not None else NO_END
        forwards = after is not None
        with self._snapshot():
            if inbox_of is None:
                sql = _OLDEST if forwards else _NEWEST
                rows = self._all(sql, channel_id, low, high, count + 1)
            else:
                sql = _OLDEST_DELIVERED if forwards else _NEWEST_DELIVERED
                rows = self._all(sql, low, high, inbox_of, count + 1)
            more = len(rows) > count
            messages = [StoredMessage(*row) for row in rows[:count]]
            if not forwards:
                messages.reverse()
            # The part that the page covers ends where the next page begins.
            if more and forwards:
                high = Sequence(messages[-1].sequence + 1)
            elif more:
                low = Sequence(messages[0].sequence - 1)
            removed = self._ranges(channel_id, low, high)
            oldest = self._oldest_retained(channel_id) if removed else None
            return Page(messages, removed, more, oldest)

    def message(self, message_id: MessageId) -> StoredMessage | None:
        """A retained message; of a memory its live revision."""
        rows = self._all(_MESSAGE, message_id)
        return StoredMessage(*rows[0]) if rows else None

    def memory(self, memory_id: MessageId) -> StoredMessage | None:
        """The live revision of a memory; None for what is deleted or an ordinary message."""
        rows = self._all(_MEMORY, memory_id)
        return StoredMessage(*rows[0]) if rows else None

    def live_envelopes(self, sequences: list[Sequence]) -> dict[Sequence, bytes]:
        """Those that are still there and neither superseded nor deleted, in no order."""
        return dict(self._all(_LIVE_ENVELOPES, encode(sequences).decode()))

    def visible(self, sequences: list[Sequence], agent_id: AgentId) -> set[Sequence]:
        """Those that this agent may read: of direct messages what it sent or got."""
        rows = self._all(_VISIBLE, encode(sequences).decode(), agent_id, agent_id)
        return {Sequence(row[0]) for row in rows}

    def memory_revision(self, memory_id: MessageId) -> int | None:
        """The number of a memory's live revision."""
        rows = self._all(_REVISION, memory_id)
        return int(rows[0][0]) if rows else None

    def removed_ranges(
        self, channel_id: ChannelId, after: Sequence, through: Sequence = NO_END
    ) -> list[RemovedRange]:
        """What was removed above `after`, up to and including `through`, in order; cut to that."""
        return self._ranges(channel_id, after, min(Sequence(through + 1), NO_END))

    def removed_through(self) -> Sequence:
        """Every ordinary message up to here is gone, in whichever channel: a removal is always of
        the oldest of the bus."""
        return Sequence(self._all(_REMOVED_THROUGH)[0][0])

    def removed_anywhere(self, low: Sequence, high: Sequence) -> list[RemovedPart]:
        """What of any channel was removed above `low` and below `high`, in order."""
        parts = []
        with self._snapshot():
            rows = self._all(_REMOVED_BETWEEN, low, high)
            for channel, channel_id, from_sequence, to_sequence, cause in rows:
                cut = missed(low, from_sequence, min(to_sequence, Sequence(high - 1)))
                if cut is not None:
                    oldest = self._oldest_retained(channel_id)
                    parts.append(RemovedPart(channel, RemovedRange(*cut, cause), oldest))
        return parts

    def sessions(self) -> list[SessionRow]:
        """Every session that was ever attached, oldest first."""
        return [SessionRow(*row) for row in self._all(_SESSIONS)]

    def find_session(self, application: str | None, conversation: str) -> SessionRow | None:
        """The main session of a native conversation, the one seen last where there are several."""
        rows = self._all(_SESSION, conversation, application, application)
        return SessionRow(*rows[0]) if rows else None

    def waiting(
        self,
        channel_id: ChannelId,
        position: Sequence,
        session_id: SessionId,
        limit: int = LAG_LIMIT,
    ) -> int:
        """As `lag`, without what the session has sent itself."""
        ((kind,),) = self._all(_KIND, channel_id)
        sql = _MEMORIES_WAITING if kind == "memory" else _WAITING
        return int(self._all(sql, channel_id, position, session_id, limit)[0][0])

    def lag(self, channel_id: ChannelId, position: Sequence, limit: int = LAG_LIMIT) -> int:
        """How many messages or living memories lie after it; `limit` means "so many or more".

        Walks an index entry per message counted.
        """
        ((kind,),) = self._all(_KIND, channel_id)
        sql = _MEMORY_LAG if kind == "memory" else _LAG
        return int(self._all(sql, channel_id, position, limit)[0][0])

    def scan(self, after_sequence: Sequence, limit: int) -> list[StoredMessage]:
        """The next ordinary messages of all channels in sequence order, for replay."""
        return [StoredMessage(*row) for row in self._all(_SCAN, after_sequence, limit)]

    def scan_channel(
        self, channel_id: ChannelId, after_sequence: Sequence, limit: int
    ) -> list[StoredMessage]:
        """The next ordinary messages of a channel in sequence order, for a rebuild."""
        rows = self._all(_SCAN_CHANNEL, channel_id, after_sequence, limit)
        return [StoredMessage(*row) for row in rows]

    def channels_read_first(self) -> list[ChannelId]:
        """Of ordinary messages: those with a subscription that has not expired, then the others."""
        return [ChannelId(row[0]) for row in self._all(_READ_FIRST)]

    def memory_channels(self) -> list[ChannelId]:
        return [ChannelId(row[0]) for row in self._all(_MEMORY_CHANNELS)]

    def scan_memories(
        self, channel_id: ChannelId, after_position: Sequence, limit: int
    ) -> list[StoredMessage]:
        """The next living memories of a channel by their positions, for replay and rebuild."""
        rows = self._all(_SCAN_MEMORIES, channel_id, after_position, limit)
        return [StoredMessage(*row) for row in rows]

    def revised_memories(self, since: Sequence) -> list[StoredMessage]:
        """Living memories from before `since` whose revision is from after it, for replay."""
        return [StoredMessage(*row) for row in self._all(_REVISED, since, since)]

    def deleted_memories(self, since: Sequence) -> list[EndedMemory]:
        """Memories deleted after `since`, as far as not purged, for replay."""
        return [EndedMemory(*row) for row in self._all(_DELETED, since)]

    def purged_through(self) -> Sequence:
        """A replay must begin at this sequence or later, for what ended before may be purged."""
        return Sequence(self._all(_META, "purged_through")[0][0])

    def counts(self) -> dict[str, int]:
        """Rows per table and what waits for people, for status.

        Receipts are counted one by one, up to a few milliseconds.
        """
        with self._snapshot():
            return {name: int(self._all(sql)[0][0]) for name, sql in _COUNTS.items()}

    def logical_bytes(self) -> int:
        """What counts against `sqlite_budget_mib`, as of the last commit."""
        return int(self._all(_META, "logical_bytes")[0][0])

    def retained_bytes(self) -> int:
        """Of everything that a rebuild puts into Redis; reads the head of every row."""
        return int(self._all(_RETAINED_BYTES)[0][0])

    def bus_id(self) -> BusId:
        """The identity of this database."""
        return BusId(self._all(_META, "bus_id")[0][0])

    def last_sequence(self) -> Sequence:
        """The newest committed sequence."""
        return Sequence(self._all(_META, "last_sequence")[0][0])

    def _oldest_retained(self, channel_id: ChannelId) -> Sequence | None:
        first = self._all(_FIRST, channel_id)
        return Sequence(first[0][0]) if first else None

    def _ranges(self, channel_id: ChannelId, low: Sequence, high: Sequence) -> list[RemovedRange]:
        """Removed ranges with a part above `low` and below `high`, cut to that part."""
        ranges = []
        for from_sequence, to_sequence, cause in self._all(_RANGES, channel_id, low, high):
            part = missed(low, from_sequence, min(to_sequence, Sequence(high - 1)))
            if part is not None:
                ranges.append(RemovedRange(*part, cause))
        return ranges

    def _all(self, sql: str, *parameters: Any) -> list[Any]:
        """All rows at once, so that no statement (and with it no read transaction) stays open."""
        try:
            return self._connection.execute(sql, parameters).fetchall()
        except sqlite3.Error as error:
            raise not_read(error) from error

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        """Several statements that see the same commit."""
        self._all("BEGIN")
        try:
            yield
        finally:
            if self._connection.in_transaction:
                self._all("COMMIT")
