"""JSON-RPC 2.0 messages: parse a frame, encode a frame.

Owns: the shape of requests, notifications and responses, and the numeric codes. Never: knows which
methods exist or what their params mean (operations.py), does I/O. Pure functions, any thread.

    parse(frame) -> Request | Notification | Response | ErrorResponse    # or raises ProtocolError
    encode_request(id, method, params) -> bytes                          # all with the newline
    encode_notification(method, params) -> bytes
    encode_response(id, result) -> bytes               # `result` may hold encoding.raw fragments
    encode_response_json(id, result_json) -> bytes     # `result_json` is ready JSON
    encode_error(id, error: BusError | ProtocolError) -> bytes
    error_from_response(ErrorResponse) -> BusError

Narrower than the standard, deliberately: no batch arrays, no positional params, no null or
fractional request ids. Two requests with one id are two requests; each gets its answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from agentbus import encoding
from agentbus.errors import BusError, InternalError, ValidationError, error_from_data

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
APPLICATION_ERROR: Final = -32000
"""A BusError: its stable code and the rest are in the error's `data`."""

ID_CHARACTERS: Final = 128
"""Longest text id; an id is repeated in the answer, so it must not carry a payload."""

RequestId: TypeAlias = int | str


@dataclass(frozen=True, slots=True)
class Request:
    """Wants exactly one answer."""

    id: RequestId
    method: str
    params: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Notification:
    """Wants no answer and gets none, not even an error."""

    method: str
    params: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Response:
    """The successful answer to the request of that id."""

    id: RequestId
    result: Any


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """The failed answer; `id` is None when the daemon could not tell which request it was."""

    id: RequestId | None
    code: int
    message: str
    data: Any


Message: TypeAlias = Request | Notification | Response | ErrorResponse


class ProtocolError(Exception):
    """A frame that is not a usable JSON-RPC message. The connection can go on."""

    def __init__(self, code: int, message: str, request_id: RequestId | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.request_id = request_id


def parse(frame: bytes) -> Message:
    """The message in one frame. Raises ProtocolError, with the request's id where it is known."""
    try:
        document = encoding.decode_frame(frame)
    except ValidationError as error:
        raise ProtocolError(PARSE_ERROR, error.message) from None
    if type(document) is not dict:
        what = "batch arrays are not accepted" if isinstance(document, list) else "not an object"
        raise ProtocolError(INVALID_REQUEST, f"{what}; send one JSON-RPC object per line")
    message_id = document.get("id")
    if not _is_id(message_id):
        if message_id is not None:
            raise ProtocolError(
                INVALID_REQUEST, f"id must be an integer or text of 1 to {ID_CHARACTERS} characters"
            )
        if "id" in document and "error" not in document:
            raise ProtocolError(INVALID_REQUEST, "id must not be null; leave it out to notify")
    if document.get("jsonrpc") != "2.0":
        raise ProtocolError(INVALID_REQUEST, 'member "jsonrpc" must be "2.0"', message_id)
    if "method" in document:
        return _parse_call(document, message_id)
    return _parse_answer(document, message_id)


def _is_id(value: Any) -> bool:
    if type(value) is str:
        return 0 < len(value) <= ID_CHARACTERS
    return type(value) is int  # a bool is not an integer


def _parse_call(document: dict[str, Any], message_id: Any) -> Request | Notification:
    method = document["method"]
    if type(method) is not str or not method:
        raise ProtocolError(INVALID_REQUEST, "method must be text", message_id)
    params = document.get("params")
    if params is None:
        params = {}
    elif type(params) is not dict:
        raise ProtocolError(INVALID_PARAMS, "params must be an object of named values", message_id)
    if message_id is None:
        return Notification(method, params)
    return Request(message_id, method, params)


def _parse_answer(document: dict[str, Any], message_id: Any) -> Response | ErrorResponse:
    if "error" in document:
        error = document["error"]
        if type(error) is not dict or type(error.get("code")) is not int:
            raise ProtocolError(INVALID_REQUEST, "error must be an object with an integer code")
        return ErrorResponse(
            message_id, error["code"], str(error.get("message", "")), error.get("data")
        )
    if "result" not in document or message_id is None:
        raise ProtocolError(
            INVALID_REQUEST, "neither a call (method) nor an answer (id, result)", message_id
        )
    return Response(message_id, document["result"])


def encode_request(request_id: RequestId, method: str, params: dict[str, Any]) -> bytes:
    return encoding.encode_line(
        {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
    )


def encode_notification(method: str, params: dict[str, Any]) -> bytes:
    return encoding.encode_line({"jsonrpc": "2.0", "method": method, "params": params})


def encode_response(request_id: RequestId, result: Any) -> bytes:
    return encoding.encode_line({"jsonrpc": "2.0", "id": request_id, "result": result})


def encode_response_json(request_id: RequestId, result_json: bytes) -> bytes:
    """A response around JSON that was encoded before, without looking into it."""
    return encode_response(request_id, encoding.raw(result_json))


def encode_error(request_id: RequestId | None, error: BusError | ProtocolError) -> bytes:
    """An error response. `data` always has the shape of `BusError.as_data`."""
    if isinstance(error, ProtocolError):
        code = error.code
        data = ValidationError(error.message).as_data()
    else:
        code = APPLICATION_ERROR
        data = error.as_data()
    return encoding.encode_line(
        {
            "jsonrpc": "2.0",
            "id": request_id,
            "error": {"code": code, "message": error.message, "data": data},
        }
    )


def error_from_response(response: ErrorResponse) -> BusError:
    """The BusError that the other side answered."""
    if isinstance(response.data, dict):
        return error_from_data(response.data)
    return InternalError(f"JSON-RPC error {response.code}: {response.message}")
