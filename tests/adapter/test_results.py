"""The shape and the size of results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentbus.adapter.prefetch import Batch, Prefetch
from agentbus.adapter.results import (
    Answer,
    Header,
    ReceiveFacts,
    ceiling_characters,
    error_answer,
    fit_history,
    fit_history_message,
    fit_list,
    fit_message,
    fit_search,
    receive_answer,
    receive_budget,
)
from agentbus.adapter.subscription import Arrived
from agentbus.config import load_config
from agentbus.encoding import decode_trusted, encode
from agentbus.errors import RateLimitedError
from agentbus.limits import GAPS_PER_RESULT, KIB, RESULT_BYTES
from agentbus.protocol.session import GapRange
from tests.adapter.deliveries import row

CONFIG = load_config(Path("/nonexistent/agentbus-test.json"))


def message(sequence: int, content: str, **more: Any) -> dict[str, Any]:
    sender = {"session_id": "other", "display_name": "Sam"}
    return {"message_id": f"m{sequence}", "sequence": sequence, "sender": sender} | {
        "content": content,
        **more,
    }


def facts(hint: str | None = None) -> ReceiveFacts:
    return ReceiveFacts(Header("Sam", 3), expired=(), waited_seconds=0.0, hint=hint)


def prefetched(*messages: dict[str, Any], gaps: tuple[Any, ...] = ()) -> Prefetch:
    prefetch = Prefetch()
    prefetch.attached("own", 1, [{**row(1), "channel": "general"}])
    records = tuple((message["sequence"], message) for message in messages)
    arrived = Arrived(1, "general", 0, 10**6, 0, records, gaps, 7)
    prefetch.accept(arrived, epoch=1, pushed=True)
    return prefetch


def receive(prefetch: Prefetch, ceiling: int, hint: str | None = None) -> tuple[Answer, Batch]:
    told = facts(hint)
    budget = receive_budget(told, 1000, ceiling)
    batch = prefetch.take((), budget)
    return receive_answer(told, batch, budget), batch


def test_the_text_is_the_same_json_as_the_structured_content() -> None:
    answer, _ = receive(prefetched(message(1, "hé")), 10_000)
    assert decode_trusted(answer.text) == answer.structured
    assert not answer.is_error


def test_a_receive_result_has_the_header_and_all_its_lists() -> None:
    answer, _ = receive(prefetched(), 10_000, hint="wait longer")
    assert answer.structured == {
        "you": "Sam",
        "pending": 3,
        "messages": [],
        "notices": [],
        "gaps": [],
        "expired": [],
        "more": False,
        "waited_seconds": 0.0,
        "hint": "wait longer",
    }


@pytest.mark.parametrize("character", ["x", "ü", "\n", "\x01", "🜁"])
@pytest.mark.parametrize("ceiling", [2_000, 10_000, 40_000])
def test_the_text_stays_below_the_ceiling_and_holds_whole_records(
    character: str, ceiling: int
) -> None:
    content = character * 250
    prefetch = prefetched(*(message(n, content) for n in range(1, 500)))
    answer, batch = receive(prefetch, ceiling)
    assert len(answer.text) <= ceiling
    assert len(answer.text) > ceiling - 2_500
    assert answer.structured["more"]
    assert all(record["content"] == content for record in answer.structured["messages"])
    assert len(batch.records) == len(answer.structured["messages"])


def test_the_hard_limit_counts_the_bytes_of_the_json_once() -> None:
    prefetch = prefetched(*(message(n, "🜁" * 200_000) for n in range(1, 9)))
    answer, _ = receive(prefetch, RESULT_BYTES)
    assert len(answer.structured["messages"]) == 5
    assert len(answer.text.encode()) <= RESULT_BYTES


@pytest.mark.parametrize("character", ["x", "ü", '"', "\x02", "🜁"])
def test_a_record_above_the_ceiling_comes_alone_and_cut(character: str) -> None:
    content = character * 60_000
    prefetch = prefetched(message(1, "small"), message(2, content), message(3, "small"))
    first, _ = receive(prefetch, 10_000)
    assert [record["sequence"] for record in first.structured["messages"]] == [1]
    answer, batch = receive(prefetch, 10_000)
    assert batch.oversize
    (cut,) = answer.structured["messages"]
    assert 9_800 < len(answer.text) <= 10_000
    assert content.startswith(cut["content"])
    missing = content[cut["truncated"]["next_offset"] :]
    assert cut["truncated"]["bytes"] == len(missing.encode())
    assert cut["content"] + missing == content
    assert answer.structured["more"]


def test_a_record_with_huge_metadata_still_fits_and_says_what_is_missing() -> None:
    huge = message(1, "text", metadata={"data": "x" * 50_000})
    answer, _ = receive(prefetched(huge), 10_000)
    (cut,) = answer.structured["messages"]
    assert cut["truncated"] == {"bytes": 0, "next_offset": 4, "omitted": ["metadata"]}
    assert cut["content"] == "text"
    assert len(answer.text) <= 10_000


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), st.integers(0, 200))
def test_cutting_keeps_a_true_beginning_of_any_content(content: str, room: int) -> None:
    base = len(encode(fit_message(message(1, content), 0)).decode())
    cut = fit_message(message(1, content), base + room)
    assert content.startswith(cut["content"])
    assert len(encode(cut).decode()) <= base + room
    assert len(content[cut["truncated"]["next_offset"] :].encode()) == cut["truncated"]["bytes"]


def test_redelivered_records_are_marked_and_others_are_not() -> None:
    prefetch = prefetched(message(1, "a"), message(2, "b"))
    first = receive_budget(facts(), 1, 10_000)
    budget = receive_budget(facts(), 1000, 10_000)
    prefetch.settle(prefetch.take((), first), handed_off=False, bytes_left=True)
    answer, batch = receive(prefetch, 10_000)
    assert [record.get("redelivered") for record in answer.structured["messages"]] == [True, None]
    prefetch.settle(batch, handed_off=True)
    replay = receive_answer(facts(), prefetch.replay(budget), budget)
    assert all(record["redelivered"] for record in replay.structured["messages"])


def test_gaps_say_what_is_gone_and_where_it_goes_on() -> None:
    answer, _ = receive(prefetched(message(9, "x"), gaps=(GapRange(2, 6, "age"),)), 10_000)  # type: ignore[arg-type]
    assert answer.structured["gaps"] == [
        {
            "channel": "general",
            "from_sequence": 2,
            "to_sequence": 6,
            "cause": "age",
            "oldest_retained": 7,
        }
    ]


def test_many_gaps_stay_below_the_ceiling_too() -> None:
    gaps = tuple(GapRange(n, n, "capacity") for n in range(1, 2 * GAPS_PER_RESULT, 2))  # type: ignore[arg-type]
    answer, _ = receive(prefetched(gaps=gaps), 10_000)
    assert 10 < len(answer.structured["gaps"]) < GAPS_PER_RESULT
    assert len(answer.text) <= 10_000
    assert answer.structured["more"]


def test_the_ceiling_is_the_least_of_setting_and_client_unless_asked() -> None:
    assert ceiling_characters(None, CONFIG, 40_000) == 40_000
    assert ceiling_characters(None, CONFIG, 10_000) == 10_000
    assert ceiling_characters(None, CONFIG, 10**9) == CONFIG.result_default_kib * KIB
    assert ceiling_characters(100, CONFIG, 10_000) == 100 * KIB
    assert ceiling_characters(2, CONFIG, 10_000) == 2 * KIB
    assert ceiling_characters(4096, CONFIG, 10_000) == RESULT_BYTES


def test_an_error_carries_its_code_and_when_to_try_again() -> None:
    answer = error_answer(RateLimitedError("slow down", retry_after_ms=40))
    assert answer.is_error
    assert answer.structured == {
        "error": {
            "code": "rate_limited",
            "message": "slow down",
            "retryable": True,
            "retry_after_ms": 40,
        }
    }
    assert decode_trusted(answer.text) == answer.structured


def test_a_page_of_history_is_cut_at_the_end_that_was_not_asked_for() -> None:
    body = {"channel": "c", "messages": [message(n, "x" * 100) for n in range(1, 101)]} | {
        "gaps": [],
        "more": False,
    }
    forwards = fit_list(body, "messages", 3_000)
    assert forwards["messages"][0]["sequence"] == 1
    assert forwards["more"]
    backwards = fit_list(body, "messages", 3_000, from_end=True)
    assert backwards["messages"][-1]["sequence"] == 100
    assert len(encode(backwards)) <= 3_000
    assert fit_list(body, "messages", 10**6) == body


def gap(first: int, last: int) -> dict[str, object]:
    return {
        "channel": "c",
        "from_sequence": first,
        "to_sequence": last,
        "cause": "age",
        "oldest_retained": 1000,
    }


def test_gaps_come_where_the_reading_of_a_page_meets_them() -> None:
    """They lie below all messages: first when read forwards, last when read backwards."""
    few = {
        "channel": "c",
        "messages": [message(n, "x" * 100) for n in range(1001, 1101)],
        "gaps": [gap(n, n) for n in range(1, 7, 2)],
        "more": False,
    }
    forwards = fit_history(few, 3_000, forwards=True)
    assert forwards["gaps"] == few["gaps"]
    assert forwards["messages"][0] == few["messages"][0]
    backwards = fit_history(few, 3_000, forwards=False)
    assert backwards["gaps"] == []
    assert backwards["messages"][-1] == few["messages"][-1]
    assert forwards["more"]
    assert backwards["more"]
    assert fit_history(few, 10**6, forwards=True) == few
    assert fit_history(few, 10**6, forwards=False) == few


@pytest.mark.parametrize("forwards", [True, False])
def test_pages_with_too_many_gaps_go_on_with_the_rest(forwards: bool) -> None:
    gaps = [gap(n, n) for n in range(1, 200, 2)]
    body = {"channel": "c", "messages": [message(1001, "x")], "gaps": gaps, "more": False}
    fitted = fit_history(body, 3_000, forwards=forwards)
    kept = fitted["gaps"]
    assert 0 < len(kept) < len(gaps)
    assert kept == (gaps[: len(kept)] if forwards else gaps[-len(kept) :])
    assert fitted["messages"] == ([] if forwards else body["messages"])
    assert fitted["more"]


def test_a_page_of_a_search_goes_on_after_the_last_message_that_fitted() -> None:
    body = {
        "messages": [message(n, "x" * 100) for n in range(100, 0, -1)],
        "engine": "redis",
        "cursor": None,
        "gaps": [gap(3, 99)],
        "removed_through": 2,
    }
    fitted = fit_search(body, 3_000)
    assert fitted["messages"] == body["messages"][: len(fitted["messages"])]
    last = fitted["messages"][-1]["sequence"]
    assert fitted["cursor"] == f"{last}.2"
    assert fitted["gaps"] == [gap(last + 1, 99)]
    assert set(fitted) == {"messages", "engine", "cursor", "gaps"}
    del body["removed_through"]
    assert fit_search(body, 10**6) == body


def test_a_page_of_one_message_that_is_too_large_is_cut_inside() -> None:
    body = {"messages": [message(1, "x" * 50_000)], "more": False}
    fitted = fit_list(body, "messages", 5_000)
    assert len(encode(fitted)) <= 5_050
    assert fitted["messages"][0]["truncated"]["bytes"] > 40_000


@pytest.mark.parametrize("more", [False, True])
def test_a_last_message_that_is_cut_inside_promises_no_more_than_there_is(more: bool) -> None:
    body = {"messages": [message(1, "x" * 50_000)], "more": more}
    assert fit_list(body, "messages", 5_000)["more"] is more
    cursor = "1" if more else None
    found = {"messages": [message(1, "x" * 50_000)], "cursor": cursor, "gaps": []}
    assert fit_search(found, 5_000)["cursor"] == cursor


def test_the_rest_of_a_message_is_read_offset_by_offset() -> None:
    content = "".join(f"line {n}\n" for n in range(5_000))
    read, offset = "", 0
    while True:
        part = content[offset : offset + 20_000]
        end = offset + len(part)
        body = {
            "message": message(1, part),
            "offset": offset,
            "content_characters": len(content),
            "next_offset": end if end < len(content) else None,
        }
        fitted = fit_history_message(body, 10_000)
        assert len(encode(fitted)) <= 10_000
        read += fitted["message"]["content"]
        if fitted["next_offset"] is None:
            break
        assert fitted["next_offset"] > offset
        offset = fitted["next_offset"]
    assert read == content
