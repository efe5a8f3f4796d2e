"""The pulls of one attachment that still wait for their answer.

Owns their numbers, their ends and the answers. Blocks on the reads of the feeds; never decides when
the bus is ready. Runs on the attachment's thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from actors.base import Address, Reply
from actors.feeds import Feeds
from actors.messages import AttachmentMessage, PullDue
from actors.timer import Timer, TimerHandle
from agentbus.errors import BusError
from agentbus.ids import RecoveryEpoch
from agentbus.protocol.session import Delivery, Pull
from agentbus.store.changes import SubscriptionId


@dataclass(slots=True)
class _WaitingPull:
    pull: Pull
    reply_to: Reply
    due: TimerHandle | None


class WaitingPulls:
    """Each pull is answered once: with what there is, or, when its wait is over, with nothing."""

    def __init__(self, feeds: Feeds, timer: Timer, owner: Address[AttachmentMessage]) -> None:
        self._feeds = feeds
        self._timer = timer
        self._owner = owner
        self._waiting: dict[int, _WaitingPull] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __contains__(self, number: int) -> bool:
        return number in self._waiting

    def add(self, pull: Pull, reply_to: Reply) -> None:
        """Keep it until it is served; `PullDue` comes at the end of its wait."""
        due = None
        if pull.wait_ms:
            due = self._timer.deliver_after(pull.wait_ms / 1000, self._owner, PullDue(pull.number))
        self._waiting[pull.number] = _WaitingPull(pull, reply_to, due)

    def of(self, subscription: SubscriptionId) -> list[int]:
        """The numbers of those that read this subscription."""
        return [n for n, waiting in self._waiting.items() if subscription in waiting.pull.after]

    def serve(self, number: int, epoch: RecoveryEpoch, *, last_chance: bool) -> None:
        """Answer if there is something, or if this is the end of its wait.

        Raises ProjectionError; the pull then still waits.
        """
        pull = self._waiting[number].pull
        deliveries = self._read(pull)
        found = any(delivery.records or delivery.gaps for delivery in deliveries)
        if found or last_chance:
            self._feeds.answered(deliveries)
            moved = [d.as_data() for d in deliveries if d.records or d.gaps or d.through > d.after]
            self._settle(number).set({"epoch": epoch, "deliveries": moved})

    def fail(self, number: int, error: BusError) -> None:
        self._settle(number).set_exception(error)

    def end(self, error: BusError) -> None:
        """Answer all that wait with this error."""
        for number in list(self._waiting):
            self.fail(number, error)

    def _read(self, pull: Pull) -> list[Delivery]:
        deliveries: list[Delivery] = []
        left_count, left_bytes = pull.count, pull.max_bytes
        for subscription, after in pull.after.items():
            feed = self._feeds.get(subscription)
            if feed is None or left_count < 1 or left_bytes < 1:
                continue
            delivery = self._feeds.pull(feed, after, left_count, left_bytes, pull.include_own)
            left_count -= len(delivery.records)
            left_bytes -= delivery.size_bytes
            deliveries.append(delivery)
        return deliveries

    def _settle(self, number: int) -> Reply:
        waiting = self._waiting.pop(number)
        if waiting.due is not None:
            waiting.due.cancel()
        return waiting.reply_to
