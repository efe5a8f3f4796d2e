"""What a person asks about directed work: `human_list` and its like, and `requests`.

Owns the shapes of these requests and their strict parsing. They come from the command line of the
user who owns the bus, without an attachment: no tool of an agent leads to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from agentbus.errors import ValidationError
from agentbus.limits import (
    NAME_BYTES,
    OPERATION_ID_BYTES,
    PEER_ACTION_CHARACTERS,
    PEER_BODY_CHARACTERS,
    PEER_ID_CHARACTERS,
    PEER_PAGE_MAX,
    PEER_RECIPIENT_CHARACTERS,
    PEER_RECIPIENTS,
    PEER_REPLY_DUE_SECONDS_MAX,
    PEER_REPLY_DUE_SECONDS_MIN,
)
from agentbus.protocol.fields import Check, Choice, Flag, Integer, Name, Text, Texts
from agentbus.protocol.peer import PeerSend
from agentbus.protocol.requests import parse_request

DECISIONS = ("approve", "reject", "redirect", "nudge", "reassign", "cancel")
NEED_INSTRUCTIONS = ("redirect", "nudge")
TRACKED_STATES = ("awaiting", "overdue", "unanswered", "replied", "cancelled")
UNANSWERED_STATES = ("awaiting", "overdue", "unanswered")
"""What `requests` shows when no state is asked for."""

Decision = Literal["approve", "reject", "redirect", "nudge", "reassign", "cancel"]
RequestState = Literal["awaiting", "overdue", "unanswered", "replied", "cancelled"]

_ID = Text(max_characters=PEER_ID_CHARACTERS, min_characters=1)
_THREAD = Name(max_characters=PEER_ID_CHARACTERS)
_RECIPIENT = Text(max_characters=PEER_RECIPIENT_CHARACTERS, min_characters=1)
_LIMIT = Integer(1, PEER_PAGE_MAX)


@dataclass(frozen=True, slots=True)
class HumanList:
    """What waits for a person, the oldest first; with `decided` the newest decisions instead."""

    decided: bool = False
    limit: int = PEER_PAGE_MAX

    NAME: ClassVar[str] = "human_list"
    FIELDS: ClassVar[dict[str, Check]] = {"decided": Flag(), "limit": _LIMIT}


@dataclass(frozen=True, slots=True)
class HumanShow:
    """One intervention in full. `id`: its own, or that of its delivery."""

    id: str

    NAME: ClassVar[str] = "human_show"
    FIELDS: ClassVar[dict[str, Check]] = {"id": _ID}


@dataclass(frozen=True, slots=True)
class HumanDecide:
    """Decide an intervention as it was in `version`; one that has changed since is not decided."""

    intervention_id: str
    version: int
    action: Decision
    instructions: str | None = None
    to: str | None = None

    NAME: ClassVar[str] = "human_decide"
    FIELDS: ClassVar[dict[str, Check]] = {
        "intervention_id": _ID,
        "version": Integer(1),
        "action": Choice(DECISIONS),
        "instructions": Text(max_characters=PEER_ACTION_CHARACTERS, min_characters=1),
        "to": _RECIPIENT,
    }

    def __post_init__(self) -> None:
        if self.action in NEED_INSTRUCTIONS and self.instructions is None:
            raise ValidationError(f"human_decide: {self.action} needs instructions")
        if self.action == "reassign" and self.to is None:
            raise ValidationError(
                "human_decide: to is required: reassign needs an agent or a session"
            )
        if self.action != "reassign" and self.to is not None:
            raise ValidationError(f"human_decide: to goes with reassign, not with {self.action}")


@dataclass(frozen=True, slots=True)
class HumanSend:
    """Send to agents as the person; by default a request, which `human_replies` shows answered."""

    to: tuple[str, ...]
    body: str
    idempotency_key: str
    kind: Literal["request", "info"] = "request"
    thread_id: str | None = None
    expect_reply_within_seconds: int | None = None

    NAME: ClassVar[str] = "human_send"
    FIELDS: ClassVar[dict[str, Check]] = {
        "to": Texts(1, PEER_RECIPIENTS, PEER_RECIPIENT_CHARACTERS),
        "body": Text(max_characters=PEER_BODY_CHARACTERS, min_characters=1),
        "idempotency_key": Text(max_characters=OPERATION_ID_BYTES, min_characters=1),
        "kind": Choice(("request", "info")),
        "thread_id": _THREAD,
        "expect_reply_within_seconds": Integer(
            PEER_REPLY_DUE_SECONDS_MIN, PEER_REPLY_DUE_SECONDS_MAX
        ),
    }

    def __post_init__(self) -> None:
        if self.kind != "request" and self.expect_reply_within_seconds is not None:
            raise ValidationError("human_send: expect_reply_within_seconds goes with a request")

    def operation(self) -> PeerSend:
        """The same as an agent's, for the ledger."""
        return PeerSend(
            to=self.to,
            body=self.body,
            idempotency_key=self.idempotency_key,
            kind=self.kind,
            thread_id=self.thread_id,
            expect_reply_within_seconds=self.expect_reply_within_seconds,
        )


@dataclass(frozen=True, slots=True)
class HumanReplies:
    """What agents answered the person, the newest first. Marks as seen what it shows."""

    limit: int = 20

    NAME: ClassVar[str] = "human_replies"
    FIELDS: ClassVar[dict[str, Check]] = {"limit": _LIMIT}


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests of all agents, the newest first: those that are not answered, or of one state."""

    state: RequestState | None = None
    agent: str | None = None
    limit: int = PEER_PAGE_MAX

    NAME: ClassVar[str] = "requests"
    FIELDS: ClassVar[dict[str, Check]] = {
        "state": Choice(TRACKED_STATES),
        "agent": Text(max_bytes=NAME_BYTES, min_characters=1),
        "limit": _LIMIT,
    }


PersonsRequest: TypeAlias = (
    HumanList | HumanShow | HumanDecide | HumanSend | HumanReplies | Requests
)

PERSONS_REQUESTS: dict[str, type[PersonsRequest]] = {
    cls.NAME: cls for cls in (HumanList, HumanShow, HumanDecide, HumanSend, HumanReplies, Requests)
}


def parse_persons_request(method: str, params: Any) -> PersonsRequest:
    """Check the parameters of one of `PERSONS_REQUESTS`. Raises ValidationError."""
    return parse_request(PERSONS_REQUESTS[method], params)
