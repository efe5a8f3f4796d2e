"""Results of the tool `peer` within the ceilings: whole records first, then a cut text.

Pure, any thread. A text that is cut has `truncated` beside it, with the bytes that are missing and
the `next_offset` at which `history(message_id, offset)` goes on. Nothing that a result leaves out
counts as shown, so it comes with a later call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentbus.adapter.results import characters_of, fit_list, fit_message


def fit_delivery(body: Mapping[str, Any], characters: int) -> dict[str, Any]:
    """What `wait` answers. Late replies take half of the room at most; the rest of them wait."""
    notices: list[Any] = []
    left = characters // 2
    for notice in body["notices"]:
        left -= characters_of(notice) + 1
        if left < 0 and notices:
            break
        notices.append(notice)
    fitted = {**body, "notices": notices}
    delivery = body["delivery"]
    if delivery is None or characters_of(fitted) <= characters:
        return fitted
    rest = characters_of({**fitted, "delivery": {**delivery, "envelope": {}}})
    return {**fitted, "delivery": _with_envelope(delivery, characters - rest)}


def fit_status(body: Mapping[str, Any], characters: int) -> dict[str, Any]:
    """What `status` answers: its deliveries are asked for, so they come before the text."""
    if characters_of(body) <= characters:
        return dict(body)
    fitted = dict(body)
    if isinstance(body.get("envelope"), dict):
        rest = characters_of({**body, "envelope": {}, "more": False})
        fitted = _with_envelope(body, characters - rest)
    return fit_list(fitted, "deliveries", characters)


def fit_answers(body: Mapping[str, Any], characters: int) -> dict[str, Any]:
    """What `collect` answers. A text that does not fit is null and comes with the next collect,
    but the first of them is cut where otherwise none would be shown."""
    if characters_of(body) <= characters:
        return dict(body)
    answers: list[dict[str, Any]] = [_without_text(answer) for answer in body["answers"]]
    left = characters - characters_of({**body, "answers": answers})
    shown = False
    for index, answer in enumerate(body["answers"]):
        if answers[index] is answer:
            continue
        more = characters_of(answer) - characters_of(answers[index])
        if more <= left:
            answers[index] = answer
            left -= more
            shown = True
        elif not shown:
            room = characters_of(answers[index]) + left
            answers[index] = fit_message(answer, room, key="body")
            return {**body, "answers": answers}
    return {**body, "answers": answers}


def fit_page(body: Mapping[str, Any], key: str, characters: int) -> dict[str, Any]:
    """As many whole records of a page as fit, at least the beginning of one."""
    fitted = fit_list(body, key, characters)
    fitted.pop("more", None)
    return fitted


def _with_envelope(record: Mapping[str, Any], characters: int) -> dict[str, Any]:
    """The record with the text of its envelope cut to what the envelope may take."""
    envelope = record["envelope"]
    if not isinstance(envelope.get("body"), str) or characters_of(envelope) <= characters:
        return dict(record)
    return {**record, "envelope": fit_message(envelope, characters, key="body")}


def _without_text(answer: dict[str, Any]) -> dict[str, Any]:
    text = answer.get("body")
    if not isinstance(text, str):
        return answer
    missing = {"bytes": len(text.encode()), "next_offset": 0}
    return {**answer, "body": None, "truncated": missing}
