"""Both shapes of requests and responses, both ways."""

from __future__ import annotations

from typing import Any

import pytest

from agentbus.encoding import decode_strict, encode
from agentbus.errors import ValidationError
from agentbus.rules.talk import TALK_CODES
from agentbus.talk.schema import (
    CAPABILITIES,
    ERROR_CHARACTERS,
    KEY_BYTES,
    TalkRequest,
    TalkResponse,
    encode_request,
    encode_response,
    failure,
    parse_request,
    parse_response,
)
from tests.talk.raw_http import question


def _request(**changes: Any) -> TalkRequest:
    return parse_request(encode(question(**changes)))


def test_request_survives_the_wire() -> None:
    for request in (
        TalkRequest("a", "", 0),
        TalkRequest("Ω", "line\nline", 2, session="s", idempotency_key="k"),
    ):
        assert parse_request(encode_request(request)) == request


def test_request_to_an_old_peer_has_no_member_that_it_would_refuse() -> None:
    document = decode_strict(encode_request(TalkRequest("a", "b", 1)))
    assert document == question(fromInstance="a", prompt="b", depth=1)


def test_name_has_one_spelling() -> None:
    assert _request(fromInstance="Ame\u0301lie").from_instance == "Am\u00e9lie"


def test_legacy_request() -> None:
    body = encode({"fromInstance": "a", "prompt": "b", "depth": 1})
    assert parse_request(body) == TalkRequest("a", "b", 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"capabilities": ["structured-errors", "from-the-future"]},
        {"capabilities": []},
        {"unknown": {"a": [1]}},
        {"ext": {}},
        {"ext": {"unknown": 1, "session": None}},
        {"depth": 1.0, "protocolVersion": 1.0},
    ],
)
def test_what_others_add_is_ignored(changes: dict[str, Any]) -> None:
    assert _request(**changes) == _request()


@pytest.mark.parametrize(
    "changes",
    [
        {"fromInstance": ""},
        {"fromInstance": None},
        {"fromInstance": 1},
        {"prompt": None},
        {"prompt": ["a"]},
        {"depth": -1},
        {"depth": 0.5},
        {"depth": "1"},
        {"depth": True},
        {"depth": None},
        {"protocolVersion": 2},
        {"protocolVersion": "1"},
        {"protocolVersion": None},
        {"capabilities": None},
        {"capabilities": "structured-errors"},
        {"capabilities": [1]},
        {"ext": None},
        {"ext": []},
        {"ext": {"session": 1}},
        {"ext": {"session": ""}},
        {"ext": {"idempotencyKey": ""}},
        {"ext": {"idempotencyKey": "é" * (KEY_BYTES // 2) + "x"}},
    ],
    ids=str,
)
def test_malformed_request_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        _request(**changes)


@pytest.mark.parametrize("key", ["fromInstance", "prompt", "depth"])
def test_request_without_a_member_is_refused(key: str) -> None:
    document = question()
    del document[key]
    with pytest.raises(ValidationError):
        parse_request(encode(document))


def test_longest_key() -> None:
    assert _request(ext={"idempotencyKey": "k" * KEY_BYTES}).idempotency_key == "k" * KEY_BYTES


def test_response_survives_the_wire() -> None:
    for response in (TalkResponse(True, "w", "text", duration_ms=3), failure("w", "auth", "why")):
        encoded = encode_response(response)
        assert parse_response(encoded) == response
        document = decode_strict(encoded)
        assert (document["protocolVersion"], document["capabilities"]) == (1, list(CAPABILITIES))


@pytest.mark.parametrize("code", TALK_CODES, ids=lambda row: row.name)
def test_failure_says_whether_it_can_be_tried_again(code: Any) -> None:
    document = decode_strict(encode_response(failure("w", code.name, "why")))
    assert (document["errorCode"], document["retryable"]) == (code.name, code.retryable)
    assert (document["success"], document["text"]) == (False, "")


def test_long_error_is_cut() -> None:
    assert failure("w", "auth", "x" * 5000).error == "x" * ERROR_CHARACTERS


def test_legacy_success() -> None:
    body = encode({"success": True, "text": "fine", "fromInstance": "old"})
    assert parse_response(body) == TalkResponse(True, "old", "fine")


def test_legacy_failure_is_unknown_and_not_to_be_tried_again() -> None:
    parsed = parse_response(encode({"success": False, "error": "broken"}))
    assert (parsed.error, parsed.error_code, parsed.retryable) == ("broken", "unknown", False)


def test_failure_with_a_code_of_the_future_keeps_it() -> None:
    body = {"success": False, "error": "x", "errorCode": "tired", "retryable": True, "more": 1}
    parsed = parse_response(encode(body))
    assert (parsed.error_code, parsed.retryable) == ("tired", True)


@pytest.mark.parametrize(
    "document",
    [
        {},
        [],
        "text",
        {"error": "Not found"},
        {"success": "true"},
        {"success": 1},
        {"success": True, "text": 1},
        {"success": True, "protocolVersion": 2},
        {"success": False, "errorCode": 7},
        {"success": False, "retryable": "yes"},
        {"success": True, "durationMs": "1"},
        {"success": True, "durationMs": True},
    ],
    ids=str,
)
def test_what_is_no_response_is_refused(document: object) -> None:
    with pytest.raises(ValidationError):
        parse_response(encode(document))
