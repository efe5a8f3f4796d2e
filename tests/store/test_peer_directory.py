"""The directory of agents, who is at work, and what waits for a session."""

from __future__ import annotations

from typing import Any

import pytest

from agentbus.store.peer.changes import AbandonLease, Claimed, MarkReplyLate
from agentbus.store.peer.directory import AgentCard, DirectoryReader, WaitingWork
from tests.store.bus import Bus
from tests.store.peers import Peer, deliveries, token_of

pytestmark = pytest.mark.usefixtures("exact_accounting")


@pytest.fixture
def reader(bus: Bus) -> Any:
    reader = DirectoryReader(bus.path)
    yield reader
    reader.close()


def by_name(cards: list[AgentCard]) -> dict[str, AgentCard]:
    return {card.agent: card for card in cards}


def test_the_directory_has_every_agent_with_its_sessions_that_are_attached(
    bus: Bus, reader: DirectoryReader
) -> None:
    ann = Peer(bus, "Ann", capabilities=("java", "python"))
    bob = Peer(bus, "Bob")
    bus.clock.advance(seconds=1)
    other = Peer(bus, "Bob", "Bob-2", repository="/r")
    Peer(bus, "human:kim")
    bus.done(ann.change("describe", description="knows\tmuch\n"))
    cards = reader.directory([bob.session_id, other.session_id])
    assert [card.agent for card in cards] == ["Ann", "Bob"]
    cards_of = by_name(cards)
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
        (card,) = reader.directory([])
        assert card.description == kept


def test_capabilities_stay_until_a_session_names_others(bus: Bus, reader: DirectoryReader) -> None:
    ann = Peer(bus, "Ann", capabilities=("python",))
    for given, kept in ((None, ("python",)), (("c", "go"), ("c", "go")), ((), ())):
        ann.attach(capabilities=given)
        (card,) = reader.directory([])
        assert card.capabilities == kept


def test_the_directory_says_who_holds_work_and_who_waits_for_a_person(
    bus: Bus, reader: DirectoryReader
) -> None:
    ann, bob = Peer(bus, "Ann"), Peer(bus, "Bob")

    def at_work() -> tuple[bool, bool]:
        (session,) = by_name(reader.directory([bob.session_id]))["Bob"].sessions
        return session.leased, session.paused

    ann.ask("Bob")
    assert at_work() == (False, False)
    delivery_id = bob.claim()["delivery_id"]
    assert at_work() == (True, False)
    bob.do("human", delivery_id)
    assert at_work() == (False, True)


def test_what_waits_is_what_a_claim_would_give(bus: Bus, reader: DirectoryReader) -> None:
    ann, bob, other = Peer(bus, "Ann"), Peer(bus, "Bob"), Peer(bus, "Bob", "Bob-2")

    def waiting(peer: Peer) -> tuple[int, bool]:
        found = reader.waiting_work(peer.agent_id, peer.session_id)
        assert isinstance(found, WaitingWork)
        return len(found.claimable), found.holds

    assert waiting(bob) == (0, False)
    ann.send("Bob")
    ann.send("Bob")
    ann.send(other.session_id)
    bob.send("Bob")
    assert (waiting(bob), waiting(other), waiting(ann)) == ((2, False), (4, False), (0, False))
    delivery_id = bob.claim()["delivery_id"]
    assert waiting(bob) == (0, True)
    assert waiting(other) == (1, False)  # what is for the agent is kept back, not its own
    claimed: Claimed = bus.done(other.claiming()).result
    assert claimed.delivery is not None
    assert waiting(other) == (0, True)
    bob.do("human", delivery_id)
    assert waiting(bob) == (0, False)
    bus.done(AbandonLease(*token_of(bus, claimed.delivery["delivery_id"])))
    assert waiting(other) == (1, False)


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
