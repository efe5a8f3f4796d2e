"""The strict decoder refuses what others change silently; the fast one keeps 64 bits exactly."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentbus.encoding import (
    check_text,
    check_value,
    decode_frame,
    decode_strict,
    encode,
    encode_canonical,
    encode_line,
    encode_pretty,
    raw,
)
from agentbus.errors import ValidationError

REFUSED = {
    "nothing": b"",
    "bad UTF-8": b'"\xff"',
    "overlong UTF-8": b'"\xc0\xaf"',
    "UTF-8 of a surrogate": b'"\xed\xa0\x80"',
    "byte order mark": b'\xef\xbb\xbf{"a": 1}',
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "escaped NUL": b'"a\\u0000b"',
    "plain NUL": b'"a\0b"',
    "NUL in a key": b'{"a\\u0000": 1}',
    "high surrogate alone": b'"\\ud800"',
    "low surrogate alone": b'["\\udc00"]',
    "surrogates the wrong way round": b'"\\udc00\\ud800"',
    "surrogate in a key": b'{"\\ud800": 1}',
    "NaN": b"NaN",
    "infinity": b'{"a": Infinity}',
    "minus infinity": b"[-Infinity]",
    "a float that overflows": b"1e999",
    "a negative float that overflows": b"-1e999",
    "2**64": b"18446744073709551616",
    "-2**63 - 1": b"-9223372036854775809",
    "5000 digits": b"9" * 5000,
    "minus and 5000 digits": b"-" + b"9" * 5000,
    "5000 digits deep inside": b'{"a": [' + b"1" * 5000 + b"]}",
    "depth 33": b"[" * 33 + b"]" * 33,
    "depth 33 of objects": b'{"a":' * 33 + b"1" + b"}" * 33,
    "depth 10,000": b"[" * 10_000 + b"]" * 10_000,
    "depth 10,000 of objects": b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    "depth 10,000, never closed": b"[" * 10_000,
    "duplicate keys": b'{"a": 1, "a": 1}',
    "duplicate keys inside": b'[{"b": {"a": 1, "c": 2, "a": 3}}]',
    "duplicate keys spelled differently": b'{"a": 1, "\\u0061": 2}',
    "two documents": b"{} {}",
    "trailing comma": b"[1,]",
    "single quotes": b"{'a': 1}",
    "comment": b"{} // no",
    "plain newline in text": b'"a\nb"',
    "leading zero": b"01",
    "cut short": b'{"a": ',
}


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED.keys())
def test_strict_decoder_refuses_with_a_validation_error(text: bytes) -> None:
    with pytest.raises(ValidationError) as caught:
        decode_strict(text)
    assert caught.value.message


def test_refused_duplicate_key_is_named() -> None:
    with pytest.raises(ValidationError, match="duplicate key 'colour'"):
        decode_strict(b'{"colour": 1, "b": 2, "colour": 3}')


def test_position_of_bad_utf8_is_named() -> None:
    with pytest.raises(ValidationError, match="byte 3"):
        decode_strict(b'"ab\xff"')


def test_text_with_a_lone_surrogate_is_refused_too() -> None:
    with pytest.raises(ValidationError, match="surrogate"):
        decode_strict('"\ud800"')


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"18446744073709551615", 2**64 - 1),
        (b"-9223372036854775808", -(2**63)),
        (b"0", 0),
        (b"-0.5", -0.5),
        (b'"\\ud83d\\ude00"', "\U0001f600"),
        ('"\U0001f600 é"'.encode(), "\U0001f600 é"),
        (b'  {"a": [true, false, null]}\n', {"a": [True, False, None]}),
        (b'[{"a": 1}, {"a": 2}]', [{"a": 1}, {"a": 2}]),
    ],
)
def test_strict_decoder_accepts_what_is_just_inside(text: bytes, value: object) -> None:
    assert decode_strict(text) == value


def test_depth_32_is_accepted() -> None:
    value = decode_strict(b"[" * 32 + b"]" * 32)
    depth = 0
    while isinstance(value, list):
        depth += 1
        value = value[0] if value else None
    assert depth == 32


@pytest.mark.parametrize(
    "value",
    [2**64 - 1, 2**63, 2**63 - 1, 10**18, -(2**63), -(2**63) + 1, 2**53 + 1, 0, -1],
)
def test_frame_decoder_keeps_64_bit_integers_exactly(value: int) -> None:
    decoded = decode_frame(b'{"n": [%d]}' % value)
    assert decoded == {"n": [value]}
    assert type(decoded["n"][0]) is int


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, 10**30])
def test_frame_decoder_refuses_integers_beyond_64_bits(value: int) -> None:
    with pytest.raises(ValidationError, match="64 bits"):
        decode_frame(b'{"n": %d}' % value)


@pytest.mark.parametrize(
    "frame",
    [b"", b"{", b'"\xff"', b"NaN", b'"\\ud800"', b"[" * 10_000 + b"]" * 10_000, b"{} {}"],
)
def test_frame_decoder_refuses_malformed_frames(frame: bytes) -> None:
    with pytest.raises(ValidationError):
        decode_frame(frame)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_frame_decoder_takes_any_buffer(kind: type) -> None:
    assert decode_frame(kind(b'{"n": 12345678901234567890}')) == {"n": 12345678901234567890}
    assert decode_frame(kind(b'{"n": 1}')) == {"n": 1}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_json_does_not_have_are_refused(value: float) -> None:
    with pytest.raises(ValidationError, match="NaN"):
        check_value({"a": [value]})


@pytest.mark.parametrize("value", [{1: 2}, (1, 2), b"bytes", object(), {"a": {3}}])
def test_values_that_json_does_not_have_are_refused(value: object) -> None:
    with pytest.raises(ValidationError):
        check_value(value)


@pytest.mark.parametrize("value", ["\ud800", 2**64, -(2**63) - 1, object(), {"a": {"\udc00": 1}}])
def test_what_cannot_be_encoded_is_a_validation_error(value: object) -> None:
    with pytest.raises(ValidationError, match="not encodable"):
        encode(value)
    with pytest.raises(ValidationError, match="not encodable"):
        encode_canonical(value)


def test_text_check_names_what_it_checked() -> None:
    with pytest.raises(ValidationError, match="subject holds a NUL"):
        check_text("a\0b", "subject")
    with pytest.raises(ValidationError, match="subject holds a NUL"):
        check_text("é\0b", "subject")
    with pytest.raises(ValidationError, match="subject holds a lone surrogate"):
        check_text("\udcff", "subject")


def test_canonical_encoding_ignores_the_order_of_keys() -> None:
    assert encode_canonical({"b": 1, "a": {"d": 1, "c": 2}}) == encode_canonical(
        {"a": {"c": 2, "d": 1}, "b": 1}
    )


def test_line_is_one_line_and_embeds_ready_json() -> None:
    line = encode_line({"content": "a\nb", "ready": raw(b'{"x":1}')})
    assert line == b'{"content":"a\\nb","ready":{"x":1}}\n'


def test_pretty_text_decodes_to_the_same_value() -> None:
    value = {"a": [1, {"b": "é"}]}
    assert decode_strict(encode_pretty(value)) == value


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(min_value=-(2**63), max_value=2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), inner
        )
    ),
    max_leaves=20,
)


@given(_JSON)
def test_whatever_is_encoded_is_decoded_the_same_by_both_decoders(value: object) -> None:
    encoded = encode(value)
    assert decode_strict(encoded) == value
    assert decode_frame(encoded) == value


@given(st.binary(max_size=200))
def test_arbitrary_bytes_never_raise_anything_but_a_validation_error(text: bytes) -> None:
    for decode in (decode_strict, decode_frame):
        with contextlib.suppress(ValidationError):
            decode(text)
