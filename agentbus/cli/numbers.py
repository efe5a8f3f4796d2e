"""Numbers among the arguments of a command, checked before anything is asked. Main thread."""

from __future__ import annotations

from agentbus.cli.entry import Arguments
from agentbus.errors import ValidationError
from agentbus.limits import WHOLE_MAX
from agentbus.protocol.fields import is_whole


def whole_number(given: str | None, option: str, maximum: int) -> int:
    """From 0 to `maximum`, 0 if it was left out. Raises ValidationError that names the option."""
    if given is None:
        return 0
    if is_whole(given, maximum):
        return int(given)
    raise ValidationError(f"{option} must be 0 to {maximum}, not {given!r:.60}")


def optional_number(arguments: Arguments, option: str) -> int | None:
    """The option's whole number; its bounds are judged by the daemon. None if it was left out."""
    given = arguments[option]
    if given is None:
        return None
    if not is_whole(given, WHOLE_MAX):
        raise ValidationError(f"{option} must be a whole number, not {given!r:.60}")
    return int(given)
