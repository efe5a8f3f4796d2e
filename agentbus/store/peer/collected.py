"""What has become of a request: its recipients, the answer of each, and what else came.

Owns which delivery stands for a recipient after work was reassigned, and which response counts.
Reads nothing; any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from agentbus.envelope import rfc3339
from agentbus.ids import DeliveryId, MessageId
from agentbus.store.peer.changes import DeliveryState, ReplyCause, ReplyState
from agentbus.store.peer.deliveries import DeliveryRow


@dataclass(frozen=True, slots=True)
class Answer:
    """The response that counts. Without `body` it is retained no more.

    `already_presented`: the session that asks has been shown it before.
    """

    message_id: MessageId
    sender: dict[str, Any]
    late: bool
    body: str | None
    already_presented: bool


@dataclass(frozen=True, slots=True)
class Slot:
    """One recipient that a request was sent to: a word that could stand in `to`.

    The rest is of the delivery that answers for it now, which may be another recipient's.
    """

    recipient: str
    delivery_id: DeliveryId
    delivery_state: DeliveryState
    reply_state: ReplyState | None
    reply_due_at: str | None
    cause: ReplyCause | None
    cancelled_reason: str | None
    answer: Answer | None

    @property
    def is_pending(self) -> bool:
        return self.answer is None and self.reply_state in ("awaiting", "overdue")

    def as_pending(self) -> dict[str, Any]:
        return {
            "reply_state": self.reply_state,
            "delivery_state": self.delivery_state,
            "cause": self.cause,
            "reply_due_at": self.reply_due_at,
        }

    def as_closed(self) -> dict[str, Any]:
        return {**self.as_pending(), "cancelled_reason": self.cancelled_reason}


@dataclass(frozen=True, slots=True)
class Collected:
    """Everything that a collection needs to know, as of one commit.

    `excluded`: responses to the request that do not count, as another one of their sender does.
    """

    message_id: MessageId
    thread_id: str
    slots: tuple[Slot, ...]
    excluded: int

    @property
    def pending(self) -> int:
        return sum(slot.is_pending for slot in self.slots)

    @property
    def answered(self) -> int:
        return sum(slot.answer is not None for slot in self.slots)


def answer_of(row: DeliveryRow) -> MessageId | None:
    """The response that counts for this delivery, in time or late."""
    return row.reply_message_id or row.late_reply_message_id


def slots_of(
    rows: Iterable[DeliveryRow],
    recipient: Callable[[DeliveryRow], str],
    cause: Callable[[DeliveryRow], ReplyCause | None],
    answers: Mapping[MessageId, Answer],
) -> tuple[Slot, ...]:
    """One for each recipient that the request was sent to; `rows` in the order they were made."""
    origins: dict[DeliveryId, DeliveryRow] = {}
    latest: dict[DeliveryId, DeliveryRow] = {}  # by the id of the origin
    roots: dict[DeliveryId, DeliveryId] = {}
    for row in rows:
        root = row.id if row.reassigned_from is None else roots[row.reassigned_from]
        roots[row.id] = root
        origins.setdefault(root, row)
        latest[root] = row
    return tuple(
        _slot(recipient(origin), latest[root], cause, answers) for root, origin in origins.items()
    )


def _slot(
    recipient: str,
    row: DeliveryRow,
    cause: Callable[[DeliveryRow], ReplyCause | None],
    answers: Mapping[MessageId, Answer],
) -> Slot:
    answer = answer_of(row)
    return Slot(
        recipient=recipient,
        delivery_id=row.id,
        delivery_state=row.state,
        reply_state=row.reply_state,
        reply_due_at=None if row.reply_due_us is None else rfc3339(row.reply_due_us),
        cause=cause(row),
        cancelled_reason=row.cancelled_reason,
        answer=None if answer is None else answers[answer],
    )
