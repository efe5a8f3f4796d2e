"""The index is filled so that each field of a message finds it. Needs a search module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from agentbus.ids import ChannelId, Sequence, SessionId
from agentbus.projection import keys
from agentbus.projection.connection import execute
from agentbus.projection.search import WHOLE_MARK, ensure_index
from agentbus.projection.streams import StreamEntry, StreamWriter
from agentbus.rules.documents import document_of
from agentbus.rules.terms import encode_term, terms, whole_words
from tests.redis_fixture import PrivateRedis, need_search, private_redis

CHANNEL = ChannelId(1)
DEFAULTS: dict[str, Any] = {
    "channels": ["general"],
    "sender": "Sam",
    "session_id": SessionId("0190a1b2-0000-7000-8000-000000000001"),
    "sent_at_ms": 1_790_000_000_000,
}


@pytest.fixture
def indexed() -> Iterator[PrivateRedis]:
    need_search()
    with private_redis(search_engine="redis") as running:
        ensure_index(running.client)
        yield running


def put(running: PrivateRedis, sequence: int, content: str, **fields: Any) -> None:
    StreamWriter(running.client, search=True).project(
        [
            StreamEntry(
                channel_id=CHANNEL,
                sequence=Sequence(sequence),
                session_id=DEFAULTS["session_id"],
                envelope=b"{}",
                document=document_of(**{**DEFAULTS, "content": content, **fields}),
            )
        ],
        Sequence(sequence),
    )


def found(running: PrivateRedis, query: str) -> list[int]:
    answer = execute(
        running.client,
        *("FT.SEARCH", keys.INDEX, query, "NOCONTENT", "SORTBY", "sequence", "DESC"),
        *("LIMIT", "0", "2000"),
    )
    return [int(result[b"id"].removeprefix(b"m:")) for result in answer[b"results"]]


def by_word(running: PrivateRedis, word: str) -> list[int]:
    """A word as a phrase of its parts, or whole."""
    parts = " ".join(terms(word))
    whole = " ".join(WHOLE_MARK + term for term in whole_words(word))
    return found(running, f'(@text:"{parts}") | (@whole:"{whole}")')


def by_tag(running: PrivateRedis, field: str, value: str) -> list[int]:
    return found(running, f"@{field}:{{{encode_term(value)}}}")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("the FooBar class", ["FooBar", "foobar", "foo", "bar", "Class", "the"]),
        ("call snake_case()", ["snake_case", "snake", "CASE"]),
        ("see /srv/app/main.py:12", ["/srv/app/main.py", "main.py", "app/main", "12"]),
        ("Łódź café", ["lodz", "CAFÉ", "cafe"]),
        ("你好世界", ["你好", "好世界", "世", "界", "你好世界"]),
        ("データベース", ["データ", "ベース", "ス"]),
        ("한국어를 배운다", ["한국어", "배운다"]),
        ("shipped 🚀", ["🚀"]),
        ("https://example.org/x?y=zed", ["example.org", "zed"]),
        ("is of and not", ["of", "not"]),
    ],
)
def test_a_message_is_found_by_its_words(
    indexed: PrivateRedis, content: str, words: list[str]
) -> None:
    put(indexed, 1, "something else")
    put(indexed, 2, content)
    assert {word: by_word(indexed, word) for word in words} == {word: [2] for word in words}


def test_a_compound_does_not_match_its_parts_apart(indexed: PrivateRedis) -> None:
    put(indexed, 1, "a case of snake")
    assert by_word(indexed, "snake_case") == []


def test_a_phrase_does_not_begin_in_one_field_and_end_in_the_other(indexed: PrivateRedis) -> None:
    put(indexed, 1, "bar x foo")
    assert found(indexed, '@text:"foo bar"') == []


def test_subject_and_references_are_text(indexed: PrivateRedis) -> None:
    put(indexed, 1, "see below", subject="Deployment plan", references=["file:///srv/notes.md"])
    assert by_word(indexed, "deployment") == by_word(indexed, "notes.md") == [1]


def test_every_other_field_matches_exactly(indexed: PrivateRedis) -> None:
    values = {
        "sender": "Sam Spade, jr.",
        "thread": "0190-{x}|y",
        "reply_to": "0190a1b2-1",
        "type_": "note:*",
    }
    channels = ["job/42", "@Sam, jr."]
    put(indexed, 1, "x", **values, channels=channels, tags=["bug, urgent", "P1", "über"])
    put(indexed, 2, "x")
    for field, value in values.items():
        assert by_tag(indexed, field.rstrip("_"), value) == [1]
        assert by_tag(indexed, field.rstrip("_"), value.upper() + "!") == []
    for channel in channels:
        assert by_tag(indexed, "channel", channel) == [1]
    for tag in ("bug, urgent", "P1", "über"):
        assert by_tag(indexed, "tags", tag) == [1]
    assert by_tag(indexed, "tags", "urgent") == by_tag(indexed, "tags", "p1") == []
    assert by_tag(indexed, "session", DEFAULTS["session_id"]) == [2, 1]


def test_time_and_sequence_are_ranges(indexed: PrivateRedis) -> None:
    for sequence in (1, 2, 3):
        put(indexed, sequence, "x", sent_at_ms=sequence * 1000)
    assert found(indexed, "@sent_at:[2000 3000]") == [3, 2]
    assert found(indexed, "@sequence:[-inf (3]") == [2, 1]


def test_removed_messages_are_not_found(indexed: PrivateRedis) -> None:
    for sequence in (1, 2, 3, 4):
        put(indexed, sequence, "same words")
    writer = StreamWriter(indexed.client, search=True)
    writer.remove(CHANNEL, Sequence(1), [Sequence(1)])
    assert by_word(indexed, "words") == [4, 3, 2]
    writer.remove_found(CHANNEL, Sequence(3))
    assert by_word(indexed, "words") == [4]
    writer.drop(CHANNEL, Sequence(4))
    assert by_word(indexed, "words") == []


def test_projecting_twice_gives_one_document(indexed: PrivateRedis) -> None:
    put(indexed, 1, "twice")
    put(indexed, 1, "twice")
    ensure_index(indexed.client)
    assert by_word(indexed, "twice") == [1]


def test_a_prefix_of_a_thousand_terms_finds_them_all(indexed: PrivateRedis) -> None:
    for sequence in range(1, 1001):
        put(indexed, sequence, f"prefix{sequence}")
    assert len(found(indexed, f"@whole:{WHOLE_MARK}p*")) == 1000


def test_without_search_no_documents_are_written() -> None:
    with private_redis(search_engine="sqlite") as running:
        writer = StreamWriter(running.client, search=False)
        document = document_of(**DEFAULTS, content="x")
        entry = StreamEntry(CHANNEL, Sequence(1), DEFAULTS["session_id"], b"{}", document)
        writer.project([entry], Sequence(1))
        assert running.client.exists(keys.document(Sequence(1))) == 0
