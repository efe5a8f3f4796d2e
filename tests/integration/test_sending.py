"""Sends over the wire: order of the checks, receipts, rates, order of messages."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from agentbus.encoding import encode
from agentbus.errors import (
    BusError,
    ConflictError,
    NotFoundError,
    OverloadedError,
    RateLimitedError,
    StaleAttachmentError,
    TooLargeError,
    ValidationError,
)
from agentbus.ids import new_id
from agentbus.limits import IN_FLIGHT_PER_ATTACHMENT, KIB
from agentbus.protocol import jsonrpc
from agentbus.protocol.frames import FrameBuffer
from tests.bus_fixture import BusSession, ThrowAwayBus
from tests.eventually import PATIENCE_S


def error_of(session: BusSession, **arguments: Any) -> BusError:
    with pytest.raises(BusError) as refused:
        session.call("send", **({"channel": "general", "content": "x"} | arguments))
    return refused.value


# --- receipts ---


def test_a_repeat_gets_the_first_answer(bus: ThrowAwayBus) -> None:
    sam = bus.attach()
    first = sam.call("send", channel="general", content="x", operation_id="k")
    again = sam.call("send", channel="general", content="x", operation_id="k")
    assert first["duplicate"] is False
    assert again == first | {"duplicate": True}


def test_a_reused_operation_id_with_another_payload_is_a_conflict(bus: ThrowAwayBus) -> None:
    sam = bus.attach()
    sam.call("send", channel="general", content="x", operation_id="k", tags=["a", "b"])
    for other in ({"content": "y"}, {"tags": ["b", "a"]}, {"channel": "elsewhere"}):
        arguments = {"channel": "general", "content": "x", "tags": ["a", "b"]} | other
        assert isinstance(error_of(sam, operation_id="k", **arguments), ConflictError)


def test_the_fingerprint_does_not_depend_on_the_order_of_keys(bus: ThrowAwayBus) -> None:
    sam = bus.attach()
    one = {"a": 1, "b": {"c": 2, "d": 3}}
    other = {"b": {"d": 3, "c": 2}, "a": 1}
    sam.call("send", channel="general", content="x", operation_id="k", metadata=one)
    again = sam.call("send", channel="general", content="x", operation_id="k", metadata=other)
    assert again["duplicate"] is True


def test_operation_ids_of_two_sessions_are_apart(bus: ThrowAwayBus) -> None:
    for conversation in ("one", "two"):
        session = bus.attach(conversation=conversation)
        answer = session.call("send", channel="general", content=conversation, operation_id="k")
        assert answer["duplicate"] is False


def test_a_receipt_survives_a_new_attachment(bus: ThrowAwayBus) -> None:
    with bus.attach(conversation="c") as first:
        sent = first.call("send", channel="general", content="x", operation_id="k")
        first.client.request("detach", {"attachment": first.attachment}, PATIENCE_S)
    with bus.attach(conversation="c") as second:
        again = second.call("send", channel="general", content="x", operation_id="k")
    assert again == sent | {"duplicate": True}


def test_50_concurrent_sends_with_one_operation_id_are_one_message(bus: ThrowAwayBus) -> None:
    """Five waves of ten at once, as one attachment may have only so many in flight."""
    sam = bus.attach()
    watcher = bus.attach("Ada")
    answers: list[Any] = []
    for _ in range(5):
        answers += pipelined(sam, [{"content": "once", "operation_id": "k"}] * 10)
    assert {answer["message_id"] for answer in answers} == {answers[0]["message_id"]}
    assert [answer["duplicate"] for answer in answers] == [False] + [True] * 49
    sam.call("send", channel="general", content="end")
    got: list[str] = []
    while "end" not in got:
        records = watcher.wait_for("deliver")["delivery"]["records"]
        got += [record["content"] for _, record in records]
    assert got.count("once") == 1


def pipelined(session: BusSession, sends: list[dict[str, Any]]) -> list[Any]:
    """All requests in one write; the answers in order of the requests, errors as they are."""
    frames, ids = [], []
    for number, arguments in enumerate(sends):
        args = {"channel": "general", "operation_id": new_id()} | arguments
        params = {"attachment": session.attachment, "args": args}
        ids.append(f"p{number}")
        frames.append(jsonrpc.encode_request(ids[-1], "send", params))
    session.client.take_unread()  # notices of the bus's state
    connected = session.client.detach()
    connected.settimeout(PATIENCE_S)
    connected.sendall(b"".join(frames))
    buffer, answers = FrameBuffer(), dict[Any, Any]()
    while len(answers) < len(sends):
        for frame in buffer.feed(connected.recv(65536)):
            message = jsonrpc.parse(frame)
            if isinstance(message, jsonrpc.Response):
                answers[message.id] = message.result
            elif isinstance(message, jsonrpc.ErrorResponse):
                answers[message.id] = jsonrpc.error_from_response(message)
    return [answers[each] for each in ids]


# --- the order of the checks ---


@pytest.fixture(scope="module")
def small() -> Iterator[ThrowAwayBus]:
    with ThrowAwayBus(send_messages_per_second=2, max_message_kib=1, send_kib_per_second=64) as bus:
        yield bus


def test_a_stale_attachment_comes_before_everything_else(small: ThrowAwayBus) -> None:
    sam = small.attach()
    sam.attachment[1] += 1
    assert isinstance(error_of(sam, content="x" * 5000), StaleAttachmentError)
    assert isinstance(error_of(sam, content=5), StaleAttachmentError)


def test_shape_comes_before_size_and_size_before_the_receipt(small: ThrowAwayBus) -> None:
    sam = small.attach()
    sam.call("send", channel="general", content="x", operation_id="k")
    wrong = error_of(sam, content="x" * 5000, operation_id="k", tags="no list")
    assert isinstance(wrong, ValidationError)
    assert isinstance(error_of(sam, content="x" * 5000, operation_id="k"), TooLargeError)


def test_receipts_and_conflicts_come_before_the_rate(small: ThrowAwayBus) -> None:
    sam = small.attach()
    for number in range(20):
        sam_answer = pipelined(sam, [{"content": str(number), "operation_id": f"k{number}"}])[0]
        if isinstance(sam_answer, RateLimitedError):
            break
    else:
        pytest.fail("the rate never was used up")
    # As much as the rate gives anew meanwhile is used up first.
    *_, repeat, conflict, fresh = pipelined(
        sam,
        [
            *({"content": f"more {number}"} for number in range(3)),
            {"content": "0", "operation_id": "k0"},
            {"content": "other", "operation_id": "k0"},
            {"content": "new"},
        ],
    )
    assert repeat["duplicate"] is True
    assert isinstance(conflict, ConflictError)
    assert isinstance(fresh, RateLimitedError)


def test_the_rate_comes_before_the_channel(small: ThrowAwayBus) -> None:
    sam = small.attach()
    sends = [{"content": str(number)} for number in range(5)]
    *_, before, last = pipelined(sam, [*sends, {"content": "x", "channel": "nowhere"}])
    assert isinstance(before, RateLimitedError)
    assert isinstance(last, RateLimitedError)


def test_refused_sends_do_not_use_up_the_rate(small: ThrowAwayBus) -> None:
    sam = small.attach()
    for _ in range(10):
        assert isinstance(error_of(sam, channel="nowhere"), NotFoundError)
    answers = pipelined(sam, [{"content": "a"}, {"content": "b"}])
    assert not any(isinstance(answer, BusError) for answer in answers)


# --- rates ---


def test_who_waits_as_told_is_served(small: ThrowAwayBus) -> None:
    sam = small.attach()
    answers = pipelined(sam, [{"content": str(number)} for number in range(3)])
    limited = answers[-1]
    assert isinstance(limited, RateLimitedError)
    assert limited.retryable
    assert limited.retry_after_ms is not None
    assert 0 < limited.retry_after_ms <= 500
    threading.Event().wait(limited.retry_after_ms / 1000)  # the wait is what is tested
    assert sam.call("send", channel="general", content="later")["duplicate"] is False


def test_one_flooding_sender_leaves_the_rate_of_others_alone(small: ThrowAwayBus) -> None:
    flooding, quiet = small.attach(), small.attach("Ada")
    pipelined(flooding, [{"content": str(number)} for number in range(20)])
    assert quiet.call("send", channel="general", content="quiet")["duplicate"] is False


def test_more_requests_in_flight_than_allowed_are_overloaded_and_others_pass(
    bus: ThrowAwayBus,
) -> None:
    sam = bus.attach()
    general = sam.facts["subscriptions"][0]["subscription"]
    frames = [
        jsonrpc.encode_request(
            f"w{number}",
            "pull",
            {
                "attachment": sam.attachment,
                "number": number,
                "after": [[general, 10**6]],
                "count": 1,
                "max_bytes": 1,
                "wait_ms": 5000,
            },
        )
        for number in range(1, IN_FLIGHT_PER_ATTACHMENT + 1)
    ]
    sam.client.detach().sendall(b"".join(frames))
    with pytest.raises(OverloadedError):
        sam.call("whoami")
    for number in range(1, IN_FLIGHT_PER_ATTACHMENT + 1):
        sam.notify("cancel_pull", number=number)
    sam.client.request("heartbeat", {}, PATIENCE_S)
    assert bus.attach("Ada").call("whoami")["agent"] == "Ada"


# --- sizes ---


def test_an_envelope_of_exactly_the_limit_passes_and_one_byte_more_does_not(
    small: ThrowAwayBus,
) -> None:
    sam, ada = small.attach(conversation="edge"), small.attach("Ada")
    sam.call("send", channel="general", content="")
    _, seen = ada.wait_for("deliver")["delivery"]["records"][0]
    # Message ids and times are of one length; only the sequence may gain a digit.
    room = KIB - len(encode(seen))
    digits = len(str(seen["sequence"] + 1)) - len(str(seen["sequence"]))
    assert error_of(sam, content="x" * (room - digits + 1)).code == "too_large"
    sam.call("send", channel="general", content="x" * (room - digits))
    assert len(encode(ada.wait_for("deliver")["delivery"]["records"][0][1])) == KIB


# --- channels ---


def test_an_unknown_channel_is_not_found_for_every_operation(bus: ThrowAwayBus) -> None:
    sam = bus.attach()
    for operation, arguments in [
        ("send", {"channel": "nowhere", "content": "x"}),
        ("subscribe", {"channel": "nowhere"}),
        ("unsubscribe", {"channel": "nowhere"}),
        ("history", {"channel": "nowhere"}),
    ]:
        with pytest.raises(NotFoundError, match="nowhere"):
            sam.call(operation, **arguments)


def test_a_channel_keeps_its_kind(bus: ThrowAwayBus) -> None:
    sam = bus.attach()
    assert sam.call("create_channel", name="kept", kind="memory")["created"] is True
    assert sam.call("create_channel", name="kept", kind="memory")["created"] is False
    with pytest.raises(ConflictError, match="memory"):
        sam.call("create_channel", name="kept", kind="ordinary")


# --- order ---


def test_8_senders_at_once_are_read_in_the_order_of_each(bus: ThrowAwayBus) -> None:
    reader = bus.attach("Reader")
    reader.call("create_channel", name="race")
    race = reader.call("subscribe", channel="race")["subscription_id"]
    senders, each = 8, 40
    sessions = [bus.attach(f"S{number}") for number in range(senders)]

    def run(number: int) -> list[int]:
        return [
            sessions[number].call("send", channel="race", content=f"{number}:{count}")["sequence"]
            for count in range(each)
        ]

    with ThreadPoolExecutor(senders) as pool:
        told = list(pool.map(run, range(senders)))
    records: list[dict[str, Any]] = []
    while len(records) < senders * each:
        delivery = reader.wait_for("deliver")["delivery"]
        if delivery["subscription"] == race:
            arrived = [record for _, record in delivery["records"]]
            records += arrived
            size = sum(len(encode(record)) for record in arrived)
            reader.notify("credit", messages=len(arrived), bytes=size)
    sequences = [record["sequence"] for record in records]
    assert sequences == sorted(set(sequences))
    assert sequences == sorted(sequence for one in told for sequence in one)
    per_sender = defaultdict(list)
    for record in records:
        sender, count = record["content"].split(":")
        per_sender[sender].append(int(count))
    assert all(counts == list(range(each)) for counts in per_sender.values())


def test_one_pipelining_sender_is_committed_in_its_order(bus: ThrowAwayBus) -> None:
    sam = bus.attach()
    answers = pipelined(sam, [{"content": str(number)} for number in range(30)])
    sequences = [answer["sequence"] for answer in answers]
    assert sequences == sorted(sequences)
