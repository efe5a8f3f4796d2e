"""What one attachment has fetched, given out, and proven to have handed off. Pure bookkeeping.

Owns the queues of the attachment's subscriptions (subscription.py), the batches on their way out,
the credit to give back, the numbers of the handoff reports and the expiry notices. Never does I/O
and never waits: link.py moves what this module decides. Used in the thread of the event loop only.

    attached / new_epoch / subscribed / left / expire                     what the daemon says
    accept / supersede
    take -> Batch, settle(batch, ...), replay() -> Batch                  what results do
    exposes(batch), unexposed(batch), exposed_before(...)                 what clients may have seen
    credit_due(), report_due(), committed(report), failed(report)         what the daemon is told
    arrival(), confirms(arrival)                                          what a later call proves

It outlives attachments: after a lost connection the same object is attached again, so what was
handed off here is never given out twice, whatever the daemon has heard of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeGuard

from agentbus.adapter.subscription import Arrived, Entry, Gap, Held, Record, SubscriptionQueue
from agentbus.errors import CursorExpiredError, NotFoundError
from agentbus.limits import GAPS_PER_RESULT

_MARK_CHARACTERS = len(',"redelivered":true') + len(",")
"""What a record may take in a result beside its own JSON."""

_GAP_CHARACTERS = 150
"""What a gap may take in a result beside the name of its channel."""


@dataclass(slots=True)
class Expiry:
    """A subscription that lapsed; told in every result until one that carried it is confirmed."""

    subscription: int
    channel: str
    expired_at: str
    told: bool = False
    """A result with it was handed off, which no report says yet."""
    report: int | None = None


@dataclass(frozen=True, slots=True)
class Budget:
    """Ceilings of one result: records, characters of its text, bytes of its JSON."""

    count: int
    characters: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Batch:
    """What one result carries, in order. `oversize`: its only record is beyond the budget."""

    entries: tuple[tuple[int, Entry], ...] = ()
    expired: tuple[Expiry, ...] = ()
    more: bool = False
    oversize: bool = False
    is_replay: bool = False

    @property
    def records(self) -> tuple[Record, ...]:
        return tuple(entry for _, entry in self.entries if isinstance(entry, Record))

    @property
    def gaps(self) -> tuple[Gap, ...]:
        return tuple(entry for _, entry in self.entries if isinstance(entry, Gap))

    @property
    def is_empty(self) -> bool:
        return not self.entries


@dataclass(frozen=True, slots=True)
class Report:
    """What to send as `handoff`."""

    number: int
    epoch: int
    positions: dict[int, int]
    expired: tuple[int, ...]


class Prefetch:
    """See the module."""

    def __init__(self) -> None:
        self.session_id: str | None = None
        self.epoch = 0
        self._subscriptions: dict[int, SubscriptionQueue] = {}
        self._expired: dict[int, Expiry] = {}
        self._left: set[int] = set()
        """Unsubscribed from in this attachment; what was on its way then is for nobody."""
        self._window = 0
        self._credit_messages = 0
        self._credit_bytes = 0
        self._handoffs = 0
        self._report_number = 0
        self._unconfirmed: deque[tuple[int, int]] = deque()  # (report, handoffs when it was made)
        self._last_entries: tuple[tuple[int, Entry], ...] = ()

    # --- what the daemon says ---------------------------------------------------------------------

    def attached(
        self,
        session_id: str,
        epoch: int,
        subscriptions: Iterable[dict[str, Any]],
        shown_before: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        """A new attachment: window full, reports from 1, delivery from the confirmed positions.

        `shown_before`: subscription -> what an adapter before this one may have shown.
        """
        self.session_id = session_id
        self._report_number = 0
        self._unconfirmed.clear()
        self._left.clear()
        for expiry in self._expired.values():
            expiry.told = expiry.told or expiry.report is not None
            expiry.report = None
        self._start_window(epoch)
        self._forget_last_memories()
        live: set[int] = set()
        for row in subscriptions:
            subscription = row["subscription"]
            if row["expired_at"] is not None:
                self.expire(subscription, row["channel"], row["expired_at"])
                continue
            live.add(subscription)
            queue = self._queue(subscription, row["channel"], row["confirmed"])
            queue.invalidate(row["confirmed"])
            queue.reported = queue.committed = queue.sent = row["confirmed"]
            queue.stored = row["handed_off"]
            queue.shown_before = max(queue.shown_before, shown_before.get(subscription, 0))
            queue.exposed = max(queue.exposed, row["handed_off"], queue.shown_before)
            queue.announced = max(queue.announced, queue.exposed)
        for subscription in self._subscriptions.keys() - live:
            del self._subscriptions[subscription]

    def new_epoch(self, epoch: int) -> None:
        """After a recovery the daemon delivers again from its positions and forgets credit."""
        self._start_window(epoch)
        self._forget_last_memories()
        for queue in self._subscriptions.values():
            queue.invalidate()
            queue.reported = queue.sent = queue.committed

    def subscribed(self, subscription: int, channel: str, position: int) -> None:
        """`position` is where a new subscription starts; a known one keeps its own."""
        self._queue(subscription, channel, position)

    def left(self, channel: str) -> None:
        """The session has unsubscribed from the channel."""
        for queue in tuple(self._subscriptions.values()):
            if queue.channel == channel:
                self._drop(queue.subscription)
                self._left.add(queue.subscription)

    def expire(self, subscription: int, channel: str, expired_at: str) -> None:
        self._drop(subscription)
        self._expired.setdefault(subscription, Expiry(subscription, channel, expired_at))

    def accept(self, arrived: Arrived, *, epoch: int, pushed: bool, own: bool = False) -> None:
        """Queue a delivery. `own`: a pull that asked for own messages too."""
        if epoch != self.epoch:
            return
        if arrived.subscription in self._left:
            queue = SubscriptionQueue(arrived.subscription, arrived.channel, arrived.through)
        else:
            queue = self._queue(arrived.subscription, arrived.channel, arrived.after)
        window = self._window if pushed else 0
        self._give_back(
            queue.accept(arrived, window=window, own_session=self.session_id if own else None)
        )

    def supersede(self, subscription: int, position: int, message: dict[str, Any] | None) -> None:
        """The memory at this position of a subscription has this revision now, or is gone (None).

        What is on its way out or was handed off is left alone, but is not shown again as it was.
        """
        queue = self._subscriptions.get(subscription)
        if queue is not None:
            self._give_back(queue.supersede(position, message))
        last: list[tuple[int, Entry]] = []
        for owner, entry in self._last_entries:
            if isinstance(entry, Gap) or (owner, entry.position) != (subscription, position):
                last.append((owner, entry))
            elif message is not None:
                last.append((owner, entry.updated(message)))
        self._last_entries = tuple(last)

    def held_memories(self, channels: Collection[str], count: int) -> list[Held]:
        """The memories that a take of so many messages may show."""
        return [held for queue in self.select(channels) for held in queue.held(count)]

    def last_memories(self) -> list[Held]:
        """The memories that a replay shows."""
        return [
            (owner, entry.position, entry.message["message_id"], entry.message["revision"])
            for owner, entry in self._last_entries
            if _is_memory(entry)
        ]

    # --- what results do --------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        """How many messages wait here."""
        return sum(len(queue) for queue in self._subscriptions.values())

    @property
    def has_untold_expiry(self) -> bool:
        """Whether an expiry was in no result yet that was handed off."""
        return any(not expiry.told and expiry.report is None for expiry in self._expired.values())

    @property
    def expired(self) -> list[dict[str, str]]:
        """The expiry notices as a result shows them."""
        return [
            {"channel": expiry.channel, "expired_at": expiry.expired_at}
            for expiry in self._expired.values()
        ]

    def select(self, channels: Collection[str]) -> tuple[SubscriptionQueue, ...]:
        """The subscriptions a receive reads; all when none are named."""
        if not channels:
            return tuple(self._subscriptions.values())
        by_name = {queue.channel: queue for queue in self._subscriptions.values()}
        for channel in channels:
            if channel in by_name:
                continue
            for expiry in self._expired.values():
                if expiry.channel == channel:
                    raise CursorExpiredError(
                        f"receive: the subscription of {channel!r} expired at {expiry.expired_at} "
                        "for want of use; subscribe again, it then starts at the newest message"
                    )
            known = ", ".join(by_name) or "none"
            raise NotFoundError(
                f"receive: not subscribed to {channel!r}; subscribe first. Subscribed: {known}"
            )
        return tuple(by_name[channel] for channel in channels)

    def has_waiting(self, channels: Collection[str]) -> bool:
        """Whether a take of these channels would carry something."""
        return self.has_untold_expiry or any(
            queue.head is not None for queue in self.select(channels)
        )

    def pull_positions(self, channels: Collection[str], *, own: bool) -> dict[int, int]:
        """Where a pull reads on: behind what arrived, or, for own messages, what was given out."""
        return {
            queue.subscription: queue.reserved if own else queue.queued_through
            for queue in self.select(channels)
        }

    def take(self, channels: Collection[str], budget: Budget, *, own: bool = False) -> Batch:
        """The next entries of these channels in order of sequence, whole records only.

        A record that alone is beyond the budget is taken alone: a cursor never wedges.
        """
        selected = self.select(channels)
        if not own:
            for queue in selected:
                queue.drop_own()
        entries: list[tuple[int, Entry]] = []
        room = _Room(budget)
        while waiting := [queue for queue in selected if queue.head is not None]:
            queue = min(waiting, key=_head_first)
            assert queue.head is not None
            if not room.admits(queue.head):
                break
            entries.append((queue.subscription, queue.take()))
        more = any(queue.head is not None for queue in selected)
        for queue in selected:
            queue.pass_over()
        return Batch(tuple(entries), tuple(self._expired.values()), more, room.oversize)

    def replay(self, budget: Budget) -> Batch:
        """What the last result that was handed off carried, once more, as far as it fits."""
        room = _Room(budget)
        fitting = [e for e in self._last_entries if room.admits(e[1])]
        more = len(fitting) < len(self._last_entries)
        expired = tuple(self._expired.values())
        return Batch(tuple(fitting), expired, more, room.oversize, is_replay=True)

    @property
    def all_stored(self) -> bool:
        """Whether the ledger holds whatever clients may have seen."""
        return all(queue.announced <= queue.stored for queue in self._subscriptions.values())

    def exposes(self, batch: Batch) -> dict[int, int]:
        """What to announce before the first byte of this batch's result leaves."""
        news: dict[int, int] = {}
        for subscription, position in self._tops(batch).items():
            queue = self._subscriptions[subscription]
            if position > queue.announced:
                news[subscription] = queue.announced = position
        return news

    def unexposed(self, batch: Batch) -> dict[int, int]:
        """What to announce when after all no byte left of a batch that was announced."""
        news: dict[int, int] = {}
        for subscription in self._tops(batch):
            queue = self._subscriptions[subscription]
            if queue.announced > queue.exposed:
                news[subscription] = queue.announced = queue.exposed
        return news

    def exposed_before(self, subscriptions: Iterable[dict[str, Any]]) -> dict[int, int]:
        """What a new attachment has to hear, because its daemon has stored less than that."""
        news: dict[int, int] = {}
        for row in subscriptions:
            queue = self._subscriptions.get(row["subscription"])
            if queue is not None and queue.announced > row["handed_off"]:
                news[queue.subscription] = queue.announced
        return news

    def settle(self, batch: Batch, *, handed_off: bool, bytes_left: bool = False) -> None:
        """The result that carried this batch was handed off, or was not. Once per batch."""
        if handed_off:
            self._handoffs += 1
            for expiry in batch.expired:
                expiry.told = expiry.report is None
        if batch.is_replay:
            return
        if handed_off or bytes_left:
            for subscription, position in self._tops(batch).items():
                shown = self._subscriptions[subscription]
                shown.exposed = max(shown.exposed, position)
        if handed_off and batch.entries:
            self._last_entries = tuple(self._as_they_are(batch))
        by_subscription: dict[int, list[Entry]] = {}
        for subscription, entry in batch.entries:
            by_subscription.setdefault(subscription, []).append(entry)
        for subscription, entries in by_subscription.items():
            queue = self._subscriptions.get(subscription)
            if queue is not None:
                self._give_back(queue.settle(entries, handed_off=handed_off, bytes_left=bytes_left))
            if handed_off or queue is None:
                self._give_back(entry for entry in entries if isinstance(entry, Record))
        if handed_off:
            for queue in self._subscriptions.values():
                queue.advance()

    # --- what the daemon is told ------------------------------------------------------------------

    def credit_due(self) -> tuple[int, int]:
        """Messages and bytes to give back; each is named once."""
        due = self._credit_messages, self._credit_bytes
        self._credit_messages = self._credit_bytes = 0
        return due

    def report_due(self) -> Report | None:
        """The next report, if there is something that no report of this attachment says."""
        positions: dict[int, int] = {}
        for queue in self._subscriptions.values():
            position = min(queue.handed_off, queue.sent)
            if position > queue.reported:
                positions[queue.subscription] = queue.reported = position
        told = [expiry for expiry in self._expired.values() if expiry.told]
        if not positions and not told:
            return None
        self._report_number += 1
        for expiry in told:
            expiry.told, expiry.report = False, self._report_number
        self._unconfirmed.append((self._report_number, self._handoffs))
        return Report(
            self._report_number,
            self.epoch,
            positions,
            tuple(expiry.subscription for expiry in told),
        )

    def committed(self, report: Report) -> None:
        """The daemon has answered the report after its commit."""
        for subscription, position in report.positions.items():
            queue = self._subscriptions.get(subscription)
            if queue is not None:
                queue.committed = max(queue.committed, position)
                queue.stored = max(queue.stored, queue.committed)

    def failed(self, report: Report) -> None:
        """The daemon did not take the report; its content is due again."""
        for subscription in report.positions:
            queue = self._subscriptions.get(subscription)
            if queue is not None:
                queue.reported = queue.committed
        for expiry in self._expired.values():
            if expiry.report == report.number:
                expiry.told, expiry.report = True, None

    # --- what a later call proves -----------------------------------------------------------------

    def arrival(self) -> int:
        """To be noted when a call of the conversation arrives, for `confirms`."""
        return self._handoffs

    def confirms(self, arrival: int) -> int:
        """The newest report whose results had left before that call arrived; 0 for none new."""
        newest = 0
        while self._unconfirmed and self._unconfirmed[0][1] <= arrival:
            newest, _ = self._unconfirmed.popleft()
        if newest:
            self._expired = {
                subscription: expiry
                for subscription, expiry in self._expired.items()
                if expiry.report is None or expiry.report > newest
            }
        return newest

    # --- inside -----------------------------------------------------------------------------------

    def _queue(self, subscription: int, channel: str, position: int) -> SubscriptionQueue:
        queue = self._subscriptions.get(subscription)
        if queue is None:
            queue = SubscriptionQueue(subscription, channel, position)
            self._subscriptions[subscription] = queue
        return queue

    def _tops(self, batch: Batch) -> dict[int, int]:
        """The highest position of a record in each subscription that is still there."""
        return {
            subscription: entry.position
            for subscription, entry in batch.entries  # in order of sequence
            if isinstance(entry, Record) and subscription in self._subscriptions
        }

    def _as_they_are(self, batch: Batch) -> Iterator[tuple[int, Entry]]:
        """The entries of a batch, memories as they are now."""
        for subscription, entry in batch.entries:
            current: Entry | None = entry
            queue = self._subscriptions.get(subscription)
            if isinstance(entry, Record) and queue is not None:
                current = queue.current(entry)
            if current is not None:
                yield subscription, current

    def _forget_last_memories(self) -> None:
        """What happened to them meanwhile is not known here."""
        self._last_entries = tuple(e for e in self._last_entries if not _is_memory(e[1]))

    def _drop(self, subscription: int) -> None:
        """Forget the subscription; results under way then settle without a report for it."""
        queue = self._subscriptions.pop(subscription, None)
        if queue is not None:
            self._give_back(queue.invalidate(queue.reserved))

    def _start_window(self, epoch: int) -> None:
        self.epoch = epoch
        self._window += 1
        self._credit_messages = self._credit_bytes = 0

    def _give_back(self, records: Iterable[Record]) -> None:
        for record in records:
            if record.window == self._window:
                self._credit_messages += 1
                self._credit_bytes += record.size_bytes


class _Room:
    """What is left of the budget of one result. Once it refuses an entry it refuses all others."""

    def __init__(self, budget: Budget) -> None:
        self.oversize = False
        self._budget = budget
        self._records = self._gaps = self._characters = self._size_bytes = 0
        self._full = False

    def admits(self, entry: Entry) -> bool:
        """Whether the entry may go into the result; it is counted if so."""
        is_first = not self._records and not self._gaps
        if isinstance(entry, Record):
            self._records += 1
            self._characters += entry.characters + _MARK_CHARACTERS
            self._size_bytes += entry.size_bytes + _MARK_CHARACTERS
        else:
            self._gaps += 1
            self._characters += _GAP_CHARACTERS + len(entry.channel)
        too_large = (
            self._characters > self._budget.characters or self._size_bytes > self._budget.size_bytes
        )
        if self._full or (too_large and not is_first):
            self._full = True
        elif too_large:
            self.oversize = isinstance(entry, Record)
            self._full = True
            return True
        elif self._records > self._budget.count or self._gaps > GAPS_PER_RESULT:
            self._full = True
        return not self._full


def _is_memory(entry: Entry) -> TypeGuard[Record]:
    return isinstance(entry, Record) and entry.is_memory


def _head_first(queue: SubscriptionQueue) -> int:
    assert queue.head is not None
    return queue.head.first
