"""The sixteen operations of the tool `peer`: each limit at its edges, each type strictly."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from agentbus.encoding import decode_frame, encode
from agentbus.errors import ValidationError
from agentbus.limits import OPERATION_ID_BYTES, PEER_BODY_CHARACTERS
from agentbus.protocol.fields import check_name
from agentbus.protocol.peer import (
    PEER_OPERATIONS,
    PeerDescribe,
    PeerSend,
    arguments_of,
    parse_peer,
    required_arguments,
)
from agentbus.protocol.peer_frames import (
    parse_cancel_peer,
    parse_peer_request,
    parse_peer_shown,
    parse_renew,
)

KEYED = {"delivery_id": "d1", "summary": "at it", "idempotency_key": "k1"}
LEAST: dict[str, dict[str, Any]] = {
    "discover": {},
    "send": {"to": ["Kim"], "body": "hello", "idempotency_key": "k1"},
    "recent": {},
    "collect": {"message_id": "m1"},
    "agents": {},
    "describe": {"description": "tests"},
    "threads": {},
    "status": {"message_id": "m1"},
    "requests": {},
    "human": {"delivery_id": "d1", "reason": "unsure"},
    "wait": {},
    "ack": {"delivery_id": "d1"},
    "reply": {"delivery_id": "d1", "body": "done", "idempotency_key": "k1"},
    "progress": KEYED,
    "checkpoint": {**KEYED, "proposed_action": "delete"},
    "memory_context": {"delivery_id": "d1"},
}
"""The least that each operation needs."""

BESIDE: dict[tuple[str, str], dict[str, Any]] = {
    ("send", "ack"): {"reply_to": "m1"},
    ("send", "expect_reply_within_seconds"): {"kind": "request"},
    ("send", "capability"): {"kind": "request"},
}
"""What an argument needs beside it."""

IDS = (1, 80)
TEXT_LENGTHS: dict[tuple[str, str], tuple[int, int]] = {
    ("discover", "capability"): IDS,
    ("discover", "fleet_id"): (1, 256),
    ("discover", "cursor"): (1, 1024),
    ("agents", "fleet_id"): (1, 256),
    ("agents", "cursor"): (1, 1024),
    ("describe", "description"): (0, 1000),
    ("send", "body"): (1, 65_536),
    ("send", "idempotency_key"): (1, 128),
    ("send", "reply_to"): IDS,
    ("send", "capability"): IDS,
    ("recent", "agent_id"): (1, 256),
    ("recent", "reply_to"): IDS,
    ("recent", "before"): (1, 1024),
    ("collect", "message_id"): IDS,
    ("status", "message_id"): IDS,
    ("human", "delivery_id"): IDS,
    ("human", "reason"): (1, 2000),
    ("ack", "delivery_id"): IDS,
    ("reply", "delivery_id"): IDS,
    ("reply", "body"): (1, 65_536),
    ("reply", "idempotency_key"): (1, 128),
    ("reply", "reply_to"): IDS,
    ("progress", "delivery_id"): IDS,
    ("progress", "summary"): (1, 2000),
    ("progress", "idempotency_key"): (1, 128),
    ("checkpoint", "delivery_id"): IDS,
    ("checkpoint", "summary"): (1, 2000),
    ("checkpoint", "idempotency_key"): (1, 128),
    ("checkpoint", "proposed_action"): (1, 4000),
    ("memory_context", "delivery_id"): IDS,
}
WHOLE_NUMBERS: dict[tuple[str, str], tuple[int, int]] = {
    ("discover", "limit"): (1, 100),
    ("agents", "limit"): (1, 100),
    ("recent", "limit"): (1, 100),
    ("requests", "limit"): (1, 100),
    ("collect", "expected"): (1, 100),
    ("send", "expect_reply_within_seconds"): (60, 604_800),
}
NUMBERS: dict[tuple[str, str], tuple[float, float]] = {
    ("wait", "timeout"): (0, 50),
    ("collect", "timeout"): (0, 45),
    ("checkpoint", "confidence"): (0, 1),
}
THREADS = [("send", "thread_id"), ("recent", "thread_id")]
LISTS: dict[tuple[str, str], tuple[int, int, int]] = {
    ("send", "to"): (1, 100, 256),
    ("checkpoint", "missing_information"): (0, 20, 2000),
}
"""Least and most items, and the longest item."""

FLAGS = [
    ("discover", "available_only"),
    ("send", "ack"),
    ("reply", "ack"),
    ("checkpoint", "conflicting_results"),
    ("checkpoint", "request_human"),
]
WORDS: dict[tuple[str, str], tuple[str, ...]] = {
    ("send", "kind"): ("info", "request", "response", "ack"),
    ("checkpoint", "action_type"): ("read", "write", "external", "destructive"),
    ("requests", "state"): ("awaiting", "overdue", "unanswered"),
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "discover": {"available_only": True, "limit": 50},
    "agents": {"limit": 50},
    "send": {"kind": "info", "ack": None},
    "recent": {"limit": 20},
    "collect": {"timeout": 30, "expected": None},
    "requests": {"limit": 20, "state": None},
    "wait": {"timeout": 50},
    "reply": {"ack": True},
    "checkpoint": {"confidence": 1, "action_type": "read", "request_human": False},
}


def parse(op: str, key: str, value: Any) -> Any:
    """The operation with this argument; what it holds for it."""
    args = {**LEAST[op], **BESIDE.get((op, key), {}), key: value}
    if op == "memory_context":
        args = {key: value}
    return getattr(parse_peer(op, args), key)


def refused(op: str, key: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=f"^peer {op}: {key} "):
        parse(op, key, value)


def _named(table: Any) -> Any:
    return [pytest.param(*name, *_flat(value), id="-".join(name)) for name, value in table.items()]


def _flat(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def test_the_tables_here_know_every_argument_of_the_sixteen_operations() -> None:
    assert list(PEER_OPERATIONS) == list(LEAST)
    assert len(LEAST) == 16
    known = {*TEXT_LENGTHS, *WHOLE_NUMBERS, *NUMBERS, *LISTS, *THREADS, *FLAGS, *WORDS}
    known.add(("memory_context", "message_id"))
    assert known == {
        (name, key) for name, operation in PEER_OPERATIONS.items() for key in operation.FIELDS
    }


@pytest.mark.parametrize("op", LEAST)
def test_the_least_arguments_are_enough_and_each_of_them_is_needed(op: str) -> None:
    operation = parse_peer(op, LEAST[op])
    assert op == operation.NAME
    for key, value in DEFAULTS.get(op, {}).items():
        assert getattr(operation, key) == value
    for key in required_arguments(type(operation)):
        less = {name: value for name, value in LEAST[op].items() if name != key}
        with pytest.raises(ValidationError, match=f"peer {op}: the argument {key} is required"):
            parse_peer(op, less)


@pytest.mark.parametrize("op", LEAST)
def test_the_arguments_of_an_operation_make_it_again(op: str) -> None:
    operation = parse_peer(op, LEAST[op])
    frame = decode_frame(encode({"args": arguments_of(operation)}))
    assert parse_peer(op, frame["args"]) == operation


def test_arguments_may_be_missing_where_none_are_needed() -> None:
    for op in ("discover", "agents", "recent", "threads", "requests", "wait"):
        assert parse_peer(op, None) == parse_peer(op, {})


@pytest.mark.parametrize("op", LEAST)
@pytest.mark.parametrize("args", [[], "x", 5, True])
def test_arguments_are_an_object(op: str, args: Any) -> None:
    with pytest.raises(ValidationError, match=f"peer {op}: args must be an object"):
        parse_peer(op, args)


@pytest.mark.parametrize("op", [None, 5, True, [], {}, "", "Wait", "fly"])
def test_an_operation_that_is_none_is_refused_with_those_there_are(op: Any) -> None:
    with pytest.raises(ValidationError, match="known: discover, send"):
        parse_peer(op, {})


@pytest.mark.parametrize("op", LEAST)
def test_an_argument_of_nothing_or_of_another_operation_is_refused(op: str) -> None:
    others = {key for operation in PEER_OPERATIONS.values() for key in operation.FIELDS}
    strangers = others - PEER_OPERATIONS[op].FIELDS.keys()
    for key in (*sorted(strangers), "token", "operation_id", "session_id", "from", "sender"):
        with pytest.raises(ValidationError, match=f"unknown argument '{key}'"):
            parse_peer(op, {**LEAST[op], key: "x"})


@pytest.mark.parametrize(("op", "key", "least", "most"), _named(TEXT_LENGTHS))
def test_a_text_has_its_length_in_characters(op: str, key: str, least: int, most: int) -> None:
    for length in {least, least + 1, most - 1, most}:
        assert len(parse(op, key, "ä" * length)) == length
    refused(op, key, "ä" * (most + 1))
    if least:
        refused(op, key, "")
    for wrong in (5, True, 1.5, ["x"], {"x": "y"}):
        refused(op, key, wrong)


@pytest.mark.parametrize(("op", "key"), THREADS)
def test_a_thread_is_a_name_as_search_takes_it_and_bounded_in_characters_too(
    op: str, key: str
) -> None:
    for thread in ("x", "x" * 80, "ä" * 64, "\u20ac" * 42, "release 1.0", "\U0001f680" * 32):
        assert parse(op, key, thread) == thread == check_name(thread)
    assert parse(op, key, "a\u0308" * 64) == "ä" * 64  # judged as it is stored
    for wrong in ("", "x" * 81, "x" * 129, "ä" * 65, "\u20ac" * 43, "\U0001f680" * 33):
        refused(op, key, wrong)
    for character in "\0\n\t\x1b\x7f\x85\u2028\u2029\ud800":
        refused(op, key, f"a{character}b")
    for wrong_type in (5, True, 1.5, ["x"], {"x": "y"}):
        refused(op, key, wrong_type)


@pytest.mark.parametrize(("op", "key", "least", "most"), _named(WHOLE_NUMBERS))
def test_a_whole_number_has_its_bounds(op: str, key: str, least: int, most: int) -> None:
    for value in (least, least + 1, most - 1, most):
        assert parse(op, key, value) == value
    for wrong in (least - 1, most + 1, True, False, float(least), str(least), [least]):
        refused(op, key, wrong)


@pytest.mark.parametrize(("op", "key", "least", "most"), _named(NUMBERS))
def test_a_number_has_its_bounds(op: str, key: str, least: float, most: float) -> None:
    for value in (least, least + 0.001, most - 0.001, most, most / 2):
        assert parse(op, key, value) == value
    for wrong in (
        least - 0.001,
        most + 0.001,
        most + 1,
        True,
        str(least),
        float("nan"),
        float("inf"),
        [least],
    ):
        refused(op, key, wrong)


@pytest.mark.parametrize(("op", "key", "least", "most", "length"), _named(LISTS))
def test_a_list_has_its_bounds_and_each_item_once(
    op: str, key: str, least: int, most: int, length: int
) -> None:
    for count in {least, least + 1, most - 1, most}:
        assert len(parse(op, key, [str(number) for number in range(count)])) == count
    for characters in (1, length - 1, length):
        assert parse(op, key, ["x" * characters]) == ("x" * characters,)
    refused(op, key, [str(number) for number in range(most + 1)])
    if least:
        refused(op, key, [])
    refused(op, key, ["x" * (length + 1)])
    for wrong in ("x", 5, True, {"x": 1}, [""], [5], [None], ["a", "b", "a"]):
        refused(op, key, wrong)


@pytest.mark.parametrize(("op", "key"), FLAGS)
def test_a_flag_is_true_or_false(op: str, key: str) -> None:
    assert parse(op, key, True) is True
    assert parse(op, key, False) is False
    for wrong in (0, 1, "true", [], {}):
        refused(op, key, wrong)


@pytest.mark.parametrize(("op", "key", "words"), [(*key, words) for key, words in WORDS.items()])
def test_a_word_is_one_of_a_few(op: str, key: str, words: tuple[str, ...]) -> None:
    for word in words:
        beside = {"reply_to": "m1"} if word == "response" else {}
        assert getattr(parse_peer(op, {**LEAST[op], **beside, key: word}), key) == word
    for wrong in ("", words[0].upper(), "other", 5, True, [words[0]]):
        refused(op, key, wrong)


@pytest.mark.parametrize("op", LEAST)
def test_a_null_means_the_default_but_for_a_description_that_is_cleared(op: str) -> None:
    operation = PEER_OPERATIONS[op]
    unset = {key: None for key in operation.FIELDS if key not in LEAST[op]}
    assert parse_peer(op, {**LEAST[op], **unset}) == parse_peer(op, LEAST[op])
    for key in required_arguments(operation):
        if op != "describe":
            with pytest.raises(ValidationError, match="is required"):
                parse_peer(op, {**LEAST[op], key: None})
    cleared = parse_peer("describe", {"description": None})
    assert cleared == PeerDescribe(None)
    assert arguments_of(cleared) == {"description": None}


def test_a_description_has_no_control_characters_but_line_breaks_and_tabs() -> None:
    assert parse("describe", "description", "a\n\tb") == "a\n\tb"
    for character in "\r\x1b\x07\x7f\x85":
        refused("describe", "description", f"a{character}b")


def test_everybody_stands_alone() -> None:
    assert parse("send", "to", ["*"]) == ("*",)
    for to in (["*", "Kim"], ["Kim", "*"]):
        with pytest.raises(ValidationError, match="stands alone"):
            parse("send", "to", to)


@pytest.mark.parametrize("kind", ["info", "response", "ack"])
@pytest.mark.parametrize(
    ("key", "value"), [("expect_reply_within_seconds", 60), ("capability", "review")]
)
def test_only_a_request_expects_a_reply_or_asks_for_a_capability(
    kind: str, key: str, value: Any
) -> None:
    with pytest.raises(ValidationError, match=f"{key} goes with kind request"):
        parse_peer("send", {**LEAST["send"], "kind": kind, "reply_to": "m1", key: value})


def test_a_response_and_an_ack_need_what_they_answer() -> None:
    with pytest.raises(ValidationError, match="needs reply_to"):
        parse_peer("send", {**LEAST["send"], "kind": "response"})
    for ack in (True, False):
        with pytest.raises(ValidationError, match="ack goes with reply_to"):
            parse_peer("send", {**LEAST["send"], "ack": ack})
    sent = parse_peer("send", {**LEAST["send"], "kind": "response", "reply_to": "m1"})
    assert isinstance(sent, PeerSend)
    assert sent.ack is None


@pytest.mark.parametrize("args", [{}, {"delivery_id": "d1", "message_id": "m1"}])
def test_the_context_of_a_memory_is_of_one_thing(args: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="either delivery_id or message_id"):
        parse_peer("memory_context", args)
    for length in (1, 2, 79, 80):
        assert parse("memory_context", "message_id", "m" * length) == "m" * length
    for wrong in ("", "m" * 81, 5, True):
        refused("memory_context", "message_id", wrong)


def test_a_text_that_no_json_could_carry_is_refused() -> None:
    for text in ("\ud800", "a\x00b"):
        with pytest.raises(ValidationError):
            parse("send", "body", text)


def test_the_longest_body_in_the_widest_characters_is_still_a_body() -> None:
    assert parse("send", "body", "\U0001f600" * PEER_BODY_CHARACTERS)


# --- frames ---------------------------------------------------------------------------------------

ATTACHMENT = ["session-1", 3]


def test_a_request_carries_operation_token_number_and_operation_id() -> None:
    request = parse_peer_request(
        {
            "attachment": ATTACHMENT,
            "op": "ack",
            "args": {"delivery_id": "d1"},
            "token": "t-1",
            "number": 4,
            "operation_id": "o1",
        }
    )
    assert request.operation == parse_peer("ack", {"delivery_id": "d1"})
    assert (request.token, request.number, request.operation_id) == ("t-1", 4, "o1")
    bare = parse_peer_request({"attachment": ATTACHMENT, "op": "threads"})
    assert (bare.token, bare.number, bare.operation_id) == (None, 0, None)


@pytest.mark.parametrize(
    "wrong",
    [
        {"attachment": None},
        {"attachment": ["session-1", True]},
        {"op": "fly"},
        {"args": {"delivery_id": 5}},
        {"token": ""},
        {"token": 5},
        {"number": -1},
        {"number": True},
        {"operation_id": ""},
        {"operation_id": "x" * (OPERATION_ID_BYTES + 1)},
        {"operation_id": "é" * (OPERATION_ID_BYTES // 2 + 1)},
        {"more": 1},
    ],
)
def test_a_request_that_is_not_sound_is_refused(wrong: dict[str, Any]) -> None:
    sound = {"attachment": ATTACHMENT, "op": "ack", "args": {"delivery_id": "d1"}}
    with pytest.raises(ValidationError):
        parse_peer_request({**sound, **wrong})


def test_the_notifications_of_a_holder_are_read() -> None:
    assert parse_cancel_peer({"attachment": ATTACHMENT, "number": 2}).number == 2
    renewal = parse_renew({"attachment": ATTACHMENT, "leases": [["d1", "t-1"]]})
    assert renewal.leases == (("d1", "t-1"),)
    shown = parse_peer_shown(
        {"attachment": ATTACHMENT, "responses": ["m1"], "notices": [["d1", "overdue"]]}
    )
    assert (shown.responses, shown.notices) == (("m1",), (("d1", "overdue"),))
    assert parse_peer_shown({"attachment": ATTACHMENT}).responses == ()


@pytest.mark.parametrize(
    ("parser", "params"),
    [
        (parse_cancel_peer, {"number": True}),
        (parse_cancel_peer, {}),
        (parse_renew, {"leases": [["d1"]]}),
        (parse_renew, {"leases": [["d1", 5]]}),
        (parse_renew, {"leases": {"d1": "t"}}),
        (parse_renew, {"leases": [], "more": 1}),
        (parse_peer_shown, {"responses": [5]}),
        (parse_peer_shown, {"notices": ["d1"]}),
    ],
)
def test_a_notification_that_is_not_sound_is_refused(parser: Any, params: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        parser({"attachment": ATTACHMENT, **params})


def test_every_argument_is_a_field_of_its_operation() -> None:
    for operation in PEER_OPERATIONS.values():
        assert operation.FIELDS.keys() <= {field.name for field in fields(operation)}
