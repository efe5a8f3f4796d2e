"""The answer to a search: a page of what an engine found, as it is now.

Owns the page: how much of it fits, and the cursor that continues it. Which engine there is was
decided when the daemon started. Runs on the attachment's thread, with handles of its own that are
opened by its first search: most attachments never search.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from agentbus.encoding import raw
from agentbus.errors import NotFoundError, ValidationError
from agentbus.ids import AgentId, Sequence
from agentbus.limits import (
    GAPS_PER_RESULT,
    INBOX_PREFIX,
    KIB,
    RESULT_BYTES,
    SEARCH_PAGE_DEFAULT,
    SEARCH_SECONDS,
)
from agentbus.protocol.operations import Search
from agentbus.rules.query import Query, SearchEngine, query_of, too_slow
from agentbus.store.changes import ChannelRow
from agentbus.store.reader import NO_END, Reader

ENVELOPES_AT_ONCE = 64
"""Read so many, then look whether more fit: an envelope may be large."""


class Place(NamedTuple):
    """Where a search goes on, and what had been removed when it began."""

    below: Sequence
    removed_through: Sequence

    def __str__(self) -> str:
        """As a cursor."""
        return f"{self.below}.{self.removed_through}"


class Searcher:
    """Searches for one attachment.

    1. What is shown is live when it is read: the index may lag behind, SQLite does not.
    2. Later pages hold only what is older than all that was seen, whatever changed meanwhile: no
       message twice, and none left out that was there all the time.
    3. What was removed since the first page is told by the page that would have held it.
    4. Direct messages are found by their participants only, whatever the index says of them.
    """

    def __init__(
        self,
        open_engine: Callable[[], SearchEngine],
        store: Reader,
        ceiling_kib: int,
        agent_id: AgentId,
        inbox: str,
    ) -> None:
        """`agent_id`: who searches; `inbox`: the name of its inbox channel."""
        self._open_engine = open_engine
        self._engine: SearchEngine | None = None
        self._store = store
        self._ceiling_kib = ceiling_kib
        self._agent_id = agent_id
        self._inbox = inbox

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()

    def search(self, search: Search) -> dict[str, Any]:
        """Raises BusError; ProjectionError among them when the engine is Redis and failed."""
        begun = _begun(search.cursor)
        query = query_of(
            text=search.text,
            channel=search.channel,
            sender=search.sender,
            since_us=search.since,
            until_us=search.until,
            thread=search.thread,
            reply_to=search.reply_to,
            type_=search.type,
            tags=search.tags,
        )
        if search.channel is not None:
            require_readable(self._store, search.channel, self._inbox)
        if self._engine is None:
            self._engine = self._open_engine()
        count = search.count or SEARCH_PAGE_DEFAULT
        place = begun or Place(
            Sequence(self._store.last_sequence() + 1), self._store.removed_through()
        )
        found = self._find(self._engine, query, place.below, count + 1)
        ceiling_bytes = min((search.max_kib or self._ceiling_kib) * KIB, RESULT_BYTES)
        messages, covered = self._fitting(found[:count], ceiling_bytes)
        rest = place._replace(below=found[covered - 1]) if covered < len(found) else None
        gaps = self._gaps(place, rest, search.channel) if begun else []
        answer: dict[str, Any] = {
            "messages": [raw(envelope) for envelope in messages],
            "engine": self._engine.name,
            "cursor": str(rest) if rest is not None else None,
            "gaps": gaps[-GAPS_PER_RESULT:],
            "removed_through": place.removed_through,
        }
        if len(gaps) > GAPS_PER_RESULT:  # as many channels
            answer["gaps_left_out"] = len(gaps) - GAPS_PER_RESULT
        return answer

    def _find(
        self, engine: SearchEngine, query: Query, below: Sequence, count: int
    ) -> list[Sequence]:
        """The newest matches that the asking agent may read, newest first."""
        deadline_s = time.monotonic() + SEARCH_SECONDS
        found: list[Sequence] = []
        while len(found) < count:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise too_slow()
            matches = engine.find(query, below, count, left_s)
            visible = self._store.visible(matches, self._agent_id)
            found += [sequence for sequence in matches if sequence in visible]
            if len(matches) < count:
                break
            below = matches[-1]
        return found[:count]

    def _gaps(self, place: Place, rest: Place | None, channel: str | None) -> list[dict[str, Any]]:
        """What was removed since the search began, of the part that this page covers."""
        low = place.removed_through
        if rest is not None:
            low = max(low, Sequence(rest.below - 1))  # the last that was found counts as covered
        if self._store.removed_through() <= low:
            return []
        parts = self._store.removed_anywhere(low, place.below)
        return [
            part.as_data()
            for part in parts
            if (channel or part.channel) == part.channel
            and (part.channel == self._inbox or not part.channel.startswith(INBOX_PREFIX))
        ]

    def _fitting(self, found: list[Sequence], ceiling_bytes: int) -> tuple[list[bytes], int]:
        """The live ones up to the ceiling, at least one, and how many of `found` that covers."""
        fitting: list[bytes] = []
        for start in range(0, len(found), ENVELOPES_AT_ONCE):
            part = found[start : start + ENVELOPES_AT_ONCE]
            live = self._store.live_envelopes(part)
            for at, sequence in enumerate(part, start):
                envelope = live.get(sequence)
                if envelope is None:
                    continue
                if fitting and len(envelope) > ceiling_bytes:
                    return fitting, at
                ceiling_bytes -= len(envelope)
                fitting.append(envelope)
        return fitting, len(found)


def require_readable(store: Reader, channel: str, inbox: str) -> ChannelRow:
    """The row of a channel that may be read: of inboxes one's own only."""
    row = store.channel(channel)
    if row is None or (row.kind == "inbox" and channel != inbox):
        raise NotFoundError(f"there is no channel {channel!r}; list_channels shows what there is")
    return row


def _begun(cursor: str | None) -> Place | None:
    """The place that a cursor stands for."""
    if cursor is None:
        return None
    numbers = [int(part) for part in cursor.split(".") if part.isascii() and part.isdecimal()]
    if len(numbers) != 2 or str(Place(*map(Sequence, numbers))) != cursor:
        raise _not_a_cursor()
    place = Place(Sequence(numbers[0]), Sequence(numbers[1]))
    if not (0 < place.below <= NO_END and place.removed_through <= NO_END):
        raise _not_a_cursor()
    return place


def _not_a_cursor() -> ValidationError:
    return ValidationError(
        "search: cursor must be one that a search has answered; leave it out to begin anew"
    )
