"""Every key in the private Redis, with its type. Names are short where there is one per message.

| Key | Type | What it holds |
|---|---|---|
| `agentbus:marker` | hash | `bus_id`, `sequence` (last projected), `layout` |
| `agentbus:draft` | hash | while a rebuild is under way: the marker that it ends with |
| `agentbus:removed` | hash | channel id → highest sequence ever removed from its stream |
| `c:<channel id>` | stream | one entry per message, id `<sequence>-0`, fields `e`, `s`; see below |
| `r:<memory id>` | string | envelope of a memory's live revision |
| `m:<sequence>` | hash | search document of one message; only where Redis can search |
| `agentbus:messages` | index | over all `m:` hashes |
| `agentbus:probe:*` | any | exist for the moment of a probe |

A memory keeps the place of its creation for life: entry and document are those of the creation's
sequence. Its entry has `m` (the memory's id) instead of `e`, and its document the `sequence` of the
live revision. A deleted memory has none of the three.
"""

from __future__ import annotations

from agentbus.ids import ChannelId, MessageId, Sequence
from agentbus.rules.documents import DOCUMENT_VERSION

LAYOUT = f"3 {DOCUMENT_VERSION}".encode()
"""Raise the number with any change to keys or fields: a Redis of another layout is rebuilt."""

MARKER = "agentbus:marker"
MARKER_DRAFT = "agentbus:draft"
MARKER_BUS_ID = "bus_id"
MARKER_SEQUENCE = "sequence"
MARKER_LAYOUT = "layout"

REMOVED = "agentbus:removed"

ENTRY_ENVELOPE = b"e"
ENTRY_MEMORY = b"m"
ENTRY_SESSION = b"s"

INDEX = "agentbus:messages"
DOCUMENT_PREFIX = "m:"

PROBE_PREFIX = "agentbus:probe:"


def stream(channel_id: ChannelId) -> str:
    return f"c:{channel_id}"


def memory(memory_id: MessageId) -> str:
    return f"r:{memory_id}"


def entry_id(sequence: int) -> str:
    return f"{sequence}-0"


def entry_sequence(entry: bytes) -> Sequence:
    return Sequence(int(entry[:-2]))


def document(sequence: Sequence) -> str:
    return f"{DOCUMENT_PREFIX}{sequence}"
