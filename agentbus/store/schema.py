"""The tables, as Peewee models, and the SQL text of statements made from them.

Owns the schema and its version. The models are bound to a dialect that never connects: they define
tables and write SQL text, once, at import; connections execute that text (a query object built per
message costs ten times the statement itself). Nothing here touches a file, so any thread may import
it.

Times are microseconds since the Unix epoch. There are no foreign keys: one writer makes all rows,
and a check per row would cost more than the insert.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from peewee import (
    SQL,
    BareField,
    BigIntegerField,
    BlobField,
    BooleanField,
    CompositeKey,
    IntegerField,
    Model,
    Query,
    SqliteDatabase,
    TextField,
)

SCHEMA_VERSION = 4
APPLICATION_ID = 0x41674273
"""`AgBs` in the file header: tells our file from another program's database."""

_DIALECT = SqliteDatabase(None, returning_clause=False)

Table: TypeAlias = Any
"""A model class; Peewee's stubs do not know what its metaclass adds."""


class Base(Model):
    class Meta:
        database = _DIALECT
        legacy_table_names = False


class Agent(Base):
    """A persistent agent. `capabilities`: a JSON list, as its sessions named them last."""

    id = TextField(primary_key=True)
    name = TextField(unique=True)
    created_at_us = BigIntegerField()
    description = TextField(null=True)
    capabilities = TextField()

    class Meta:
        table_name = "agents"


class Session(Base):
    """One native conversation, or a child of one (`child` is empty for a main conversation).

    `used_sequence`: the bus's newest when the session last received from a memory channel. What
    it saw of memories then is confirmed by its next such call, so `seen_sequence` is the one of
    the call before.
    """

    id = TextField(primary_key=True)
    agent = TextField()
    application = TextField()
    conversation = TextField()
    child = TextField()
    parent = TextField(null=True)
    role = TextField(null=True)
    display_name = TextField()
    repository = TextField(null=True)
    generation = BigIntegerField()
    created_at_us = BigIntegerField()
    last_seen_us = BigIntegerField()
    used_sequence = BigIntegerField()
    seen_sequence = BigIntegerField()

    class Meta:
        table_name = "sessions"
        indexes = ((("agent", "application", "conversation", "child"), True),)


class Channel(Base):
    """A channel and its counters. `created_sequence`: the bus's newest when it was made."""

    id = IntegerField(primary_key=True)
    name = TextField(unique=True)
    kind = TextField()
    created_at_us = BigIntegerField()
    created_sequence = BigIntegerField()
    newest = BigIntegerField()
    retained = BigIntegerField()
    removed_through = BigIntegerField()

    class Meta:
        table_name = "channels"


class RemovedMessages(Base):
    """A run of removed messages of one channel; successive removals of one cause extend it."""

    channel = IntegerField()
    from_sequence = BigIntegerField()
    to_sequence = BigIntegerField()
    cause = TextField()

    class Meta:
        table_name = "removed_ranges"
        primary_key = CompositeKey("channel", "from_sequence")
        without_rowid = True


class Subscription(Base):
    """A session's cursor in a channel. Ids are never reused: a late report moves no other one."""

    id = IntegerField(primary_key=True, constraints=[SQL("AUTOINCREMENT")])
    session = TextField()
    channel = IntegerField()
    handed_off = BigIntegerField()
    confirmed = BigIntegerField()
    last_used_us = BigIntegerField()
    expired_at_us = BigIntegerField(null=True)

    class Meta:
        table_name = "subscriptions"
        indexes = ((("session", "channel"), True),)


class Message(Base):
    """A message, or one revision of a memory; a memory's live one is the one without tombstone.

    `position` and `session` are those of the creation, also in later revisions. `ended_sequence`
    is the commit that made the tombstone: the next revision's, or the deletion's own. The index on
    `channel` is ordered by sequence too, since that is the row id.
    """

    sequence = IntegerField(primary_key=True)
    message_id = TextField()
    revision = IntegerField()
    channel = IntegerField(index=True)
    position = BigIntegerField()
    session = TextField()
    sent_at_us = BigIntegerField()
    thread = TextField(null=True)
    reply_to = TextField(null=True)
    memory = BooleanField()
    tombstoned_at_us = BigIntegerField(null=True)
    ended_sequence = BigIntegerField(null=True)
    envelope = BlobField()  # last, so that the other columns are on the row's first page

    class Meta:
        table_name = "messages"
        indexes = ((("message_id", "revision"), True),)


LIVE_MEMORY = SQL('"memory" = 1 AND "tombstoned_at_us" IS NULL')
TOMBSTONE = SQL('"tombstoned_at_us" IS NOT NULL')
"""Conditions of the two partial indexes; a query with the same words uses them."""

Message.add_index(
    Message.index(Message.channel, Message.position, name="message_live_memory").where(LIVE_MEMORY)
)
Message.add_index(
    Message.index(Message.tombstoned_at_us, name="message_tombstone").where(TOMBSTONE)
)


class Receipt(Base):
    """The answer to a mutation, kept so that its repeat gets the same one.

    `session` is whose the operation id is: of a key of peer messaging it is the agent's id, so that
    all sessions of one agent share its keys, and none meets the operation ids of a session.
    """

    session = TextField()
    operation_id = TextField()
    fingerprint = BlobField()
    result = BlobField()
    accepted_at_us = BigIntegerField()
    expires_at_us = BigIntegerField(index=True)

    class Meta:
        table_name = "receipts"
        primary_key = CompositeKey("session", "operation_id")
        without_rowid = True


class Delivery(Base):
    """A direct message for one recipient: an agent, or one session of it.

    `token` is there while it is leased, to the session `holder`, by its attachment of
    `holder_generation`; both stay when the lease is over, so that the same one finds it again.
    `parent`: what the sender held when it sent. The three last groups are the lease, the tracking
    of a request's reply, and how it ended.
    """

    id = TextField(primary_key=True)
    message_id = TextField(index=True)
    sequence = BigIntegerField()
    kind = TextField()
    thread = TextField()
    reply_to = TextField(null=True)
    depth = IntegerField()
    parent = TextField(null=True)
    sender_agent = TextField()
    sender_session = TextField()
    recipient_agent = TextField()
    recipient_session = TextField(null=True)
    reassigned_from = TextField(null=True)
    created_at_us = BigIntegerField()
    changed_at_us = BigIntegerField()
    state = TextField()
    holder = TextField(null=True)
    holder_generation = BigIntegerField(null=True)
    token = TextField(null=True)
    attempt = IntegerField()
    lease_expires_us = BigIntegerField(null=True)
    deadline_us = BigIntegerField(null=True)
    extensions = IntegerField()
    progressed_at_us = BigIntegerField(null=True)
    intervention = TextField(null=True)
    reply_state = TextField(null=True)
    reply_due_us = BigIntegerField(null=True)
    unanswered_us = BigIntegerField(null=True)
    reply_message_id = TextField(null=True)
    late_reply_message_id = TextField(null=True)
    cause = TextField(null=True)
    cancelled_reason = TextField(null=True)

    class Meta:
        table_name = "deliveries"


IS_OPEN = SQL("\"state\" IN ('queued', 'leased', 'paused')")
IS_HELD = SQL("\"holder\" IS NOT NULL AND \"state\" IN ('queued', 'leased', 'paused')")
IS_UNANSWERED = SQL("\"reply_state\" IN ('awaiting', 'overdue', 'unanswered')")
"""Conditions of the indexes of what an agent has to do, of what a session works on, and of requests
without a reply. A query with the same words uses them, and names the states that it wants too: by
two columns SQLite prefers them to the indexes of everything, which a busy agent makes long."""

BY_SEQUENCE = SQL('+"t1"."sequence"')
"""To sort few rows by, where SQLite would rather walk many that are sorted."""

Delivery.add_index(
    Delivery.index(
        Delivery.recipient_agent, Delivery.state, Delivery.sequence, name="delivery_open"
    ).where(IS_OPEN)
)
Delivery.add_index(Delivery.index(Delivery.holder, name="delivery_held").where(IS_HELD))
Delivery.add_index(
    Delivery.index(
        Delivery.sender_agent, Delivery.reply_state, Delivery.sequence, name="delivery_unanswered"
    ).where(IS_UNANSWERED)
)
Delivery.add_index(Delivery.index(Delivery.sequence))
Delivery.add_index(Delivery.index(Delivery.recipient_agent, Delivery.sequence))
Delivery.add_index(Delivery.index(Delivery.sender_agent, Delivery.sequence))
Delivery.add_index(Delivery.index(Delivery.reply_to))


class Intervention(Base):
    """A question to a person about a delivery, and what was decided.

    `version` grows with every change, so that nobody decides about what has changed meanwhile.
    `detail`: JSON, what the agent proposed. `told`: the instructions have been shown.
    """

    id = TextField(primary_key=True)
    delivery = TextField(index=True)
    source = TextField()
    reason = TextField()
    detail = TextField()
    version = IntegerField()
    stop_status = TextField()
    created_at_us = BigIntegerField()
    action = TextField(null=True)
    instructions = TextField(null=True)
    decided_by = TextField(null=True)
    decided_at_us = BigIntegerField(null=True)
    told = BooleanField()

    class Meta:
        table_name = "interventions"


class Presented(Base):
    """A response whose text a session has been shown, however: it is not shown again."""

    session = TextField()
    message_id = TextField()

    class Meta:
        table_name = "presented"
        primary_key = CompositeKey("message_id", "session")
        without_rowid = True


class NoticeShown(Base):
    """That a reply is late was told to this session, about this delivery in this state."""

    session = TextField()
    delivery = TextField()
    reply_state = TextField()

    class Meta:
        table_name = "notices_shown"
        primary_key = CompositeKey("delivery", "session", "reply_state")
        without_rowid = True


class Consultation(Base):
    """How much a session has asked of others while it handles a delivery (empty: none)."""

    session = TextField()
    delivery = TextField()
    requests = IntegerField()
    started_at_us = BigIntegerField()

    class Meta:
        table_name = "consultations"
        primary_key = CompositeKey("delivery", "session")
        without_rowid = True


class Meta(Base):
    """schema_version, bus_id, last_sequence, last_generation, logical_bytes, purged_through."""

    key = TextField(primary_key=True)
    value = BareField()

    class Meta:
        table_name = "meta"
        without_rowid = True


DATA_TABLES: tuple[Table, ...] = (
    Agent,
    Session,
    Channel,
    RemovedMessages,
    Subscription,
    Message,
    Receipt,
    Delivery,
    Intervention,
    Presented,
    NoticeShown,
    Consultation,
)
"""Everything that counts against the budget and that a reset empties."""

PLACE: Any = SQL("?")
"""The place of a parameter in a statement's text."""


def text(query: Query) -> str:
    """The SQL of a query whose parameters are all `PLACE`."""
    sql, parameters = query.sql()
    assert not parameters, f"a value got into the text of a statement: {sql}"
    return str(sql)


def insert_text(table: Table, *, replace: bool = False) -> str:
    """INSERT of a whole row, columns in the order of their declaration."""
    row = dict.fromkeys(table._meta.sorted_fields, PLACE)
    return text(table.replace(row) if replace else table.insert(row))


def create_statements() -> list[str]:
    """DDL of all tables and indexes, in order."""
    statements = []
    for table in (*DATA_TABLES, Meta):
        schema = table._schema
        for context in (
            schema._create_table(safe=False),
            *schema._create_indexes(safe=False),
        ):
            sql, _ = context.query()
            statements.append(str(sql))
    return statements
