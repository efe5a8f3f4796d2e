"""The frames of peer messaging between adapter and daemon.

Requests of an attachment: `peer`. Its notifications: `cancel_peer`, `renew`, `peer_shown`.
Notification to it: `peer_waiting`. See docs/protocol.md for the shapes; what people ask is in
people.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

from agentbus.errors import ValidationError
from agentbus.identity import Attachment
from agentbus.ids import DeliveryId, LeaseToken, MessageId
from agentbus.limits import OPERATION_ID_BYTES
from agentbus.protocol.fields import describe
from agentbus.protocol.peer import PeerOperation, parse_peer
from agentbus.protocol.session import Fields

LateState: TypeAlias = Literal["overdue", "unanswered"]
"""Of a request whose reply was not there in time."""


@dataclass(frozen=True, slots=True)
class PeerRequest:
    """One operation of the tool `peer`.

    `token`: of the lease that the operation is about. `number`: names a wait or a collect for
    `cancel_peer`. `operation_id`: of a writing operation without an idempotency key. `only`: a wait
    is to claim this delivery and no other.
    """

    attachment: Attachment
    operation: PeerOperation
    token: LeaseToken | None = None
    number: int = 0
    operation_id: str | None = None
    only: DeliveryId | None = None


@dataclass(frozen=True, slots=True)
class CancelPeer:
    """Nobody waits for the answer of this wait or collect any more."""

    attachment: Attachment
    number: int


@dataclass(frozen=True, slots=True)
class Renew:
    """The adapter still has these leases; sent while it has any."""

    attachment: Attachment
    leases: tuple[tuple[DeliveryId, LeaseToken], ...]


@dataclass(frozen=True, slots=True)
class PeerShown:
    """A result with these responses and notices (delivery, reply state) was handed off."""

    attachment: Attachment
    responses: tuple[MessageId, ...]
    notices: tuple[tuple[DeliveryId, LateState], ...]


def parse_peer_request(params: Any) -> PeerRequest:
    known = frozenset({"attachment", "op", "args", "token", "number", "operation_id", "only"})
    read = Fields("peer", params, known)
    token = read.optional_text("token")
    operation_id, only = read.optional_text("operation_id"), read.optional_text("only")
    if operation_id is not None and len(operation_id.encode()) > OPERATION_ID_BYTES:
        raise ValidationError(
            f"peer: operation_id must be at most {OPERATION_ID_BYTES} bytes, this has "
            f"{len(operation_id.encode())}"
        )
    return PeerRequest(
        read.attachment(),
        parse_peer(params.get("op"), params.get("args")),
        LeaseToken(token) if token is not None else None,
        read.integer("number", 0, 0),
        operation_id,
        DeliveryId(only) if only is not None else None,
    )


def parse_cancel_peer(params: Any) -> CancelPeer:
    read = Fields("cancel_peer", params, frozenset({"attachment", "number"}))
    return CancelPeer(read.attachment(), read.integer("number", 0))


def parse_renew(params: Any) -> Renew:
    read = Fields("renew", params, frozenset({"attachment", "leases"}))
    pairs = _pairs("renew", "leases", params)
    return Renew(read.attachment(), tuple((DeliveryId(a), LeaseToken(b)) for a, b in pairs))


def parse_peer_shown(params: Any) -> PeerShown:
    read = Fields("peer_shown", params, frozenset({"attachment", "responses", "notices"}))
    responses = read.optional_names("responses") or ()
    notices = [(DeliveryId(a), _late(b)) for a, b in _pairs("peer_shown", "notices", params)]
    return PeerShown(read.attachment(), tuple(MessageId(one) for one in responses), tuple(notices))


def _late(state: str) -> LateState:
    if state not in ("overdue", "unanswered"):
        raise ValidationError(f"peer_shown: {state!r:.40} is no state of a late reply")
    return cast(LateState, state)


def _pairs(method: str, key: str, params: Any) -> list[tuple[str, str]]:
    value = params.get(key, [])
    if not isinstance(value, list) or any(
        not isinstance(item, list) or [type(part) for part in item] != [str, str] for item in value
    ):
        raise ValidationError(f"{method}: {key} must be a list of pairs, not {describe(value)}")
    return [(first, second) for first, second in value]
