"""What a subscriber is told of a memory that changed: in passing, or when it comes back.

Owns the shape of both. A notice while connected may be lost and carries the beginning of the text;
the list at an attach is computed from the rows and names what changed. Neither moves a cursor.
Pure; runs on the threads of attachments and of the registrar.
"""

from __future__ import annotations

from typing import Any

from agentbus.encoding import decode_trusted
from agentbus.envelope import rfc3339
from agentbus.rules.memories import excerpt
from agentbus.store.changes import MemoryChange, MemoryRemoved, MemoryRevised


def notice_of(fact: MemoryRevised | MemoryRemoved) -> dict[str, Any]:
    """Of a change that has just been committed, for those who are connected."""
    notice: dict[str, Any] = {
        "kind": "memory_edited" if isinstance(fact, MemoryRevised) else "memory_deleted",
        "channel": fact.channel,
        "memory_id": fact.memory_id,
        "revision": fact.revision,
        "by": fact.sender.display_name,
    }
    if isinstance(fact, MemoryRevised):
        if fact.body.subject is not None:
            notice["subject"] = fact.body.subject
        notice["content"], cut = excerpt(fact.body.content)
        if cut:
            notice["truncated"] = True
    return notice


def notice_of_change(change: MemoryChange) -> dict[str, Any]:
    """Of a change that a session missed: enough to decide whether to read the memory."""
    notice: dict[str, Any] = {
        "kind": "memory_deleted" if change.envelope is None else "memory_edited",
        "channel": change.channel,
        "memory_id": change.memory_id,
        "revision": change.revision,
        "changed_at": rfc3339(change.changed_at_us),
    }
    if change.envelope is not None:
        envelope = decode_trusted(change.envelope)
        notice["by"] = envelope["sender"]["display_name"]
        if "subject" in envelope:
            notice["subject"] = envelope["subject"]
    return notice
