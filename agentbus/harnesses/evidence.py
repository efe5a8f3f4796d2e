"""The vocabulary of the harness modules: what a call shows, what it proves, what a client takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agentbus.identity import IdentitySource


@dataclass(frozen=True, slots=True)
class Call:
    """What there is to look at for one tool call.

    `meta`: the `_meta` of the request, from outside and unchecked. `env`: of this process.
    """

    meta: Mapping[str, Any]
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Evidence:
    """Whose call it is, as far as the harness shows it."""

    conversation: str
    source: IdentitySource
    child: str | None = None
    parent_conversation: str | None = None
    role: str | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client takes of one tool call.

    `result_characters` counts the text of a result. `call_seconds` is when it gives a call up.
    """

    result_characters: int
    call_seconds: float


def no_tool_use(call: Call) -> str | None:
    """For a harness whose calls have no id that its hooks know."""
    return None


@dataclass(frozen=True, slots=True)
class Harness:
    """One harness. The functions look at a call; None when it shows nothing of that kind.

    `turn_metadata` is evidence that comes with every call and is proven; `tool_use` is the id by
    which a hook announced the call; `environment` was right when this process was started.
    `caution` is what its user should know about the latter. `wake` is the command that begins a
    turn of an idle conversation with a text, where there is one. `runs_commands`: its agents do.
    """

    client: str
    application: str
    limits: Callable[[Call], Limits]
    turn_metadata: Callable[[Call], Evidence | None]
    environment: Callable[[Call], Evidence | None]
    tool_use: Callable[[Call], str | None] = no_tool_use
    caution: str | None = None
    wake: Callable[[str, str], list[str]] | None = None
    runs_commands: bool = False


def text_of(source: Mapping[str, Any], key: str) -> str | None:
    """Text that is there and not empty; anything else counts as absent."""
    value = source.get(key)
    return value if isinstance(value, str) and value else None


def nothing(call: Call) -> Evidence | None:
    """For a harness without evidence of that kind."""
    return None
