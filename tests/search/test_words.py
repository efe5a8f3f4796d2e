"""What a text is found by, on every engine: the same corpus, the same answers."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentbus.errors import ValidationError
from agentbus.ids import Sequence
from agentbus.rules.query import query_of
from tests.search.engines import Corpus

TEXTS = {
    "camel": "The FooBar class calls getHTTPResponse2 and parseURLs",
    "snake": "rename snake_case to other_case, MAX_SIZE = 10",
    "dotted": "call foo.bar() then module.Class.method(arg, *rest)",
    "path": "see /srv/app/main.py:12 and ../lib/util-box.ts",
    "url": "https://example.org/a/b?y=zed&page=2#top",
    "email": "write to sam.spade+bus@example.com soon",
    "accents": "Łódź café naïve Größe Ångström Ærø",
    "greek": "Η Ελλάδα και ο κόσμος",
    "chinese": "你好世界，数据库迁移",
    "japanese": "データベースを移行する ガギグ",
    "korean": "한국어를 배운다",
    "thai": "สวัสดีชาวโลก",
    "hindi": "नमस्ते दुनिया",
    "emoji": "shipped 🚀 today 👍🏽",
    "code": 'if (a->b) { return "x | y"; } // TODO(sam): fix-me @channel {tag}',
    "hash": "commit 9fceb02d0ae598e95dc970b74767f19372d61af8 fixes it",
    "version": "python3.11 and v2.10.5-rc1",
    "not": "is of and not or the",
    "repeated": "192.168.1.1 is 1:1; bye-bye; zip.zipper; 天天向上",
    "beginnings": "kiwi, kelp, plumkale, so plum kart and plum",
    "apart": "a case of snake; bar then foo; 10 is no size",
    "long russian": "превысокомногорассмотрительствующий человек",
    "long": "x" * 300 + " tail",
}

FOUND = {
    # words, whole and in parts
    "foobar": ["camel"],
    "FooBar": ["camel", "dotted"],
    "foo": ["apart", "camel", "dotted"],
    "bar foo": ["apart", "camel", "dotted"],
    "httpresponse": [],
    "get": ["camel"],
    "response": ["camel"],
    "HTTPResponse": ["camel"],
    "urls": ["camel"],
    "snake_case": ["snake"],
    "snake case": ["apart", "snake"],
    "case_snake": [],
    "max_size": ["snake"],
    "foo.bar()": ["camel", "dotted"],
    "foo-bar": ["camel", "dotted"],
    "bar.foo": [],
    "method(arg": ["dotted"],
    "/srv/app/main.py": ["path"],
    "main.py:12": ["path"],
    "app/main": ["path"],
    "util-box": ["path"],
    "https://example.org/a/b": ["url"],
    "example.org": ["url"],
    "?y=zed": ["url"],
    "sam.spade+bus@example.com": ["email"],
    "@example.com": ["email"],
    "EXAMPLE": ["email", "url"],
    "lodz": ["accents"],
    "ŁÓDŹ": ["accents"],
    "cafe": ["accents"],
    "cafe\u0301": ["accents"],
    "grosse": ["accents"],
    "Größe": ["accents"],
    "aero": ["accents"],
    "κοσμοσ": ["greek"],
    "ΚΌΣΜΟΣ": ["greek"],
    "你好": ["chinese"],
    "世": ["chinese"],
    "好世界": ["chinese"],
    "世好": [],
    "数据库": ["chinese"],
    "データ": ["japanese"],
    "移行": ["japanese"],
    "ガギグ": ["japanese"],
    "한국어": ["korean"],
    "배운": ["korean"],
    "ชาวโลก": ["thai"],
    "दुनिया": ["hindi"],
    "🚀": ["emoji"],
    "👍": ["emoji"],
    "a->b": ["code", "url"],
    "TODO": ["code"],
    "fix-me": ["code"],
    "9fceb02d0ae598e95dc970b74767f19372d61af8": ["hash"],
    "python3.11": ["version"],
    "2.10.5": ["version"],
    "not": ["not"],
    "of the": ["not"],
    "превысокомногорассмотрительствующий": ["long russian"],
    "x" * 300: ["long"],
    # a word beside itself
    "1.1": ["repeated"],
    "168.1.1": ["repeated"],
    "1.1.1": [],
    "bye-bye": ["repeated"],
    '"bye bye"': ["repeated"],
    '"zip zip"': [],
    '"foo foo"': [],
    "bar-bar": [],
    "zip.zi*": ["repeated"],
    "zipper.zip*": [],
    "so.pl*": ["beginnings"],
    "plum.kart*": ["beginnings"],
    "plum.k*": ["beginnings"],
    "kelp.plumk*": ["beginnings"],
    "plum.ki*": [],
    "天天": ["repeated"],
    "天天天": [],
    # phrases
    '"foo bar"': ["camel", "dotted"],
    '"bar then foo"': ["apart"],
    '"bar foo"': [],
    '"the foobar class"': ["camel"],
    '"The FooBar Class"': ["camel"],
    'fix "return x"': ["code"],
    # beginnings
    "foob*": ["camel"],
    "FooBa*": ["camel", "dotted"],
    "foo.ba*": ["camel", "dotted"],
    "snake_ca*": ["snake"],
    "bar_fo*": [],
    "getHTTPR*": ["camel"],
    "caf*": ["accents"],
    "数*": ["chinese"],
    "数据*": ["chinese"],
    "한국*": ["korean"],
    "9fceb*": ["hash"],
    "9fceb02d*": ["hash"],
    "превысокомногорассмотр*": ["long russian"],
    "x" * 150 + "*": ["long"],
    "h* класс*": [],
    "1*": ["apart", "path", "repeated", "snake", "version"],
    "foo* bar*": ["apart", "camel", "dotted"],
    # a star elsewhere, and other syntaxes, are text
    "foo.*": ["apart", "camel", "dotted"],
    "*foo": ["apart", "camel", "dotted"],
    "fo*ar": [],
    '"snake ca*"': [],
    "-foo": ["apart", "camel", "dotted"],
    "foo -bar": ["apart", "camel", "dotted"],
    "foo | nothing": [],
    "foo OR snake": [],
    "@channel:{tag}": ["code"],
    "@channel:{x}": [],
    "@channel {tag}": ["code"],
    "~foo": ["apart", "camel", "dotted"],
    "(foo": ["apart", "camel", "dotted"],
    "%foo%": ["apart", "camel", "dotted"],
    "\\foo": ["apart", "camel", "dotted"],
    'foo "bar': ["apart", "camel", "dotted"],
    '"" foo': ["apart", "camel", "dotted"],
    "foo=>{$weight:5}": [],
    "foo') OR 1=1; --": [],
    "text:foo": [],
    "NEAR(foo bar)": [],
    "foo^2": [],
    "foo*bar": ["camel", "dotted"],
}


@pytest.fixture(scope="module")
def named(shared: Corpus) -> dict[Sequence, str]:
    return {shared.send(text): name for name, text in TEXTS.items()}


@pytest.mark.parametrize("text", FOUND)
def test_a_text_finds(shared: Corpus, named: dict[Sequence, str], text: str) -> None:
    found = [named[sequence] for sequence in shared.find(text) if sequence in named]
    assert sorted(found) == FOUND[text]


def test_every_text_finds_itself(shared: Corpus, named: dict[Sequence, str]) -> None:
    for sequence, name in named.items():
        assert sequence in shared.find(TEXTS[name]), name


@pytest.mark.parametrize(
    "text",
    [
        "x " * 2000,
        "你好" * 600,
        " ".join(f"w{n}*" for n in range(64)),
        "a." * 2000,
        '"' * 4096 + "a",
    ],
)
def test_the_longest_texts_are_answered(shared: Corpus, text: str) -> None:
    shared.find(text)


def test_a_long_message_is_found_by_a_long_piece_of_it(shared: Corpus) -> None:
    content = "".join(chr(0x4E00 + number * 7 % 5000) for number in range(5000))
    sequence = shared.send(content)
    assert shared.find(content[1000:2300]) == [sequence]


@pytest.mark.parametrize("text", ["*", "-", '""', "@{}|()~\\", "→ …", "***"])
def test_a_text_without_a_word_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="no letter, digit or emoji"):
        query_of(text=text)


def test_too_many_words_are_refused() -> None:
    with pytest.raises(ValidationError, match="at most 64 words"):
        query_of(text=" ".join(f"w{number}" for number in range(65)))


# A few letters and much syntax, so that texts have something in common.
_TEXT = st.text(st.sampled_from('abAB1_ .-*"@{}()|~:\\你好é🚀\n'), max_size=14) | st.text(
    max_size=12
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(content=_TEXT, text=_TEXT)
def test_any_text_is_an_answer_and_the_same_on_every_engine(
    shared: Corpus, content: str, text: str
) -> None:
    shared.send(content)
    try:
        query = query_of(text=text)
    except ValidationError:
        return
    shared.ask(query)


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(content=_TEXT.filter(str.strip))
def test_a_message_is_found_by_its_own_content(shared: Corpus, content: str) -> None:
    sequence = shared.send(content)
    try:
        query = query_of(text=content.replace('"', " "))
    except ValidationError:
        return
    if not any(phrase.prefix for phrase in query.phrases):
        assert shared.ask(query)[0] == sequence
