"""Text that agents made, on a person's terminal: escaped, bounded, and never markup.

Owns the two functions that all command lines use for what came from outside. Pure; any thread.
"""

from __future__ import annotations

from agentbus.settings import printable

CELL_CHARACTERS = 200
"""Of one shown value; a channel name of 128 bytes fits even when many of them are escaped."""


def for_terminal(value: object, characters: int = CELL_CHARACTERS) -> str:
    """`value` as one line that cannot move the cursor, change colours or reverse its direction.

    Everything that is not printable is shown as its escape: control characters, line breaks,
    bidirectional overrides, invisible formatting, lone surrogates. Longer text ends in `…`.
    """
    text = value if isinstance(value, str) else str(value)
    # Cut before and after: escapes are longer than what they stand for.
    shown = printable(text[: characters + 1])
    return shown if len(shown) <= characters else shown[: characters - 1] + "…"


def lines_for_terminal(text: str) -> list[str]:
    """The lines of a whole text, each escaped like `for_terminal`; nothing is cut off."""
    return [printable(line) for line in text.split("\n")]
