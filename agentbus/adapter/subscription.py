"""One subscription as the adapter holds it: what is queued, on its way out, and handed off.

Owns the order and the positions of one channel for one session. Never does I/O, never knows which
result carries what (prefetch.py does). Used in the thread of the event loop only.

Positions, lowest first; all are sequences:

    handed_off       everything up to here was handed off or passed over; only ever grows
    reserved         everything up to here was given to some result or passed over by one
    queued_through   everything up to here has arrived or is known not to come

Invariant: whatever is at or below `reserved` was handed off, was passed over, is on its way, or is
queued again after its result failed. Results may settle in any order, so `handed_off` stays below
the lowest entry that is on its way or queued again, whatever was handed off above it. An entry that
arrives again (pull and push overlap, a recovery starts over) is recognised by its last sequence.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from heapq import merge
from typing import Any, TypeAlias

from agentbus.encoding import encode
from agentbus.protocol.session import GapRange


@dataclass(frozen=True, slots=True)
class Record:
    """One message. `window` is the prefetch window that it took credit from, 0 for none.

    `size_bytes` is what it cost there; `characters` is what it takes in the text of a result.
    """

    message: dict[str, Any]
    sequence: int
    size_bytes: int
    characters: int
    window: int = 0
    redelivered: bool = False
    own: bool = False

    @property
    def first(self) -> int:
        return self.sequence

    @property
    def last(self) -> int:
        return self.sequence


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages that are gone, both ends inclusive; told once, at its place among the records."""

    first: int
    last: int
    cause: str
    oldest_retained: int | None


Entry: TypeAlias = Record | Gap


@dataclass(frozen=True, slots=True)
class Arrived:
    """A delivery of the daemon, pushed or pulled, with its records measured."""

    subscription: int
    channel: str
    after: int
    through: int
    redelivered_through: int
    records: tuple[dict[str, Any], ...]
    gaps: tuple[GapRange, ...]
    oldest_retained: int | None


def parse_arrived(data: dict[str, Any]) -> Arrived:
    """The data of `protocol.session.Delivery.as_data`, sent by a daemon of the same protocol."""
    return Arrived(
        subscription=data["subscription"],
        channel=data["channel"],
        after=data["after"],
        through=data["through"],
        redelivered_through=data["redelivered_through"],
        records=tuple(data["records"]),
        gaps=tuple(GapRange(*gap) for gap in data.get("gaps", ())),
        oldest_retained=data.get("oldest_retained"),
    )


class SubscriptionQueue:
    """See the module. All methods are instantaneous; credit is the caller's to give back."""

    def __init__(self, subscription: int, channel: str, position: int) -> None:
        self.subscription = subscription
        self.channel = channel
        self.handed_off = position
        self.reserved = position
        self.queued_through = position
        self.reported = position
        """Newest position in a report of this attachment; the next report begins above it."""
        self.sent = position
        """How far the daemon has sent to this attachment; it refuses reports of more."""
        self.committed = position
        """Newest position whose report the daemon has answered."""
        self._queue: deque[Entry] = deque()
        self._in_flight: dict[int, Entry] = {}
        self._known: set[int] = set()
        """Last sequences of what is queued, on its way, or handed off above `handed_off`."""

    def __len__(self) -> int:
        """How many messages wait."""
        return sum(isinstance(entry, Record) and not entry.own for entry in self._queue)

    @property
    def head(self) -> Entry | None:
        return self._queue[0] if self._queue else None

    def accept(self, arrived: Arrived, *, window: int, own_session: str | None) -> list[Record]:
        """Queue what is new. Returns the records that are not, which have credit to give back.

        `own_session`: the delivery was asked for with own messages, which are marked as such.
        """
        fresh: list[Entry] = []
        known: list[Record] = []
        for gap in arrived.gaps:
            first = max(gap.from_sequence, self.handed_off + 1)
            if gap.to_sequence >= first and gap.to_sequence not in self._known:
                fresh.append(Gap(first, gap.to_sequence, gap.cause, arrived.oldest_retained))
        for message in arrived.records:
            record = _measured(message, arrived, window, own_session)
            if record.sequence <= self.handed_off or record.sequence in self._known:
                known.append(record)
            else:
                fresh.append(record)
        self._insert(fresh)
        self.queued_through = max(self.queued_through, arrived.through)
        self.sent = max(self.sent, arrived.through)
        return known

    def take(self) -> Entry:
        """Give the first entry to a result."""
        entry = self._queue.popleft()
        self._in_flight[entry.last] = entry
        self.reserved = max(self.reserved, entry.last)
        return entry

    def drop_own(self, above: int = -1) -> bool:
        """Forget queued own messages above a position; they are only for who asks for them."""
        own = [e.last for e in self._queue if isinstance(e, Record) and e.own and e.last > above]
        if own:
            self._known.difference_update(own)
            self._queue = deque(entry for entry in self._queue if entry.last not in own)
        return bool(own)

    def pass_over(self) -> None:
        """A result read this subscription as far as it goes."""
        if not self.drop_own(above=self.reserved) and not self._queue:
            self.reserved = max(self.reserved, self.queued_through)

    def settle(self, entries: Iterable[Entry], *, handed_off: bool, bytes_left: bool) -> None:
        """The result with these entries was handed off, or was not and they wait again."""
        again: list[Entry] = []
        for entry in entries:
            if self._in_flight.pop(entry.last, None) is None or handed_off:
                continue  # not there: the subscription was dropped and made anew meanwhile
            if bytes_left and isinstance(entry, Record):
                entry = replace(entry, redelivered=True)
            again.append(entry)
        self._insert(again)
        self.advance()

    def invalidate(self, confirmed: int = 0) -> list[Record]:
        """Throw away what was only prefetched: the daemon begins again at its own position.

        `confirmed`: the daemon's word for what needs no delivery. Returns the records thrown away.
        """
        self.handed_off = max(self.handed_off, confirmed)
        self.reserved = max(self.reserved, self.handed_off)
        self.queued_through = self.reserved
        kept: deque[Entry] = deque()
        dropped: list[Record] = []
        for entry in self._queue:
            if self.handed_off < entry.last <= self.reserved:
                kept.append(entry)
            elif isinstance(entry, Record):
                dropped.append(entry)
        self._queue = kept
        self._known = {last for last in self._known if last <= self.reserved}
        self._forget_handed_off()
        return dropped

    def advance(self) -> None:
        """Let `handed_off` follow."""
        lowest = self.reserved + 1
        if self._queue:
            lowest = min(lowest, self._queue[0].first)
        if self._in_flight:
            lowest = min(lowest, *(entry.first for entry in self._in_flight.values()))
        if lowest - 1 > self.handed_off:
            self.handed_off = lowest - 1
            self._forget_handed_off()

    def _insert(self, entries: list[Entry]) -> None:
        if not entries:
            return
        entries.sort(key=_last)
        self._known.update(entry.last for entry in entries)
        if not self._queue or self._queue[-1].last < entries[0].last:
            self._queue.extend(entries)
        else:
            self._queue = deque(merge(self._queue, entries, key=_last))

    def _forget_handed_off(self) -> None:
        self._known = {last for last in self._known if last > self.handed_off}


def _measured(
    message: dict[str, Any], arrived: Arrived, window: int, own_session: str | None
) -> Record:
    encoded = encode(message)
    return Record(
        message,
        message["sequence"],
        size_bytes=len(encoded),
        characters=len(encoded) if encoded.isascii() else len(encoded.decode()),
        window=window,
        redelivered=message["sequence"] <= arrived.redelivered_through,
        own=own_session is not None and message["sender"]["session_id"] == own_session,
    )


def _last(entry: Entry) -> int:
    return entry.last
