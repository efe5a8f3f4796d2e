"""JSON-RPC 2.0: what is parsed, what is refused with which code, what is written."""

from __future__ import annotations

from typing import Any

import pytest

from agentbus import encoding
from agentbus.errors import ConflictError, InternalError, RateLimitedError, ValidationError
from agentbus.protocol import jsonrpc
from agentbus.protocol.jsonrpc import (
    ErrorResponse,
    Notification,
    ProtocolError,
    Request,
    Response,
    parse,
)


def refused(frame: bytes) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        parse(frame)
    return caught.value


def decoded(frame: bytes) -> Any:
    assert frame.endswith(b"\n")
    assert frame.count(b"\n") == 1
    return encoding.decode_frame(frame[:-1])


def test_request_has_id_method_and_params() -> None:
    frame = b'{"jsonrpc":"2.0","id":7,"method":"send","params":{"a":1}}'
    assert parse(frame) == Request(7, "send", {"a": 1})


def test_text_ids_are_kept() -> None:
    assert parse(b'{"jsonrpc":"2.0","id":"a-1","method":"send"}') == Request("a-1", "send", {})


def test_call_without_id_is_a_notification() -> None:
    assert parse(b'{"jsonrpc":"2.0","method":"used"}') == Notification("used", {})


def test_null_params_are_no_params() -> None:
    assert parse(b'{"jsonrpc":"2.0","method":"used","params":null}') == Notification("used", {})


def test_result_and_error_are_answers() -> None:
    assert parse(b'{"jsonrpc":"2.0","id":1,"result":null}') == Response(1, None)
    error = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"m"}}'
    assert parse(error) == ErrorResponse(None, -32700, "m", None)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"nonsense",
        b'{"jsonrpc":"2.0"',
        b'{"jsonrpc":"2.0","id":1,"method":"\xff\xfe"}',  # bad UTF-8
        b'{"jsonrpc":"2.0","id":1,"method":"\xc0\xaf"}',  # overlong
        b'{"jsonrpc":"2.0","id":1,"method":"\\ud800"}',  # lone surrogate
        b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"method":"m"}',  # byte order mark
        b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"x":NaN}}',
        b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"x":Infinity}}',
        b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"x":18446744073709551616}}',
        b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"x":' + b"9" * 5000 + b"}}",
        b'{"jsonrpc":"2.0","id":1,"method":"m","params":' + b"[" * 10_000 + b"]" * 10_000 + b"}",
        b'{"jsonrpc":"2.0","id":1,"method":"m\x00"}',
    ],
)
def test_what_is_no_json_is_a_parse_error(frame: bytes) -> None:
    assert refused(frame).code == jsonrpc.PARSE_ERROR


@pytest.mark.parametrize(
    ("frame", "request_id"),
    [
        (b"[]", None),
        (b'[{"jsonrpc":"2.0","id":1,"method":"m"}]', None),
        (b"1", None),
        (b'"text"', None),
        (b"null", None),
        (b"{}", None),
        (b'{"id":1,"method":"m"}', 1),
        (b'{"jsonrpc":"1.0","id":1,"method":"m"}', 1),
        (b'{"jsonrpc":2.0,"id":1,"method":"m"}', 1),
        (b'{"jsonrpc":"2.0","id":1}', 1),
        (b'{"jsonrpc":"2.0","id":1,"method":5}', 1),
        (b'{"jsonrpc":"2.0","id":1,"method":""}', 1),
        (b'{"jsonrpc":"2.0","id":null,"method":"m"}', None),
        (b'{"jsonrpc":"2.0","id":true,"method":"m"}', None),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"m"}', None),
        (b'{"jsonrpc":"2.0","id":[1],"method":"m"}', None),
        (b'{"jsonrpc":"2.0","id":{},"method":"m"}', None),
        (b'{"jsonrpc":"2.0","id":"","method":"m"}', None),
        (b'{"jsonrpc":"2.0","id":"' + b"x" * 129 + b'","method":"m"}', None),
        (b'{"jsonrpc":"2.0","result":1}', None),
        (b'{"jsonrpc":"2.0","id":1,"error":"text"}', None),
        (b'{"jsonrpc":"2.0","id":1,"error":{"code":"x"}}', None),
    ],
)
def test_json_that_is_no_message_is_an_invalid_request(
    frame: bytes, request_id: int | None
) -> None:
    error = refused(frame)
    assert (error.code, error.request_id) == (jsonrpc.INVALID_REQUEST, request_id)


@pytest.mark.parametrize("params", [b"[]", b"[1]", b'"x"', b"5", b"true"])
def test_params_that_are_no_object_are_invalid_params(params: bytes) -> None:
    error = refused(b'{"jsonrpc":"2.0","id":1,"method":"m","params":' + params + b"}")
    assert (error.code, error.request_id) == (jsonrpc.INVALID_PARAMS, 1)


def test_longest_text_id_passes() -> None:
    text_id = "x" * jsonrpc.ID_CHARACTERS
    assert parse(jsonrpc.encode_request(text_id, "m", {})) == Request(text_id, "m", {})


def test_largest_integers_survive() -> None:
    params = {"low": -(2**63), "high": 2**64 - 1}
    assert parse(jsonrpc.encode_request(1, "m", params)) == Request(1, "m", params)


def test_calls_survive_encoding() -> None:
    assert parse(jsonrpc.encode_request(1, "m", {"a": "b\n"})) == Request(1, "m", {"a": "b\n"})
    assert parse(jsonrpc.encode_notification("m", {"a": 1})) == Notification("m", {"a": 1})


def test_response_may_hold_ready_json() -> None:
    assert decoded(jsonrpc.encode_response(1, {"m": [encoding.raw(b'{"a":1}')]})) == {
        "jsonrpc": "2.0",
        "id": 1,
        "result": {"m": [{"a": 1}]},
    }
    assert parse(jsonrpc.encode_response_json("i", b"[1,2]")) == Response("i", [1, 2])


def test_bus_error_travels_whole() -> None:
    sent = RateLimitedError("slow down", reason="messages", retry_after_ms=20)
    frame = jsonrpc.encode_error(3, sent)
    assert decoded(frame)["error"] == {
        "code": jsonrpc.APPLICATION_ERROR,
        "message": "slow down",
        "data": sent.as_data(),
    }
    response = parse(frame)
    assert isinstance(response, ErrorResponse)
    received = jsonrpc.error_from_response(response)
    assert isinstance(received, RateLimitedError)
    assert received.as_data() == sent.as_data()


def test_protocol_error_keeps_its_number_and_reads_as_validation() -> None:
    frame = jsonrpc.encode_error(None, ProtocolError(jsonrpc.METHOD_NOT_FOUND, "no method fly"))
    response = parse(frame)
    assert isinstance(response, ErrorResponse)
    assert (response.id, response.code) == (None, jsonrpc.METHOD_NOT_FOUND)
    assert isinstance(jsonrpc.error_from_response(response), ValidationError)


def test_error_of_another_implementation_is_internal() -> None:
    error = jsonrpc.error_from_response(ErrorResponse(1, -32603, "odd", None))
    assert isinstance(error, InternalError)
    assert "odd" in error.message


def test_error_answer_becomes_the_error_of_its_code() -> None:
    response = ErrorResponse(1, -32000, "m", ConflictError("taken").as_data())
    assert isinstance(jsonrpc.error_from_response(response), ConflictError)
