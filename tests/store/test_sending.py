"""Sends: batches, receipts, fencing, size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentbus.encoding import decode_trusted
from agentbus.errors import (
    ConflictError,
    NotFoundError,
    RateLimitedError,
    StaleAttachmentError,
    TooLargeError,
)
from agentbus.identity import Attachment
from agentbus.ids import Generation, MessageId, Sequence, SessionId
from agentbus.limits import KIB
from agentbus.protocol.operations import CreateChannel, parse_operation
from agentbus.store.changes import BindSession, Done, MakeChannel, MessageAppended, Refused
from tests.store.bus import Bus


def test_a_send_answers_with_its_id_and_sequence_and_becomes_a_fact(bus: Bus) -> None:
    sam = bus.attach()
    outcome = bus.done(sam.send("hi", operation_id="mine", subject="s", tags=("a",)))
    assert outcome.charged
    assert set(outcome.result) == {"message_id", "sequence", "operation_id", "duplicate"}
    assert outcome.result["sequence"] == 1
    assert outcome.result["operation_id"] == "mine"
    assert outcome.result["duplicate"] is False
    (fact,) = outcome.facts
    assert isinstance(fact, MessageAppended)
    assert (fact.channel, fact.channel_kind, fact.sequence) == ("general", "ordinary", 1)
    assert fact.sent_at_us == bus.clock.wall_us()
    assert fact.body.subject == "s"
    envelope = decode_trusted(fact.envelope)
    assert envelope["content"] == "hi"
    assert envelope["sequence"] == 1
    assert envelope["message_id"] == fact.message_id == outcome.result["message_id"]
    assert envelope["sender"]["display_name"] == "Sam"
    stored = bus.reader().message(fact.message_id)
    assert stored is not None
    assert stored.envelope == fact.envelope


def test_a_batch_is_answered_in_order_with_dense_sequences(bus: Bus) -> None:
    sam, kim = bus.attach(), bus.attach("Kim", "c2")
    outcomes = bus.store.apply([(sam, kim)[n % 2].send(str(n)) for n in range(64)])
    sequences = [outcome.result["sequence"] for outcome in outcomes if isinstance(outcome, Done)]
    assert sequences == list(range(1, 65))
    stored = bus.reader().scan(Sequence(0), 99)
    contents = [decode_trusted(row.envelope)["content"] for row in stored]
    assert contents == [str(n) for n in range(64)]
    assert bus.store.last_sequence == 64


def test_a_refused_send_neither_undoes_its_neighbours_nor_takes_a_sequence(bus: Bus) -> None:
    sam = bus.attach()
    first, bad, last = bus.store.apply(
        [sam.send("1"), sam.send("2", channel="nowhere"), sam.send("3")]
    )
    assert isinstance(first, Done)
    assert isinstance(bad, Refused)
    assert isinstance(last, Done)
    assert isinstance(bad.error, NotFoundError)
    assert "'nowhere'" in bad.error.message
    assert "create_channel" in bad.error.message
    assert (first.result["sequence"], last.result["sequence"]) == (1, 2)


def test_an_empty_batch_is_no_transaction_with_effects(bus: Bus) -> None:
    before = bus.store.logical_bytes
    assert bus.store.apply([]) == []
    assert bus.store.logical_bytes == before


def test_duplicate_send_returns_the_first_receipt(bus: Bus) -> None:
    sam = bus.attach()
    first = bus.done(sam.send("once", operation_id="k"))
    again = bus.done(sam.send("once", operation_id="k"))
    assert again.result == {**first.result, "duplicate": True}
    assert not again.charged
    assert again.facts == ()
    assert bus.store.last_sequence == 1


def test_equal_operations_in_one_batch_make_one_message(bus: Bus) -> None:
    sam = bus.attach()
    outcomes = bus.store.apply([sam.send("once", operation_id="k") for _ in range(50)])
    results = [outcome.result for outcome in outcomes if isinstance(outcome, Done)]
    assert len(results) == 50
    assert [result["duplicate"] for result in results] == [False] + [True] * 49
    assert {result["message_id"] for result in results} == {results[0]["message_id"]}
    assert len(bus.reader().scan(Sequence(0), 99)) == 1


def test_a_repeat_after_reopening_is_still_a_repeat(bus: Bus) -> None:
    sam = bus.attach()
    first = bus.done(sam.send("once", operation_id="k"))
    bus.reopen()
    assert bus.done(sam.send("once", operation_id="k")).result["sequence"] == 1
    assert bus.done(sam.send("once", operation_id="l")).result["sequence"] == 2
    assert first.result["sequence"] == 1


def test_a_reused_operation_id_with_another_payload_is_a_conflict(bus: Bus) -> None:
    sam = bus.attach()
    bus.done(sam.send("one", operation_id="k"))
    error = bus.refused(sam.send("two", operation_id="k"))
    assert isinstance(error, ConflictError)
    assert "'k'" in error.message
    assert "new operation id" in error.message


def test_operation_ids_belong_to_the_session(bus: Bus) -> None:
    sam, kim = bus.attach(), bus.attach("Kim", "c2")
    assert bus.done(sam.send("one", operation_id="k")).result["sequence"] == 1
    assert bus.done(kim.send("two", operation_id="k")).result["sequence"] == 2


@pytest.mark.parametrize(("offset_us", "duplicate"), [(-1, True), (0, False), (1, False)])
def test_a_receipt_lives_exactly_its_hours(bus: Bus, offset_us: int, duplicate: bool) -> None:
    sam = bus.attach()
    bus.done(sam.send("once", operation_id="k"))
    hours = bus.config.dedup_retention_hours
    bus.clock.set_wall(bus.clock.wall_us() + hours * 3_600_000_000 + offset_us)
    outcome = bus.done(sam.send("once", operation_id="k"))
    assert outcome.result["duplicate"] is duplicate
    assert outcome.result["sequence"] == (1 if duplicate else 2)


def test_an_expired_receipt_is_replaced_without_losing_count(bus: Bus) -> None:
    sam = bus.attach()
    bus.done(sam.send("one", operation_id="k"))
    bus.clock.advance(hours=bus.config.dedup_retention_hours)
    assert bus.done(sam.send("another payload", operation_id="k")).result["sequence"] == 2
    assert bus.done(sam.send("another payload", operation_id="k")).result["duplicate"]
    assert bus.reader().counts()["receipts"] == 1


def test_without_rate_only_a_repeat_is_answered(bus: Bus) -> None:
    sam = bus.attach()
    bus.done(sam.send("one", operation_id="k"))
    assert bus.done(sam.send("one", operation_id="k", rate_ok=False)).result["duplicate"]
    error = bus.refused(sam.send("two", operation_id="l", rate_ok=False))
    assert isinstance(error, RateLimitedError)
    assert error.retry_after_ms is not None
    conflict = bus.refused(sam.send("two", operation_id="k", rate_ok=False))
    assert isinstance(conflict, ConflictError)


def test_a_replaced_attachment_can_change_nothing(bus: Bus) -> None:
    old = bus.attach()
    bus.done(old.send("before"))
    new = bus.attach()
    assert new.session_id == old.session_id
    for change in (
        old.send("after"),
        old.make("x"),
        old.subscribe("general"),
        old.unsubscribe("general"),
    ):
        assert isinstance(bus.refused(change), StaleAttachmentError)
    bus.done(new.send("after"))
    assert bus.store.last_sequence == 2


def test_attaching_again_within_a_batch_fences_what_follows_in_it(bus: Bus) -> None:
    old = bus.attach()
    bind = BindSession("Sam", old.bound.identity, frozenset())
    before, bound, after = bus.store.apply([old.send("1"), bind, old.send("2")])
    assert isinstance(before, Done)
    assert isinstance(bound, Done)
    assert isinstance(after, Refused)
    assert isinstance(after.error, StaleAttachmentError)


@pytest.mark.parametrize("reopened", [False, True])
def test_generations_are_fenced_after_a_restart_too(bus: Bus, reopened: bool) -> None:
    old = bus.attach()
    new = bus.attach()
    if reopened:
        bus.reopen()
    assert isinstance(bus.refused(old.send()), StaleAttachmentError)
    bus.done(new.send())
    future = replace(new.send(), attachment=Attachment(new.session_id, Generation(99)))
    assert isinstance(bus.refused(future), StaleAttachmentError)
    unknown = replace(new.send(), attachment=Attachment(SessionId("x"), Generation(1)))
    assert isinstance(bus.refused(unknown), StaleAttachmentError)


@pytest.fixture
def small_bus(tmp_path: Path) -> Iterator[Bus]:
    bus = Bus(tmp_path, max_message_kib=1)
    yield bus
    bus.close()


@pytest.mark.parametrize("letter", ["x", "ä", "\n"])
def test_the_envelope_limit_is_exact_to_the_byte(small_bus: Bus, letter: str) -> None:
    bus, sam = small_bus, small_bus.attach()
    bus.done(sam.send("x"))
    (empty,) = bus.reader().scan(Sequence(0), 1)
    room = 1 * KIB - (len(empty.envelope) - 1)
    letter_bytes = {"x": 1, "ä": 2, "\n": 2}[letter]
    fitting = letter * (room // letter_bytes) + "x" * (room % letter_bytes)
    before = bus.store.logical_bytes
    error = bus.refused(sam.send(fitting + "x", operation_id="big"))
    assert isinstance(error, TooLargeError)
    assert "1025 bytes" in error.message
    assert bus.store.logical_bytes == before
    accepted = bus.done(sam.send(fitting, operation_id="big"))
    stored = bus.reader().message(accepted.result["message_id"])
    assert stored is not None
    assert len(stored.envelope) == 1 * KIB


def test_one_more_digit_of_the_sequence_counts_towards_the_limit(small_bus: Bus) -> None:
    bus, sam = small_bus, small_bus.attach()
    bus.done(sam.send("x"))
    (empty,) = bus.reader().scan(Sequence(0), 1)
    content = "x" * (1 * KIB - len(empty.envelope) + 1)
    bus.store.apply([sam.send("small") for _ in range(7)])
    assert bus.done(sam.send(content)).result["sequence"] == 9
    assert isinstance(bus.refused(sam.send(content)), TooLargeError)  # would be sequence 10


def test_a_reply_joins_the_thread_of_its_target_unless_it_names_one(bus: Bus) -> None:
    sam = bus.attach()
    target = bus.done(sam.send("q", thread="t")).result["message_id"]
    plain = bus.done(sam.send("q2")).result["message_id"]

    def thread_of(**fields: Any) -> str | None:
        fact = bus.done(sam.send("a", **fields)).facts[0]
        assert isinstance(fact, MessageAppended)
        assert decode_trusted(fact.envelope).get("thread") == fact.body.thread
        return fact.body.thread

    assert thread_of(reply_to=target) == "t"
    assert thread_of(reply_to=target, thread="u") == "u"
    assert thread_of(reply_to=plain) is None
    assert thread_of(reply_to="never-seen") is None
    assert thread_of() is None


def test_the_depth_of_the_sender_is_in_the_envelope(bus: Bus) -> None:
    sam = bus.attach()
    target = bus.done(sam.send("q", thread="t")).result["message_id"]
    (fact,) = bus.done(sam.send("b", reply_to=target, depth=2)).facts
    assert isinstance(fact, MessageAppended)
    assert (fact.body.thread, fact.body.depth) == ("t", 2)
    assert decode_trusted(fact.envelope)["depth"] == 2


def test_a_send_to_a_memory_channel_stores_a_memory(bus: Bus) -> None:
    sam = bus.attach()
    bus.done(sam.make("facts", "memory"))
    outcome = bus.done(sam.send("water is wet", channel="facts"))
    stored = bus.reader().message(MessageId(outcome.result["message_id"]))
    assert stored is not None
    assert decode_trusted(stored.envelope)["channel_kind"] == "memory"


def test_composed_and_decomposed_names_are_one_channel(bus: Bus) -> None:
    sam = bus.attach()
    outcomes = []
    for name in ("caf\u00e9", "cafe\u0301"):
        operation = parse_operation("create_channel", {"name": name})
        assert isinstance(operation, CreateChannel)
        outcomes.append(bus.done(MakeChannel(operation, sam.attachment)).result)
    assert [outcome["created"] for outcome in outcomes] == [True, False]
    assert {outcome["channel"] for outcome in outcomes} == {"caf\u00e9"}
