"""What one attachment still has to be shown, subscription by subscription.

Owns the delivery positions of one attachment and the reading of the projection for it. Runs on the
attachment's thread only; blocks on its own Redis and SQLite reads, so that a slow read hurts nobody
but its asker. Never writes anything and never talks to a connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from agentbus.ids import ChannelId, Sequence, SessionId
from agentbus.limits import MIB
from agentbus.projection.streams import Hole, StreamReader
from agentbus.protocol.session import Delivery, GapRange
from agentbus.rules.credit import Credit
from agentbus.store.changes import RemovedRange, SubscriptionId, SubscriptionRow

READ_ENTRIES = 128
READ_BYTES = 4 * MIB
"""Bounds of one read of the projection: its memory, and the time before a pull gets its turn."""

DELIVERY_BYTES = 4 * MIB
"""Records of one push: half a frame, because the window may be larger than a frame."""


class RemovedReader(Protocol):
    def removed_ranges(
        self, channel_id: ChannelId, after: Sequence, through: Sequence
    ) -> list[RemovedRange]: ...


@dataclass(slots=True)
class Feed:
    """One subscription. `confirmed <= handed_off`, both committed; `sent` is what was pushed or
    answered last. `reported`: what this attachment's own reports have committed, which is where a
    recovery begins again: what an earlier one handed off is not yet what this client was given.
    `behind`: the projection may hold more than was sent."""

    subscription: SubscriptionId
    channel_id: ChannelId
    channel: str
    handed_off: Sequence
    confirmed: Sequence
    sent: Sequence
    reported: Sequence
    redelivered_through: Sequence
    behind: bool = True


class Feeds:
    """All feeds of one attachment.

    1. A delivery begins where the one before it ended, so nothing is left out without a gap.
    2. What is missing is told by Redis, with the entries, and why it is missing by SQLite, where a
       removal is committed before the projection forgets. So a message comes as a record or within
       a gap, never as both, however far SQLite is ahead.
    3. Own messages are passed over unless asked for; the position moves over them.
    """

    def __init__(self, session_id: SessionId, streams: StreamReader, store: RemovedReader) -> None:
        self._session_id = session_id
        self._streams = streams
        self._store = store
        self._feeds: dict[SubscriptionId, Feed] = {}
        self._next = 0  # where the next round over the feeds begins

    def __iter__(self) -> Iterator[Feed]:
        return iter(self._feeds.values())

    def get(self, subscription: SubscriptionId) -> Feed | None:
        return self._feeds.get(subscription)

    def of_channel(self, channel_id: ChannelId) -> Feed | None:
        for feed in self._feeds.values():
            if feed.channel_id == channel_id:
                return feed
        return None

    def of_names(self, channels: tuple[str, ...]) -> list[Feed]:
        """Those of the named channels; of all channels when none is named."""
        return [feed for feed in self if not channels or feed.channel in channels]

    def open(self, row: SubscriptionRow) -> Feed:
        """Begin to feed; what was handed off without confirmation comes again, first."""
        feed = Feed(
            subscription=row.subscription_id,
            channel_id=row.channel_id,
            channel=row.channel,
            handed_off=row.handed_off,
            confirmed=row.confirmed,
            sent=row.confirmed,
            reported=row.confirmed,
            redelivered_through=row.handed_off,
        )
        self._feeds[feed.subscription] = feed
        return feed

    def close(self, subscription: SubscriptionId) -> Feed | None:
        return self._feeds.pop(subscription, None)

    def rewind(self) -> None:
        """After a recovery: whatever is not handed off by a committed report is sent again."""
        for feed in self:
            feed.sent = feed.reported
            feed.behind = True

    def next_push(self, credit: Credit) -> Delivery | None:
        """The next delivery that the window has room for, feed by feed in turn; None: no more now.

        The credit is spent here.
        """
        feeds = list(self._feeds.values())
        for offset in range(len(feeds)):
            feed = feeds[(self._next + offset) % len(feeds)]
            if not feed.behind or credit.messages < 1:
                continue
            delivery = self._push(feed, credit)
            if delivery is not None:
                self._next = (self._next + offset + 1) % len(feeds)
                return delivery
        return None

    def _push(self, feed: Feed, credit: Credit) -> Delivery | None:
        messages = total_bytes = 0

        def fits(size_bytes: int) -> bool:
            nonlocal messages, total_bytes
            if messages and total_bytes + size_bytes > DELIVERY_BYTES:
                return False  # the next delivery begins with it
            if not credit.allows(size_bytes):
                return False
            credit.spend(size_bytes)
            messages += 1
            total_bytes += size_bytes
            return True

        try:
            delivery = self._read(feed, feed.sent, fits, include_own=False)
        except Exception:
            credit.grant(messages, total_bytes)  # nothing of it goes
            raise
        feed.sent = delivery.through
        return delivery if delivery.records or delivery.gaps else None

    def pull(
        self, feed: Feed, after: Sequence, count: int, max_bytes: int, include_own: bool
    ) -> Delivery:
        """What lies after a position that the adapter names, outside the window.

        At least one record is given however large it is. May be empty but for its positions. Say
        `answered` when it goes out; pushes go on behind it only then.
        """
        left_messages, left_bytes = count, max_bytes

        def fits(size_bytes: int) -> bool:
            nonlocal left_messages, left_bytes
            if left_messages < 1 or (size_bytes > left_bytes and left_messages < count):
                return False
            left_messages -= 1
            left_bytes -= size_bytes
            return True

        return self._read(feed, after, fits, include_own)

    def answered(self, deliveries: Iterable[Delivery]) -> None:
        """These went out as the answer to a pull. A position that only the client names counts
        for nothing: what was read behind it does."""
        for delivery in deliveries:
            if delivery.through > delivery.after:
                feed = self._feeds[delivery.subscription]
                feed.sent = max(feed.sent, delivery.through)

    def _read(self, feed: Feed, after: Sequence, fits: _Fits, include_own: bool) -> Delivery:
        records: list[tuple[Sequence, bytes]] = []
        holes: list[Hole] = []
        through = after
        has_room = more = True
        while has_room and more:
            chunk = self._streams.read(feed.channel_id, through, READ_ENTRIES, READ_BYTES)
            holes += chunk.holes
            for entry in chunk.entries:
                if include_own or entry.session_id != self._session_id:
                    if not fits(len(entry.envelope)):
                        has_room = False
                        holes = [hole for hole in holes if hole.through < entry.sequence]
                        break
                    records.append((entry.sequence, entry.envelope))
                through = entry.sequence
            else:
                through = chunk.through
            more = chunk.more
        feed.behind = not has_room
        gaps = self._gaps(feed, holes)
        if gaps:
            through = max(through, gaps[-1].to_sequence)
        return Delivery(
            subscription=feed.subscription,
            channel=feed.channel,
            after=after,
            through=through,
            redelivered_through=feed.redelivered_through,
            records=tuple(records),
            gaps=gaps,
            oldest_retained=self._oldest_retained(feed) if gaps else None,
        )

    def _gaps(self, feed: Feed, holes: list[Hole]) -> tuple[GapRange, ...]:
        """The causes of holes. Each ends with a message that is gone, so each part is one too."""
        return tuple(
            GapRange(removed.from_sequence, removed.to_sequence, removed.cause)
            for hole in holes
            for removed in self._store.removed_ranges(feed.channel_id, hole.after, hole.through)
        )

    def _oldest_retained(self, feed: Feed) -> Sequence | None:
        first = self._streams.read(feed.channel_id, Sequence(0), 1, 1).entries
        return first[0].sequence if first else None


class _Fits(Protocol):
    def __call__(self, size_bytes: int) -> bool: ...
