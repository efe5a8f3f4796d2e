"""The search index and the documents in it.

Owns the definition of the index and how a message becomes a document. Asking the index is not here.
Documents are written by `streams.StreamWriter`, in the same call as the stream entries.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import redis

from agentbus.ids import SessionId
from agentbus.projection import keys
from agentbus.projection.connection import Client, execute
from agentbus.projection.errors import redis_errors
from agentbus.rules.terms import encode_term, indexed

_TEXT_FIELDS = ("text", "whole")
_TAG_FIELDS = ("channel", "sender", "session", "thread", "reply_to", "type", "tags")

_tag = lru_cache(maxsize=4096)(encode_term)  # the same few senders and channels all the time


@dataclass(frozen=True, slots=True)
class SearchDocument:
    """The indexed form of one message, without its sequence (the stream entry has that).

    All text is terms of `[a-z0-9]`: space separated in `text` and `whole`, one per value elsewhere
    (comma separated in `tags`). Empty: the message has no such field.
    """

    text: str
    whole: str
    channel: str
    sender: str
    session: str
    thread: str
    reply_to: str
    type: str
    tags: str
    sent_at_ms: int


def document_of(
    *,
    channel: str,
    sender: str,
    session_id: SessionId,
    sent_at_ms: int,
    content: str,
    subject: str | None = None,
    references: Iterable[str] = (),
    thread: str | None = None,
    reply_to: str | None = None,
    type_: str | None = None,
    tags: Iterable[str] = (),
) -> SearchDocument:
    """Subject, content and the values of references are one text; the other fields match exactly.

    `channel` is the name; `sender` the agent's name.
    """
    terms, whole = indexed("\n".join([subject or "", content, *references]))
    return SearchDocument(
        text=terms,
        whole=whole,
        channel=_tag(channel),
        sender=_tag(sender),
        session=_tag(session_id),
        thread=_tag(thread or ""),
        reply_to=_tag(reply_to or ""),
        type=_tag(type_ or ""),
        tags=",".join(_tag(tag) for tag in tags),
        sent_at_ms=sent_at_ms,
    )


def hash_fields(document: SearchDocument, sequence: int) -> list[str | int]:
    """Field, value, field, value: the arguments of HSET. Empty fields are left out."""
    fields: list[str | int] = ["sequence", sequence, "sent_at", document.sent_at_ms]
    for name in (*_TEXT_FIELDS, *_TAG_FIELDS):
        value: str = getattr(document, name)
        if value:
            fields += (name, value)
    return fields


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
