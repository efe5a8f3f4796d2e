"""How texts become terms: a table of what people and programs write, and the rules of the code."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentbus.rules.terms import (
    CACHED_RUN_CHARACTERS,
    SPLIT_CHARACTERS,
    WORD_CHARACTERS,
    encode_term,
    indexed,
    terms,
    whole_words,
)


def decoded(encoded: list[str]) -> list[str]:
    """The words behind the code, so that the tables below can be read."""

    def character(match: re.Match[str]) -> str:
        return chr(int(match[1], 16)) if match[1] else "z"

    return [re.sub("z([0-9a-f]+)z|zz", character, word) for word in encoded]


Case = tuple[str, list[str], list[str] | None]
"""Text, its parts, its whole words (None: the same)."""

IDENTIFIERS: list[Case] = [
    ("foobar", ["foobar"], ["foobar"]),
    ("FooBar", ["foo", "bar"], ["foobar"]),
    ("fooBar", ["foo", "bar"], ["foobar"]),
    ("FOOBAR", ["foobar"], ["foobar"]),
    ("getHTTPResponse", ["get", "http", "response"], ["gethttpresponse"]),
    ("HTTPServer", ["http", "server"], ["httpserver"]),
    ("getURLs", ["get", "urls"], ["geturls"]),
    ("URLs and IDs", ["urls", "and", "ids"], ["urls", "and", "ids"]),
    ("iPhone", ["i", "phone"], ["iphone"]),
    ("snake_case", ["snake", "case"], ["snake", "case"]),
    ("MAX_RETRY_COUNT", ["max", "retry", "count"], ["max", "retry", "count"]),
    ("kebab-case", ["kebab", "case"], ["kebab", "case"]),
    ("__init__", ["init"], ["init"]),
    ("foo.bar()", ["foo", "bar"], ["foo", "bar"]),
    ("std::vector<int>", ["std", "vector", "int"], ["std", "vector", "int"]),
    ("utf8", ["utf", "8"], ["utf8"]),
    ("sha256sum", ["sha", "256", "sum"], ["sha256sum"]),
    ("v1.2.3-rc1", ["v", "1", "2", "3", "rc", "1"], ["v1", "2", "3", "rc1"]),
    ("0x7fff", ["0", "x", "7", "fff"], ["0x7fff"]),
    ("3.14", ["3", "14"], ["3", "14"]),
    ("facade2", ["facade", "2"], ["facade2"]),
    ("size_zoo", ["size", "zoo"], ["size", "zoo"]),
    ("ÉcoleNormale", ["ecole", "normale"], ["ecolenormale"]),
    ("МойКласс", ["мои", "класс"], ["моикласс"]),
]

HASHES: list[Case] = [
    ("d3ac558", ["d3ac558"], ["d3ac558"]),
    ("D3AC558F", ["d3ac558f"], ["d3ac558f"]),
    (
        "0190a1b2-0000-7000-8000-0123456789ab",
        ["0190a1b2", "0000", "7000", "8000", "0123456789ab"],
        ["0190a1b2", "0000", "7000", "8000", "0123456789ab"],
    ),
]

PLACES: list[Case] = [
    ("/usr/lib/foo.py", ["usr", "lib", "foo", "py"], ["usr", "lib", "foo", "py"]),
    (r"C:\Users\Sam\x.txt", ["c", "users", "sam", "x", "txt"], ["c", "users", "sam", "x", "txt"]),
    ("~/.config/app.json:120", ["config", "app", "json", "120"], ["config", "app", "json", "120"]),
    (
        "https://example.org/a%20b?q=cafe&n=2#top",
        ["https", "example", "org", "a", "20", "b", "q", "cafe", "n", "2", "top"],
        ["https", "example", "org", "a", "20b", "q", "cafe", "n", "2", "top"],
    ),
    ("sam.smith+bus@example.org", ["sam", "smith", "bus", "example", "org"], None),
]

LANGUAGES: list[Case] = [
    ("Café", ["cafe"], ["cafe"]),
    ("naïve–façade", ["naive", "facade"], ["naive", "facade"]),
    ("STRASSE Straße", ["strasse", "strasse"], ["strasse", "strasse"]),
    ("Łódź Ørsted Đà Nẵng", ["lodz", "orsted", "da", "nang"], None),
    ("İstanbul ısı", ["istanbul", "isi"], None),
    ("Ελληνικά ΣΟΦΟΣ", ["ελληνικα", "σοφοσ"], None),
    ("ёлка", ["елка"], None),
    ("مُحَمَّد", ["محمد"], ["محمد"]),
    ("שָׁלוֹם", ["שלום"], ["שלום"]),
    ("हिन्दी में।", ["हिन्दी", "में"], ["हिन्दी", "में"]),
    ("ﬁle ＡＢＣ １２", ["file", "abc", "12"], None),
    ("你好世界", ["你好", "好世", "世界"], ["你", "好", "世", "界"]),
    ("好", ["好"], ["好"]),
    ("用Python写", ["用", "python", "写"], ["用", "python", "写"]),
    ("你好,世界。", ["你好", "世界"], ["你", "好", "世", "界"]),
    ("データ", ["デー", "ータ"], ["デ", "ー", "タ"]),
    ("ガラス", ["ガラ", "ラス"], ["ガ", "ラ", "ス"]),
    ("ｶﾞﾗｽ", ["ガラ", "ラス"], ["ガ", "ラ", "ス"]),
    ("検索する", ["検索", "索す", "する"], ["検", "索", "す", "る"]),
    ("한국어를", ["한국", "국어", "어를"], ["한", "국", "어", "를"]),
    ("ไทย", ["ไท", "ทย"], ["ไ", "ท", "ย"]),
    ("𠮷野家", ["𠮷野", "野家"], ["𠮷", "野", "家"]),
]

SYMBOLS: list[Case] = [
    ("👍", ["👍"], ["👍"]),
    ("done👍🏽now", ["done", "👍", "now"], ["done", "👍", "now"]),
    ("👩‍💻", ["👩", "💻"], ["👩", "💻"]),
    ("❤️", ["❤"], ["❤"]),
    ("a → b ≥ c … “d”", ["a", "b", "c", "d"], ["a", "b", "c", "d"]),
    ("", [], []),
    (" \t\r\n\u00a0\u3000", [], []),
    ("!@#$%^&*()[]{}|\\/?.,<>;:'\"-+=~`", [], []),
]


@pytest.mark.parametrize(
    ("text", "parts", "whole"), IDENTIFIERS + HASHES + PLACES + LANGUAGES + SYMBOLS
)
def test_text_gives_these_parts_and_whole_words(
    text: str, parts: list[str], whole: list[str] | None
) -> None:
    assert decoded(terms(text)) == parts
    assert decoded(whole_words(text)) == (parts if whole is None else whole)


def test_folding_loses_what_tells_no_words_apart_but_keeps_voiced_kana() -> None:
    assert terms("カラス") != terms("ガラス")
    assert terms("resume") == terms("Résumé") == terms("RÉSUMÉ")


def test_a_very_long_run_is_kept_whole_and_cut() -> None:
    blob = "aB3" * SPLIT_CHARACTERS
    assert terms(blob) == whole_words(blob) == [blob.lower()[:WORD_CHARACTERS]]
    accented = "é" * 1000
    assert terms(accented) == ["e" * WORD_CHARACTERS]
    for text in ("я" * 30, "z" * 100, "я" * 1000):
        assert [len(term) for term in terms(text) + whole_words(text)] == [WORD_CHARACTERS] * 2


def test_a_long_text_without_spaces_is_not_cut() -> None:
    assert len(terms("你好" * 1000)) == 1999


@given(st.text())
def test_terms_hold_nothing_but_lower_case_letters_and_digits(text: str) -> None:
    for term in terms(text) + whole_words(text):
        assert re.fullmatch("[a-z0-9]+", term)


@given(st.text())
def test_composed_and_decomposed_texts_give_the_same_terms(text: str) -> None:
    composed, decomposed = (unicodedata.normalize(form, text) for form in ("NFC", "NFD"))
    assert terms(composed) == terms(decomposed)
    assert whole_words(composed) == whole_words(decomposed)


@given(st.text(), st.text())
def test_a_code_begins_with_another_exactly_when_the_texts_do(one: str, other: str) -> None:
    assert encode_term(one + other).startswith(encode_term(one))
    assert encode_term(one).startswith(encode_term(other)) == one.startswith(other)


@given(st.text(alphabet="aZz0é你"), st.text(alphabet="aZz0é你"))
def test_different_texts_have_different_codes(one: str, other: str) -> None:
    assert (encode_term(one) == encode_term(other)) == (one == other)


@given(st.text() | st.text(st.characters(max_codepoint=127), max_size=300))
def test_what_is_indexed_is_the_joined_terms_and_words(text: str) -> None:
    assert indexed(text) == (" ".join(terms(text)), " ".join(whole_words(text)))


@pytest.mark.parametrize("length", [CACHED_RUN_CHARACTERS, CACHED_RUN_CHARACTERS + 1, 200])
def test_the_short_cut_for_ascii_ends_where_runs_are_long(length: int) -> None:
    text = f"aZ1 {'bZ2' * length}"[: length + 4]
    assert indexed(text) == (" ".join(terms(text)), " ".join(whole_words(text)))
