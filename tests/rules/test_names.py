"""Display names."""

from __future__ import annotations

import pytest

from agentbus.rules.names import child_name, main_name, repository_hint, reserved_prefix


@pytest.mark.parametrize(
    ("agent", "in_use", "name"),
    [
        ("Sam", set(), "Sam"),
        ("Sam", {"Kim"}, "Sam"),
        ("Sam", {"Sam"}, "Sam2"),
        ("Sam", {"Sam", "Sam2", "Sam4"}, "Sam3"),
        ("Sam", {"Sam2"}, "Sam"),
        ("R2D2", {"R2D2"}, "R2D2-2"),
        ("Zoë", {"Zoë"}, "Zoë2"),
    ],
)
def test_sessions_of_an_agent_are_numbered(agent: str, in_use: set[str], name: str) -> None:
    assert main_name(agent, in_use) == name


@pytest.mark.parametrize(
    ("wanted", "in_use", "name"),
    [
        (("Sam3",), {"Sam"}, "Sam3"),
        (("Sam3",), {"Sam", "Sam3"}, "Sam2"),
        (("Sam3", "Sam5"), {"Sam3"}, "Sam5"),
        ((None, "Sam5"), set(), "Sam5"),
        (("", None), set(), "Sam"),
    ],
)
def test_a_wanted_name_is_kept_if_free(
    wanted: tuple[str | None, ...], in_use: set[str], name: str
) -> None:
    assert main_name("Sam", in_use, *wanted) == name


@pytest.mark.parametrize(
    ("role", "repository", "name"),
    [
        ("implement804", "/home/u/src/tmi", "Sam2-implement804 (tmi)"),
        ("implement804", None, "Sam2-implement804"),
        (None, "tmi", "Sam2-child (tmi)"),
        ("  ", "", "Sam2-child"),
        ("fix\nthe\tlog", "/x/", "Sam2-fix the log (x)"),
        ("r" * 50, None, "Sam2-" + "r" * 40),
    ],
)
def test_a_child_carries_parent_role_and_repository(
    role: str | None, repository: str | None, name: str
) -> None:
    assert child_name("Sam2", role, repository, set()) == name


def test_twins_are_told_apart_and_old_names_kept() -> None:
    in_use = {"Sam-review (tmi)"}
    assert child_name("Sam", "review", "tmi", in_use) == "Sam-review-2 (tmi)"
    assert child_name("Sam", "review", "tmi", in_use, "Sam-old") == "Sam-old"
    assert child_name("Sam", "review", "tmi", set(), "Sam-old") == "Sam-old"


@pytest.mark.parametrize(
    ("repository", "hint"),
    [
        (None, ""),
        ("", ""),
        ("/", ""),
        ("/home/u/tmi", "tmi"),
        ("/home/u/tmi/", "tmi"),
        ("C:\\src\\tmi", "tmi"),
        ("https://host/u/tmi.git", "tmi"),
        ("git@host:u/tmi.git", "tmi"),
        ("/x/\x1b[31mred", "[31mred"),
        ("/x/" + "y" * 99, "y" * 40),
    ],
)
def test_a_repository_is_hinted_by_its_last_part(repository: str | None, hint: str) -> None:
    assert repository_hint(repository) == hint


@pytest.mark.parametrize(
    ("agent", "prefix"),
    [
        ("human:pat", "human:"),
        ("human:", "human:"),
        ("Human:pat", "human:"),
        ("  human : pat", "human:"),
        ("hu\u200bman:pat", "human:"),
        ("\u202ehuman:pat", "human:"),
        ("human\uff1apat", "human:"),
        ("\uff28uman:pat", "human:"),
        ("talk:Sam", "talk:"),
        ("TALK: Sam", "talk:"),
        ("@Sam", "@"),
        ("\u2060@Sam", "@"),
        ("\uff20Sam", "@"),
        ("human", None),
        ("humane", None),
        ("Sam human:", None),
        ("Sam@home", None),
        ("", None),
    ],
)
def test_a_name_that_reads_like_a_persons_or_an_inboxs_is_known(
    agent: str, prefix: str | None
) -> None:
    assert reserved_prefix(agent) == prefix
