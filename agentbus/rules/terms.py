"""How texts become search terms: one tokenizer for what is stored and for what is asked.

Owns: case and accent folding, the split of identifiers, bigrams for scripts without spaces, and the
encoding of a term to `[a-z0-9]`, so that nothing in it is special to any engine and every engine
sees the same terms. Never stems and knows no stop words. Pure; runs on whichever thread calls it.

A text gives two fields. `terms` has the parts of every word (`FooBar` is `foo bar`); `whole_words`
has each word unsplit (`foobar`). A word of a query matches where its `terms` stand as a phrase in
the first or its `whole_words` as a phrase in the second.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

WORD_CHARACTERS = 120
"""A longer run of letters and digits (an encoded file, a key) is cut to this, and so is the code of
a term: Redis search silently leaves out terms of more than 128 characters."""

SPLIT_CHARACTERS = 64
"""A run longer than this is not a name that somebody reads, so it is not split into parts."""

CACHED_RUNS = 16_384
CACHED_RUN_CHARACTERS = 48
"""Agents repeat their words: a few megabytes of analysed runs save most of the work."""

_RUN = re.compile(r"[^\s\x00-\x2f\x3a-\x40\x5b-\x60\x7b-\x7f]+")
"""What cannot be divided before it is folded: ASCII letters and digits, and all beyond ASCII."""

# Scripts without spaces between words (Thai to Burmese, Khmer, Han, Kana, Bopomofo), and Hangul,
# whose particles stick to the word.
_DENSE = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3005-\u3007\u3040-\u30fa\u30fc-\u30ff"
    "\u3100-\u318f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
# Indic vowel signs are marks, not letters, yet no word is whole without them (dandas excepted).
_INDIC = "\u0900-\u0963\u0966-\u0dff"
_WORD = re.compile(
    rf"(?P<dense>[{_DENSE}]+)|(?P<word>(?:[^\W_{_DENSE}]|[{_INDIC}])+)|(?P<other>[^\s\x00-\x7f])"
)

# Accents, Hebrew and Arabic vowel points, the Arabic stretching line, variation selectors.
_MARKS = re.compile(
    "[\u0300-\u036f\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u0640"
    "\u064b-\u065f\u0670\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe00-\ufe0f]"
)
# Letters that carry their accent inside, so that Unicode does not take them apart.
_STROKES = str.maketrans(
    {
        "Æ": "AE",
        "æ": "ae",
        "Œ": "OE",
        "œ": "oe",
        "Ø": "O",
        "ø": "o",
        "Ł": "L",
        "ł": "l",
        "Đ": "D",
        "đ": "d",
        "Ħ": "H",
        "ħ": "h",
        "ı": "i",
    }
)
_ASCII_BORDERS = {
    code: " " for code in range(128) if not chr(code).isalnum()
}  # what `_RUN` leaves out, as far as it is ASCII
_PLAIN = re.compile("[a-y0-9]*")
_HASH = re.compile(r"(?=(?:.*[0-9]){2})(?=.*[a-fA-F])(?:[0-9a-f]{7,}|[0-9A-F]{7,})")
"""Part of a commit id or UUID: its letters and digits alternate by chance and mean nothing."""


def terms(text: str) -> list[str]:
    """The parts of every word, in order: `getHTTPResponse2` is `get http response 2`.

    A run of a script without spaces gives its bigrams; a single such character gives itself.
    """
    return terms_and_words(text)[0]


def whole_words(text: str) -> list[str]:
    """Each word unsplit, in order: `FooBar` is `foobar`.

    In a script without spaces each character is a word, which is what finds a single one of them.
    """
    return terms_and_words(text)[1]


def indexed(text: str) -> tuple[str, str]:
    """`terms` and `whole_words`, each joined by spaces: what is stored of a message.

    Plain ASCII takes a short cut through a few passes over the whole text, at a third of the cost.
    """
    if text.isascii():
        runs = text.translate(_ASCII_BORDERS).split()
        if max(map(len, runs), default=0) <= CACHED_RUN_CHARACTERS:
            whole = " ".join(runs).lower().replace("z", "zz")
            return " ".join(map(_ascii_parts, runs)), whole
    parts, words = terms_and_words(text)
    return " ".join(parts), " ".join(words)


def terms_and_words(text: str) -> tuple[list[str], list[str]]:
    """`terms` and `whole_words` in one pass, for whoever needs both."""
    parts: list[str] = []
    whole: list[str] = []
    for run in _RUN.findall(text):
        analyse = _analysed_short if len(run) <= CACHED_RUN_CHARACTERS else _analyse
        run_parts, run_whole = analyse(run)
        parts += run_parts
        whole += run_whole
    return parts, whole


def encode_term(text: str) -> str:
    """Any text as `[a-z0-9]`, one to one: other characters become `z<hex>z`, and `z` itself `zz`.

    The code of a text begins with the code of each of its beginnings, and with no other text's, so
    a prefix search on encoded terms finds exactly the terms with that prefix.
    """
    if _PLAIN.fullmatch(text):
        return text
    return "".join(
        character
        if "a" <= character < "z" or "0" <= character <= "9"
        else "zz"
        if character == "z"
        else f"z{ord(character):x}z"
        for character in text
    )


_Analysis = tuple[tuple[str, ...], tuple[str, ...]]
"""Encoded parts, encoded whole words."""


def _analyse(run: str) -> _Analysis:
    if run.isascii():
        word = run[:WORD_CHARACTERS]
        return _encoded(_parts(word)), _encoded([word.lower()])
    parts: list[str] = []
    whole: list[str] = []
    for match in _WORD.finditer(_folded(run)):
        found = match.group()
        if match.lastgroup == "word":
            word = found[:WORD_CHARACTERS]
            parts += _parts(word)
            whole.append(word.casefold())
        elif match.lastgroup == "dense":
            parts += [found[at : at + 2] for at in range(max(1, len(found) - 1))]
            whole += found
        elif unicodedata.category(found) == "So":  # emoji, but not arrows, quotes or modifiers
            parts.append(found)
            whole.append(found)
    return _encoded(parts), _encoded(whole)


def _encoded(texts: list[str]) -> tuple[str, ...]:
    return tuple(encode_term(text)[:WORD_CHARACTERS] for text in texts)


_analysed_short = lru_cache(maxsize=CACHED_RUNS)(_analyse)


class _AsciiParts(dict[str, str]):
    """Short ASCII run -> its encoded parts, joined. Answers in half the time of lru_cache."""

    def __missing__(self, run: str) -> str:
        if len(self) >= CACHED_RUNS:
            self.clear()
        parts = self[run] = " ".join(_analyse(run)[0])
        return parts


_ascii_parts = _AsciiParts().__getitem__


def _folded(text: str) -> str:
    """Without accents and compatibility forms, upper case kept (it still marks word borders)."""
    bare = _MARKS.sub("", unicodedata.normalize("NFKD", text)).translate(_STROKES)
    return unicodedata.normalize("NFC", bare)  # Hangul and voiced Kana are whole again


def _parts(word: str) -> list[str]:
    """Split at camel case and letter-digit borders; case folded.

    `getURLs2` is `get urls 2`: an upper case run keeps its plural `s`.
    """
    if len(word) > SPLIT_CHARACTERS or _HASH.fullmatch(word):
        return [word.casefold()]
    parts: list[str] = []
    start = 0
    for at in range(1, len(word)):
        before, here = word[at - 1], word[at]
        if before.isdecimal() != here.isdecimal():
            border = True
        elif not here.isupper():
            border = False
        elif not before.isupper():
            border = True
        else:  # the last capital of a run belongs to the word that follows: HTTP|Response
            rest = word[at + 1 : at + 3]
            border = rest[:1].islower() and not (rest[0] == "s" and not rest[1:].islower())
        if border:
            parts.append(word[start:at].casefold())
            start = at
    parts.append(word[start:].casefold())
    return parts
