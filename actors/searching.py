"""The answer to a search: a page of what an engine found, as it is now.

Owns the page: how much of it fits, and the cursor that continues it. Which engine there is was
decided when the daemon started. Runs on the attachment's thread, with handles of its own that are
opened by its first search: most attachments never search.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from agentbus.encoding import raw
from agentbus.errors import NotFoundError, ValidationError
from agentbus.ids import Sequence
from agentbus.limits import GAPS_PER_RESULT, KIB, RESULT_BYTES, SEARCH_PAGE_DEFAULT, SEARCH_SECONDS
from agentbus.protocol.operations import Search
from agentbus.rules.query import SearchEngine, query_of
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
    """

    def __init__(
        self, open_engine: Callable[[], SearchEngine], store: Reader, ceiling_kib: int
    ) -> None:
        self._open_engine = open_engine
        self._engine: SearchEngine | None = None
        self._store = store
        self._ceiling_kib = ceiling_kib

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
        if search.channel is not None and self._store.channel(search.channel) is None:
            raise NotFoundError(
                f"there is no channel {search.channel!r}; list_channels shows what there is"
            )
        if self._engine is None:
            self._engine = self._open_engine()
        count = search.count or SEARCH_PAGE_DEFAULT
        place = begun or Place(
            Sequence(self._store.last_sequence() + 1), self._store.removed_through()
        )
        found = self._engine.find(query, place.below, count + 1, SEARCH_SECONDS)
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

    def _gaps(self, place: Place, rest: Place | None, channel: str | None) -> list[dict[str, Any]]:
        """What was removed since the search began, of the part that this page covers."""
        low = place.removed_through
        if rest is not None:
            low = max(low, Sequence(rest.below - 1))  # the last that was found counts as covered
        if self._store.removed_through() <= low:
            return []
        parts = self._store.removed_anywhere(low, place.below)
        return [part.as_data() for part in parts if channel in (None, part.channel)]

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
