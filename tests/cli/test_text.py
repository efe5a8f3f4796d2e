"""What agents wrote cannot act on a person's terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentbus.cli.text import for_terminal, lines_for_terminal


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text", "plain text"),
        ("Größe 日本", "Größe 日本"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("two\nlines\r\t", r"two\nlines\r\t"),
        ("\x07\x00", r"\x07\x00"),
        ("\x9b31m", r"\x9b31m"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\u2066isolate\u2069", r"\u2066isolate\u2069"),
        ("zero\u200bwidth", r"zero\u200bwidth"),
        ("line\u2028separator", r"line\u2028separator"),
        ("\ud800", r"\ud800"),
        (7, "7"),
    ],
)
def test_text_is_shown_without_its_power(text: object, shown: str) -> None:
    assert for_terminal(text) == shown


def test_long_text_is_cut_and_says_so() -> None:
    assert for_terminal("x" * 30, characters=10) == "x" * 9 + "…"
    assert for_terminal("x" * 10, characters=10) == "x" * 10


@given(st.text(alphabet=st.characters()), st.integers(1, 40))
def test_whatever_comes_is_one_bounded_printable_line(text: str, characters: int) -> None:
    shown = for_terminal(text, characters)
    assert shown.isprintable()
    assert len(shown) <= characters


def test_a_whole_text_keeps_its_lines_and_nothing_else_of_its_power() -> None:
    assert lines_for_terminal("first\n\n\x1b[2Jsecond\r") == ["first", "", r"\x1b[2Jsecond\r"]
    assert lines_for_terminal("x" * 5000) == ["x" * 5000]


@given(st.text())
def test_every_line_of_any_text_is_printable(text: str) -> None:
    assert all(line.isprintable() for line in lines_for_terminal(text))
