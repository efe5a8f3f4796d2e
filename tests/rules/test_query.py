"""What a search text means before any engine sees it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentbus.errors import ValidationError
from agentbus.rules.query import Filter, Phrase, parse_text, query_of


def word(*parts: str, whole: tuple[str, ...] | None = None, prefix: bool = False) -> Phrase:
    return Phrase(parts, parts if whole is None else whole, prefix)


FOO, BAR = word("foo"), word("bar")


@pytest.mark.parametrize(
    ("text", "phrases"),
    [
        ("foo bar", (FOO, BAR)),
        ("  foo\n\tbar ", (FOO, BAR)),
        ("foo foo FOO", (FOO,)),
        ('"foo bar"', (word("foo", "bar"),)),
        ('bar "foo bar"', (BAR, word("foo", "bar"))),
        ('foo"bar foo"bar', (FOO, word("bar", "foo"), BAR)),
        ('foo "bar', (FOO, BAR)),
        ('foo "" bar', (FOO, BAR)),
        ("foo*", (word("foo", prefix=True),)),
        ("foo**", (word("foo", prefix=True),)),
        ("FooBa*", (word("foo", "ba", whole=("fooba",), prefix=True),)),
        ("e\u0301*", (word("e", prefix=True),)),
        ("foo.*", (FOO,)),
        ("foo()*", (FOO,)),
        ("*foo", (FOO,)),
        ("foo *", (FOO,)),
        ('"foo*"', (FOO,)),
        ('"foo"*', (FOO,)),
        ("foo*bar", (word("foo", "bar"),)),
        ("foo -> bar", (FOO, BAR)),
        ("-foo +bar", (FOO, BAR)),
        ('print("foo bar")', (word("print"), word("foo", "bar"))),
        ("", ()),
        (" \n ", ()),
    ],
)
def test_a_text_is_words_phrases_and_beginnings(text: str, phrases: tuple[Phrase, ...]) -> None:
    assert parse_text(text) == phrases


@pytest.mark.parametrize("text", ["*", "-", '""', '"', "()", "* * *", "…"])
def test_a_text_with_nothing_to_look_for_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match=r"no letter, digit or emoji.*leave text out"):
        parse_text(text)


def test_a_refusal_shows_little_of_a_long_text() -> None:
    with pytest.raises(ValidationError) as refused:
        parse_text("-" * 4000)
    assert len(refused.value.message) < 250


def test_conditions_are_codes_and_whole_milliseconds() -> None:
    query = query_of(channel="a-b", tags=["bug*", "x"], since_us=1_001, until_us=1_999)
    assert query.filters == (
        Filter("channel", "az2dzb"),
        Filter("tags", "bug", prefix=True),
        Filter("tags", "x"),
    )
    assert (query.since_ms, query.until_ms) == (2, 1)


@given(st.text())
def test_every_term_of_a_query_is_lower_case_letters_and_digits(text: str) -> None:
    try:
        phrases = parse_text(text)
    except ValidationError:
        return
    for phrase in phrases:
        assert phrase.parts
        assert phrase.whole
        assert all(re.fullmatch("[a-z0-9]+", term) for term in (*phrase.parts, *phrase.whole))
