"""What a job's free text goes through: secrets out, then cut to its limit.

Owns the default redactor. Redacts before cutting, always: half a secret is still one. Pure; any
thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

REDACTED: Final = "[REDACTED]"
ELLIPSIS: Final = "…"

Redactor: TypeAlias = Callable[[str], str]
"""Text without the secrets in it. A tool may have its own."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One kind of secret. `pattern` matches all of it, `replacement` is what stays."""

    name: str
    pattern: re.Pattern[str]
    replacement: str = REDACTED


_TOKEN: Final = r"[A-Za-z0-9_\-]"
_START: Final = r"(?<![A-Za-z0-9])"
"""Where a secret may begin: not within an English word, but right behind a word of a script that
puts no blanks between them, where a word boundary of regular expressions is none."""

UNITS: Final = (
    # First, because what is inside a block may look like anything else. A block that was cut off
    # before its end goes up to the end of the text.
    Unit(
        "private key block",
        re.compile(
            r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
            r".*?(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)",
            re.DOTALL,
        ),
    ),
    Unit(
        "credentials in a URL",
        re.compile(rf"(?i){_START}([a-z][a-z0-9+.\-]{{0,30}}://)[^\s/?#\"'<>]{{1,512}}@"),
        rf"\g<1>{REDACTED}@",
    ),
    Unit("sk- key", re.compile(rf"{_START}sk-{_TOKEN}{{16,}}")),
    Unit("Stripe key", re.compile(rf"{_START}[sr]k_(?:live|test)_[A-Za-z0-9]{{16,}}")),
    Unit("AWS access key", re.compile(rf"{_START}(?:AKIA|ASIA)[A-Z0-9]{{16}}(?![A-Z0-9])")),
    Unit(
        "GitHub token",
        re.compile(rf"{_START}(?:gh[pousr]_[A-Za-z0-9]{{30,}}|github_pat_\w{{30,}})"),
    ),
    Unit("GitLab token", re.compile(rf"{_START}glpat-{_TOKEN}{{16,}}")),
    Unit("Google API key", re.compile(rf"{_START}AIza{_TOKEN}{{30,}}")),
    Unit("Slack token", re.compile(rf"{_START}xox[abeoprs]-[A-Za-z0-9\-]{{10,}}")),
    Unit(
        "JSON web token",
        re.compile(rf"{_START}eyJ{_TOKEN}{{8,}}\.{_TOKEN}{{8,}}\.{_TOKEN}*"),
    ),
    Unit(
        "Bearer or Basic credentials",
        re.compile(rf"(?i){_START}(bearer|basic)(\s+)[A-Za-z0-9._~+/=\-]{{16,}}"),
        rf"\g<1>\g<2>{REDACTED}",
    ),
)
"""In the order in which they are applied."""


def redact(text: str) -> str:
    """The default redactor: every unit above."""
    for unit in UNITS:
        text = unit.pattern.sub(unit.replacement, text)
    return text


def redact_json(value: Any, redactor: Redactor = redact) -> Any:
    """The value with every text in it redacted, names of fields too."""
    if isinstance(value, str):
        return redactor(value)
    if isinstance(value, list | tuple):
        return [redact_json(item, redactor) for item in value]
    if isinstance(value, dict):
        return {
            redactor(key) if isinstance(key, str) else key: redact_json(item, redactor)
            for key, item in value.items()
        }
    return value


def clip(text: str, characters: int, max_bytes: int) -> str:
    """At most so many code points and UTF-8 bytes; cut text ends with an ellipsis.

    What no UTF-8 or no receiver can carry (lone surrogates, NUL) becomes the replacement character.
    """
    text = (
        text.replace("\0", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    )
    encoded = text.encode()
    if len(text) <= characters and len(encoded) <= max_bytes:
        return text
    kept = text[: characters - 1]
    room_bytes = max_bytes - len(ELLIPSIS.encode())
    if len(kept.encode()) > room_bytes:
        kept = kept.encode()[:room_bytes].decode("utf-8", "ignore")
    return kept + ELLIPSIS
