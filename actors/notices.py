"""What a session is told unasked: of changed memories (in passing, at its return, before it shows
them), and by the bus itself.

Owns the shape of all of it. A notice while connected may be lost and carries the beginning of the
text; the list at an attach is computed from the rows and names what changed. Neither moves a
cursor. The comparison is exact. Runs on the threads of attachments and of the registrar.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agentbus.encoding import decode_trusted, raw
from agentbus.envelope import rfc3339
from agentbus.identity import Attachment
from agentbus.limits import RESULT_BYTES
from agentbus.protocol.jsonrpc import encode_notification
from agentbus.protocol.session import HeldMemory
from agentbus.rules.memories import excerpt
from agentbus.store.changes import MemoryChange, MemoryRemoved, MemoryRevised
from agentbus.store.reader import Reader


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


def notice_frame(attachment: Attachment, notice: dict[str, Any]) -> bytes:
    """Of the bus itself, which is of no channel."""
    params = {
        "session_id": attachment.session_id,
        "generation": attachment.generation,
        "notice": notice,
    }
    return encode_notification("notice", params)


def compare(held: Iterable[HeldMemory], store: Reader) -> dict[str, Any]:
    """Which of the memories that an adapter holds are no longer so, up to the size of a result.

    From SQLite: whoever has had an answer to an edit or a deletion, here it is true.
    """
    compared = size_bytes = 0
    changed: list[list[Any]] = []
    for memory in held:
        if size_bytes > RESULT_BYTES:
            break
        compared += 1
        if store.memory_revision(memory.memory_id) == memory.revision:
            continue
        now = store.memory(memory.memory_id)
        size_bytes += len(now.envelope) if now is not None else 0
        envelope = raw(now.envelope) if now is not None else None
        changed.append([memory.subscription, memory.position, envelope])
    return {"compared": compared, "changed": changed}


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
