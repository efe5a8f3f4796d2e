"""The only module that encodes or decodes JSON.

Two decoders, because they answer two questions. `decode_strict` is for text from outside (harness,
configuration file, hook output): it refuses what other parsers silently change. `decode_frame` is
for frames between adapter and daemon: orjson speed, with the strict path taken for the one thing
that orjson changes without a word, integers beyond 64 bits.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

import orjson

from agentbus.errors import ValidationError
from agentbus.limits import JSON_DEPTH

_MAX_INTEGER = 2**64 - 1
_MIN_INTEGER = -(2**63)
_ANY_DIGIT_AS_0 = bytes.maketrans(b"123456789", b"000000000")
_LONG_DIGITS = b"0" * 19
_TOO_DEEP = f"JSON is nested deeper than {JSON_DEPTH} levels; flatten it"


def encode(value: Any) -> bytes:
    """Compact JSON. Raises ValidationError for what JSON or UTF-8 cannot carry."""
    try:
        return orjson.dumps(value)
    except (orjson.JSONEncodeError, RecursionError) as error:
        raise ValidationError(f"not encodable as JSON: {error}") from None


def encode_canonical(value: Any) -> bytes:
    """The same bytes for equal values, whatever the order of object keys."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except (orjson.JSONEncodeError, RecursionError) as error:
        raise ValidationError(f"not encodable as JSON: {error}") from None


def encode_line(value: Any) -> bytes:
    """One newline-terminated frame. Embed ready-made JSON with `raw`."""
    return orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)


def encode_pretty(value: Any) -> str:
    """Indented JSON for people and `--json`."""
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()


def raw(encoded: bytes) -> Any:
    """Already encoded JSON, put into a surrounding document as it is, without decoding it."""
    return orjson.Fragment(encoded)


def decode_frame(frame: bytes | bytearray | memoryview) -> Any:
    """Decode a frame of the internal protocol. Raises ValidationError."""
    frame = bytes(frame)
    if _LONG_DIGITS in frame.translate(_ANY_DIGIT_AS_0):  # an eighth of a regular expression's time
        return decode_strict(frame)
    try:
        return orjson.loads(frame)
    except orjson.JSONDecodeError as error:
        raise ValidationError(f"not a JSON document: {error}") from None


def decode_trusted(encoded: bytes | str) -> Any:
    """Decode JSON that this program encoded itself."""
    return orjson.loads(encoded)


def decode_strict(text: bytes | str, *, depth: int = JSON_DEPTH) -> Any:
    """Decode JSON from outside. Raises ValidationError that says what was wrong.

    Refused beside malformed JSON: bad UTF-8, duplicate keys, NaN and infinities, integers beyond 64
    bits, lone surrogates, NUL characters, nesting deeper than `depth`.
    """
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValidationError(f"not UTF-8 at byte {error.start}") from None
    try:
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_refuse_constant,
            parse_int=_integer,
            parse_float=_float,
        )
    except ValidationError:
        raise
    except RecursionError:
        raise ValidationError(_TOO_DEEP) from None
    except ValueError as error:
        raise ValidationError(f"not a JSON document: {error}") from None
    check_value(value, depth)
    return value


def decode_lenient(text: bytes) -> Any:
    """What a document that `decode_strict` refused seems to say, only to address the refusal.

    Raises ValidationError for bad UTF-8 and malformed JSON, RecursionError for absurd nesting.
    Never pass on what it returns: it may hold text and numbers that nothing else can carry.
    """
    try:
        return json.loads(text.decode("utf-8"), parse_int=_any_integer)
    except ValueError as error:
        raise ValidationError(f"not a JSON document: {error}") from None


def check_value(value: Any, depth: int = JSON_DEPTH) -> None:
    """Refuse what must not reach storage: bad text at any place, odd numbers, too deep nesting."""
    if isinstance(value, str):
        check_text(value)
    elif isinstance(value, dict):
        if depth <= 0:
            raise ValidationError(_TOO_DEEP)
        for key, item in value.items():
            if not isinstance(key, str):
                raise ValidationError(f"object keys must be text, not {type(key).__name__}")
            check_text(key)
            check_value(item, depth - 1)
    elif isinstance(value, list):
        if depth <= 0:
            raise ValidationError(_TOO_DEEP)
        for item in value:
            check_value(item, depth - 1)
    elif isinstance(value, bool) or value is None:
        return
    elif isinstance(value, int):
        if not _MIN_INTEGER <= value <= _MAX_INTEGER:
            raise ValidationError("integers must fit 64 bits; send larger numbers as text")
    elif isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise ValidationError("NaN and infinities are not JSON; send them as text")
    else:
        raise ValidationError(f"{type(value).__name__} is not a JSON type")


def check_text(text: str, what: str = "text") -> None:
    """Refuse text that UTF-8 cannot carry or that holds NUL."""
    if text.isascii():
        if "\0" in text:
            raise ValidationError(f"{what} holds a NUL character; remove it")
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValidationError(f"{what} holds a lone surrogate, which is not a character") from None
    if "\0" in text:
        raise ValidationError(f"{what} holds a NUL character; remove it")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValidationError(f"duplicate key {key!r}")
            seen.add(key)
    return result


def _integer(digits: str) -> int:
    if len(digits) > 20:  # also keeps Python from parsing thousands of digits
        raise ValidationError("integers must fit 64 bits; send larger numbers as text")
    return int(digits)


def _any_integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= 20 else float(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise ValidationError(f"number {digits[:40]} is out of range")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValidationError(f"{name} is not JSON; send it as text")
