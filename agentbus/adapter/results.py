"""What a tool call answers: structured content, the same JSON as text, within the ceilings.

Owns the shape of results and the cutting of what is too large. Never drops a record silently: what
does not fit stays for the next call, or is cut and says so. Pure, any thread.

Ceilings count the characters of the text copy; the hard limit of 4 MiB counts the JSON once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentbus.adapter.prefetch import Batch, Budget
from agentbus.config import Config
from agentbus.encoding import decode_trusted, encode
from agentbus.errors import BusError
from agentbus.limits import KIB, RESULT_BYTES

_MARGIN_CHARACTERS = 100
"""For numbers of a result that are known only after its messages were chosen."""

_WHOLE_ESCAPES = re.compile(r'(?:[^\\"]|\\u[0-9a-f]{4}|\\[^u])*')

_BULKY = ("metadata", "references", "to")
"""Left out of a message that is still too large without any content."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One tool result. `text` is the JSON of `structured`."""

    structured: dict[str, Any]
    text: str
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Header:
    """What every result begins with."""

    you: str
    pending: int
    notices: Sequence[Mapping[str, Any]] = ()
    peer: int = 0

    def data(self) -> dict[str, Any]:
        data: dict[str, Any] = {"you": self.you, "pending": self.pending}
        if self.peer:
            data["peer"] = self.peer
        if self.notices:
            data["notices"] = list(self.notices)
        return data


def answer(structured: dict[str, Any]) -> Answer:
    return Answer(structured, encode(structured).decode())


def error_answer(error: BusError) -> Answer:
    structured = {"error": error.as_data()}
    return Answer(structured, encode(structured).decode(errors="replace"), is_error=True)


def ceiling_characters(max_kib: int | None, config: Config, client_characters: int) -> int:
    """Characters that this result may have: as asked, else the least of setting and client."""
    if max_kib is not None:
        return min(max_kib * KIB, RESULT_BYTES)
    return min(config.result_default_kib * KIB, client_characters)


# --- receive --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReceiveFacts:
    """What a receive result says beside its batch."""

    header: Header
    expired: Sequence[Mapping[str, Any]]
    waited_seconds: float
    hint: str | None = None

    def data(self) -> dict[str, Any]:
        data = self.header.data() | {
            "messages": [],
            "notices": list(self.header.notices),
            "gaps": [],
            "expired": list(self.expired),
            "more": False,
            "waited_seconds": round(self.waited_seconds, 3),
        }
        if self.hint is not None:
            data["hint"] = self.hint
        return data


def receive_budget(facts: ReceiveFacts, count: int, ceiling: int) -> Budget:
    """What is left for messages and gaps."""
    header = len(encode(facts.data())) + _MARGIN_CHARACTERS
    return Budget(count, max(ceiling - header, 1), RESULT_BYTES - header)


def receive_answer(facts: ReceiveFacts, batch: Batch, budget: Budget) -> Answer:
    """The result that carries this batch."""
    data = facts.data()
    if batch.oversize:
        record = batch.records[0]
        marks = {"redelivered": True} if record.redelivered or batch.is_replay else {}
        data["messages"] = [fit_message(record.message, budget.characters, marks)]
    else:
        data["messages"] = [
            {**record.message, "redelivered": True}
            if record.redelivered or batch.is_replay
            else record.message
            for record in batch.records
        ]
    data["gaps"] = [
        {
            "channel": gap.channel,
            "from_sequence": gap.first,
            "to_sequence": gap.last,
            "cause": gap.cause,
            "oldest_retained": gap.oldest_retained,
        }
        for gap in batch.gaps
    ]
    data["more"] = batch.more
    return answer(data)


# --- cutting --------------------------------------------------------------------------------------


def fit_message(
    message: Mapping[str, Any],
    characters: int,
    marks: Mapping[str, Any] | None = None,
    *,
    key: str = "content",
) -> dict[str, Any]:
    """The message with its content cut to fit, and `truncated` saying how many bytes are missing.

    `key` is what the content is called. `next_offset` is where `history(message_id, offset)` goes
    on. A message that is too large even without content also loses its bulky fields, which
    `omitted` names; max_kib brings them back.
    """
    cut: dict[str, Any] = {**message, **(marks or {})}
    content: str = message[key]
    content_bytes = len(content.encode())
    cut[key] = ""
    cut["truncated"] = {"bytes": content_bytes, "next_offset": len(content)}
    omitted = []
    for bulky in _BULKY:
        if bulky in cut and characters_of(cut) > characters:
            del cut[bulky]
            omitted.append(bulky)
    if omitted:
        cut["truncated"]["omitted"] = omitted
    kept = _escaped_prefix(content, characters - characters_of(cut))
    cut[key] = kept
    cut["truncated"]["bytes"] = content_bytes - len(kept.encode())
    cut["truncated"]["next_offset"] = len(kept)
    return cut


def fit_history_message(body: Mapping[str, Any], characters: int) -> dict[str, Any]:
    """The answer of `history(message_id)` with as much content as fits."""
    if characters_of(body) <= characters:
        return dict(body)
    rest = {**body, "message": {}}
    message = fit_message(body["message"], characters - characters_of(rest))
    missing = message.pop("truncated")
    if "omitted" in missing:
        message["truncated"] = {"bytes": missing["bytes"], "omitted": missing["omitted"]}
    end = body["offset"] + len(message["content"])
    next_offset = end if end < body["content_characters"] else None
    return {**body, "message": message, "next_offset": next_offset}


def fit_memory(body: Mapping[str, Any], characters: int) -> dict[str, Any]:
    """The answer of `get_memory` with as much content as fits; history continues it."""
    if characters_of(body) <= characters:
        return dict(body)
    rest = characters_of({**body, "memory": {}})
    return {**body, "memory": fit_message(body["memory"], characters - rest)}


def fit_list(
    body: Mapping[str, Any], key: str, characters: int, *, from_end: bool = False
) -> dict[str, Any]:
    """The body with as many items of the list `key`, whole, as fit; `more` when some do not.

    `from_end`: the last ones are the ones to keep. One item is always kept.
    """
    items = body[key]
    left = min(characters, RESULT_BYTES) - characters_of({**body, key: [], "more": False})
    kept = 0
    for item in reversed(items) if from_end else items:
        left -= characters_of(item) + 1
        if left < 0:
            break
        kept += 1
    if kept == len(items):
        return dict(body)
    if kept == 0:
        items, kept = items[-1:] if from_end else items[:1], 1
        left = characters - characters_of({**body, key: []})
        for name in ("content", "body"):
            if isinstance(items[0].get(name), str):
                items = [fit_message(items[0], left, key=name)]
    chosen = items[len(items) - kept :] if from_end else items[:kept]
    more = len(chosen) < len(body[key]) or body.get("more", False)
    return {**body, key: chosen, "more": more}


def fit_history(body: Mapping[str, Any], characters: int, *, forwards: bool) -> dict[str, Any]:
    """A page of a channel, cut to fit from where its reading began.

    Gaps lie below all messages, so forwards they come before them and backwards after them; what
    is cut of either comes in the next page.
    """
    keys = ("gaps", "messages") if forwards else ("messages", "gaps")
    fitted = {**body, "messages": [], "gaps": []}
    for key in keys:
        whole = len(body[key])
        fitted = fit_list({**fitted, key: body[key]}, key, characters, from_end=not forwards)
        if len(fitted[key]) < whole:
            break
    return fitted


def fit_search(body: Mapping[str, Any], characters: int) -> dict[str, Any]:
    """The page of a search, cut to fit; then its cursor goes on after the last message kept, and
    what was removed below that message is left to the next page."""
    page = {key: value for key, value in body.items() if key != "removed_through"}
    fitted = fit_list(page, "messages", characters)
    if fitted.pop("more", False):
        last = fitted["messages"][-1]["sequence"]
        fitted["cursor"] = f"{last}.{body['removed_through']}"
        fitted["gaps"] = [
            {**gap, "from_sequence": max(gap["from_sequence"], last + 1)}
            for gap in body["gaps"]
            if gap["to_sequence"] > last
        ]
    return fitted


def characters_of(value: Any) -> int:
    """What this takes in the text of a result."""
    encoded = encode(value)
    return len(encoded) if encoded.isascii() else len(encoded.decode())


def _escaped_prefix(content: str, characters: int) -> str:
    """The longest beginning whose JSON, without the quotes, has at most so many characters."""
    escaped = encode(content).decode()[1:-1]
    if len(escaped) <= characters:
        return content
    whole = _WHOLE_ESCAPES.match(escaped[: max(characters, 0)])
    assert whole is not None  # it matches the empty string
    return str(decode_trusted(f'"{whole.group()}"'))
