"""Display names: Sam, Sam2, Sam3 for an agent's sessions, `Sam2-implement804 (tmi)` for a child.

Owns the choice of a name. Never decides who somebody is: identity is the session, a display name is
only what people and agents read. Pure; runs on the ledger's thread.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Set
from itertools import count

from agentbus.limits import HUMAN_PREFIX, INBOX_PREFIX, TALK_PREFIX

RESERVED_PREFIXES = (HUMAN_PREFIX, TALK_PREFIX, INBOX_PREFIX)
"""They mark people, callers over talk and inboxes; no agent's name begins like one."""

ROLE_CHARACTERS = 40
REPOSITORY_CHARACTERS = 40
DEFAULT_ROLE = "child"

_PATH_SEPARATORS = re.compile(r"[/\\]+")


def reserved_prefix(agent: str) -> str | None:
    """The reserved prefix with which a name begins for whoever reads it.

    Case, width, spaces and what is invisible make no other name to a reader: `Human: Pat` is one.
    """
    read = unicodedata.normalize("NFKC", agent).casefold()
    read = "".join(one for one in read if one.isprintable() and not one.isspace())
    return next((prefix for prefix in RESERVED_PREFIXES if read.startswith(prefix)), None)


def main_name(agent: str, in_use: Set[str], *wanted: str | None) -> str:
    """The name of a main conversation.

    `wanted`: names to keep if free, best first: the session's previous one, then the one that its
    process had. A name in use is never taken.
    """
    # "R2D2" and 2 would read as R2D22, the twenty-second R2D; so a digit is set off.
    separator = "-" if agent[-1:].isdigit() else ""
    return _first_free(lambda n: agent if n == 1 else f"{agent}{separator}{n}", in_use, wanted)


def child_name(
    parent: str, role: str | None, repository: str | None, in_use: Set[str], *wanted: str | None
) -> str:
    """The name of a child: its parent's display name, its task word, a hint of its repository."""
    word = _word(role or "", ROLE_CHARACTERS) or DEFAULT_ROLE
    hint = repository_hint(repository)
    suffix = f" ({hint})" if hint else ""
    return _first_free(
        lambda n: f"{parent}-{word}{'' if n == 1 else f'-{n}'}{suffix}", in_use, wanted
    )


def repository_hint(repository: str | None) -> str:
    """The last part of a repository's path or address, without `.git`; empty if there is none."""
    parts = [part for part in _PATH_SEPARATORS.split(repository or "") if part]
    return _word(parts[-1].removesuffix(".git"), REPOSITORY_CHARACTERS) if parts else ""


def _word(text: str, characters: int) -> str:
    printable = "".join(character if character.isprintable() else " " for character in text)
    return " ".join(printable.split())[:characters].rstrip()


def _first_free(
    numbered: Callable[[int], str], in_use: Set[str], wanted: tuple[str | None, ...]
) -> str:
    for name in wanted:
        if name and name not in in_use:
            return name
    return next(name for name in map(numbered, count(1)) if name not in in_use)
