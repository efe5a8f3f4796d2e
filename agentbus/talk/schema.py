"""The documents of talk, in its first version and in the unversioned one before it.

Owns what a request and a response look like, both ways. Never decides who may ask. Pure, on any
thread.

Parsers take both shapes and ignore members that they do not know, because both sides add some.
What we emit is always the first version, with the capabilities that we implement: all there are.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import Any, Final

from agentbus.encoding import decode_strict, encode
from agentbus.errors import ValidationError
from agentbus.limits import KIB
from agentbus.rules.talk import TALK_CODE, UNKNOWN
from agentbus.settings import shown

TALK_VERSION: Final = 1
CAPABILITIES: Final = ("structured-errors", "retryable-errors")

REQUEST_BYTES: Final = 256 * KIB
"""Largest body of a request."""

RESPONSE_BYTES: Final = 4096 * KIB
"""Largest body of a response that our client reads."""

KEY_BYTES: Final = 128
"""Of an idempotency key."""

ERROR_CHARACTERS: Final = 1000
"""Of the text that explains a failure; a longer one is cut."""


@dataclass(frozen=True, slots=True)
class TalkRequest:
    """A question. `depth` counts its delegation already: the caller adds one before it sends.

    `session` proves to another instance of this bus who asks; `idempotency_key` makes a repeat get
    the first answer. Both travel in `ext`, which only servers of this kind are sent.
    """

    from_instance: str
    prompt: str
    depth: int
    session: str | None = None
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class TalkResponse:
    """An answer: `text`, or `error` with its code."""

    success: bool
    from_instance: str
    text: str = ""
    error: str | None = None
    error_code: str | None = None
    retryable: bool = False
    duration_ms: int | None = None


def encode_request(request: TalkRequest) -> bytes:
    """The body to post."""
    document: dict[str, Any] = {
        "fromInstance": request.from_instance,
        "prompt": request.prompt,
        "depth": request.depth,
        "protocolVersion": TALK_VERSION,
        "capabilities": CAPABILITIES,
    }
    ext = {"session": request.session, "idempotencyKey": request.idempotency_key}
    given = {key: value for key, value in ext.items() if value is not None}
    if given:
        document["ext"] = given
    return encode(document)


def parse_request(body: bytes) -> TalkRequest:
    """Raises ValidationError that names the member and the correction."""
    document = _object(decode_strict(body), "the request")
    _version(document)
    capabilities = document.get("capabilities", [])
    if not isinstance(capabilities, list) or any(type(item) is not str for item in capabilities):
        raise ValidationError(f"capabilities must be a list of text, not {shown(capabilities)}")
    from_instance = document.get("fromInstance")
    if not isinstance(from_instance, str) or not from_instance:
        raise ValidationError("fromInstance must be text that is not empty")
    prompt = document.get("prompt")
    if not isinstance(prompt, str):
        raise ValidationError("prompt must be text")
    depth = _whole(document.get("depth"))
    if depth is None or depth < 0:
        raise ValidationError("depth must be a whole number of at least 0")
    ext = _object(document.get("ext", {}), "ext")
    key = _optional_text(ext, "idempotencyKey")
    if key is not None and not 1 <= len(key.encode()) <= KEY_BYTES:
        raise ValidationError(f"ext.idempotencyKey must have 1 to {KEY_BYTES} bytes")
    session = _optional_text(ext, "session")
    if session == "":
        raise ValidationError("ext.session must be text that is not empty, or left out")
    # As the bus writes names: another spelling of one is no other caller.
    caller = unicodedata.normalize("NFC", from_instance)
    return TalkRequest(caller, prompt, depth, session, key)


def encode_response(response: TalkResponse) -> bytes:
    """The body of an answer. Raises ValidationError for text that JSON cannot carry."""
    document: dict[str, Any] = {
        "success": response.success,
        "text": response.text,
        "fromInstance": response.from_instance,
    }
    if not response.success:
        document["error"] = response.error
        document["errorCode"] = response.error_code
        document["retryable"] = response.retryable
    if response.duration_ms is not None:
        document["durationMs"] = response.duration_ms
    return encode({**document, "protocolVersion": TALK_VERSION, "capabilities": CAPABILITIES})


def parse_response(body: bytes) -> TalkResponse:
    """Raises ValidationError for what is no answer of either version.

    A failure without a code is `unknown`; one that does not say so is not retryable, whatever the
    table says: an old peer knew nothing of retries.
    """
    document = _object(decode_strict(body), "the response")
    _version(document)
    success = document.get("success")
    if not isinstance(success, bool):
        raise ValidationError("success must be true or false")
    retryable = document.get("retryable", False)
    if not isinstance(retryable, bool):
        raise ValidationError("retryable must be true or false")
    duration = document.get("durationMs")
    if isinstance(duration, bool) or not isinstance(duration, int | float | None):
        raise ValidationError("durationMs must be a number")
    text = _optional_text(document, "text") or ""
    from_instance = _optional_text(document, "fromInstance") or ""
    error = _optional_text(document, "error")
    code = _optional_text(document, "errorCode")
    duration_ms = None if duration is None else round(duration)
    if success:
        return TalkResponse(True, from_instance, text, duration_ms=duration_ms)
    return TalkResponse(
        False,
        from_instance,
        error=error or "the target gave no reason",
        error_code=code or UNKNOWN,
        retryable=retryable,
        duration_ms=duration_ms,
    )


def failure(
    from_instance: str, code: str, error: str, duration_ms: int | None = None
) -> TalkResponse:
    """An answer that says why there is no text."""
    return TalkResponse(
        False,
        from_instance,
        error=error[:ERROR_CHARACTERS],
        error_code=code,
        retryable=TALK_CODE[code].retryable,
        duration_ms=duration_ms,
    )


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValidationError(f"{what} must be an object")
    return value


def _version(document: dict[str, Any]) -> None:
    if "protocolVersion" in document and _whole(document["protocolVersion"]) != TALK_VERSION:
        raise ValidationError(f"protocolVersion must be {TALK_VERSION}, or left out")


def _whole(value: Any) -> int | None:
    """Also of `1.0`: to a peer in JavaScript it is the same number."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if type(value) is int else None


def _optional_text(document: dict[str, Any], key: str) -> str | None:
    value = document.get(key)
    if value is not None and not isinstance(value, str):
        raise ValidationError(f"{key} must be text")
    return value
