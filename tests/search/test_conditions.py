"""Conditions beside the text, pages, and what is no longer there; on every engine."""

from __future__ import annotations

from typing import Any

import pytest

from agentbus.errors import OverloadedError, ValidationError
from agentbus.ids import Sequence
from agentbus.rules.query import query_of
from agentbus.store.reader import NO_END
from tests.search.engines import Corpus

HOUR_S = 3600.0


def test_every_condition_is_matched_exactly(messages: Corpus) -> None:
    ada = messages.bus.attach("Ada Lovelace, jr.", "c2")
    messages.do(messages.sam.make("job-42/{x}|y"))
    fields: dict[str, Any] = {
        "channel": "job-42/{x}|y",
        "thread": "inf",
        "reply_to": "0190a1b2-1",
        "type": "note:*",
    }
    named = messages.send("x", ada, **fields, tags=("bug, urgent", "P1", "über"))
    plain = messages.send("x")
    wanted = {"sender": "Ada Lovelace, jr.", **fields}
    wanted["type_"] = wanted.pop("type")
    for field, value in wanted.items():
        assert messages.find(**{field: value}) == [named], field
        assert messages.find(**{field: value.upper() + "!"}) == []
        assert messages.find("x", **{field: value}) == [named]
    for tag in ("bug, urgent", "P1", "über", "bug*", "ü*", "P*"):
        assert messages.find(tags=[tag]) == [named], tag
    assert messages.find(tags=["p1"]) == messages.find(tags=["urgent"]) == []
    assert messages.find(tags=["P1", "über", "b*"]) == [named]
    assert messages.find(tags=["P1", "P2"]) == []
    assert messages.find(**wanted, tags=["P1"]) == [named]
    assert messages.find(sender="Sam") == [plain]
    assert messages.find() == messages.find("  ") == [plain, named]


def test_a_star_alone_is_no_tag() -> None:
    with pytest.raises(ValidationError, match="beginning of a tag"):
        query_of(tags=["*"])


def test_both_ends_of_a_time_belong_to_it(messages: Corpus) -> None:
    sent: list[tuple[Sequence, int]] = []
    for _ in range(3):
        sent.append((messages.send("x"), messages.bus.clock.wall_us()))
        messages.bus.clock.advance(HOUR_S + 0.000_7)
    (first, _), (second, second_us), (third, _) = sent
    shown_us = second_us // 1000 * 1000  # what the envelope shows has milliseconds
    assert messages.find(since_us=shown_us) == [third, second]
    assert messages.find(until_us=shown_us) == [second, first]
    assert messages.find(since_us=shown_us, until_us=shown_us) == [second]
    assert messages.find("x", since_us=shown_us + 1000) == [third]
    assert messages.find("x", until_us=shown_us - 1) == [first]
    assert messages.find(since_us=-(2**60)) == messages.find(until_us=2**60)
    assert messages.find(since_us=shown_us, until_us=shown_us - 1_000_000) == []


def test_a_clock_that_went_back_does_not_change_the_order(messages: Corpus) -> None:
    first = messages.send("x")
    messages.bus.clock.set_wall(messages.bus.clock.wall_us() - 3_600_000_000)
    second = messages.send("x")
    assert messages.find("x") == [second, first]


def test_pages_follow_each_other_whatever_happens_meanwhile(messages: Corpus) -> None:
    sequences = [messages.send(f"word number{number}") for number in range(3000)]
    query = query_of(text="word")
    seen: list[Sequence] = []
    below = NO_END
    while page := messages.ask(query, below, 700):
        seen += page
        below = page[-1]
        messages.send("word later")
    assert seen == sequences[::-1]


def test_rare_matches_are_found_far_below_common_ones(messages: Corpus) -> None:
    oldest = messages.send("needle and hay")
    for _ in range(2500):
        messages.send("hay")
    newest = messages.send("needle")
    assert messages.find("needle") == [newest, oldest]
    assert messages.ask(query_of(text="hay needle"), NO_END, 1) == [oldest]


def test_a_beginning_of_a_thousand_words_finds_them_all(messages: Corpus) -> None:
    sequences = [messages.send(f"prefix{number}abc") for number in range(1000)]
    assert messages.find("pref*") == messages.find("p*") == sequences[::-1]
    assert len(messages.find("prefix1*")) == 1 + 10 + 100


def test_a_phrase_that_ends_in_a_beginning_is_found_among_many_that_are_none(
    messages: Corpus,
) -> None:
    oldest = messages.send("foo bar")
    for number in range(1500):
        messages.send(f"foo then bar{number}")
    newest = messages.send("foo.barista")
    assert messages.find("foo.ba*") == [newest, oldest]
    assert messages.ask(query_of(text="foo.ba*"), NO_END, 1) == [newest]


def test_messages_that_are_cleaned_up_are_not_found(messages: Corpus) -> None:
    old = [messages.send(f"old word {number}") for number in range(3)]
    messages.bus.clock.advance(messages.bus.config.message_retention_hours * HOUR_S + 1)
    new = messages.send("new word")
    messages.bus.prune("messages_by_age")
    messages.remove(old[-1], old)
    assert messages.find("word") == messages.find() == [new]


def test_only_the_live_revision_of_a_memory_is_found(messages: Corpus) -> None:
    messages.do(messages.sam.make("facts", "memory"))
    ada = messages.bus.attach("Ada", "c2")
    done = messages.do(messages.sam.send("the port is 1000", "facts", tags=("network",)))
    memory_id, created = done.result["message_id"], done.result["sequence"]
    assert messages.find("1000") == [created]
    other = messages.send("a port elsewhere")
    revised = messages.do(ada.edit(memory_id, "the port is 2000")).result["sequence"]
    assert messages.find("port") == [revised, other]
    assert messages.find("1000") == []
    assert messages.find("2000", tags=["network"], channel="facts") == [revised]
    assert messages.find(sender="Ada") == [revised]
    assert messages.find() == [revised, other]
    messages.do(ada.delete(memory_id))
    assert messages.find("port") == [other]


def test_a_search_that_takes_too_long_is_given_up(messages: Corpus) -> None:
    for number in range(2000):
        messages.send(f"word{number} other{number} word")
    query = query_of(text="w* o* wo* ot* wor* oth*")
    for engine in messages.engines:
        with pytest.raises(OverloadedError, match="narrow it"):
            engine.find(query, NO_END, 2000, 0.003)
        assert engine.find(query_of(text="word7"), NO_END, 10, 5.0), engine.name
