"""Short ways to feed a `Prefetch` and to look at what it gives out."""

from __future__ import annotations

from typing import Any

from agentbus.adapter.prefetch import Batch, Budget, Prefetch
from agentbus.adapter.subscription import Arrived
from agentbus.protocol.session import GapRange

PLENTY = Budget(count=1000, characters=10**9, size_bytes=10**9)
OWN, OTHER = "session-own", "session-other"


def message(sequence: int, content: str = "hello", session: str = OTHER) -> dict[str, Any]:
    return {"sequence": sequence, "content": content, "sender": {"session_id": session}}


def row(subscription: int, confirmed: int = 0, expired_at: str | None = None) -> dict[str, Any]:
    return {
        "subscription": subscription,
        "channel": f"channel-{subscription}",
        "kind": "ordinary",
        "handed_off": confirmed,
        "confirmed": confirmed,
        "expired_at": expired_at,
    }


def attached(*subscriptions: int) -> Prefetch:
    prefetch = Prefetch()
    prefetch.attached(OWN, 1, [row(subscription) for subscription in subscriptions])
    return prefetch


def arrive(
    prefetch: Prefetch,
    *messages: dict[str, Any],
    subscription: int = 1,
    after: int = 0,
    through: int | None = None,
    redelivered_through: int = 0,
    gaps: tuple[GapRange, ...] = (),
    epoch: int = 1,
    pushed: bool = True,
    own: bool = False,
) -> None:
    last = max([after, *(m["sequence"] for m in messages), *(gap.to_sequence for gap in gaps)])
    prefetch.accept(
        Arrived(
            subscription,
            f"channel-{subscription}",
            after,
            last if through is None else through,
            redelivered_through,
            tuple((message["sequence"], message) for message in messages),
            gaps,
            None,
        ),
        epoch=epoch,
        pushed=pushed,
        own=own,
    )


def sequences(batch: Batch) -> list[int]:
    return [record.position for record in batch.records]


def take(prefetch: Prefetch, *channels: str, count: int = 1000, own: bool = False) -> Batch:
    return prefetch.take(channels, Budget(count, 10**9, 10**9), own=own)
