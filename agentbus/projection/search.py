"""The search index in Redis, and how a document is written into it.

Owns the definition of the index. Asking it is in searching.py. Documents are written by
`streams.StreamWriter`, in the same call as the stream entries.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import redis

from agentbus.projection import keys
from agentbus.projection.connection import Client, connect, execute
from agentbus.projection.errors import redis_errors
from agentbus.rules.documents import SearchDocument

WHOLE_MARK = "zw"
"""Before each term of `whole`; no code of a term begins so. The module numbers the words of a
document through all its text fields, so an unmarked phrase would match across two of them."""

CLEAN_THRESHOLD = 100
"""The module's default: with fewer removals since the last time it does not clean its index."""

RECLAIM_STEP_S = 1.0

_TEXT_FIELDS = ("text", "whole")
_TAG_FIELDS = ("channel", "sender", "session", "thread", "reply_to", "type", "tags")


def hash_fields(document: SearchDocument, sequence: int) -> list[str | int]:
    """Field, value, field, value: the arguments of HSET. Empty fields are left out."""
    fields: list[str | int] = ["sequence", sequence, "sent_at", document.sent_at_ms]
    if document.whole:
        marked = WHOLE_MARK + document.whole.replace(" ", f" {WHOLE_MARK}")
        fields += ("text", document.text, "whole", marked)
    for name in _TAG_FIELDS:
        value: str = getattr(document, name)
        if value:
            fields += (name, value)
    return fields


def has_index(client: Client) -> bool:
    """Whether the index is there; one made anew over old documents would fill only by and by."""
    with redis_errors("list its search indexes"):
        return keys.INDEX.encode() in execute(client, "FT._LIST")


def ensure_index(client: Client) -> None:
    """Create the index unless it exists. Documents written from now on are found at once.

    No stemming and no stop words, because terms are exact; no frequencies, because results are
    ordered by sequence; offsets stay, because a compound word is a phrase of its parts.
    """
    schema: list[str] = []
    for name in _TEXT_FIELDS:
        schema += (name, "TEXT", "NOSTEM")
    for name in _TAG_FIELDS:
        schema += (name, "TAG", "SEPARATOR", ",")
    schema += ("sequence", "NUMERIC", "SORTABLE", "sent_at", "NUMERIC")
    with redis_errors("create the search index"):
        try:
            execute(
                client,
                *("FT.CREATE", keys.INDEX, "ON", "HASH", "PREFIX", "1", keys.DOCUMENT_PREFIX),
                *("NOHL", "NOFREQS", "STOPWORDS", "0", "SCHEMA", *schema),
            )
        except redis.ResponseError as error:
            if "already exists" not in str(error):
                raise


def reclaim(socket_path: Path, wait_s: float, go_on: Callable[[], None]) -> None:
    """Have the index give back the memory of removed documents, and wait for it up to `wait_s`.

    By itself the module does so every 30 s, and only after a hundred removals. Until then a half of
    what a document took may still be there (measured), and a cleanup would take that for a reason
    to remove more. What is not done in time goes on by itself. `go_on` is called every second and
    may raise.
    """
    deadline_s = time.monotonic() + wait_s
    patient = connect(socket_path, 2 * RECLAIM_STEP_S)
    with closing(patient), redis_errors("clean its search index"), suppress(redis.TimeoutError):
        _set_threshold(patient, 0)
        try:
            while time.monotonic() < deadline_s and not _is_clean(patient):
                go_on()
        finally:
            _set_threshold(patient, CLEAN_THRESHOLD)


def _is_clean(client: Client) -> bool:
    """Whether cleaning was done within a step, or cannot be asked for."""
    step = ("GC_FORCEINVOKE", keys.INDEX, round(RECLAIM_STEP_S * 1000))
    for command in ("FT.DEBUG", "_FT.DEBUG"):  # newer modules have it under the second name
        with suppress(redis.ResponseError):
            return bool(execute(client, command, *step) == b"DONE")
    return True


def _set_threshold(client: Client, documents: int) -> None:
    with suppress(redis.ResponseError):
        execute(client, "FT.CONFIG", "SET", "FORK_GC_CLEAN_THRESHOLD", documents)
