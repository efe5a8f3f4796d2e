"""The search index in Redis, and how a document is written into it.

Owns the definition of the index. Asking it is in searching.py. Documents are written by
`streams.StreamWriter`, in the same call as the stream entries.
"""

from __future__ import annotations

import redis

from agentbus.projection import keys
from agentbus.projection.connection import Client, execute
from agentbus.projection.errors import redis_errors
from agentbus.rules.documents import SearchDocument

WHOLE_MARK = "zw"
"""Before each term of `whole`; no code of a term begins so. The module numbers the words of a
document through all its text fields, so an unmarked phrase would match across two of them."""

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
