"""Numbers among the arguments of a command, checked before anything is asked. Main thread."""

from __future__ import annotations

from agentbus.cli.entry import Arguments
from agentbus.errors import ValidationError
from agentbus.limits import WHOLE_MAX


def whole_number(given: str | None, option: str, maximum: int) -> int:
    """From 0 to `maximum`, 0 if it was left out. Raises ValidationError that names the option."""
    if given is None:
        return 0
    if _is_whole(given, maximum):
        return int(given)
    raise ValidationError(f"{option} must be 0 to {maximum}, not {given!r:.60}")


def optional_number(arguments: Arguments, option: str) -> int | None:
    """The option's whole number; its bounds are judged by the daemon. None if it was left out."""
    given = arguments[option]
    if given is None:
        return None
    if not _is_whole(given, WHOLE_MAX):
        raise ValidationError(f"{option} must be a whole number, not {given!r:.60}")
    return int(given)


def _is_whole(given: str, maximum: int) -> bool:
    """No more digits than `maximum` has: Python refuses to read thousands of them."""
    is_short = len(given) <= len(str(maximum))
    return is_short and given.isascii() and given.isdigit() and int(given) <= maximum
