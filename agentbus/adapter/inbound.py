"""From bytes of the client to a checked message, or to a refusal that says what was wrong.

`LineSplitter` cuts the stream and bounds what one line may hold. `decode_line` decodes one line
strictly, so that nothing gets in that storage could not give back unchanged. Both are pure: no file
descriptor, no thread, no clock. Neither raises for anything a client can send.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pydantic
from mcp_types import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    JSONRPCMessage,
    RequestId,
    jsonrpc_message_adapter,
)

from agentbus.encoding import decode_lenient, decode_strict
from agentbus.errors import ValidationError
from agentbus.limits import STDIN_FRAME_BYTES

_EDGE_BYTES = 512
"""So much of either end of a line is searched for the id when the line cannot be parsed."""

_ID = rb'-?[0-9]{1,18}|"[^"\\]{0,200}"'
_SCALAR = rb'"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*|true|false|null'
_FIRST_BRACE = re.compile(rb"[^{\[]{0,16}\{")
_LEADING_MEMBER = re.compile(rb'\s*"([^"\\]*)"\s*:\s*(' + _SCALAR + rb")\s*,")
_LAST_ID = re.compile(rb',\s*"id"\s*:\s*(' + _ID + rb')\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')


@dataclass(frozen=True, slots=True)
class OverlongLine:
    """What is kept of a line over the limit: enough to find the id of the request."""

    head: bytes
    tail: bytes


Line = bytes | OverlongLine


class LineSplitter:
    """Cuts a stream into lines. A line over the limit is thrown away up to its newline."""

    def __init__(self, limit_bytes: int = STDIN_FRAME_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._line = bytearray()
        self._overlong_head: bytes | None = None

    def feed(self, data: bytes) -> list[Line]:
        """The lines that `data` completes, without their newlines."""
        lines: list[Line] = []
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            self._add(data[start:end])
            lines.append(self._take())
            start = end + 1
        self._add(data[start:])
        return lines

    def finish(self) -> list[Line]:
        """The last line, if the stream ended without a newline."""
        return [self._take()] if self._line else []

    def _add(self, piece: bytes) -> None:
        self._line += piece
        if self._overlong_head is None:
            if len(self._line) <= self._limit_bytes:
                return
            self._overlong_head = bytes(self._line[:_EDGE_BYTES])
        del self._line[:-_EDGE_BYTES]

    def _take(self) -> Line:
        line = bytes(self._line)
        self._line.clear()
        if self._overlong_head is None:
            return line
        overlong = OverlongLine(self._overlong_head, line)
        self._overlong_head = None
        return overlong


@dataclass(frozen=True, slots=True)
class Refusal:
    """The JSON-RPC error that answers a line. Without an id the client cannot match it."""

    request_id: RequestId | None
    code: int
    message: str


def decode_line(line: Line) -> JSONRPCMessage | Refusal | None:
    """The message in a line, or its refusal.

    None means that nothing is to be done: the line is blank, or it is an unusable notification or
    response, which JSON-RPC forbids to answer.
    """
    if isinstance(line, OverlongLine):
        limit = f"a line may hold {STDIN_FRAME_BYTES} bytes at most; send less at once"
        return Refusal(_id_at_edges(line.head, line.tail), INVALID_REQUEST, limit)
    if not line.strip():
        return None
    try:
        value = decode_strict(line)
    except ValidationError as error:
        return _refuse_content(line, error.message)
    if not isinstance(value, dict):
        return Refusal(None, INVALID_REQUEST, _envelope_problem(value))
    if "method" in value and "id" in value and _usable_id(value["id"]) is None:
        # The SDK's model would take it for a notification, and the client would wait for ever.
        return Refusal(None, INVALID_REQUEST, _envelope_problem(value))
    try:
        return jsonrpc_message_adapter.validate_python(value, by_name=False)
    except pydantic.ValidationError:
        return _refuse_envelope(value, INVALID_REQUEST, _envelope_problem(value))


def _refuse_content(line: bytes, problem: str) -> Refusal | None:
    """Refuse what the strict decoder did not take, addressed as well as possible."""
    try:
        value = decode_lenient(line)
    except ValidationError:
        return Refusal(_leading_id(line[:_EDGE_BYTES]), PARSE_ERROR, f"Parse error: {problem}")
    except RecursionError:
        request_id = _id_at_edges(line[:_EDGE_BYTES], line[-_EDGE_BYTES:])
        return Refusal(request_id, INVALID_REQUEST, f"Invalid request: {problem}")
    if isinstance(value, dict) and value.get("method") == "tools/call":
        # A model reads this one, and it can repair its arguments.
        return _refuse_envelope(value, INVALID_PARAMS, f"Invalid params: {problem}")
    return _refuse_envelope(value, INVALID_REQUEST, f"Invalid request: {problem}")


def _refuse_envelope(value: Any, code: int, message: str) -> Refusal | None:
    if not isinstance(value, dict):
        return Refusal(None, code, message)
    is_notification = "method" in value and "id" not in value
    is_response = "method" not in value and ("result" in value or "error" in value)
    if is_notification or is_response:
        return None
    return Refusal(_usable_id(value.get("id")), code, message)


def _envelope_problem(value: Any) -> str:
    if isinstance(value, list):
        return "Invalid request: batches are not part of MCP; send one message a line"
    if not isinstance(value, dict):
        return "Invalid request: a message must be a JSON object"
    if value.get("jsonrpc") != "2.0":
        return 'Invalid request: "jsonrpc" must be "2.0"'
    if "id" in value and _usable_id(value["id"]) is None:
        return 'Invalid request: "id" must be text or an integer'
    if not isinstance(value.get("method"), str):
        return 'Invalid request: "method" must be text'
    return 'Invalid request: "params" must be an object'


def _usable_id(value: Any) -> RequestId | None:
    """JSON's true is an int to Python, but not an id; an id must also survive the answer."""
    if isinstance(value, str):
        return value if value.isascii() or _is_utf8(value) else None
    if isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**64:
        return value
    return None


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _id_at_edges(head: bytes, tail: bytes) -> RequestId | None:
    """The id of a request whose line is too long or too deep to parse but otherwise well-formed.

    A member directly before the closing brace of the line belongs to the outermost object.
    """
    request_id = _leading_id(head)
    if request_id is None and (last := _LAST_ID.search(tail)) is not None:
        request_id = _id_from_token(last[1])
    return request_id


def _leading_id(head: bytes) -> RequestId | None:
    """The id when only plain members stand before it, as most clients write it."""
    brace = _FIRST_BRACE.match(head)
    position = brace.end() if brace is not None else len(head)
    while (member := _LEADING_MEMBER.match(head, position)) is not None:
        if member[1] == b"id":
            return _id_from_token(member[2])
        position = member.end()
    return None


def _id_from_token(token: bytes) -> RequestId | None:
    if re.fullmatch(_ID, token) is None:
        return None
    if not token.startswith(b'"'):
        return int(token)
    try:
        return token[1:-1].decode()
    except UnicodeDecodeError:
        return None
