"""When two calls are the same call."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentbus.envelope import Reference
from agentbus.protocol.operations import CreateChannel, Send, parse_operation
from agentbus.rules.receipts import FINGERPRINT_BYTES, fingerprint

_FULL = Send(
    "general",
    "hi",
    type="note",
    subject="s",
    reply_to="m",
    thread="t",
    metadata={"a": 1, "b": [1, 2]},
    references=(Reference("url", "http://x"),),
    tags=("x", "y"),
)


def test_it_has_a_fixed_size_and_a_fixed_value() -> None:
    value = fingerprint(Send("general", "hi"))
    assert len(value) == FINGERPRINT_BYTES
    # Stored in databases: changing it makes repeats across an upgrade conflicts.
    assert value.hex() == "64b3cc9391bbb44eb6e322c88bcac154"


def test_it_does_not_depend_on_the_order_of_keys_at_any_depth() -> None:
    one = Send("c", "x", metadata={"a": 1, "b": {"c": 2, "d": [{"e": 1, "f": 2}]}})
    two = Send("c", "x", metadata={"b": {"d": [{"f": 2, "e": 1}], "c": 2}, "a": 1})
    assert fingerprint(one) == fingerprint(two)


def test_it_does_not_depend_on_the_operation_id() -> None:
    assert fingerprint(Send("c", "x", operation_id="1")) == fingerprint(Send("c", "x"))


def test_an_explicit_null_is_the_same_call() -> None:
    arguments = {"channel": "c", "content": "x"}
    bare = parse_operation("send", arguments)
    nulls = parse_operation("send", {**arguments, "subject": None, "tags": []})
    assert fingerprint(bare) == fingerprint(nulls)


@pytest.mark.parametrize(
    "change",
    [
        {"channel": "other"},
        {"content": "hi "},
        {"type": "other"},
        {"subject": None},
        {"reply_to": "n"},
        {"thread": "u"},
        {"metadata": {"a": 1, "b": [2, 1]}},
        {"metadata": {"a": True, "b": [1, 2]}},
        {"metadata": {"a": 1.5, "b": [1, 2]}},
        {"metadata": {"a": "1", "b": [1, 2]}},
        {"references": (Reference("unix_path", "http://x"),)},
        {"references": ()},
        {"tags": ("y", "x")},
    ],
)
def test_it_depends_on_every_part_of_the_payload(change: dict[str, Any]) -> None:
    assert fingerprint(replace(_FULL, **change)) != fingerprint(_FULL)


def test_moving_text_from_one_field_to_another_is_another_call() -> None:
    calls = [
        Send("c", "x", type="v"),
        Send("c", "x", subject="v"),
        Send("c", "x", thread="v"),
        Send("c", "x", tags=("v",)),
    ]
    assert len({fingerprint(call) for call in calls}) == len(calls)


def test_two_operations_with_equal_fields_differ() -> None:
    assert fingerprint(CreateChannel("c")) != fingerprint(Send("c", "ordinary"))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=5), _JSON, max_size=6), st.randoms())
def test_shuffled_metadata_has_the_same_fingerprint(metadata: dict[str, Any], random: Any) -> None:
    items = list(metadata.items())
    random.shuffle(items)
    assert fingerprint(Send("c", "x", metadata=metadata)) == fingerprint(
        Send("c", "x", metadata=dict(items))
    )
