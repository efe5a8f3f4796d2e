"""Asking the search index in Redis.

Owns the query language of the module: what is asked is made of codes of `[a-z0-9]` only, so no text
of a caller can be an error or a command in it. Changes nothing. Each asking thread has a
`RedisSearch` of its own, on its own connection; all share one `turn`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import redis

from agentbus.errors import OverloadedError
from agentbus.ids import Sequence
from agentbus.projection import keys
from agentbus.projection.connection import Client, execute
from agentbus.projection.errors import redis_errors
from agentbus.projection.search import WHOLE_MARK
from agentbus.rules.query import EngineName, Filter, Phrase, Query, too_slow

FIRST_WINDOW = 1024
WINDOW_GROWTH = 8
"""Sequences looked at first, and how much more each further time: the module sorts all that match
before it cuts, so a common word in everything would cost a hundred times what is wanted of it."""

CANDIDATES_AT_ONCE = 500
"""Where the terms come with the answer and most of them may turn out not to match."""

_TIMED_OUT = "Timeout limit was reached"


class RedisSearch:
    """The search engine `redis`."""

    name: EngineName = "redis"

    def __init__(self, client: Client, turn: threading.Lock) -> None:
        """`turn` is held during a query: Redis answers one at a time, and whoever else needs it
        shall wait for one search at most, not for those of everybody."""
        self._client = client
        self._turn = turn

    def close(self) -> None:
        self._client.close()

    def find(self, query: Query, below: Sequence, count: int, limit_s: float) -> list[Sequence]:
        """See `SearchEngine`. Raises ProjectionError when Redis fails."""
        deadline_s = time.monotonic() + limit_s
        conditions = _conditions(query)
        doubtful = [phrase for phrase in query.phrases if _is_doubtful(phrase)]
        found: list[Sequence] = []
        window = FIRST_WINDOW
        while len(found) < count and below > 0:
            above = below - 1 - window if window < below - 1 else None
            text = f"{conditions} @sequence:[{'-inf' if above is None else f'({above}'} ({below}]"
            at_once = CANDIDATES_AT_ONCE if doubtful else count - len(found)
            with self._my_turn(deadline_s):
                candidates = self._ask(text, at_once, bool(doubtful), deadline_s)
            found += [
                candidate.sequence
                for candidate in candidates
                if all(_stands_in(phrase, candidate) for phrase in doubtful)
            ]
            if len(candidates) == at_once:
                below = candidates[-1].sequence
            elif above is None:
                break
            else:
                below = Sequence(above + 1)
                window *= WINDOW_GROWTH
        return found[:count]

    @contextmanager
    def _my_turn(self, deadline_s: float) -> Iterator[None]:
        if not self._turn.acquire(timeout=max(0.0, deadline_s - time.monotonic())):
            raise OverloadedError(
                "too many searches at once; wait a moment, then search again", retry_after_ms=500
            )
        try:
            yield
        finally:
            self._turn.release()

    def _ask(self, text: str, count: int, with_terms: bool, deadline_s: float) -> list[_Candidate]:
        limit_ms = int((deadline_s - time.monotonic()) * 1000)
        if limit_ms < 1:
            raise too_slow()  # 0 would be no limit
        fields = ("sequence", "text", "whole") if with_terms else ("sequence",)
        with redis_errors("search"):
            try:
                answer = execute(
                    self._client,
                    *("FT.SEARCH", keys.INDEX, text, "RETURN", len(fields), *fields),
                    *("SORTBY", "sequence", "DESC", "LIMIT", 0, count),
                    *("TIMEOUT", limit_ms, "DIALECT", 2),
                )
            except redis.ResponseError as error:
                if _TIMED_OUT in str(error):
                    raise too_slow() from None
                raise
        return [_candidate(result[b"extra_attributes"]) for result in answer[b"results"]]


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A match according to Redis; with its terms where they have to be looked at."""

    sequence: Sequence
    text: str
    whole: str


def _candidate(fields: dict[bytes, bytes]) -> _Candidate:
    return _Candidate(
        Sequence(int(fields[b"sequence"])),
        fields.get(b"text", b"").decode(),
        fields.get(b"whole", b"").decode(),
    )


def _is_doubtful(phrase: Phrase) -> bool:
    """Whether what Redis finds for the phrase still has to be looked at.

    To the module a word also stands next to itself: `1:1` would match every text with a `1`. And
    for a beginning it remembers the place of one word only, so `foo.ba*` is asked for as `foo` and
    `ba*`, wherever they are.
    """
    return any(
        (phrase.prefix and len(terms) > 1)
        or any(one == next_one for one, next_one in pairwise(terms))
        for terms in (phrase.parts, phrase.whole)
    )


def _stands_in(phrase: Phrase, candidate: _Candidate) -> bool:
    end = "" if phrase.prefix else " "
    parts = " ".join(phrase.parts)
    whole = " ".join(_marked(phrase.whole))
    return f" {parts}{end}" in f" {candidate.text} " or f" {whole}{end}" in f" {candidate.whole} "


def _conditions(query: Query) -> str:
    """All conditions of a query, but for the range of sequences."""
    conditions = [_phrase(phrase) for phrase in query.phrases]
    conditions += [_filter(wanted) for wanted in query.filters]
    if query.since_ms is not None or query.until_ms is not None:
        since = "-inf" if query.since_ms is None else query.since_ms
        until = "+inf" if query.until_ms is None else query.until_ms
        conditions.append(f"@sent_at:[{since} {until}]")
    return " ".join(conditions)


def _phrase(phrase: Phrase) -> str:
    parts = _in_a_row("text", phrase.parts, phrase.prefix)
    whole = _in_a_row("whole", _marked(phrase.whole), phrase.prefix)
    return f"({parts} | {whole})"


def _marked(whole: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(WHOLE_MARK + term for term in whole)


def _in_a_row(field: str, terms: tuple[str, ...], prefix: bool) -> str:
    if not prefix:
        return f'@{field}:"{" ".join(terms)}"'
    beginning = f"@{field}:{terms[-1]}*"
    if len(terms) == 1:
        return beginning
    return f'(@{field}:"{" ".join(terms[:-1])}" {beginning})'


def _filter(wanted: Filter) -> str:
    return f"@{wanted.field}:{{{wanted.code}{'*' if wanted.prefix else ''}}}"
