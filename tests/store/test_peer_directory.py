"""The directory of agents, who is at work, and what waits for a session."""

from __future__ import annotations

from typing import Any

import pytest

from agentbus.ids import AgentId, SessionId
from agentbus.store.peer.changes import AbandonLease, Claimed, MarkReplyLate, MarkShown
from agentbus.store.peer.directory import AgentCard, DirectoryReader
from tests.store.bus import Bus
from tests.store.peers import Peer, deliveries, token_of

pytestmark = pytest.mark.usefixtures("exact_accounting")


@pytest.fixture
def reader(bus: Bus) -> Any:
    reader = DirectoryReader(bus.path)
    yield reader
    reader.close()


def listed(reader: DirectoryReader, *attached: Peer, **which: Any) -> dict[str, AgentCard]:
    """The directory by name, in its order, while the sessions of these are attached."""
    sessions: dict[SessionId, AgentId] = {one.session_id: one.agent_id for one in attached}
    return {card.agent: card for card in reader.directory(sessions, 100, **which)}


def test_the_directory_has_every_agent_with_its_sessions_that_are_attached(
    bus: Bus, reader: DirectoryReader
) -> None:
    ann = Peer(bus, "Ann", capabilities=("java", "python"))
    bob = Peer(bus, "Bob")
    bus.clock.advance(seconds=1)
    other = Peer(bus, "Bob", "Bob-2", repository="/r")
    Peer(bus, "human:kim")
    bus.done(ann.change("describe", description="knows\tmuch\n"))
    cards_of = listed(reader, bob, other)
    assert list(cards_of) == ["Ann", "Bob"]
    assert cards_of["Ann"].description == "knows\tmuch"
    assert cards_of["Ann"].capabilities == ("java", "python")
    assert cards_of["Ann"].sessions == ()
    assert cards_of["Bob"].description is None
    first, second = cards_of["Bob"].sessions
    assert (first.session_id, first.repository) == (bob.session_id, None)
    assert (second.session_id, second.repository) == (other.session_id, "/r")
    assert cards_of["Bob"].last_seen_us == bus.clock.wall_us()


def test_a_description_is_replaced_and_cleared(bus: Bus, reader: DirectoryReader) -> None:
    ann = Peer(bus, "Ann")
    for given, kept in (
        ("first", "first"),
        ("ünï", "ünï"),
        (" \n ", None),
        ("x", "x"),
        (None, None),
    ):
        answer = bus.done(ann.change("describe", description=given)).result
        assert answer["description"] == kept
        (card,) = listed(reader).values()
        assert card.description == kept


def test_capabilities_stay_until_a_session_names_others(bus: Bus, reader: DirectoryReader) -> None:
    ann = Peer(bus, "Ann", capabilities=("python",))
    for given, kept in ((None, ("python",)), (("c", "go"), ("c", "go")), ((), ())):
        ann.attach(capabilities=given)
        (card,) = listed(reader).values()
        assert card.capabilities == kept


def test_the_directory_says_who_holds_work_and_who_waits_for_a_person(
    bus: Bus, reader: DirectoryReader
) -> None:
    ann, bob = Peer(bus, "Ann"), Peer(bus, "Bob")

    def at_work() -> tuple[bool, bool]:
        (session,) = listed(reader, bob)["Bob"].sessions
        return session.leased, session.paused

    ann.ask("Bob")
    assert at_work() == (False, False)
    delivery_id = bob.claim()["delivery_id"]
    assert at_work() == (True, False)
    bob.do("human", delivery_id)
    assert at_work() == (False, True)


def test_the_directory_says_whether_an_agent_as_a_whole_can_be_given_more(
    bus: Bus, reader: DirectoryReader
) -> None:
    ann, bob, other = Peer(bus, "Ann"), Peer(bus, "Bob"), Peer(bus, "Bob", "Bob-2")

    def in_work() -> str | None:
        return listed(reader, other)["Bob"].in_work

    ann.ask(bob.session_id)
    to_session = bob.claim()["delivery_id"]
    assert in_work() is None, "what is for one session keeps nothing else back"
    bob.do("ack", to_session)
    ann.ask("Bob")
    to_agent = bob.claim()["delivery_id"]
    assert in_work() == "leased"
    bob.do("human", to_agent)
    assert in_work() == "paused"


def test_the_directory_is_read_in_parts(bus: Bus, reader: DirectoryReader) -> None:
    peers = [
        Peer(bus, name, capabilities=capabilities)
        for name, capabilities in (
            ("Ann", ("sql",)),
            ("Bob", ()),
            ("human:kim", ("sql",)),
            ("Zoë", ("art", "sql")),
        )
    ]
    assert [card.agent for card in reader.directory({}, 2)] == ["Ann", "Bob"]
    assert list(listed(reader, after="Ann")) == ["Bob", "Zoë"]
    assert list(listed(reader, after="Zoë")) == []
    assert list(listed(reader, capability="sql")) == ["Ann", "Zoë"]
    assert list(listed(reader, capability="SQL")) == []
    assert list(listed(reader, *peers[1:], attached_only=True)) == ["Bob", "Zoë"]
    assert list(listed(reader, *peers, attached_only=True, after="Bob", capability="art")) == [
        "Zoë"
    ]
    names = ("Ann", "Zoë", "zoë", "human:kim", "")
    assert [name for name in names if reader.is_agent(name)] == ["Ann", "Zoë"]


def test_what_waits_is_what_a_claim_would_give(bus: Bus, reader: DirectoryReader) -> None:
    ann, bob, other = Peer(bus, "Ann"), Peer(bus, "Bob"), Peer(bus, "Bob", "Bob-2")

    def waiting(peer: Peer) -> int:
        return len(reader.waiting_work(peer.agent_id, peer.session_id))

    assert waiting(bob) == 0
    ann.send("Bob")
    ann.send("Bob")
    ann.send(other.session_id)
    bob.send("Bob")
    assert (waiting(bob), waiting(other), waiting(ann)) == (2, 4, 0)
    delivery_id = bob.claim()["delivery_id"]
    assert waiting(bob) == 0
    assert waiting(other) == 1  # what is for the agent is kept back, not its own
    claimed: Claimed = bus.done(other.claiming()).result
    assert claimed.delivery is not None
    assert waiting(other) == 0
    bob.do("human", delivery_id)
    assert waiting(bob) == 0
    bus.done(AbandonLease(*token_of(bus, claimed.delivery["delivery_id"])))
    assert waiting(other) == 1


def test_answers_wait_for_whoever_works_until_they_are_shown(
    bus: Bus, reader: DirectoryReader
) -> None:
    ann, bob, kim = Peer(bus, "Ann"), Peer(bus, "Bob"), Peer(bus, "Kim")
    ann.ask("Bob")
    held = bob.claim()["delivery_id"]
    bob.ask("Kim")
    kim.send("Bob")  # which has to wait
    kim.do("reply", kim.claim()["delivery_id"])
    answer = deliveries(bus)[-1]
    for state in ("leased", "paused"):
        waits = reader.waiting_work(bob.agent_id, bob.session_id)
        assert {delivery_id for delivery_id, _ in waits} == {answer.id}, state
        if state == "leased":
            bob.do("human", held)
    bus.done(MarkShown(bob.speaker.attachment, (answer.message_id,)))
    assert not reader.waiting_work(bob.agent_id, bob.session_id)


def test_inboxes_in_use_have_open_work_or_await_a_reply(bus: Bus, reader: DirectoryReader) -> None:
    ann, bob = Peer(bus, "Ann"), Peer(bus, "Bob")
    assert reader.inboxes_in_use() == ()
    ann.ask("Bob")
    assert set(reader.inboxes_in_use()) == {ann.agent_id, bob.agent_id}
    bob.do("ack", bob.claim()["delivery_id"])
    assert reader.inboxes_in_use() == (ann.agent_id,)
    bus.done(MarkReplyLate(deliveries(bus)[0].id, "overdue"))
    assert reader.inboxes_in_use() == (ann.agent_id,)
    bus.done(MarkReplyLate(deliveries(bus)[0].id, "unanswered"))
    assert reader.inboxes_in_use() == ()
