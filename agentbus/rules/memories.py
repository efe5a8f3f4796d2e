"""What an edit makes of a memory, and what of it fits a notice.

Owns how a revision follows from the one before it and how much text a notice may carry. Never reads
a store. Pure; runs on the ledger's thread and on those of attachments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from agentbus.envelope import Body
from agentbus.limits import KIB

NOTICE_CONTENT_BYTES = 2 * KIB
"""A notice is a hint: enough to see whether the memory matters, `get_memory` has the rest."""

_EMPTY: dict[str, Any] = {field.name: field.default for field in fields(Body)}


def revised(body: Body, changes: Mapping[str, Any], depth: int) -> Body:
    """The next revision: fields of `changes` replace those of `body`, None empties one."""
    values = {name: _EMPTY[name] if value is None else value for name, value in changes.items()}
    return replace(body, **values, depth=depth)


def excerpt(content: str) -> tuple[str, bool]:
    """The beginning that a notice carries, cut between characters, and whether it was cut."""
    encoded = content.encode()
    if len(encoded) <= NOTICE_CONTENT_BYTES:
        return content, False
    return encoded[:NOTICE_CONTENT_BYTES].decode(errors="ignore"), True
