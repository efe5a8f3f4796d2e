"""What a search says of messages that are removed while its pages are read."""

from __future__ import annotations

from typing import Any

import pytest

from actors.searching import Searcher
from agentbus.encoding import decode_trusted, encode
from agentbus.protocol.operations import Search
from agentbus.store.changes import PruneSlice
from tests.search.engines import Corpus

WORD = "needle"


@pytest.fixture
def searchers(messages: Corpus) -> list[Searcher]:
    """One for each engine; the corpus closes the engines."""
    reader = messages.bus.reader()
    return [
        Searcher(lambda engine=engine: engine, reader, 40, messages.sam.sender.agent_id, "@Sam")
        for engine in messages.engines
    ]


def page(searcher: Searcher, cursor: str | None = None, **conditions: Any) -> dict[str, Any]:
    return searcher.search(Search(WORD, count=3, cursor=cursor, **conditions))


def sequences(answer: dict[str, Any]) -> list[int]:
    return [message["sequence"] for message in decode_trusted(encode(answer["messages"]))]


def fill(messages: Corpus) -> None:
    """1 to 4 in work, then by turns; each an hour younger than the one before it."""
    messages.do(messages.sam.make("work"))
    for number in range(10):
        channel = "work" if number < 4 or number % 2 else "general"
        messages.send(f"{WORD} {number}", channel=channel)
        messages.bus.clock.advance(hours=1)


def remove(messages: Corpus, count: int, what: Any = "messages_by_age") -> None:
    """The ledger removes; the index need not know yet."""
    hours = messages.bus.config.message_retention_hours
    messages.bus.clock.advance(hours=hours)
    messages.bus.done(PruneSlice(what, count))
    messages.bus.clock.advance(hours=-hours)


def rest(searcher: Searcher, cursor: str, **conditions: Any) -> tuple[list[int], list[Any]]:
    """What all later pages show, and the gaps that they tell, lowest first."""
    seen, gaps = [], []
    following: str | None = cursor
    while following is not None:
        answer = page(searcher, following, **conditions)
        seen += sequences(answer)
        gaps += answer["gaps"]
        following = answer["cursor"]
    return seen, sorted(gaps, key=lambda gap: int(gap["from_sequence"]))


def told(gaps: list[Any], channel: str, *removed: int) -> None:
    """Each of these is in exactly one gap, every gap ends with one of them or at a page's end."""
    ranges = [(g["from_sequence"], g["to_sequence"]) for g in gaps if g["channel"] == channel]
    for sequence in removed:
        assert sum(first <= sequence <= last for first, last in ranges) == 1, (sequence, gaps)
    assert all(first <= last for first, last in ranges)
    assert not ranges or ranges[-1][1] == removed[-1]


def test_later_pages_tell_what_was_removed_since_the_first(
    messages: Corpus, searchers: list[Searcher]
) -> None:
    fill(messages)
    remove(messages, 2)
    first = [page(searcher) for searcher in searchers]
    remove(messages, 4)
    for searcher, answer in zip(searchers, first, strict=True):
        assert (sequences(answer), answer["gaps"]) == ([10, 9, 8], [])
        seen, gaps = rest(searcher, answer["cursor"])
        assert seen == [7]
        told(gaps, "work", 3, 4, 6)
        told(gaps, "general", 5)
        assert {gap["cause"] for gap in gaps} == {"age"}
        assert {(gap["channel"], gap["oldest_retained"]) for gap in gaps} == {
            ("work", 8),
            ("general", 7),
        }
        assert min(gap["from_sequence"] for gap in gaps) == 3  # 1 and 2 were gone before
        _, named = rest(searcher, answer["cursor"], channel="general")
        assert {gap["channel"] for gap in named} == {"general"}
        told(named, "general", 5)


def test_a_search_whose_rest_is_gone_ends_with_the_gaps(
    messages: Corpus, searchers: list[Searcher]
) -> None:
    fill(messages)
    first = [page(searcher) for searcher in searchers]
    remove(messages, 10)
    for searcher, answer in zip(searchers, first, strict=True):
        seen, gaps = rest(searcher, answer["cursor"])
        assert seen == []
        told(gaps, "work", 1, 2, 3, 4, 6, 7)
        told(gaps, "general", 5, 7)
        assert {gap["oldest_retained"] for gap in gaps} == {None}


def test_what_was_gone_before_a_search_began_is_no_gap_of_it(
    messages: Corpus, searchers: list[Searcher]
) -> None:
    fill(messages)
    remove(messages, 2)
    for searcher in searchers:
        first = page(searcher)
        assert rest(searcher, first["cursor"]) == ([7, 6, 5, 4, 3], [])
