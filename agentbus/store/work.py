"""The work of one transaction: its connection, its counters and what it has changed so far.

Owns the difference between what is committed (`Committed`) and what this transaction would make of
it (`Work`): a rollback throws the work away and nothing in memory has to be repaired. Never begins
or ends a transaction. Runs on the ledger's thread.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field

from agentbus.config import Config
from agentbus.envelope import ChannelKind
from agentbus.errors import NotFoundError, StaleAttachmentError, ValidationError
from agentbus.identity import Attachment
from agentbus.ids import BusId, ChannelId, Generation, Sequence, SessionId
from agentbus.limits import INBOX_PREFIX
from agentbus.store.accounting import row_bytes
from agentbus.store.bulk import BulkInsert, Row
from agentbus.store.schema import PLACE, Channel, Meta, Session, text

BEFORE_ALL = Sequence(0)

_SELECT_GENERATION = text(Session.select(Session.generation).where(Session.id == PLACE))
_SELECT_CHANNELS = text(
    Channel.select(
        Channel.id,
        Channel.name,
        Channel.kind,
        Channel.newest,
        Channel.retained,
        Channel.removed_through,
    )
)
_UPDATE_CHANNEL = text(
    Channel.update(
        {Channel.newest: PLACE, Channel.retained: PLACE, Channel.removed_through: PLACE}
    ).where(Channel.id == PLACE)
)
_UPDATE_META = text(Meta.update({Meta.value: PLACE}).where(Meta.key == PLACE))
_SELECT_META = text(Meta.select(Meta.key, Meta.value))


@dataclass(slots=True)
class ChannelState:
    """A channel as the ledger holds it in memory. `newest` is 0 where nothing was ever sent."""

    channel_id: ChannelId
    name: str
    kind: ChannelKind
    newest: Sequence
    retained: int
    removed_through: Sequence

    def copy(self) -> ChannelState:
        # Once per channel and transaction; dataclasses.replace takes ten times as long.
        return ChannelState(
            self.channel_id,
            self.name,
            self.kind,
            self.newest,
            self.retained,
            self.removed_through,
        )


@dataclass(slots=True)
class Counters:
    """The numbers that every transaction may move.

    `purged_through`: the newest end of a memory's revision that was purged; only a Redis that has
    been told of all up to there can still be brought up to date by replay.
    """

    last_sequence: Sequence
    last_generation: Generation
    logical_bytes: int
    purged_through: Sequence

    def copy(self) -> Counters:
        return Counters(
            self.last_sequence, self.last_generation, self.logical_bytes, self.purged_through
        )


@dataclass(slots=True)
class Committed:
    """What is on disk, as far as the ledger keeps it in memory.

    `generations` fills as sessions speak. `ordinary_from`: every ordinary message below this
    sequence has been removed, so that a cleanup does not pass over all old memories again.
    """

    counters: Counters
    channels: dict[ChannelId, ChannelState]
    channel_ids: dict[str, ChannelId]
    generations: dict[SessionId, Generation] = field(default_factory=dict)
    ordinary_from: Sequence = BEFORE_ALL


def load_committed(connection: sqlite3.Connection) -> Committed:
    """Read the counters and all channels."""
    meta = dict(connection.execute(_SELECT_META).fetchall())
    channels = [ChannelState(*row) for row in connection.execute(_SELECT_CHANNELS).fetchall()]
    return Committed(
        Counters(
            Sequence(meta["last_sequence"]),
            Generation(meta["last_generation"]),
            meta["logical_bytes"],
            Sequence(meta["purged_through"]),
        ),
        {channel.channel_id: channel for channel in channels},
        {channel.name: channel.channel_id for channel in channels},
    )


def load_bus_id(connection: sqlite3.Connection) -> BusId:
    """The identity of this database."""
    return BusId(dict(connection.execute(_SELECT_META).fetchall())["bus_id"])


@dataclass(slots=True)
class Staged:
    """What this transaction has made of the committed state."""

    counters: Counters
    channels: dict[ChannelId, ChannelState]
    channel_ids: dict[str, ChannelId]
    generations: dict[SessionId, Generation]
    ordinary_from: Sequence

    def copy(self) -> Staged:
        return Staged(
            self.counters.copy(),
            {key: channel.copy() for key, channel in self.channels.items()},
            dict(self.channel_ids),
            dict(self.generations),
            self.ordinary_from,
        )


class Work:
    """One transaction in progress. `now_us` is the same for all changes of a batch.

    Rows that were gathered count as written for the accounting, but statements see them only after
    `flush`: whoever reads or changes rows of messages or receipts flushes first. `receipts` has
    those of the batch's mutations, as they are with what was gathered.
    """

    __slots__ = (
        "_committed",
        "_gathered",
        "config",
        "connection",
        "execute",
        "gathered_rows",
        "now_us",
        "receipts",
        "staged",
    )

    def __init__(
        self, connection: sqlite3.Connection, config: Config, committed: Committed, now_us: int
    ) -> None:
        self.connection = connection
        self.execute = connection.execute
        self.config = config
        self.now_us = now_us
        self._committed = committed
        self._gathered: dict[BulkInsert, list[Row]] = {}
        self.gathered_rows = 0  # ever
        self.receipts: dict[Row, Row | None] = {}
        self.staged = Staged(committed.counters.copy(), {}, {}, {}, committed.ordinary_from)

    @property
    def counters(self) -> Counters:
        return self.staged.counters

    def insert(self, sql: str, row: Rows[object]) -> int:
        """Insert a whole row and account for it; the row id where the table has one."""
        cursor = self.execute(sql, row)
        self.staged.counters.logical_bytes += row_bytes(row)
        return cursor.lastrowid or 0

    def gather(self, insert: BulkInsert, row: Row) -> None:
        """Insert a whole row with the others of the batch, and account for it now."""
        self._gathered.setdefault(insert, []).append(row)
        self.gathered_rows += 1
        self.staged.counters.logical_bytes += row_bytes(row)

    def flush(self) -> None:
        """Write what was gathered."""
        if self._gathered:
            gathered, self._gathered = self._gathered, {}
            for insert, rows in gathered.items():
                insert.execute(self.connection, rows)

    def forget(self, staged: Staged) -> None:
        """After a rollback to where the transaction stood like this."""
        self.staged = staged
        self._gathered = {}
        self.receipts = {}

    def require_current(self, attachment: Attachment) -> None:
        """Refuse whoever has been replaced since: the generation is the fencing token."""
        session_id = attachment.session_id
        current = self.staged.generations.get(session_id)
        if current is None:
            current = self._committed.generations.get(session_id)
        if current is None:
            row = self.execute(_SELECT_GENERATION, (session_id,)).fetchone()
            if row is not None:
                # Not of this transaction: it would be in `staged`. So it is committed.
                current = self._committed.generations[session_id] = Generation(row[0])
        if current != attachment.generation:
            raise StaleAttachmentError(
                f"generation {attachment.generation} of this session was replaced "
                f"{'by ' + str(current) if current else '(the session is unknown here)'}; "
                "attach again"
            )

    def channel(self, name: str) -> ChannelState | None:
        """A channel by name, to look at; `changing` gives one to change."""
        channel_id = self.staged.channel_ids.get(name)
        if channel_id is None:
            channel_id = self._committed.channel_ids.get(name)
            if channel_id is None:
                return None
        return self.staged.channels.get(channel_id) or self._committed.channels[channel_id]

    def require_channel(self, name: str) -> ChannelState:
        """A channel by name that anybody may use. Raises NotFoundError or ValidationError."""
        channel = self.channel(name)
        if name.startswith(INBOX_PREFIX):
            raise ValidationError(
                f"{name!r}: names that begin with {INBOX_PREFIX} are inboxes of agents; the tool "
                "peer sends to them and reads them"
            )
        if channel is None:
            raise NotFoundError(
                f"there is no channel {name!r}; list_channels shows those that exist, "
                "create_channel makes a new one"
            )
        return channel

    def changing(self, channel_id: ChannelId) -> ChannelState:
        """This transaction's own copy of a channel; its counters are written before COMMIT."""
        channel = self.staged.channels.get(channel_id)
        if channel is None:
            channel = self._committed.channels[channel_id].copy()
            self.staged.channels[channel_id] = channel
        return channel

    def add_channel(self, channel: ChannelState) -> None:
        """Make a channel known whose row has just been inserted."""
        self.staged.channels[channel.channel_id] = channel
        self.staged.channel_ids[channel.name] = channel.channel_id

    def write_counters(self) -> None:
        """The last writes of the transaction: gathered rows, channels touched, counters moved."""
        self.flush()
        if self.staged.channels:
            self.connection.executemany(
                _UPDATE_CHANNEL,
                [
                    (channel.newest, channel.retained, channel.removed_through, channel_id)
                    for channel_id, channel in self.staged.channels.items()
                ],
            )
        before, after = self._committed.counters, self.staged.counters
        moved = [
            (value, key)
            for key, old, value in (
                ("last_sequence", before.last_sequence, after.last_sequence),
                ("last_generation", before.last_generation, after.last_generation),
                ("logical_bytes", before.logical_bytes, after.logical_bytes),
                ("purged_through", before.purged_through, after.purged_through),
            )
            if value != old
        ]
        if moved:
            self.connection.executemany(_UPDATE_META, moved)

    def publish(self) -> None:
        """After COMMIT: what was staged is committed now."""
        committed, staged = self._committed, self.staged
        committed.counters = staged.counters
        committed.channels.update(staged.channels)
        committed.channel_ids.update(staged.channel_ids)
        committed.generations.update(staged.generations)
        committed.ordinary_from = staged.ordinary_from
