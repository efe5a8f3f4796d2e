"""What agents read of direct messages: only their own, and what became of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentbus.errors import BusError, ConflictError, NotFoundError, ValidationError
from agentbus.limits import PEER_THREADS, RESULT_BYTES
from agentbus.protocol.peer import PeerRecent
from agentbus.store.changes import PruneSlice
from agentbus.store.peer.changes import AbandonLease, Decide, MarkReplyLate, MarkShown
from agentbus.store.peer.reading import PeerReader
from tests.store.bus import Bus
from tests.store.peers import Peer, deliveries, delivery, intervention, token_of

NOBODY: dict[Any, Any] = {}


@pytest.fixture
def bus(tmp_path: Path) -> Any:
    bus = Bus(tmp_path)
    yield bus
    bus.close()


@pytest.fixture
def reader(bus: Bus) -> Any:
    reader = PeerReader(bus.path)
    yield reader
    reader.close()


@pytest.fixture
def peers(bus: Bus) -> tuple[Peer, Peer, Peer]:
    return Peer(bus, "Ann"), Peer(bus, "Bob"), Peer(bus, "Cid")


def causes(reader: PeerReader, peer: Peer, message_id: str, attached: Any = NOBODY) -> list[Any]:
    found = reader.status(peer.agent_id, message_id, attached)
    return [one["cause"] for one in found["deliveries"]]


# --- status ---


def test_the_sender_sees_all_deliveries_and_a_recipient_its_own(
    reader: PeerReader, peers: tuple[Peer, Peer, Peer], bus: Bus
) -> None:
    ann, bob, _ = peers
    message_id = ann.ask("Bob", "Cid", body="who knows?")["message_id"]
    seen = reader.status(ann.agent_id, message_id, NOBODY)
    assert [one["recipient"]["agent"] for one in seen["deliveries"]] == ["Bob", "Cid"]
    assert seen["envelope"]["body"] == "who knows?"
    assert seen["envelope"]["correlation_id"] == message_id
    (mine,) = reader.status(bob.agent_id, message_id, NOBODY)["deliveries"]
    assert (mine["state"], mine["reply_state"], mine["late"]) == ("queued", "awaiting", False)
    assert mine["reply_due_at"] == "2027-01-15T08:15:00.000Z"
    dan = Peer(bus, "Dan")
    for nobody in (dan.agent_id, "nobody", ""):
        with pytest.raises(NotFoundError, match="no direct message"):
            reader.status(nobody, message_id, NOBODY)  # type: ignore[arg-type]


def test_a_channel_message_is_no_direct_message(
    reader: PeerReader, peers: tuple[Peer, Peer, Peer], bus: Bus
) -> None:
    ann = peers[0]
    message_id = bus.done(ann.speaker.send("to all")).result["message_id"]
    with pytest.raises(NotFoundError):
        reader.status(ann.agent_id, message_id, NOBODY)


def test_a_missing_reply_has_its_cause(
    reader: PeerReader, peers: tuple[Peer, Peer, Peer], bus: Bus
) -> None:
    ann, bob, _ = peers
    message_id = ann.ask("Bob")["message_id"]
    assert causes(reader, ann, message_id) == ["undelivered"]
    there = {bob.agent_id: {bob.session_id}}
    assert causes(reader, ann, message_id, there) == ["unclaimed"]
    delivery_id = bob.claim()["delivery_id"]
    assert causes(reader, ann, message_id, there) == ["stuck"]
    bob.do("progress", delivery_id)
    assert causes(reader, ann, message_id, there) == [None]
    bus.done(AbandonLease(*token_of(bus, delivery_id)))
    assert causes(reader, ann, message_id, there) == ["stuck"]
    bob.claim()
    bob.do("ack", delivery_id)
    assert causes(reader, ann, message_id, there) == ["silent"]


def test_a_request_to_a_session_is_unclaimed_only_while_that_session_is_there(
    reader: PeerReader, peers: tuple[Peer, Peer, Peer], bus: Bus
) -> None:
    ann, bob, _ = peers
    other = Peer(bus, "Bob", "Bob-2")
    message_id = ann.ask(bob.session_id)["message_id"]
    assert causes(reader, ann, message_id, {bob.agent_id: {other.session_id}}) == ["undelivered"]
    assert causes(reader, ann, message_id, {bob.agent_id: {bob.session_id}}) == ["unclaimed"]


def test_late_replies_are_named_and_marked_late(
    reader: PeerReader, peers: tuple[Peer, Peer, Peer], bus: Bus
) -> None:
    ann, bob, _ = peers
    message_id = ann.ask("Bob")["message_id"]
    (row,) = deliveries(bus)
    bus.done(MarkReplyLate(row.id, "overdue", reached=False))
    bus.done(MarkReplyLate(row.id, "unanswered"))
    bob.do("reply", bob.claim()["delivery_id"])
    (seen,) = reader.status(ann.agent_id, message_id, NOBODY)["deliveries"]
    assert seen["reply_state"] == "unanswered"
    assert (seen["reply_message_id"], seen["late"]) == (None, True)
    assert seen["late_reply_message_id"] == deliveries(bus)[-1].message_id


def test_status_is_kept_for_a_while_after_the_message_is_gone(
    reader: PeerReader, peers: tuple[Peer, Peer, Peer], bus: Bus
) -> None:
    ann = peers[0]
    message_id = ann.ask("Bob")["message_id"]
    bus.clock.advance(hours=bus.config.message_retention_hours)
    bus.done(PruneSlice("messages_by_age", 500))
    seen = reader.status(ann.agent_id, message_id, NOBODY)
    assert seen["envelope"] is None
    (one,) = seen["deliveries"]
    assert (one["state"], one["reply_state"]) == ("cancelled", "cancelled")
    assert (one["cause"], one["cancelled_reason"]) == ("retention", "retention")


# --- requests ---


def test_requests_are_ones_own_by_state_the_newest_first(
    reader: PeerReader, peers: tuple[Peer, Peer, Peer], bus: Bus
) -> None:
    ann, bob, cid = peers
    for _ in range(3):
        ann.ask("Bob")
    cid.ask("Ann")
    ann.send("Bob")
    first, second, third, *_ = deliveries(bus)
    bus.done(MarkReplyLate(first.id, "overdue"))
    bus.done(MarkReplyLate(second.id, "unanswered"))
    everything = reader.requests(ann.agent_id, None, 20, NOBODY)
    assert [one["id"] for one in everything] == [third.id, second.id, first.id]
    for state, row in (("overdue", first), ("unanswered", second), ("awaiting", third)):
        (found,) = reader.requests(ann.agent_id, state, 20, NOBODY)  # type: ignore[arg-type]
        assert found["id"] == row.id
    assert found["recipient"] == {"agent": "Bob", "agent_id": bob.agent_id}
    assert found["ts"] == 1_800_000_000_000
    assert len(reader.requests(ann.agent_id, None, 2, NOBODY)) == 2
    bob.do("reply", bob.claim()["delivery_id"])
    bob.do("ack", bob.claim()["delivery_id"])
    assert [one["reply_state"] for one in reader.requests(ann.agent_id, None, 20, NOBODY)] == [
        "awaiting",
        "unanswered",
        "replied",
    ]
    assert reader.requests(ann.agent_id, "overdue", 20, NOBODY) == []
    assert reader.requests(bob.agent_id, None, 20, NOBODY) == []


# --- recent ---


def bodies(reader: PeerReader, peer: Peer, **query: Any) -> list[str]:
    return [one["body"] for one in reader.recent(peer.agent_id, PeerRecent(**query)).messages]


def test_recent_is_what_an_agent_sent_and_got_newest_first(
    reader: PeerReader, peers: tuple[Peer, Peer, Peer], bus: Bus
) -> None:
    ann, bob, cid = peers
    ann.send("Bob", body="1")
    bob.send("Ann", "Cid", body="2")
    cid.send("Bob", body="3", thread_id="t")
    assert bodies(reader, ann) == ["2", "1"]
    assert bodies(reader, bob) == ["3", "2", "1"]
    assert bodies(reader, cid) == ["3", "2"]
    assert bodies(reader, bob, agent_id="Ann") == ["2", "1"]
    assert bodies(reader, bob, agent_id=cid.agent_id) == ["3", "2"]
    assert bodies(reader, bob, thread_id="t") == ["3"]
    assert bodies(reader, ann, thread_id="t") == []
    with pytest.raises(NotFoundError, match="no agent 'Dan'") as refused:
        bodies(reader, ann, agent_id="Dan")
    assert refused.value.status == 404


def test_recent_goes_on_where_the_page_before_ended(
    reader: PeerReader, peers: tuple[Peer, Peer, Peer]
) -> None:
    ann, bob, _ = peers
    for number in range(5):
        (ann if number % 2 else bob).send("Bob" if number % 2 else "Ann", "Cid", body=str(number))
    seen: list[str] = []
    before = None
    for size in (2, 2, 1):
        page = reader.recent(ann.agent_id, PeerRecent(limit=2, before=before))
        assert len(page.messages) == size
        seen += [one["body"] for one in page.messages]
        before = page.next_cursor
    assert (seen, before) == (["4", "3", "2", "1", "0"], None)
    for wrong in ("x", "-1", "1.5", "9" * 19, "٣"):
        with pytest.raises(ValidationError, match="next_cursor"):
            reader.recent(ann.agent_id, PeerRecent(before=wrong))


def test_a_page_of_recent_fits_one_result(
    reader: PeerReader, peers: tuple[Peer, Peer, Peer]
) -> None:
    ann = peers[0]
    many = RESULT_BYTES // 60_000 + 2
    for _ in range(many):
        ann.send("Bob", body="x" * 60_000)
    page = reader.recent(ann.agent_id, PeerRecent(limit=100))
    assert 0 < len(page.messages) < many
    rest = reader.recent(ann.agent_id, PeerRecent(limit=100, before=page.next_cursor))
    assert len(page.messages) + len(rest.messages) == many
    assert rest.next_cursor is None


def test_replies_to_one_message_are_found_by_who_sent_or_got_them(
    reader: PeerReader, peers: tuple[Peer, Peer, Peer]
) -> None:
    ann, bob, cid = peers
    message_id = ann.ask("Bob", "Cid")["message_id"]
    ann.send("Bob", body="noise")
    bob.do("reply", bob.claim()["delivery_id"], body="from Bob", ack=False)
    cid.do("reply", cid.claim()["delivery_id"], body="from Cid")
    page = reader.recent(ann.agent_id, PeerRecent(reply_to=message_id))
    assert [one["body"] for one in page.messages] == ["from Cid", "from Bob"]
    mine = reader.recent(bob.agent_id, PeerRecent(reply_to=message_id))
    assert [one["body"] for one in mine.messages] == ["from Bob"]


# --- threads ---


def test_threads_have_their_newest_message_and_the_other_agents(
    reader: PeerReader, peers: tuple[Peer, Peer, Peer], bus: Bus
) -> None:
    ann, bob, cid = peers
    ann.send("Bob", thread_id="old")
    ann.send("Bob", "Cid", thread_id="new", body="first")
    last = cid.send("Ann", thread_id="new")["message_id"]
    bob.send("Cid", thread_id="foreign")
    new, old = reader.threads(ann.agent_id)
    assert (new["thread_id"], new["messages"], new["peers"]) == ("new", 2, ["Bob", "Cid"])
    assert new["newest"]["id"] == last
    assert new["newest"]["from"]["agent"] == "Cid"
    assert "body" not in new["newest"]
    assert (old["thread_id"], old["peers"]) == ("old", ["Bob"])
    bus.clock.advance(hours=bus.config.message_retention_hours)
    bus.done(PruneSlice("messages_by_age", 500))
    assert [one["newest"] for one in reader.threads(ann.agent_id)] == [None, None]


def test_only_the_latest_threads_are_listed(
    reader: PeerReader, peers: tuple[Peer, Peer, Peer], bus: Bus
) -> None:
    ann = peers[0]
    bus.store.apply([ann.sending("Bob", thread_id=f"t{n}") for n in range(PEER_THREADS - 1)])
    for count in range(PEER_THREADS - 1, PEER_THREADS + 2):
        threads = [one["thread_id"] for one in reader.threads(ann.agent_id)]
        assert threads == [f"t{n}" for n in range(count)][: -PEER_THREADS - 1 : -1]
        bus.store.apply([ann.sending("Bob", thread_id=f"t{count}")])


# --- memory_context ---


def test_the_origin_of_a_memory_is_found_by_delivery_and_by_message(
    reader: PeerReader, peers: tuple[Peer, Peer, Peer], bus: Bus
) -> None:
    ann, bob, _ = peers
    sent = ann.ask("Bob", thread_id="t")
    delivery_id = bob.claim()["delivery_id"]
    by_delivery = reader.memory_context(bob.agent_id, delivery_id, None)
    assert by_delivery == {
        "source": "caura-bus",
        "tenant_id": bus.store.bus_id,
        "thread_id": "t",
        "message_id": sent["message_id"],
        "delivery_id": delivery_id,
        "peer_agent_ids": [ann.agent_id],
        "kind": "request",
        "ts": 1_800_000_000_000,
    }
    assert reader.memory_context(bob.agent_id, None, sent["message_id"]) == by_delivery
    asked = reader.memory_context(ann.agent_id, None, sent["message_id"])
    assert asked["peer_agent_ids"] == [bob.agent_id]
    claimed = delivery(bus, delivery_id)
    assert claimed.state == "leased"  # asking has claimed and renewed nothing
    bob.do("ack", delivery_id)
    assert reader.memory_context(bob.agent_id, delivery_id, None) == by_delivery


def test_a_memory_tells_of_the_decision_about_its_work(
    reader: PeerReader, peers: tuple[Peer, Peer, Peer], bus: Bus
) -> None:
    ann, bob, _ = peers
    ann.ask("Bob")
    delivery_id = bob.claim()["delivery_id"]
    bob.do("human", delivery_id)
    paused = reader.memory_context(bob.agent_id, delivery_id, None)
    assert "human_decision" not in paused
    question = intervention(bus, delivery_id)
    bus.done(Decide(question.id, 1, "approve", "human:kim"))
    assert reader.memory_context(bob.agent_id, delivery_id, None) == {
        **paused,
        "human_decision": {
            "intervention_id": question.id,
            "action": "approve",
            "decided_by": "human:kim",
            "decided_at": "2027-01-15T08:00:00.000Z",
        },
    }


def test_people_are_no_peers_of_a_memory(
    reader: PeerReader, peers: tuple[Peer, Peer, Peer], bus: Bus
) -> None:
    person, bob = Peer(bus, "human:kim"), peers[1]
    person.ask("Bob")
    delivery_id = bob.claim()["delivery_id"]
    assert reader.memory_context(bob.agent_id, delivery_id, None)["peer_agent_ids"] == []


def test_a_message_to_several_is_ambiguous_for_its_sender_alone(
    reader: PeerReader, peers: tuple[Peer, Peer, Peer], bus: Bus
) -> None:
    ann, bob, _ = peers
    message_id = ann.ask("Bob", "Cid")["message_id"]
    with pytest.raises(ConflictError) as refused:
        reader.memory_context(ann.agent_id, None, message_id)
    assert (refused.value.status, refused.value.reason) == (409, "AMBIGUOUS_DELIVERY")
    mine = reader.memory_context(bob.agent_id, None, message_id)
    assert (
        reader.memory_context(ann.agent_id, mine["delivery_id"], None)["message_id"] == message_id
    )


def test_no_memory_comes_from_what_is_gone_or_not_ones_own(
    reader: PeerReader, peers: tuple[Peer, Peer, Peer], bus: Bus
) -> None:
    ann, bob, cid = peers
    message_id = ann.ask("Bob")["message_id"]
    (row,) = deliveries(bus)

    def refusal(peer: Peer, *ids: Any) -> BusError:
        with pytest.raises(NotFoundError) as refused:
            reader.memory_context(peer.agent_id, *ids)
        assert refused.value.status == 404
        return refused.value

    for ids in ((row.id, None), (None, message_id)):
        refusal(cid, *ids)
    refusal(ann, "no-such", None)
    bus.clock.advance(hours=bus.config.message_retention_hours)
    bus.done(PruneSlice("messages_by_age", 500))
    for ids in ((row.id, None), (None, message_id)):
        assert "retained no more" in refusal(bob, *ids).message


# --- collect ---


def test_a_request_is_collected_slot_by_slot(
    reader: PeerReader, peers: tuple[Peer, Peer, Peer], bus: Bus
) -> None:
    ann, bob, cid = peers
    message_id = ann.ask("Cid", "Bob")["message_id"]

    def facts() -> Any:
        return reader.collected(ann.agent_id, ann.session_id, message_id, NOBODY)

    assert [slot.recipient for slot in facts().slots] == ["Cid", "Bob"]
    assert (facts().pending, facts().answered, facts().excluded) == (2, 0, 0)
    delivery_id = bob.claim()["delivery_id"]
    bob.do("reply", delivery_id, body="first", ack=False)
    bob.do("reply", delivery_id, body="second")
    cid.do("ack", cid.claim()["delivery_id"])
    found = facts()
    assert (found.pending, found.answered, found.excluded) == (1, 1, 1)
    silent, answered = found.slots
    assert silent.as_pending() == {
        "reply_state": "awaiting",
        "delivery_state": "acked",
        "cause": "silent",
        "reply_due_at": "2027-01-15T08:15:00.000Z",
    }
    assert answered.answer.body == "first"
    assert answered.answer.sender["agent"] == "Bob"
    assert (answered.answer.late, answered.answer.already_presented) == (False, False)
    bus.done(MarkShown(ann.speaker.attachment, (answered.answer.message_id,)))
    assert facts().slots[1].answer.already_presented
    other = Peer(bus, "Ann", "Ann-2")
    theirs = reader.collected(ann.agent_id, other.session_id, message_id, NOBODY)
    assert not theirs.slots[1].answer.already_presented
    for state in ("overdue", "unanswered"):
        bus.done(MarkReplyLate(silent.delivery_id, state))  # type: ignore[arg-type]
    closed = facts()
    assert closed.pending == 0
    assert closed.slots[0].as_closed()["reply_state"] == "unanswered"


def test_reassigned_work_answers_for_its_first_recipient_and_late_as_well(
    reader: PeerReader, peers: tuple[Peer, Peer, Peer], bus: Bus
) -> None:
    ann, bob, cid = peers
    message_id = ann.ask("Bob", body="hard")["message_id"]
    delivery_id = bob.claim()["delivery_id"]
    bob.do("human", delivery_id)
    question = intervention(bus, delivery_id)
    decided = bus.done(Decide(question.id, 1, "reassign", "human:kim", to="Cid")).result
    bus.done(MarkReplyLate(decided["reassigned_to"], "overdue"))
    claimed = cid.claim()
    assert claimed["delivery_id"] == decided["reassigned_to"]
    cid.do("reply", claimed["delivery_id"], body="done")
    found = reader.collected(ann.agent_id, ann.session_id, message_id, NOBODY)
    (slot,) = found.slots
    assert (slot.recipient, slot.delivery_id) == ("Bob", decided["reassigned_to"])
    assert slot.answer is not None
    assert (slot.answer.sender["agent"], slot.answer.late) == ("Cid", True)
    assert found.excluded == 0
    old, new = reader.status(ann.agent_id, message_id, NOBODY)["deliveries"]
    assert (old["state"], old["reply_state"], old["recipient"]["agent"]) == (
        "reassigned",
        None,
        "Bob",
    )
    assert new["reassigned_from"] == old["id"]
    context = reader.memory_context(cid.agent_id, None, message_id)
    assert context["human_decision"]["action"] == "reassign"


def test_only_a_request_of_ones_own_is_collected(
    reader: PeerReader, peers: tuple[Peer, Peer, Peer]
) -> None:
    ann, bob, _ = peers
    request, note = ann.ask("Bob")["message_id"], ann.send("Bob")["message_id"]
    for peer, message_id in ((bob, request), (ann, "no-such")):
        with pytest.raises(NotFoundError):
            reader.collected(peer.agent_id, peer.session_id, message_id, NOBODY)
    with pytest.raises(ValidationError, match="is no request"):
        reader.collected(ann.agent_id, ann.session_id, note, NOBODY)


def test_one_id_in_the_place_of_the_other_is_refused_with_the_difference(
    reader: PeerReader, peers: tuple[Peer, Peer, Peer]
) -> None:
    ann, bob, _ = peers
    sent = ann.ask("Bob")
    (recipient,) = sent["recipients"]
    for look in (
        lambda: reader.status(ann.agent_id, recipient["delivery_id"], NOBODY),
        lambda: reader.collected(ann.agent_id, ann.session_id, recipient["delivery_id"], NOBODY),
    ):
        with pytest.raises(NotFoundError, match="a delivery_id names none"):
            look()
    error = bob.refused("reply", sent["message_id"])
    assert isinstance(error, NotFoundError)
    assert "a message_id names none" in error.message


def test_an_answer_that_is_retained_no_more_has_no_body(
    reader: PeerReader, peers: tuple[Peer, Peer, Peer], bus: Bus
) -> None:
    ann, bob, _ = peers
    message_id = ann.ask("Bob")["message_id"]
    bob.do("reply", bob.claim()["delivery_id"])
    bus.clock.advance(hours=bus.config.message_retention_hours)
    bus.done(PruneSlice("messages_by_age", 500))
    (slot,) = reader.collected(ann.agent_id, ann.session_id, message_id, NOBODY).slots
    assert slot.answer is not None
    assert (slot.answer.body, slot.answer.sender) == (None, {})


def test_the_time_left_to_ask_others_runs_from_the_first_request(
    reader: PeerReader, peers: tuple[Peer, Peer, Peer], bus: Bus
) -> None:
    ann, bob, _ = peers

    def left(peer: Peer) -> float:
        return reader.consultation_seconds_left(peer.session_id, bus.clock.wall_us())

    assert left(ann) == 300
    ann.ask("Bob")
    bus.clock.advance(seconds=100)
    assert left(ann) == 200
    bob.claim()
    assert left(bob) == 300
    bus.clock.advance(seconds=400)
    assert left(bob) == 200  # the work itself must be done by then
    assert left(ann) == 300  # her own account begins anew, so she may wait for the answer
    bus.clock.advance(seconds=200)
    assert left(bob) == 0
    (request,) = deliveries(bus)
    bus.done(AbandonLease(*token_of(bus, request.id)))
    assert left(bob) == 0  # it is claimed again by itself
    bob.do("human", bob.claim()["delivery_id"])
    assert left(bob) == 300  # while it rests he asks on his own account
