"""The schema of events, at the edge of every limit, in both directions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from agentbus.encoding import encode
from agentbus.errors import BusError, TooLargeError, ValidationError
from agentbus.jobs.events import (
    ADDRESS_BYTES,
    ARTIFACTS,
    EVENT_BYTES,
    JOB_ID_BYTES,
    RESULT_BYTES,
    SEQ_MAX,
    WORD_BYTES,
    Accepted,
    Failed,
    Progress,
    Succeeded,
    decode_event,
    encode_event,
    event_data,
    fingerprint,
    parse_event,
    timestamp,
)
from agentbus.limits import JSON_DEPTH

COMMON = {"job_id": "job-1", "seq": 0, "ts": "2026-01-02T03:04:05.678Z"}
ARTIFACT = {"uri": "s3://b/k", "sha256": "0f" * 32, "bytes": 0, "content_type": "text/plain"}
EVENTS: dict[str, dict[str, Any]] = {
    "accepted": {"url": "https://example.com/a"},
    "progress": {"stage": "extract", "pct": 12.5, "message": "half of a quarter"},
    "warning": {"message": ""},
    "succeeded": {"result": {"a": [1, None, "ü"]}, "artifacts": [ARTIFACT]},
    "failed": {"code": "extraction", "message": "no recipe there"},
}


def event(kind: str, **changes: Any) -> dict[str, Any]:
    return {**COMMON, "type": kind, **EVENTS[kind], **changes}


@pytest.mark.parametrize("kind", EVENTS)
def test_an_event_comes_back_as_it_was_sent(kind: str) -> None:
    sent = event(kind)
    assert event_data(parse_event(sent)) == sent
    assert decode_event(encode_event(parse_event(sent))) == parse_event(sent)


@pytest.mark.parametrize(
    "sent",
    [
        {**COMMON, "type": "progress", "stage": "format"},
        {**COMMON, "type": "succeeded", "result": None},
        event("failed", synthetic=True),
        event("accepted", source_job_id="what the tool called itself"[:4]),
    ],
)
def test_what_is_optional_may_be_left_out_and_what_we_add_is_known(sent: dict[str, Any]) -> None:
    assert event_data(parse_event(sent)) == sent


@pytest.mark.parametrize("kind", EVENTS)
def test_an_unknown_field_is_refused(kind: str) -> None:
    with pytest.raises(ValidationError, match="unknown field 'extra'"):
        parse_event(event(kind, extra=1))


@pytest.mark.parametrize(
    ("kind", "field"),
    [(kind, field) for kind in EVENTS for field in ("job_id", "seq", "ts", "type")]
    + [("accepted", "url"), ("progress", "stage"), ("warning", "message")]
    + [("succeeded", "result"), ("failed", "code"), ("failed", "message")],
)
def test_a_field_that_is_missing_is_named(kind: str, field: str) -> None:
    sent = event(kind)
    del sent[field]
    with pytest.raises(ValidationError, match=f"no '{field}'"):
        parse_event(sent)


EDGES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    # kind, the last that is accepted, the first that is not
    ("progress", {"message": "x" * 500}, {"message": "x" * 501}),
    ("progress", {"message": "語" * 500}, {"message": "語" * 501}),
    ("progress", {"message": "😀" * 375}, {"message": "😀" * 376}),
    ("warning", {"message": "x" * 500}, {"message": "x" * 501}),
    ("failed", {"message": "x" * 2000}, {"message": "x" * 2001}),
    ("failed", {"message": "😀" * 1500}, {"message": "😀" * 1501}),
    ("progress", {"pct": 0}, {"pct": -0.1}),
    ("progress", {"pct": 100}, {"pct": 100.1}),
    ("progress", {"pct": 100.0}, {"pct": float("nan")}),
    ("progress", {"pct": 0.0}, {"pct": float("inf")}),
    ("progress", {"pct": 1}, {"pct": True}),
    ("progress", {"pct": 1}, {"pct": "1"}),
    ("progress", {"pct": 1}, {"pct": None}),
    ("progress", {"stage": "s" * WORD_BYTES}, {"stage": "s" * (WORD_BYTES + 1)}),
    ("progress", {"stage": "s"}, {"stage": ""}),
    ("failed", {"code": "é" * (WORD_BYTES // 2)}, {"code": "é" * (WORD_BYTES // 2 + 1)}),
    ("failed", {"synthetic": False}, {"synthetic": 1}),
    ("accepted", {"url": "u" * ADDRESS_BYTES}, {"url": "u" * (ADDRESS_BYTES + 1)}),
    ("accepted", {"seq": 0}, {"seq": -1}),
    ("accepted", {"seq": SEQ_MAX}, {"seq": SEQ_MAX + 1}),
    ("accepted", {"seq": 1}, {"seq": 1.0}),
    ("accepted", {"seq": 1}, {"seq": True}),
    ("accepted", {"job_id": "j" * JOB_ID_BYTES}, {"job_id": "j" * (JOB_ID_BYTES + 1)}),
    ("accepted", {"job_id": "u.:@~!%"}, {"job_id": "a/b"}),
    ("accepted", {"job_id": "u"}, {"job_id": "ü"}),
    ("accepted", {"job_id": "..."}, {"job_id": ".."}),
    ("accepted", {"job_id": "a-b"}, {"job_id": "a b"}),
    ("accepted", {"job_id": "a"}, {"job_id": "a\n"}),
    ("accepted", {"job_id": "a"}, {"job_id": "a\0"}),
    ("accepted", {"job_id": "a"}, {"job_id": ""}),
    ("accepted", {"ts": "2024-02-29T23:59:59.999Z"}, {"ts": "2023-02-29T23:59:59.999Z"}),
    ("accepted", {"ts": "2026-01-01T00:00:00.000Z"}, {"ts": "2026-01-01T00:00:00Z"}),
    ("accepted", {"ts": "2026-01-01T00:00:00.000Z"}, {"ts": "2026-01-01T00:00:00.000+00:00"}),
    ("accepted", {"ts": "2026-01-01T00:00:00.000Z"}, {"ts": "٢026-01-01T00:00:00.000Z"}),
    ("warning", {"message": "tab\tand\nline"}, {"message": "nul\0"}),
    ("succeeded", {"artifacts": []}, {"artifacts": None}),
    ("succeeded", {"artifacts": [ARTIFACT] * ARTIFACTS}, {"artifacts": [ARTIFACT] * 65}),
    ("succeeded", {"artifacts": [ARTIFACT]}, {"artifacts": [{**ARTIFACT, "bytes": -1}]}),
    ("succeeded", {"artifacts": [ARTIFACT]}, {"artifacts": [{**ARTIFACT, "sha256": "0F" * 32}]}),
    ("succeeded", {"artifacts": [ARTIFACT]}, {"artifacts": [{**ARTIFACT, "sha256": "0f" * 31}]}),
    ("succeeded", {"artifacts": [ARTIFACT]}, {"artifacts": [{**ARTIFACT, "more": 1}]}),
    ("succeeded", {"artifacts": [ARTIFACT]}, {"artifacts": [{**ARTIFACT, "content_type": "é"}]}),
    ("succeeded", {"artifacts": [ARTIFACT]}, {"artifacts": [{**ARTIFACT, "content_type": "a\n"}]}),
    ("succeeded", {"result": "x" * (RESULT_BYTES - 2)}, {"result": "x" * (RESULT_BYTES - 1)}),
]


@pytest.mark.parametrize(("kind", "last", "beyond"), EDGES)
def test_a_limit_is_exact(kind: str, last: dict[str, Any], beyond: dict[str, Any]) -> None:
    parse_event(event(kind, **last))
    with pytest.raises(BusError):
        parse_event(event(kind, **beyond))


@pytest.mark.parametrize("data", [None, [], "accepted", 1, {**COMMON, "type": "done"}])
def test_what_is_no_event_is_refused(data: Any) -> None:
    with pytest.raises(ValidationError):
        parse_event(data)


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        encode(event("accepted"))[:-1] + b',"seq":0}',
        encode(event("progress")).replace(b"12.5", b"NaN"),
        encode(event("warning", message="x")).replace(b'"x"', rb'"\ud800"'),
        b'{"a":' * 40 + b"1" + b"}" * 40,
    ],
)
def test_a_document_that_other_parsers_would_change_is_refused(document: bytes) -> None:
    with pytest.raises(ValidationError):
        decode_event(document)


def test_a_document_beyond_every_valid_event_is_not_even_parsed() -> None:
    with pytest.raises(TooLargeError):
        decode_event(b" " * (EVENT_BYTES + 1))


def test_an_emitter_cannot_encode_what_a_receiver_would_refuse() -> None:
    with pytest.raises(ValidationError):
        encode_event(Progress(**COMMON, stage="s", pct=101))  # type: ignore[arg-type]
    with pytest.raises(ValidationError):
        encode_event(Succeeded(**COMMON, result={1, 2}))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Measured:
    length: float
    name: str = "x"


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "result",
    [
        nested(JSON_DEPTH),
        "nul\0",
        {"nul\0": 1},
        2**64,
        float("nan"),
        [{"a": (1, float("inf"))}],
        Measured(float("-inf")),
        Measured(1.0, "\0"),
        b"bytes",
        {1: 2},
    ],
)
def test_a_result_that_no_receiver_takes_is_refused_where_its_tool_can_still_say_so(
    result: Any,
) -> None:
    with pytest.raises(ValidationError):
        encode_event(Succeeded(**COMMON, result=result))  # type: ignore[arg-type]


@pytest.mark.parametrize("result", [nested(JSON_DEPTH - 1), (1, 2), Measured(0.5), -(2**63), None])
def test_whatever_leaves_as_a_result_is_taken(result: Any) -> None:
    decode_event(encode_event(Succeeded(**COMMON, result=result)))  # type: ignore[arg-type]


def test_the_fingerprint_is_of_the_content_not_of_its_spelling() -> None:
    one = decode_event(b'{"type":"warning","message":"m","seq":1,"job_id":"j","ts":"%s"}' % TS)
    other = decode_event(b'{ "ts":"%s", "job_id":"j","seq":1,"message":"m","type":"warning"}' % TS)
    assert fingerprint(one) == fingerprint(other)
    assert fingerprint(one) != fingerprint(parse_event({**event_data(one), "message": "n"}))


TS = COMMON["ts"].encode()  # type: ignore[attr-defined]


def test_a_timestamp_has_milliseconds_and_z_always() -> None:
    assert timestamp(1_767_323_045_000_000) == "2026-01-02T03:04:05.000Z"
    assert timestamp(1_767_323_045_678_999) == "2026-01-02T03:04:05.678Z"


def test_events_cannot_change_on_their_way() -> None:
    for cls in (Accepted, Progress, Succeeded, Failed):
        assert cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
        assert "__slots__" in vars(cls)
