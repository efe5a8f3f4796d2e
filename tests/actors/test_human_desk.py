"""What the human desk submits for a person, in which order, and what it answers when that fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actors.base import FutureReply, start_actor, stop_actor
from actors.human_desk import HumanDeskActor, person_of_this_process
from actors.human_desk_messages import PersonAsked
from actors.messages import Submit
from agentbus.errors import (
    ConflictError,
    NotFoundError,
    StaleAttachmentError,
    TooLargeError,
    UnavailableError,
)
from agentbus.ids import InterventionId
from agentbus.limits import KIB
from agentbus.protocol.people import (
    HumanDecide,
    HumanList,
    HumanReplies,
    HumanSend,
    HumanShow,
    PersonsRequest,
    Requests,
)
from agentbus.store.changes import BindSession, SessionBound
from agentbus.store.peer.changes import Decide, PeerMutation
from agentbus.store.peer.people import PeopleReader
from tests.eventually import PATIENCE_S
from tests.probe import Probe, settle
from tests.store.bus import Bus

PERSON = "human:pat"
STALE = StaleAttachmentError("this attachment was replaced")


class Office:
    """A desk with a real database; the test plays the ledger, and binds in that database."""

    def __init__(self, folder: Path) -> None:
        self.bus = Bus(folder, max_message_kib=1)
        self.ledger = Probe()
        self.address = start_actor(
            HumanDeskActor(
                lambda: PeopleReader(self.bus.path),
                dict,
                self.ledger.address,
                self.bus.config,
                PERSON,
            )
        )

    def ask(self, request: PersonsRequest) -> FutureReply:
        reply = FutureReply()
        self.address.tell(PersonAsked(request, reply))
        settle(self.address)
        return reply

    def send(self, key: str) -> FutureReply:
        return self.ask(HumanSend(("Sam",), "Look.", key))

    def submitted(self, kind: type[Any]) -> tuple[Any, Any]:
        """The one change that the ledger has, and who is to be answered."""
        submit = self.ledger.expect(Submit)
        assert isinstance(submit.change, kind)
        return submit.change, submit.reply_to

    def bind(self) -> SessionBound:
        change, reply_to = self.submitted(BindSession)
        bound: SessionBound = self.bus.done(change).result
        reply_to.set(bound)
        return bound

    def nothing_is_submitted(self) -> None:
        self.ledger.expect_nothing_of(Submit, through=(self.address,))

    def close(self) -> None:
        stop_actor(self.address, PATIENCE_S)
        self.ledger.stop()
        self.bus.close()


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    office = Office(tmp_path)
    yield office
    office.close()


def test_the_first_message_binds_the_persons_session_and_the_next_ones_use_it(
    office: Office,
) -> None:
    first, second = office.send("k1"), office.send("k2")
    bound = office.bind()
    assert (bound.agent, bound.identity.application) == (PERSON, "human")
    for key, reply in (("k1", first), ("k2", second)):
        change, reply_to = office.submitted(PeerMutation)
        assert (change.operation_id, change.operation.idempotency_key) == (key, key)
        assert (change.sender.agent, change.attachment.generation) == (PERSON, bound.generation)
        assert change.rate_ok
        office.nothing_is_submitted()  # one after the other, as an inspection needs it
        reply_to.set({"message_id": key})
        assert reply.get(PATIENCE_S) == {"message_id": key}


def test_a_session_that_went_stale_is_bound_again_for_the_same_message(office: Office) -> None:
    reply = office.send("k1")
    before = office.bind()
    office.submitted(PeerMutation)[1].set_exception(STALE)
    after = office.bind()
    change, reply_to = office.submitted(PeerMutation)
    assert (change.operation_id, change.attachment.generation) == ("k1", after.generation)
    assert after.session_id == before.session_id
    reply_to.set({})
    assert reply.get(PATIENCE_S) == {}


def test_a_session_that_is_stale_at_once_is_not_bound_for_ever(office: Office) -> None:
    reply, _ = office.send("k1"), office.send("k2")
    for _ in range(2):
        office.bind()
        office.submitted(PeerMutation)[1].set_exception(STALE)
    with pytest.raises(StaleAttachmentError):
        reply.get(PATIENCE_S)
    assert office.submitted(PeerMutation)[0].operation_id == "k2"


def test_a_bind_that_is_refused_answers_the_message_and_is_tried_again_for_the_next(
    office: Office,
) -> None:
    first, _ = office.send("k1"), office.send("k2")
    office.submitted(BindSession)[1].set_exception(UnavailableError("recovering"))
    with pytest.raises(UnavailableError):
        first.get(PATIENCE_S)
    office.bind()
    assert office.submitted(PeerMutation)[0].operation_id == "k2"


def test_a_refused_message_does_not_hold_up_the_next(office: Office) -> None:
    first, _ = office.send("k1"), office.send("k2")
    office.bind()
    office.submitted(PeerMutation)[1].set_exception(ConflictError("used before"))
    with pytest.raises(ConflictError):
        first.get(PATIENCE_S)
    assert office.submitted(PeerMutation)[0].operation_id == "k2"


def test_a_message_over_the_limit_reaches_nobody(office: Office) -> None:
    reply = office.ask(HumanSend(("Sam",), "x" * KIB, "k1"))
    with pytest.raises(TooLargeError, match="max_message_kib"):
        reply.get(PATIENCE_S)
    office.nothing_is_submitted()


def test_a_decision_names_the_person_and_waits_for_no_session(office: Office) -> None:
    office.send("k1")
    office.submitted(BindSession)
    reply = office.ask(HumanDecide(InterventionId("i1"), 3, "reassign", "Take over.", "Kim"))
    change, reply_to = office.submitted(Decide)
    assert change == Decide(InterventionId("i1"), 3, "reassign", PERSON, "Take over.", "Kim")
    reply_to.set({"state": "reassigned"})
    assert reply.get(PATIENCE_S) == {"state": "reassigned"}


def test_an_empty_bus_is_read_without_the_ledger(office: Office) -> None:
    assert office.ask(HumanList()).get(PATIENCE_S) == {"interventions": []}
    assert office.ask(HumanList(decided=True)).get(PATIENCE_S) == {"interventions": []}
    assert office.ask(HumanReplies()).get(PATIENCE_S) == {"replies": []}
    assert office.ask(Requests()).get(PATIENCE_S) == {"requests": []}
    with pytest.raises(NotFoundError, match="agentbus-admin human list"):
        office.ask(HumanShow("nothing")).get(PATIENCE_S)
    office.nothing_is_submitted()


def test_whoever_waits_is_answered_when_the_bus_stops(office: Office) -> None:
    first, second = office.send("k1"), office.send("k2")
    stop_actor(office.address, PATIENCE_S)
    for reply in (first, second):
        with pytest.raises(UnavailableError):
            reply.get(PATIENCE_S)


def test_the_person_is_the_user_of_the_process() -> None:
    assert person_of_this_process().startswith("human:")
    assert len(person_of_this_process()) > len("human:")
