"""What a caller looks for, as every search engine understands it.

Owns the syntax of a search text (words, "phrases", prefix*) and the conditions beside it. Every
other character is text, so no text is wrong and none reaches an engine as it was written: a `Query`
holds only codes of `[a-z0-9]`. Pure; runs on the thread of whoever asks.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from agentbus.errors import OverloadedError, ValidationError
from agentbus.ids import Sequence
from agentbus.limits import SEARCH_SECONDS, SEARCH_WORDS
from agentbus.rules.documents import code
from agentbus.rules.terms import terms_and_words, whole_words

_SHOWN_CHARACTERS = 60

_PIECE = re.compile(r'"(?P<quoted>[^"]*)"|(?P<plain>[^\s"]+)|"')
"""A quote without its partner separates words, like a space."""

EngineName: TypeAlias = Literal["redis", "sqlite"]
FilterField: TypeAlias = Literal["channel", "sender", "thread", "reply_to", "type", "tags"]


@dataclass(frozen=True, slots=True)
class Phrase:
    """A word or a quoted phrase: `parts` in a row in `text`, or `whole` in a row in `whole`.

    With `prefix` the last of each is only how a term begins. Neither is ever empty.
    """

    parts: tuple[str, ...]
    whole: tuple[str, ...]
    prefix: bool = False


@dataclass(frozen=True, slots=True)
class Filter:
    """The field has this value, or with `prefix` one that begins so. `code` is encoded."""

    field: FilterField
    code: str
    prefix: bool = False


@dataclass(frozen=True, slots=True)
class Query:
    """All of it must hold. Times are milliseconds since the epoch, both ends belong to it."""

    phrases: tuple[Phrase, ...] = ()
    filters: tuple[Filter, ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None


class SearchEngine(Protocol):
    """What answers queries. Opened by, and belongs to, the thread that asks."""

    @property
    def name(self) -> EngineName: ...

    def find(self, query: Query, below: Sequence, count: int, limit_s: float) -> list[Sequence]:
        """The newest `count` matches below a sequence, newest first.

        Raises `too_slow()` when that takes longer than `limit_s`.
        """
        ...

    def close(self) -> None: ...


def too_slow() -> OverloadedError:
    """The answer to a query that an engine did not get through in time."""
    return OverloadedError(
        f"the search was not done after {SEARCH_SECONDS:g} s and was given up; narrow it: more "
        "words, a longer beginning before a *, a channel, since"
    )


def query_of(
    *,
    text: str | None = None,
    channel: str | None = None,
    sender: str | None = None,
    since_us: int | None = None,
    until_us: int | None = None,
    thread: str | None = None,
    reply_to: str | None = None,
    type_: str | None = None,
    tags: Iterable[str] = (),
) -> Query:
    """Raises ValidationError where there is a text but nothing in it to look for."""
    values: dict[FilterField, str | None] = {
        "channel": channel,
        "sender": sender,
        "thread": thread,
        "reply_to": reply_to,
        "type": type_,
    }
    exact = [Filter(field, code(value)) for field, value in values.items() if value is not None]
    return Query(
        phrases=parse_text(text or ""),
        filters=(*exact, *(_tag_filter(tag) for tag in tags)),
        since_ms=None if since_us is None else -(-since_us // 1000),
        until_ms=None if until_us is None else until_us // 1000,
    )


def parse_text(text: str) -> tuple[Phrase, ...]:
    """The words and phrases of a search text, each once. Blank text has none.

    What holds no letter, digit or emoji is passed over; where that is all, it is refused, since
    "nothing found" would be misleading.
    """
    phrases = tuple(dict.fromkeys(_phrases(text)))
    if len(phrases) > SEARCH_WORDS:
        raise ValidationError(
            f"search: text must hold at most {SEARCH_WORDS} words and phrases, "
            f"this holds {len(phrases)}"
        )
    if not phrases and text and not text.isspace():
        shown = text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."
        raise ValidationError(
            f"search: there is no letter, digit or emoji to look for in {shown!r}; name a word, or "
            "leave text out to search by the other fields alone"
        )
    return phrases


def _phrases(text: str) -> Iterator[Phrase]:
    for piece in _PIECE.finditer(text):
        plain: str = piece["plain"] or ""
        before = plain.rstrip("*")
        parts, whole = terms_and_words(piece["quoted"] or before)
        if parts:
            prefix = len(before) < len(plain) and _ends_in_word(before)
            yield Phrase(tuple(parts), tuple(whole), prefix)


def _ends_in_word(text: str) -> bool:
    """Whether a star here would stand right after a word: `foo*`, but not `foo.*` or `foo()*`."""
    for character in reversed(text):
        if whole_words(character):
            return True
        if unicodedata.category(character) not in ("Mn", "Cf"):
            return False  # accents and joiners belong to the letter before them
    return False


def _tag_filter(tag: str) -> Filter:
    before = tag.removesuffix("*")
    if before == tag:
        return Filter("tags", code(tag))
    if not before:
        raise ValidationError("search: tags: write the beginning of a tag before the *")
    return Filter("tags", code(before), prefix=True)
