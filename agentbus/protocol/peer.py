"""The operations of the tool `peer`: one frozen class each, with its checks beside it.

`parse_peer` is the only way from `{op, args}` to an operation; nothing has happened before it is
through. An agent names its work by `delivery_id` alone: the token of its lease travels beside the
operation, between adapter and daemon, and is never among these arguments.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, Literal, TypeAlias

from agentbus.envelope import PeerKind
from agentbus.errors import ValidationError
from agentbus.limits import (
    OPERATION_ID_BYTES,
    PEER_ACTION_CHARACTERS,
    PEER_BODY_CHARACTERS,
    PEER_COLLECT_SECONDS,
    PEER_CURSOR_CHARACTERS,
    PEER_DESCRIPTION_CHARACTERS,
    PEER_ID_CHARACTERS,
    PEER_MISSING_ITEMS,
    PEER_PAGE_MAX,
    PEER_RECIPIENT_CHARACTERS,
    PEER_RECIPIENTS,
    PEER_REPLY_DUE_SECONDS_MAX,
    PEER_REPLY_DUE_SECONDS_MIN,
    PEER_TEXT_CHARACTERS,
    PEER_WAIT_SECONDS,
)
from agentbus.protocol.fields import Check, Choice, Flag, Integer, Name, Number, Text, Texts

ActionType = Literal["read", "write", "external", "destructive"]
ReplyFilter = Literal["awaiting", "overdue", "unanswered"]

EVERYBODY = "*"
"""In `to`: all whom this agent may address. The adapter puts the names in its place."""

_ID = Text(max_characters=PEER_ID_CHARACTERS, min_characters=1)
_THREAD = Name(max_characters=PEER_ID_CHARACTERS)
_KEY = Text(max_characters=OPERATION_ID_BYTES, min_characters=1)
_SUMMARY = Text(max_characters=PEER_TEXT_CHARACTERS, min_characters=1)
_BODY = Text(max_characters=PEER_BODY_CHARACTERS, min_characters=1)
_CURSOR = Text(max_characters=PEER_CURSOR_CHARACTERS, min_characters=1)
_FLEET = Text(max_characters=PEER_RECIPIENT_CHARACTERS, min_characters=1)
_LIMIT = Integer(1, PEER_PAGE_MAX)


@dataclass(frozen=True, slots=True)
class PeerDiscover:
    """Agents that are there now, by what they can do."""

    capability: str | None = None
    available_only: bool = True
    fleet_id: str | None = None
    cursor: str | None = None
    limit: int = 50

    NAME: ClassVar[str] = "discover"
    FIELDS: ClassVar[dict[str, Check]] = {
        "capability": _ID,
        "available_only": Flag(),
        "fleet_id": _FLEET,
        "cursor": _CURSOR,
        "limit": _LIMIT,
    }


@dataclass(frozen=True, slots=True)
class PeerAgents:
    """Every agent that the bus knows, there or not, but the asking one."""

    fleet_id: str | None = None
    cursor: str | None = None
    limit: int = 50

    NAME: ClassVar[str] = "agents"
    FIELDS: ClassVar[dict[str, Check]] = {"fleet_id": _FLEET, "cursor": _CURSOR, "limit": _LIMIT}


@dataclass(frozen=True, slots=True)
class PeerDescribe:
    """Say what this agent knows; null or blank clears it."""

    description: str | None
    operation_id: str | None = None

    NAME: ClassVar[str] = "describe"
    FIELDS: ClassVar[dict[str, Check]] = {
        "description": Text(max_characters=PEER_DESCRIPTION_CHARACTERS, printable=True)
    }
    NULLABLE: ClassVar[frozenset[str]] = frozenset(("description",))


@dataclass(frozen=True, slots=True)
class PeerSend:
    """Send directly to agents or sessions; a request is tracked until it is answered."""

    to: tuple[str, ...]
    body: str
    idempotency_key: str
    kind: PeerKind = "info"
    thread_id: str | None = None
    reply_to: str | None = None
    ack: bool | None = None
    expect_reply_within_seconds: int | None = None
    capability: str | None = None

    NAME: ClassVar[str] = "send"
    FIELDS: ClassVar[dict[str, Check]] = {
        "to": Texts(1, PEER_RECIPIENTS, PEER_RECIPIENT_CHARACTERS),
        "body": _BODY,
        "idempotency_key": _KEY,
        "kind": Choice(("info", "request", "response", "ack")),
        "thread_id": _THREAD,
        "reply_to": _ID,
        "ack": Flag(),
        "expect_reply_within_seconds": Integer(
            PEER_REPLY_DUE_SECONDS_MIN, PEER_REPLY_DUE_SECONDS_MAX
        ),
        "capability": _ID,
    }

    def __post_init__(self) -> None:
        if EVERYBODY in self.to and len(self.to) > 1:
            raise ValidationError('peer send: "*" in to stands alone')
        if self.kind != "request":
            for key in ("expect_reply_within_seconds", "capability"):
                if getattr(self, key) is not None:
                    raise ValidationError(f"peer send: {key} goes with kind request")
        if self.kind == "response" and self.reply_to is None:
            raise ValidationError("peer send: kind response needs reply_to, what it answers")
        if self.ack is not None and self.reply_to is None:
            raise ValidationError(
                "peer send: ack goes with reply_to, the message of a delivery that you hold"
            )


@dataclass(frozen=True, slots=True)
class PeerWait:
    """Claim the next piece of work, waiting for one."""

    timeout: float = PEER_WAIT_SECONDS

    NAME: ClassVar[str] = "wait"
    FIELDS: ClassVar[dict[str, Check]] = {"timeout": Number(0, maximum=PEER_WAIT_SECONDS)}


@dataclass(frozen=True, slots=True)
class PeerAck:
    """Finish a delivery without an answer."""

    delivery_id: str
    operation_id: str | None = None

    NAME: ClassVar[str] = "ack"
    FIELDS: ClassVar[dict[str, Check]] = {"delivery_id": _ID}


@dataclass(frozen=True, slots=True)
class PeerReply:
    """Answer the sender of a delivery; finishes it unless `ack` is false."""

    delivery_id: str
    body: str
    idempotency_key: str
    reply_to: str | None = None
    ack: bool = True

    NAME: ClassVar[str] = "reply"
    FIELDS: ClassVar[dict[str, Check]] = {
        "delivery_id": _ID,
        "body": _BODY,
        "idempotency_key": _KEY,
        "reply_to": _ID,
        "ack": Flag(),
    }


@dataclass(frozen=True, slots=True)
class PeerProgress:
    """Say that a delivery is being worked on; moves its deadline."""

    delivery_id: str
    summary: str
    idempotency_key: str

    NAME: ClassVar[str] = "progress"
    FIELDS: ClassVar[dict[str, Check]] = {
        "delivery_id": _ID,
        "summary": _SUMMARY,
        "idempotency_key": _KEY,
    }


@dataclass(frozen=True, slots=True)
class PeerCheckpoint:
    """Say what is about to be done; goes on like progress, or a person is asked first."""

    delivery_id: str
    summary: str
    idempotency_key: str
    proposed_action: str
    action_type: ActionType = "read"
    confidence: float = 1.0
    missing_information: tuple[str, ...] = ()
    conflicting_results: bool = False
    request_human: bool = False

    NAME: ClassVar[str] = "checkpoint"
    FIELDS: ClassVar[dict[str, Check]] = {
        **PeerProgress.FIELDS,
        "proposed_action": Text(max_characters=PEER_ACTION_CHARACTERS, min_characters=1),
        "action_type": Choice(("read", "write", "external", "destructive")),
        "confidence": Number(0, maximum=1),
        "missing_information": Texts(0, PEER_MISSING_ITEMS, PEER_TEXT_CHARACTERS),
        "conflicting_results": Flag(),
        "request_human": Flag(),
    }


@dataclass(frozen=True, slots=True)
class PeerHuman:
    """Ask a person about a delivery; it rests until one decides."""

    delivery_id: str
    reason: str
    operation_id: str | None = None

    NAME: ClassVar[str] = "human"
    FIELDS: ClassVar[dict[str, Check]] = {"delivery_id": _ID, "reason": _SUMMARY}


@dataclass(frozen=True, slots=True)
class PeerRecent:
    """Direct messages that this agent sent or got, newest first."""

    thread_id: str | None = None
    agent_id: str | None = None
    reply_to: str | None = None
    limit: int = 20
    before: str | None = None

    NAME: ClassVar[str] = "recent"
    FIELDS: ClassVar[dict[str, Check]] = {
        "thread_id": _THREAD,
        "agent_id": Text(max_characters=PEER_RECIPIENT_CHARACTERS, min_characters=1),
        "reply_to": _ID,
        "limit": _LIMIT,
        "before": _CURSOR,
    }


@dataclass(frozen=True, slots=True)
class PeerThreads:
    """The latest threads of direct messages that this agent takes part in."""

    NAME: ClassVar[str] = "threads"
    FIELDS: ClassVar[dict[str, Check]] = {}


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """What became of a direct message, recipient by recipient."""

    message_id: str

    NAME: ClassVar[str] = "status"
    FIELDS: ClassVar[dict[str, Check]] = {"message_id": _ID}


@dataclass(frozen=True, slots=True)
class PeerRequests:
    """The requests that this agent sent, answered or not, or those of one state."""

    state: ReplyFilter | None = None
    limit: int = 20

    NAME: ClassVar[str] = "requests"
    FIELDS: ClassVar[dict[str, Check]] = {
        "state": Choice(("awaiting", "overdue", "unanswered")),
        "limit": _LIMIT,
    }


@dataclass(frozen=True, slots=True)
class PeerMemoryContext:
    """Where a memory about a delivery or a message comes from, as metadata of that memory."""

    delivery_id: str | None = None
    message_id: str | None = None

    NAME: ClassVar[str] = "memory_context"
    FIELDS: ClassVar[dict[str, Check]] = {"delivery_id": _ID, "message_id": _ID}

    def __post_init__(self) -> None:
        if (self.delivery_id is None) == (self.message_id is None):
            raise ValidationError("peer memory_context: give either delivery_id or message_id")


@dataclass(frozen=True, slots=True)
class PeerCollect:
    """Wait for the answers to a request of one's own; reads only."""

    message_id: str
    timeout: float = 30.0
    expected: int | None = None

    NAME: ClassVar[str] = "collect"
    FIELDS: ClassVar[dict[str, Check]] = {
        "message_id": _ID,
        "timeout": Number(0, maximum=PEER_COLLECT_SECONDS),
        "expected": Integer(1, PEER_RECIPIENTS),
    }


PeerWriting: TypeAlias = (
    PeerSend | PeerReply | PeerProgress | PeerCheckpoint | PeerAck | PeerHuman | PeerDescribe
)
"""Those with a receipt, a rate and an inspection."""

PeerHeld: TypeAlias = PeerReply | PeerProgress | PeerCheckpoint | PeerAck | PeerHuman
"""Those about a delivery that the session holds, which the token of its lease proves."""

PeerReading: TypeAlias = (
    PeerDiscover
    | PeerAgents
    | PeerRecent
    | PeerThreads
    | PeerStatus
    | PeerRequests
    | PeerMemoryContext
)

PeerOperation: TypeAlias = PeerWriting | PeerReading | PeerWait | PeerCollect

PEER_OPERATIONS: dict[str, type[PeerOperation]] = {
    cls.NAME: cls
    for cls in (
        PeerDiscover,
        PeerSend,
        PeerRecent,
        PeerCollect,
        PeerAgents,
        PeerDescribe,
        PeerThreads,
        PeerStatus,
        PeerRequests,
        PeerHuman,
        PeerWait,
        PeerAck,
        PeerReply,
        PeerProgress,
        PeerCheckpoint,
        PeerMemoryContext,
    )
}


def parse_peer(op: Any, args: Any) -> PeerOperation:
    """Check `{op, args}`. Raises ValidationError naming operation, argument and correction."""
    known_ops = ", ".join(PEER_OPERATIONS)
    operation = PEER_OPERATIONS.get(op) if isinstance(op, str) else None
    if operation is None:
        raise ValidationError(f"peer: there is no op {op!r:.60}; known: {known_ops}")
    if args is None:
        args = {}
    if not isinstance(args, dict):
        raise ValidationError(f"peer {op}: args must be an object")
    nullable = _nullable(operation)
    values: dict[str, Any] = {}
    for key, value in args.items():
        check = operation.FIELDS.get(key)
        if check is None:
            known = ", ".join(operation.FIELDS) or "none"
            raise ValidationError(f"peer {op}: unknown argument {key!r:.60}; known: {known}")
        if value is None:
            if key in nullable:
                values[key] = None
            continue  # elsewhere a null means the default, as many clients send it
        try:
            values[key] = check(value)
        except ValidationError as error:
            raise ValidationError(f"peer {op}: {key} {error.message}") from None
    for key in required_arguments(operation):
        if key not in values:
            raise ValidationError(f"peer {op}: the argument {key} is required")
    return operation(**values)


def required_arguments(operation: type[PeerOperation]) -> tuple[str, ...]:
    """Names of the arguments without a default."""
    return tuple(field.name for field in fields(operation) if field.default is MISSING)


def arguments_of(operation: PeerOperation) -> dict[str, Any]:
    """The arguments that make this operation again, for a frame; what is unset is left out."""
    nullable = _nullable(type(operation))
    values = {key: getattr(operation, key) for key in operation.FIELDS}
    return {key: value for key, value in values.items() if value is not None or key in nullable}


def _nullable(operation: type[PeerOperation]) -> frozenset[str]:
    return operation.NULLABLE if issubclass(operation, PeerDescribe) else frozenset()
