"""Direct messages: recipients, rows, keys, threads, size, who may be written to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentbus.encoding import decode_trusted
from agentbus.errors import (
    ConflictError,
    ForbiddenError,
    NotFoundError,
    RateLimitedError,
    StaleAttachmentError,
    TooLargeError,
    ValidationError,
)
from agentbus.ids import Sequence
from agentbus.limits import KIB
from agentbus.rules.peer import KEY_REUSED, PEER_NOT_ALLOWED
from agentbus.store.changes import (
    ChannelMade,
    Done,
    MemoryRevised,
    MessageAppended,
    NoRoom,
    Refused,
)
from agentbus.store.peer import posting, sending
from tests.store.bus import Bus
from tests.store.peers import Peer, deliveries, delivery, require_exact_accounting, told

pytestmark = pytest.mark.usefixtures("exact_accounting")

DAY_US = 86_400_000_000


# --- what a send makes ---


def test_a_request_is_one_message_and_one_delivery(bus: Bus, sam: Peer, ann: Peer) -> None:
    outcome = bus.done(sam.sending("Ann", kind="request", body="please", capability="review"))
    message_id = outcome.result["message_id"]
    (recipient,) = outcome.result["recipients"]
    assert outcome.result == {
        "message_id": message_id,
        "thread_id": message_id,
        "recipients": [recipient],
        "status": "accepted",
        "duplicate": False,
    }
    assert recipient == {
        "agent": "Ann",
        "agent_id": ann.agent_id,
        "delivery_id": recipient["delivery_id"],
    }
    made, appended, _ = outcome.facts
    assert isinstance(made, ChannelMade)
    assert (made.channel, made.kind) == ("@Ann", "inbox")
    assert isinstance(appended, MessageAppended)
    assert (appended.channel_kind, appended.sequence) == ("inbox", 1)
    assert [one.agent_id for one in appended.body.recipients] == [ann.agent_id]
    (view,) = told(outcome)
    assert (view.delivery_id, view.state) == (recipient["delivery_id"], "queued")
    envelope = decode_trusted(appended.envelope)
    assert envelope["to"] == [{"agent": "Ann", "agent_id": ann.agent_id}]
    assert envelope["thread"] == envelope["message_id"] == message_id
    assert (envelope["type"], envelope["capability"], envelope["depth"]) == ("request", "review", 0)


def test_the_inbox_channel_is_made_once_and_counts_its_messages(bus: Bus, sam: Peer) -> None:
    Peer(bus, "Ann")
    facts = [
        fact
        for outcome in bus.store.apply([sam.sending("Ann") for _ in range(3)])
        for fact in outcome.facts  # type: ignore[union-attr]
        if isinstance(fact, ChannelMade)
    ]
    assert len(facts) == 1
    sam.send("Ann")
    row = bus.reader().channel("@Ann")
    assert row is not None
    assert (row.kind, row.retained, row.newest) == ("inbox", 4, 4)


def test_a_send_to_many_is_one_message_with_a_delivery_each_in_their_order(
    bus: Bus, sam: Peer
) -> None:
    names = [f"agent {n}" for n in range(100)]
    for name in names:
        Peer(bus, name)
    answer = sam.send(*names, kind="request")
    assert [one["agent"] for one in answer["recipients"]] == names
    rows = deliveries(bus)
    assert [row.id for row in rows] == [one["delivery_id"] for one in answer["recipients"]]
    assert {row.sequence for row in rows} == {bus.store.last_sequence} == {Sequence(1)}
    inboxes = {row.channel: row.retained for row in bus.reader().channels() if row.kind == "inbox"}
    assert inboxes == {f"@{name}": int(name == "agent 0") for name in names}


def test_an_imported_channel_of_an_inbox_name_is_never_written_to(bus: Bus, sam: Peer) -> None:
    bus.done(sam.speaker.make("@Ann"))
    Peer(bus, "Ann")
    error = bus.refused(sam.sending("Ann"))
    assert error.code == "conflict"
    assert "of kind ordinary" in error.message


@pytest.mark.parametrize(
    ("seconds", "due_s", "unanswered_s"),
    [(None, 900, 86_400), (60, 60, 86_400), (86_401, 86_401, 86_401), (604_800, 604_800, 604_800)],
)
def test_only_a_request_is_tracked_and_never_given_up_before_it_is_due(
    bus: Bus, sam: Peer, ann: Peer, seconds: int | None, due_s: int, unanswered_s: int
) -> None:
    now_us = bus.clock.wall_us()
    sam.ask("Ann", expect_reply_within_seconds=seconds)
    (row,) = deliveries(bus)
    assert row.reply_state == "awaiting"
    assert row.reply_due_us == now_us + due_s * 1_000_000
    assert row.unanswered_us == now_us + unanswered_s * 1_000_000
    for kind in ("info", "ack"):
        sam.send("Ann", kind=kind)
        row = deliveries(bus)[-1]
        assert (row.reply_state, row.reply_due_us, row.unanswered_us) == (None, None, None)


# --- recipients ---


def test_a_recipient_is_a_session_or_an_agent_by_id_or_name(bus: Bus, sam: Peer, ann: Peer) -> None:
    for word, session_id in ((ann.session_id, ann.session_id), (ann.agent_id, None), ("Ann", None)):
        (one,) = sam.send(word)["recipients"]
        row = delivery(bus, one["delivery_id"])
        assert (row.recipient_agent, row.recipient_session) == (ann.agent_id, session_id)
        assert one.get("session_id") == session_id


def test_an_unknown_recipient_is_named_and_nothing_is_sent(bus: Bus, sam: Peer, ann: Peer) -> None:
    error = bus.refused(sam.sending("Ann", "Nobody"))
    assert isinstance(error, NotFoundError)
    assert (error.status, "peer discover and agents" in error.message) == (404, True)
    assert "'Nobody'" in error.message
    assert deliveries(bus) == []
    assert bus.reader().channel("@Ann") is None


def test_a_recipient_cannot_be_named_twice_however_it_is_called(
    bus: Bus, sam: Peer, ann: Peer
) -> None:
    error = bus.refused(sam.sending("Ann", ann.agent_id))
    assert isinstance(error, ValidationError)
    assert "same recipient" in error.message
    assert len(sam.send("Ann", ann.session_id)["recipients"]) == 2  # an agent, and a session of it


def test_a_session_cannot_write_to_itself_but_to_its_agent(bus: Bus, sam: Peer) -> None:
    error = bus.refused(sam.sending(sam.session_id))
    assert isinstance(error, ValidationError)
    sam.ask("Sam")
    assert sam.wait().delivery is None
    other = Peer(bus, "Sam", "another")
    assert other.claim()["envelope"]["from"]["session_id"] == sam.session_id


def test_everybody_never_reaches_the_ledger(bus: Bus, sam: Peer) -> None:
    assert isinstance(bus.refused(sam.sending("*")), ValidationError)


# --- whom one may write to ---


@pytest.fixture
def strict(tmp_path: Path) -> Iterator[Bus]:
    folder = tmp_path / "strict"
    folder.mkdir()
    bus = Bus(folder, peer_allow=("Ann",))
    yield bus
    require_exact_accounting(bus)
    bus.close()


def test_only_those_that_are_allowed_are_written_to(strict: Bus) -> None:
    sam, ann, kim = (Peer(strict, name) for name in ("Sam", "Ann", "Kim"))
    for word in ("Ann", ann.agent_id, ann.session_id):
        sam.send(word)
    for to in (("Kim",), (kim.agent_id,), (kim.session_id,), ("Ann", "Kim")):
        error = strict.refused(sam.sending(*to))
        assert isinstance(error, ForbiddenError)
        assert (error.reason, error.status) == (PEER_NOT_ALLOWED, 403)
        assert "'Kim'" in error.message


def test_an_answer_goes_to_whoever_asked_allowed_or_not(strict: Bus) -> None:
    sam, ann, kim = (Peer(strict, name) for name in ("Sam", "Ann", "Kim"))
    request = sam.ask("Ann")["message_id"]
    assert isinstance(strict.refused(ann.sending("Sam", reply_to=request)), ForbiddenError)
    answer = ann.sending("Sam", kind="response", reply_to=request)
    strict.done(answer)
    # It is no way to somebody else.
    error = strict.refused(ann.sending("Sam", "Kim", kind="response", reply_to=request))
    assert isinstance(error, ForbiddenError)
    got = ann.claim()
    ann.do("reply", got["delivery_id"])
    assert kim.wait().delivery is None


def test_people_write_to_all(strict: Bus) -> None:
    Peer(strict, "Kim")
    person = Peer(strict, "human:sam")
    assert person.ask("Kim")["status"] == "accepted"


# --- keys ---


def test_the_same_key_and_payload_is_the_same_message(bus: Bus, sam: Peer, ann: Peer) -> None:
    first = sam.send("Ann", key="k")
    again = bus.done(sam.sending("Ann", key="k"))
    assert again.result == first | {"duplicate": True}
    assert not again.charged
    assert again.facts == ()
    assert len(deliveries(bus)) == 1


def test_a_key_is_the_agents_so_another_session_of_it_repeats(
    bus: Bus, sam: Peer, ann: Peer
) -> None:
    first = sam.send("Ann", key="k")
    other = Peer(bus, "Sam", "another")
    assert other.send("Ann", key="k") == first | {"duplicate": True}
    assert ann.send("Sam", key="k")["duplicate"] is False
    assert sam.bus.done(sam.speaker.send(operation_id="k")).result["duplicate"] is False


@pytest.mark.parametrize("changed", [{"body": "other"}, {"kind": "request"}, {"thread_id": "t"}])
def test_a_key_with_another_payload_is_a_conflict_with_its_own_word(
    bus: Bus, sam: Peer, ann: Peer, changed: dict[str, Any]
) -> None:
    sam.send("Ann", key="k")
    other = Peer(bus, "Sam", "another")
    for session in (sam, other):
        error = bus.refused(session.sending("Ann", key="k", **changed))
        assert isinstance(error, ConflictError)
        assert (error.reason, error.status) == (KEY_REUSED, 409)
        assert "'k'" in error.message
    assert len(deliveries(bus)) == 1


def test_one_key_names_one_operation_of_whatever_kind(bus: Bus, sam: Peer, ann: Peer) -> None:
    sam.ask("Ann")
    got = ann.claim()["delivery_id"]
    ann.do("progress", got, idempotency_key="k")
    error = ann.refused("reply", got, idempotency_key="k")
    assert error.reason == KEY_REUSED
    assert delivery(bus, got).state == "leased"


def test_an_operation_id_without_a_key_is_the_sessions(bus: Bus, sam: Peer, ann: Peer) -> None:
    sam.ask("Ann")
    ack = ann.held("ack", ann.claim()["delivery_id"])
    assert bus.done(ack).result["duplicate"] is False
    assert bus.done(ack).result["duplicate"] is True
    error = bus.refused(
        replace(ann.change("describe", description="x"), operation_id=ack.operation_id)
    )
    assert isinstance(error, ConflictError)
    assert error.reason is None


@pytest.mark.parametrize(("offset_us", "duplicate"), [(-1, True), (0, False)])
def test_a_key_is_kept_as_long_as_other_receipts(
    bus: Bus, sam: Peer, ann: Peer, offset_us: int, duplicate: bool
) -> None:
    sam.send("Ann", key="k")
    bus.clock.set_wall(
        bus.clock.wall_us() + bus.config.dedup_retention_hours * DAY_US // 24 + offset_us
    )
    assert sam.send("Ann", key="k")["duplicate"] is duplicate


def test_rate_and_generation_hold_for_direct_messages_too(bus: Bus, sam: Peer, ann: Peer) -> None:
    fresh = replace(sam.sending("Ann", key="k"), rate_ok=False)
    assert isinstance(bus.refused(fresh), RateLimitedError)
    bus.done(sam.sending("Ann", key="k"))
    assert bus.done(fresh).result["duplicate"]
    old, claim = sam.sending("Ann"), sam.claiming()
    sam.attach()
    assert isinstance(bus.refused(old), StaleAttachmentError)
    assert isinstance(bus.refused(claim), StaleAttachmentError)


# --- threads ---


def test_a_thread_is_given_or_that_of_what_is_answered_or_new(
    bus: Bus, sam: Peer, ann: Peer
) -> None:
    first = sam.send("Ann", thread_id="plan")
    assert first["thread_id"] == "plan"
    assert ann.send("Sam", reply_to=first["message_id"])["thread_id"] == "plan"
    assert ann.send("Sam", reply_to=first["message_id"], thread_id="x")["thread_id"] == "x"
    alone = ann.send("Sam", reply_to="never-was")
    assert alone["thread_id"] == alone["message_id"]


def test_a_thread_does_not_leak_from_a_message_of_others(bus: Bus, sam: Peer, ann: Peer) -> None:
    kim = Peer(bus, "Kim")
    private = sam.send("Ann", thread_id="private")["message_id"]
    answer = kim.send("Ann", reply_to=private)
    assert answer["thread_id"] == answer["message_id"]
    error = bus.refused(kim.sending("Ann", kind="response", reply_to=private))
    absent = bus.refused(kim.sending("Ann", kind="response", reply_to="never-was"))
    assert isinstance(error, NotFoundError)
    assert error.message.replace(private, "never-was") == absent.message


def test_a_thread_of_direct_messages_does_not_get_into_a_channel(
    bus: Bus, sam: Peer, ann: Peer
) -> None:
    kim = Peer(bus, "Kim")
    bus.done(kim.speaker.make("notes", "memory"))
    private = sam.send("Ann", thread_id="private")["message_id"]
    for peer in (kim, ann):
        sent = bus.done(peer.speaker.send(reply_to=private)).facts[0]
        assert isinstance(sent, MessageAppended)
        assert sent.body.thread is None
        note = bus.done(peer.speaker.send(channel="notes")).result["message_id"]
        edited = bus.done(peer.speaker.edit(note, reply_to=private)).facts[0]
        assert isinstance(edited, MemoryRevised)
        assert edited.body.thread is None


def test_a_message_of_a_channel_can_be_answered_privately(bus: Bus, sam: Peer, ann: Peer) -> None:
    public = bus.done(sam.speaker.send(thread="topic")).result["message_id"]
    assert ann.send("Sam", reply_to=public)["thread_id"] == "topic"


# --- size ---


@pytest.mark.parametrize("letter", ["x", "ä"])
def test_the_limit_is_that_of_the_whole_envelope(tmp_path: Path, letter: str) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    bus = Bus(folder, max_message_kib=1)
    sam = Peer(bus, "Sam")
    Peer(bus, "Ann")
    appended = bus.done(sam.sending("Ann", body="x")).facts[1]
    assert isinstance(appended, MessageAppended)
    room = KIB - len(appended.envelope) + 1
    size = len(letter.encode())
    body = letter * (room // size) + "x" * (room % size)
    before = bus.store.logical_bytes
    error = bus.refused(sam.sending("Ann", body=body + "x", key="k"))
    assert isinstance(error, TooLargeError)
    assert "1025 bytes" in error.message
    assert bus.store.logical_bytes == before
    appended = bus.done(sam.sending("Ann", body=body, key="k")).facts[0]
    assert isinstance(appended, MessageAppended)
    assert len(appended.envelope) == KIB
    bus.close()


def test_the_longest_body_fits_where_envelopes_may_be_twice_as_large(tmp_path: Path) -> None:
    folder = tmp_path / "large"
    folder.mkdir()
    bus = Bus(folder, max_message_kib=128)
    sam, ann = Peer(bus, "Sam"), Peer(bus, "Ann")
    sam.ask("Ann", body="x" * 65_536)
    with pytest.raises(ValidationError, match="65536"):
        sam.sending("Ann", body="x" * 65_537)
    got = ann.claim()
    assert len(got["envelope"]["body"]) == 65_536
    ann.do("reply", got["delivery_id"], body="y" * 65_536)
    with pytest.raises(ValidationError, match="65536"):
        ann.held("reply", got["delivery_id"], body="y" * 65_537)
    assert len(sam.claim()["envelope"]["body"]) == 65_536
    # In bytes it is twice as many, and with its envelope more than 128 KiB.
    assert isinstance(bus.refused(sam.sending("Ann", body="ä" * 65_500)), TooLargeError)
    bus.close()


# --- batches ---


def test_sends_claims_and_answers_of_one_batch_see_each_other(
    bus: Bus, sam: Peer, ann: Peer
) -> None:
    claim = ann.claiming()
    outcomes = bus.store.apply(
        [
            sam.speaker.send("1"),
            sam.sending("Ann", kind="request", key="k"),
            sam.speaker.send("2"),
            claim,
            sam.sending("Ann", kind="request", key="k"),
            sam.speaker.send("3"),
        ]
    )
    results = [outcome.result for outcome in outcomes if isinstance(outcome, Done)]
    assert [result["sequence"] for result in (results[0], results[2], results[5])] == [1, 3, 4]
    assert results[3].delivery["envelope"]["id"] == results[1]["message_id"]
    assert results[4] == results[1] | {"duplicate": True}


@pytest.mark.parametrize("trouble", ["refused late", "a fault", "none"])
def test_neighbours_of_a_refused_operation_are_not_affected(
    bus: Bus, sam: Peer, ann: Peer, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it stumbles after it has written, as no operation should."""
    bad = sam.sending("Nobody")
    if trouble != "none":
        bad = sam.sending("Ann", body="stumbles")
        _stumble(
            monkeypatch, RuntimeError("a fault") if trouble == "a fault" else ConflictError("x")
        )
    good = [sam.sending("Ann", kind="request", key="a"), sam.sending("Ann", key="b")]
    first, refused, second, claimed = bus.store.apply([good[0], bad, good[1], ann.claiming()])
    assert isinstance(refused, Refused)
    assert isinstance(first, Done)
    assert isinstance(second, Done)
    assert isinstance(claimed, Done)
    assert claimed.result.delivery["envelope"]["id"] == first.result["message_id"]
    assert [row.sequence for row in deliveries(bus)] == [1, 2]
    assert bus.store.statistics().reruns == (0 if trouble == "none" else 1)
    row = bus.reader().channel("@Ann")
    assert row is not None
    assert row.retained == 2


def _stumble(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    post = posting.post

    def stumbling(work: Any, letter: Any) -> Any:
        made = post(work, letter)
        if letter.draft.body.content == "stumbles":
            raise error
        return made

    monkeypatch.setattr(sending, "post", stumbling)


def test_an_inbox_made_by_what_was_undone_is_made_again(
    bus: Bus, sam: Peer, ann: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    _stumble(monkeypatch, ConflictError("x"))
    refused, done = bus.store.apply([sam.sending("Ann", body="stumbles"), sam.sending("Ann")])
    assert isinstance(refused, Refused)
    assert isinstance(done, Done)
    assert isinstance(done.facts[0], ChannelMade)
    bus.reopen()
    assert isinstance(bus.done(sam.sending("Ann")).facts[0], MessageAppended)


def test_what_does_not_fit_the_budget_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "full"
    folder.mkdir()
    bus = Bus(folder, sqlite_budget_mib=1)
    sam, ann = Peer(bus, "Sam"), Peer(bus, "Ann")
    while bus.store.logical_bytes < 1024 * KIB - 60_000:
        bus.done(sam.speaker.send("x" * 50_000))
    before = bus.store.logical_bytes
    late, claimed = bus.store.apply([sam.sending("Ann", body="x" * 60_000), ann.claiming()])
    assert isinstance(late, NoRoom)
    assert late.needed_bytes > 60_000
    assert isinstance(claimed, Done)
    assert claimed.result.delivery is None
    assert bus.store.logical_bytes == before
    assert deliveries(bus) == []
    assert bus.reader().channel("@Ann") is None
    require_exact_accounting(bus)
    bus.close()
