"""One subscription as the adapter holds it: what is queued, on its way out, and handed off.

Owns the order and the positions of one channel for one session. Never does I/O, never knows which
result carries what (prefetch.py does). Used in the thread of the event loop only.

Positions, lowest first; all are sequences:

    handed_off       everything up to here was handed off or passed over; only ever grows
    reserved         everything up to here was given to some result or passed over by one
    queued_through   everything up to here has arrived or is known not to come
    exposed          of nothing above this has a byte left here, nor in an attachment before
    announced        up to here the daemon holds for exposed, having it stored or been told

Invariant: whatever is at or below `reserved` was handed off, was passed over, is on its way, or is
queued again after its result failed. Results may settle in any order, so `handed_off` stays below
the lowest entry that is on its way or queued again, whatever was handed off above it. An entry that
arrives again (pull and push overlap, a recovery starts over) is recognised by its last sequence.

A memory stands at the sequence of its creation, but its text may change while it is here. What is
queued is replaced or dropped at once; news of what has not arrived yet, or is on its way out, is
kept until it arrives or waits again. So a result that is made after the news never shows the text
of before. After a recovery or a new attachment nothing old is certain: memories that wait are
fetched anew.
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

    `position` is the message's sequence, of a memory that of its creation. `size_bytes` is what it
    cost there; `characters` is what it takes in the text of a result.
    """

    message: dict[str, Any]
    position: int
    size_bytes: int
    characters: int
    window: int = 0
    redelivered: bool = False
    own: bool = False

    @property
    def first(self) -> int:
        return self.position

    @property
    def last(self) -> int:
        return self.position

    @property
    def is_memory(self) -> bool:
        return self.message.get("channel_kind") == "memory"

    def updated(self, message: dict[str, Any]) -> Record:
        """The same record with a newer revision; what it cost when it came stays."""
        if message["revision"] <= self.message["revision"]:
            return self
        return replace(self, message=message, characters=_characters(encode(message)))


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages that are gone, both ends inclusive; told once, at its place among the records."""

    channel: str
    first: int
    last: int
    cause: str
    oldest_retained: int | None


Entry: TypeAlias = Record | Gap
Held: TypeAlias = tuple[int, int, str, int]
"""A memory that is held: subscription, position, id, revision."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """A delivery of the daemon, pushed or pulled, with its records measured."""

    subscription: int
    channel: str
    after: int
    through: int
    redelivered_through: int
    records: tuple[tuple[int, dict[str, Any]], ...]
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
        records=tuple((position, message) for position, message in data["records"]),
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
        self.stored = position
        """Newest position that the ledger holds as handed off."""
        self.exposed = position
        self.shown_before = position
        """Up to here an adapter before this one may have shown messages."""
        self.announced = position
        self._queue: deque[Entry] = deque()
        self._in_flight: dict[int, Entry] = {}
        self._known: set[int] = set()
        """Last sequences of what is queued, on its way, or handed off above `handed_off`."""
        self._news: dict[int, dict[str, Any] | None] = {}
        """Position above `handed_off` of a memory that is not queued: its revision, or its end."""
        self._doubtful: set[int] = set()
        """Positions of memories on their way that the daemon has yet to name again."""
        self._partly_shown: set[int] = set()
        """Positions whose bytes left in part, of memories that are fetched anew."""

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
            # What arrived before it was removed is delivered from here, so it is in no gap.
            first = max(gap.from_sequence, self.queued_through + 1)
            if gap.to_sequence >= first:
                range_ = (first, gap.to_sequence, gap.cause)
                fresh.append(Gap(self.channel, *range_, arrived.oldest_retained))
        for position, message in arrived.records:
            record = _measured(position, message, arrived, window, own_session)
            if position <= self.handed_off:
                known.append(record)
            elif position in self._known:
                known.append(record)
                if record.is_memory:
                    self._doubtful.discard(position)
                    self.supersede(position, message)
            elif (current := self._current(record)) is None:
                known.append(record)
                self._known.add(position)
            else:
                fresh.append(current)
        self._insert(fresh)
        self.queued_through = max(self.queued_through, arrived.through)
        self.sent = max(self.sent, arrived.through)
        return known

    def supersede(self, position: int, message: dict[str, Any] | None) -> list[Record]:
        """The memory at this position has this revision now, or is gone.

        Returns the record that is dropped for it, which has credit to give back.
        """
        if position <= self.handed_off:
            return []
        for index, entry in enumerate(self._queue):
            if entry.last != position or not isinstance(entry, Record):
                continue
            if message is not None:
                self._queue[index] = entry.updated(message)
                return []
            del self._queue[index]
            self.advance()
            return [entry]
        self._news[position] = newer(self._news.get(position, message), message)
        return []

    def current(self, record: Record) -> Record | None:
        """A record that left, as it is now; None when its memory is gone or not certain."""
        if record.position in self._doubtful:
            return None
        if record.position not in self._news:
            return record
        message = self._news[record.position]
        return None if message is None else record.updated(message)

    def _current(self, record: Record) -> Record | None:
        """A record that arrives, as it is now."""
        current = self.current(record)
        self._news.pop(record.position, None)
        shown = record.position <= self.shown_before or record.position in self._partly_shown
        if current is not None and shown:
            return replace(current, redelivered=True)
        return current

    def held(self, count: int) -> list[Held]:
        """The memories among the first `count` messages that wait; own ones may be left out by a
        result, so they do not count."""
        held: list[Held] = []
        for record in self._queue:
            if not isinstance(record, Record):
                continue
            if not record.own:
                if not count:
                    break
                count -= 1
            if record.is_memory:
                message = record.message
                memory = message["message_id"], message["revision"]
                held.append((self.subscription, record.position, *memory))
        return held

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

    def settle(
        self, entries: Iterable[Entry], *, handed_off: bool, bytes_left: bool
    ) -> list[Record]:
        """The result with these entries was handed off, or was not and they wait again.

        Returns the records that do not wait again, because their memories are gone or fetched anew.
        """
        again: list[Entry] = []
        dropped: list[Record] = []
        for entry in entries:
            if self._in_flight.pop(entry.last, None) is None or handed_off:
                continue  # not there: the subscription was dropped and made anew meanwhile
            if isinstance(entry, Record):
                if bytes_left:
                    entry = replace(entry, redelivered=True)
                current = self.current(entry)
                self._news.pop(entry.position, None)
                if current is None:
                    if entry.position in self._doubtful:
                        self._fetch_anew(entry)
                    dropped.append(entry)
                    continue
                entry = current
            again.append(entry)
        self._insert(again)
        self.advance()
        return dropped

    def invalidate(self, confirmed: int = 0) -> list[Record]:
        """Throw away what was only prefetched: the daemon begins again at its own position.

        `confirmed`: the daemon's word for what needs no delivery. Returns the records thrown away.
        """
        self.handed_off = max(self.handed_off, confirmed)
        self.reserved = max(self.reserved, self.handed_off)
        kept: deque[Entry] = deque()
        dropped: list[Entry] = []
        reserved = self.reserved
        for entry in self._queue:
            waits_again = self.handed_off < entry.last <= reserved
            is_memory = isinstance(entry, Record) and entry.is_memory
            (kept if waits_again and not is_memory else dropped).append(entry)
            if waits_again and isinstance(entry, Record) and is_memory:
                self._fetch_anew(entry)
        self._queue = kept
        self._known.difference_update(entry.last for entry in dropped)
        for entry in self._in_flight.values():
            if isinstance(entry, Record) and entry.is_memory:
                self._doubtful.add(entry.position)
        self._forget_handed_off()
        self.queued_through = min([self.reserved, *(place - 1 for place in self._doubtful)])
        return [entry for entry in dropped if isinstance(entry, Record)]

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

    def _fetch_anew(self, record: Record) -> None:
        """A memory that waited again is dropped because its text may be old; it comes once more."""
        self._doubtful.discard(record.position)
        self._known.discard(record.position)
        self.reserved = min(self.reserved, record.position - 1)
        if record.redelivered:
            self._partly_shown.add(record.position)

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
        if self._news or self._doubtful or self._partly_shown:
            self._news = {p: m for p, m in self._news.items() if p > self.handed_off}
            self._doubtful = {p for p in self._doubtful if p > self.handed_off}
            self._partly_shown = {p for p in self._partly_shown if p > self.handed_off}


def newer(one: dict[str, Any] | None, other: dict[str, Any] | None) -> dict[str, Any] | None:
    """Of two accounts of one memory the later one; None, its end, is the last."""
    if one is None or other is None:
        return None
    return one if one["revision"] > other["revision"] else other


def _measured(
    position: int,
    message: dict[str, Any],
    arrived: Arrived,
    window: int,
    own_session: str | None,
) -> Record:
    encoded = encode(message)
    return Record(
        message,
        position,
        size_bytes=len(encoded),
        characters=_characters(encoded),
        window=window,
        redelivered=position <= arrived.redelivered_through,
        own=own_session is not None and message["sender"]["session_id"] == own_session,
    )


def _characters(encoded: bytes) -> int:
    return len(encoded) if encoded.isascii() else len(encoded.decode())


def _last(entry: Entry) -> int:
    return entry.last
