"""What a client may ask of the bus: one frozen class per operation, with its checks beside it.

The adapter builds its tool schemas and checks tool calls with `FIELDS`; the daemon checks frames
with the same ones. `parse_operation` is the only way from raw arguments to an operation.

Methods of a connection that are no operation of an agent (attach, credit, handoff, status) are in
`session.py`.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from enum import Enum
from typing import Any, ClassVar, Final, Literal, TypeAlias

from agentbus.envelope import Body, ChannelKind, Reference
from agentbus.errors import ValidationError
from agentbus.limits import (
    CURSOR_BYTES,
    OPERATION_ID_BYTES,
    SEARCH_PAGE_DEFAULT,
    SEARCH_PAGE_MAX,
    SEARCH_TEXT_BYTES,
    SUBJECT_CHARACTERS,
)
from agentbus.protocol.fields import (
    ChannelName,
    Check,
    Choice,
    Flag,
    Integer,
    JsonObject,
    Moment,
    Name,
    Names,
    Number,
    References,
    Text,
)

_OPERATION_ID = Text(
    "Give your own to make a repeat of this call harmless.",
    max_bytes=OPERATION_ID_BYTES,
    min_bytes=1,
)
_RESERVED_PREFIXES = ("@", "job/")


class Unchanged(Enum):
    """The type of `KEEP`: an argument that was left out, where null means something else."""

    KEEP = "keep"


KEEP: Final = Unchanged.KEEP
Kept: TypeAlias = Literal[Unchanged.KEEP]


@dataclass(frozen=True, slots=True)
class WhoAmI:
    """Who this session is on the bus and what it is subscribed to."""

    NAME: ClassVar[str] = "whoami"
    FIELDS: ClassVar[dict[str, Check]] = {}


@dataclass(frozen=True, slots=True)
class CreateChannel:
    """Create a channel; the same kind again changes nothing, another kind is a conflict."""

    name: str
    kind: ChannelKind = "ordinary"

    NAME: ClassVar[str] = "create_channel"
    FIELDS: ClassVar[dict[str, Check]] = {
        "name": Name("Name of the new channel."),
        "kind": Choice(
            ("ordinary", "memory"), "Default ordinary; a memory channel holds memories."
        ),
    }


@dataclass(frozen=True, slots=True)
class ListChannels:
    """All channels, optionally those whose name begins with `prefix`."""

    prefix: str = ""

    NAME: ClassVar[str] = "list_channels"
    FIELDS: ClassVar[dict[str, Check]] = {"prefix": Text("Only names that begin so.", 128)}


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Start (or renew) this session's subscription of a channel."""

    channel: str
    from_: str = "now"

    NAME: ClassVar[str] = "subscribe"
    FIELDS: ClassVar[dict[str, Check]] = {
        "channel": Name("Channel to subscribe to."),
        "from": Choice(("now", "oldest"), "Where a new subscription starts; default now."),
    }


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """Drop this session's subscription and its cursor."""

    channel: str

    NAME: ClassVar[str] = "unsubscribe"
    FIELDS: ClassVar[dict[str, Check]] = {"channel": Name("Channel to leave.")}


@dataclass(frozen=True, slots=True)
class Send:
    """Append a message to a channel (on a memory channel: create a memory)."""

    channel: str
    content: str
    type: str | None = None
    subject: str | None = None
    reply_to: str | None = None
    thread: str | None = None
    metadata: dict[str, Any] | None = None
    references: tuple[Reference, ...] = ()
    tags: tuple[str, ...] = ()
    operation_id: str | None = None

    NAME: ClassVar[str] = "send"
    FIELDS: ClassVar[dict[str, Check]] = {
        "channel": Name("An existing channel, for example general."),
        "content": Text("The message."),
        "type": Name("Free word for the kind of message."),
        "subject": Text("Headline.", max_characters=SUBJECT_CHARACTERS),
        "reply_to": Name("message_id that this answers."),
        "thread": Name("Thread name; default: that of reply_to."),
        "metadata": JsonObject("Any extra data."),
        "references": References("Pointers to files or pages."),
        "tags": Names(description="Words to find it by."),
        "operation_id": _OPERATION_ID,
    }

    def body(self) -> Body:
        """What goes into the envelope; also what the receipt's fingerprint covers."""
        return Body(
            content=self.content,
            type=self.type,
            subject=self.subject,
            reply_to=self.reply_to,
            thread=self.thread,
            metadata=self.metadata,
            references=self.references,
            tags=self.tags,
        )


@dataclass(frozen=True, slots=True)
class GetMemory:
    """The current revision of a memory."""

    memory_id: str

    NAME: ClassVar[str] = "get_memory"
    FIELDS: ClassVar[dict[str, Check]] = {"memory_id": Name("The message_id that send gave.")}


@dataclass(frozen=True, slots=True)
class EditMemory:
    """Replace the current revision of a memory by a new one; the last commit wins.

    A field that is left out keeps its value, null clears it.
    """

    memory_id: str
    content: str
    type: str | Kept | None = KEEP
    subject: str | Kept | None = KEEP
    reply_to: str | Kept | None = KEEP
    thread: str | Kept | None = KEEP
    metadata: dict[str, Any] | Kept | None = KEEP
    references: tuple[Reference, ...] | Kept | None = KEEP
    tags: tuple[str, ...] | Kept | None = KEEP
    operation_id: str | None = None

    NAME: ClassVar[str] = "edit_memory"
    FIELDS: ClassVar[dict[str, Check]] = {
        "memory_id": Name("The memory to edit."),
        "content": Text("The whole new content."),
        **{
            key: Send.FIELDS[key]
            for key in ("type", "subject", "reply_to", "thread", "metadata", "references", "tags")
        },
        "operation_id": _OPERATION_ID,
    }
    CLEARED_BY_NULL: ClassVar[frozenset[str]] = frozenset(
        ("type", "subject", "reply_to", "thread", "metadata", "references", "tags")
    )

    def changes(self) -> dict[str, Any]:
        """What the new revision has of its own, by field of `Body`; None clears."""
        named = {name: getattr(self, name) for name in (*sorted(self.CLEARED_BY_NULL), "content")}
        return {name: value for name, value in named.items() if value is not KEEP}


@dataclass(frozen=True, slots=True)
class DeleteMemory:
    """End a memory; its id is never used again."""

    memory_id: str
    operation_id: str | None = None

    NAME: ClassVar[str] = "delete_memory"
    FIELDS: ClassVar[dict[str, Check]] = {
        "memory_id": Name("The memory to delete."),
        "operation_id": _OPERATION_ID,
    }


@dataclass(frozen=True, slots=True)
class Receive:
    """Take waiting messages of subscribed channels. Served by the adapter from its queue."""

    channels: tuple[str, ...] = ()
    count: int | None = None
    wait_seconds: float = 0.0
    max_kib: int | None = None
    include_own: bool = False
    replay: bool = False

    NAME: ClassVar[str] = "receive"
    FIELDS: ClassVar[dict[str, Check]] = {
        "channels": Names(1000, "Only these; default all subscribed."),
        "count": Integer(1, description="At most so many messages."),
        "wait_seconds": Number(0, "Wait so long when nothing is there; default 0."),
        "max_kib": Integer(1, 4096, "Ceiling of this result."),
        "include_own": Flag("Also messages that this session sent."),
        "replay": Flag("Give the last result's messages again."),
    }


@dataclass(frozen=True, slots=True)
class History:
    """Read a channel without touching a cursor, or one message from an offset of its content."""

    channel: str | None = None
    before: int | None = None
    after: int | None = None
    count: int | None = None
    message_id: str | None = None
    offset: int = 0
    max_kib: int | None = None

    NAME: ClassVar[str] = "history"
    FIELDS: ClassVar[dict[str, Check]] = {
        "channel": ChannelName("Channel to read."),
        "before": Integer(1, description="Only sequences below this; newest first page."),
        "after": Integer(0, description="Only sequences above this; oldest first page."),
        "count": Integer(1, description="At most so many messages."),
        "message_id": Name("Read this one message instead."),
        "offset": Integer(0, description="With message_id: skip so many characters of content."),
        "max_kib": Integer(1, 4096, "Ceiling of this result."),
    }

    def __post_init__(self) -> None:
        if (self.channel is None) == (self.message_id is None):
            raise ValidationError("history: give either channel or message_id")
        if self.message_id is not None and (
            self.before is not None or self.after is not None or self.count is not None
        ):
            raise ValidationError("history: before, after and count go with channel")
        if self.before is not None and self.after is not None:
            raise ValidationError("history: give before or after, not both")
        if self.channel is not None and self.offset:
            raise ValidationError("history: offset goes with message_id")


@dataclass(frozen=True, slots=True)
class Search:
    """Messages and memories of all channels by their words and by fields, newest first."""

    text: str | None = None
    channel: str | None = None
    sender: str | None = None
    since: int | None = None
    until: int | None = None
    thread: str | None = None
    reply_to: str | None = None
    type: str | None = None
    tags: tuple[str, ...] = ()
    count: int | None = None
    cursor: str | None = None
    max_kib: int | None = None

    NAME: ClassVar[str] = "search"
    FIELDS: ClassVar[dict[str, Check]] = {
        "text": Text('All of these words; "a phrase"; begin*.', max_bytes=SEARCH_TEXT_BYTES),
        "channel": ChannelName("Only in this channel."),
        "sender": Name("Only of this agent (`sender.agent`)."),
        "since": Moment("Sent then or later."),
        "until": Moment("Sent then or earlier."),
        "thread": Name("Only of this thread."),
        "reply_to": Name("Only answers to this message_id."),
        "type": Name("Only of this type."),
        "tags": Names(description="Having all of these; begin* for a beginning."),
        "count": Integer(1, SEARCH_PAGE_MAX, f"At most so many; default {SEARCH_PAGE_DEFAULT}."),
        "cursor": Text("From the last result: go on where it ended.", max_bytes=CURSOR_BYTES),
        "max_kib": Integer(1, 4096, "Ceiling of this result."),
    }


@dataclass(frozen=True, slots=True)
class Discover:
    """The live sessions on this bus."""

    query: str = ""

    NAME: ClassVar[str] = "discover"
    FIELDS: ClassVar[dict[str, Check]] = {
        "query": Text("Only those whose name, agent, application or repository holds this.", 128)
    }


Operation: TypeAlias = (
    WhoAmI
    | CreateChannel
    | ListChannels
    | Subscribe
    | Unsubscribe
    | Send
    | GetMemory
    | EditMemory
    | DeleteMemory
    | Receive
    | History
    | Search
    | Discover
)
DaemonOperation: TypeAlias = (
    WhoAmI
    | CreateChannel
    | ListChannels
    | Subscribe
    | Unsubscribe
    | Send
    | GetMemory
    | EditMemory
    | DeleteMemory
    | History
    | Search
    | Discover
)
MutatingOperation: TypeAlias = Send | EditMemory | DeleteMemory
"""Those with a receipt, a rate and an inspection."""

MUTATIONS = frozenset(operation.NAME for operation in (Send, EditMemory, DeleteMemory))

OPERATIONS: dict[str, type[Operation]] = {
    cls.NAME: cls
    for cls in (
        WhoAmI,
        CreateChannel,
        ListChannels,
        Subscribe,
        Unsubscribe,
        Send,
        GetMemory,
        EditMemory,
        DeleteMemory,
        Receive,
        History,
        Search,
        Discover,
    )
}

_WIRE_TO_ATTRIBUTE = {"from": "from_"}


def parse_operation(name: str, arguments: Any) -> Operation:
    """Check raw arguments. Raises ValidationError naming operation, field and correction."""
    operation = OPERATIONS.get(name)
    if operation is None:
        raise ValidationError(f"there is no operation {name!r}; known: {', '.join(OPERATIONS)}")
    if not isinstance(arguments, dict):
        raise ValidationError(f"{name}: the arguments must be an object")
    checks = operation.FIELDS
    clearable = _cleared_by_null(operation)
    values: dict[str, Any] = {}
    for key, value in arguments.items():
        check = checks.get(key)
        if check is None:
            known = ", ".join(checks) or "none"
            raise ValidationError(f"{name}: unknown argument {key!r}; known: {known}")
        if value is None:
            if key in clearable:
                values[key] = None
            continue  # elsewhere a null means the default, as many clients send it
        try:
            attribute = _WIRE_TO_ATTRIBUTE[key] if key in _WIRE_TO_ATTRIBUTE else str(key)
            values[attribute] = check(value)
        except ValidationError as error:
            raise ValidationError(f"{name}: {key} {error.message}") from None
    if name == "create_channel":
        _refuse_reserved(values.get("name", ""))
    for key in required_fields(operation):
        if key not in values:
            raise ValidationError(f"{name}: the argument {key} is required")
    return operation(**values)


def given_arguments(operation: Operation, arguments: dict[str, Any]) -> dict[str, Any]:
    """The raw arguments of a parsed operation without the nulls that only mean the default."""
    clearable = _cleared_by_null(type(operation))
    return {key: value for key, value in arguments.items() if value is not None or key in clearable}


def required_fields(operation: type[Operation]) -> tuple[str, ...]:
    """Names of the arguments without a default."""
    return _REQUIRED[operation.NAME]


def _cleared_by_null(operation: type[Operation]) -> frozenset[str]:
    return operation.CLEARED_BY_NULL if issubclass(operation, EditMemory) else frozenset()


def _required(operation: type[Operation]) -> tuple[str, ...]:
    return tuple(f.name for f in fields(operation) if f.default is MISSING)


_REQUIRED = {name: _required(operation) for name, operation in OPERATIONS.items()}


def _refuse_reserved(channel: str) -> None:
    if channel.startswith(_RESERVED_PREFIXES):
        raise ValidationError(
            f"create_channel: names that begin with {' or '.join(_RESERVED_PREFIXES)} are "
            "reserved; choose another"
        )
