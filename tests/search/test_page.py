"""docs/search.md says what is so."""

from __future__ import annotations

import re

import pytest

from agentbus.encoding import decode_trusted
from agentbus.limits import (
    MIB,
    RESULT_BYTES,
    SEARCH_PAGE_DEFAULT,
    SEARCH_PAGE_MAX,
    SEARCH_SECONDS,
    SEARCH_TEXT_BYTES,
    SEARCH_WORDS,
)
from agentbus.protocol.operations import Search, parse_operation
from agentbus.rules.query import parse_text
from agentbus.rules.terms import WORD_CHARACTERS
from tests.architecture.tree import ROOT
from tests.search.engines import Corpus

PAGE = (ROOT / "docs" / "search.md").read_text(encoding="utf-8")


def test_the_example_is_a_search() -> None:
    (block,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    operation = parse_operation("search", decode_trusted(block))
    assert isinstance(operation, Search)
    assert operation.text is not None
    assert len(parse_text(operation.text)) == 3


@pytest.mark.parametrize(
    "row",
    [
        f"| `text` | {SEARCH_TEXT_BYTES} bytes, {SEARCH_WORDS} words and phrases |",
        f"| a word | {WORD_CHARACTERS} letters;",
        f"| time | {SEARCH_SECONDS:g} second |",
        f"| `count` | {SEARCH_PAGE_MAX} |",
        f"| bytes of a page | {RESULT_BYTES // MIB} MiB |",
        f"`count` messages ({SEARCH_PAGE_DEFAULT} if not given, {SEARCH_PAGE_MAX} at most)",
    ],
)
def test_the_limits_are_those_of_the_code(row: str) -> None:
    assert row in PAGE


def test_every_field_is_explained() -> None:
    own = {"text", "count", "cursor", "max_kib"}
    assert all(f"`{field}`" in PAGE for field in Search.FIELDS.keys() - own)


@pytest.mark.parametrize(
    ("text", "content", "found"),
    [
        ("deadlock", "a DEADLOCK", True),
        ("deadlock timeout", "timeout, then Deadlock", True),
        ('"lost update"', "the Lost update", True),
        ('"lost update"', "update lost", False),
        ("recover*", "recovery", True),
        ("-word", "word", True),
        ("a|b", "a", False),
        ("foo*", "foobar", True),
        ("foo.*", "foobar", False),
        ("cafe", "Café", True),
        ("lodz", "Łódź", True),
        ("gethttpresponse", "getHTTPResponse()", True),
        ("http", "getHTTPResponse()", True),
        ("HTTPResponse", "getHTTPResponse()", True),
        ("foo.bar", "foo.bar()", True),
        ("foo.bar", "foo-bar", True),
        ("foo.bar", "FooBar", True),
        ("foo.bar", "foo and bar", False),
        ("error", "errors", False),
        ("error*", "errors", True),
        ("is", "it is so", True),
    ],
)
def test_what_the_page_claims_is_so(shared: Corpus, text: str, content: str, found: bool) -> None:
    sequence = shared.send(content)
    assert (sequence in shared.find(text)) is found
