"""People among agents: who may write to them, what they are not bound by, what they read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentbus.errors import ForbiddenError, NotFoundError
from agentbus.limits import CONSULTATION_REQUESTS, RESULT_BYTES
from agentbus.rules.peer import PEER_NOT_ALLOWED
from agentbus.store.peer.people import EXCERPT_CHARACTERS, PeopleReader
from tests.store.bus import Bus
from tests.store.peers import Peer

PERSON = "human:pat"
DAY = "\u65e5"
"""A character of three bytes."""


@pytest.fixture
def people(bus: Bus) -> Iterator[PeopleReader]:
    with closing(PeopleReader(bus.path)) as reader:
        yield reader


def test_an_agent_answers_a_person_but_writes_to_none_by_itself(bus: Bus) -> None:
    pat, sam = Peer(bus, PERSON), Peer(bus, "Sam")
    for kind in ("info", "request", "ack"):
        error = bus.refused(sam.sending(PERSON, kind=kind))
        assert isinstance(error, ForbiddenError)
        assert (error.reason, error.status) == (PEER_NOT_ALLOWED, 403)
        assert "is a person" in error.message
    pat.ask("Sam")
    got = sam.claim()
    assert sam.do("reply", got["delivery_id"], ack=False)["recipients"][0]["agent"] == PERSON
    # Also later, and by `send`; but nothing else than a response, and to nobody else.
    asked = got["envelope"]["id"]
    assert bus.done(sam.sending(PERSON, kind="response", reply_to=asked, ack=True)).result["acked"]
    sam.send(PERSON, kind="response", reply_to=asked)
    assert isinstance(bus.refused(sam.sending(PERSON, kind="info", reply_to=asked)), ForbiddenError)


def test_a_response_does_not_open_the_way_to_another_person(bus: Bus) -> None:
    pat, sam, kim = Peer(bus, PERSON), Peer(bus, "Sam"), Peer(bus, "Kim")
    Peer(bus, "human:ann")
    asked = pat.ask("Sam")["message_id"]
    refused = bus.refused(sam.sending("human:ann", kind="response", reply_to=asked))
    assert isinstance(refused, ForbiddenError)
    # Nor does one that answers somebody else's message, or one that was never for this agent.
    other = kim.ask("Sam")["message_id"]
    refused = bus.refused(sam.sending(PERSON, kind="response", reply_to=other))
    assert isinstance(refused, ForbiddenError)
    assert isinstance(
        bus.refused(kim.sending(PERSON, kind="response", reply_to=asked)), NotFoundError
    )


def test_a_person_is_bound_by_no_list_and_no_budget(tmp_path: Path) -> None:
    with closing(Bus(tmp_path, peer_allow=("Kim",))) as bus:
        pat, sam = Peer(bus, PERSON), Peer(bus, "Sam")
        Peer(bus, "Ann")
        assert isinstance(sam.refused_ask("Ann"), ForbiddenError)
        for _ in range(CONSULTATION_REQUESTS + 1):
            pat.ask("Ann")


def test_what_waits_for_a_person_is_listed_oldest_first_and_shown_in_full(
    bus: Bus, people: PeopleReader
) -> None:
    kim, sam, ann = Peer(bus, "Kim"), Peer(bus, "Sam"), Peer(bus, "Ann")
    kim.ask("Sam", "Ann", body="Drop the table.")
    first = sam.claim()
    sam.do("checkpoint", first["delivery_id"], action_type="destructive", proposed_action="DROP")
    bus.clock.advance(60)
    second = ann.claim()
    ann.do("human", second["delivery_id"], reason="Really?")

    waiting = people.open_interventions(100)
    assert [(row["to"], row["from"], row["source"], row["version"]) for row in waiting] == [
        ("Sam", "Kim", "checkpoint", 1),
        ("Ann", "Kim", "human", 1),
    ]
    assert [row["reason"] for row in waiting] == ["the action is destructive", "Really?"]
    assert people.open_interventions(1) == waiting[:1]
    assert people.decided_interventions(100) == []

    whole = people.intervention(waiting[0]["intervention_id"])
    assert whole == people.intervention(first["delivery_id"])
    assert whole is not None
    assert whole["detail"]["proposed_action"] == "DROP"
    assert (whole["request"], whole["state"]) == ("Drop the table.", "paused")
    assert whole["decision"] is None
    assert {key: whole[key] for key in waiting[0]} == waiting[0]
    assert people.intervention(kim.session_id) is None


def test_replies_are_listed_newest_first_and_not_more_than_a_result_holds(
    tmp_path: Path,
) -> None:
    with closing(Bus(tmp_path, max_message_kib=1024)) as bus:
        pat, sam = Peer(bus, PERSON), Peer(bus, "Sam")
        asked = pat.ask("Sam")["message_id"]
        got = sam.claim()
        filling = DAY * (65_536 - 2)
        for number in range(RESULT_BYTES // len(filling.encode()) + 3):
            sam.do("reply", got["delivery_id"], body=f"{number}{filling}", ack=False)
        with closing(PeopleReader(bus.path)) as people:
            replies = people.replies(PERSON, 100)
            numbers = [int(reply["body"].rstrip(DAY)) for reply in replies]
            assert numbers == list(range(number, number - len(replies), -1))
            assert 10 < len(replies) < number
            assert {(reply["reply_to"], reply["from"], reply["new"]) for reply in replies} == {
                (asked, "Sam", True)
            }
            assert people.replies(PERSON, 1) == replies[:1]
            assert people.replies("human:ann", 100) == []


def test_requests_are_those_of_all_agents_by_state_and_by_agent(
    bus: Bus, people: PeopleReader
) -> None:
    kim, sam, ann = Peer(bus, "Kim"), Peer(bus, "Sam"), Peer(bus, "Ann")
    kim.ask("Sam", "Ann", body="x" * 500)
    sam.ask("Ann")
    kim.send("Sam")  # an info is no request
    sam.do("reply", sam.claim()["delivery_id"])

    def seen(state: Any = None, agent: str | None = None) -> list[tuple[str, str, str]]:
        rows = people.requests(state, agent, 100, {})
        return [(row["from"], row["to"], row["reply_state"]) for row in rows]

    assert seen() == [("Sam", "Ann", "awaiting"), ("Kim", "Ann", "awaiting")]
    assert seen("replied") == [("Kim", "Sam", "replied")]
    assert seen("overdue") == []
    assert seen(agent="Kim") == [("Kim", "Ann", "awaiting")]
    assert seen(agent="Sam") == [("Sam", "Ann", "awaiting")]
    assert seen("overdue", "Kim") == []
    with pytest.raises(NotFoundError, match="no agent 'Nobody'"):
        seen(agent="Nobody")
    (row,) = people.requests("replied", None, 100, {})
    assert len(row["excerpt"]) == EXCERPT_CHARACTERS
    assert (row["delivery_state"], row["session"]) == ("acked", "Sam")
    assert row["reply_message_id"] is not None
    assert len(people.requests(None, None, 1, {})) == 1
    for attached, cause in (({}, "undelivered"), ({ann.agent_id: {ann.session_id}}, "unclaimed")):
        rows = people.requests("awaiting", None, 100, attached)
        assert {row["cause"] for row in rows} == {cause}
