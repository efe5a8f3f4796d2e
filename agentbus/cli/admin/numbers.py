"""Numbers among the arguments of a command, checked before anything is asked. Main thread."""

from __future__ import annotations

from agentbus.cli.entry import Arguments
from agentbus.errors import ValidationError


def optional_number(arguments: Arguments, option: str) -> int | None:
    """The option's whole number; its bounds are judged by the daemon. None if it was left out."""
    given = arguments[option]
    if given is None:
        return None
    if not given.isascii() or not given.isdigit():
        raise ValidationError(f"{option} must be a whole number, not {given!r:.60}")
    return int(given)
