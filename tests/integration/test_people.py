"""A person on a whole bus, where time passes, the daemon ends, or a hook has its say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentbus.errors import BusError, InspectionRejectedError, NotFoundError, ValidationError
from agentbus.ids import new_id
from agentbus.limits import PEER_UNANSWERED_SECONDS
from agentbus.transport.client import Client
from tests.bus_fixture import ThrowAwayBus
from tests.cli.command import agentbus_admin
from tests.eventually import PATIENCE_S, eventually
from tests.hooks import Hook
from tests.integration.in_process import InProcessBus, in_process_bus
from tests.peer_sessions import PeerSession


class Person:
    """The requests that the command line makes."""

    def __init__(self, socket_path: Path) -> None:
        self._socket_path = socket_path

    def ask(self, method: str, **params: Any) -> Any:
        with Client.connect(self._socket_path, PATIENCE_S) as client:
            return client.request(method, params, PATIENCE_S)

    def send(self, *to: str, body: str = "Look.", key: str | None = None, **params: Any) -> Any:
        message = {"to": list(to), "body": body, "idempotency_key": key or new_id(), **params}
        return self.ask("human_send", **message)

    def replies(self) -> list[tuple[str, bool]]:
        return [(one["body"], one["new"]) for one in self.ask("human_replies")["replies"]]

    def requests(self, state: str | None = None) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.ask("requests", state=state)["requests"]
        return rows


@pytest.fixture
def bus() -> Iterator[InProcessBus]:
    with in_process_bus() as bus:
        yield bus


def pass_until(bus: InProcessBus, step_s: float, look: Callable[[], object]) -> None:
    """Time passes in steps: a clock that an inbox starts a moment later has its time too."""

    def step() -> object:
        bus.clock.advance(step_s)
        return look()

    eventually(step)


def test_a_person_is_the_same_after_a_restart(bus: InProcessBus) -> None:
    person = Person(bus.paths.socket)
    sam = PeerSession(bus.attach("Sam", "c1"))
    receipt = person.send("Sam", key="once")
    work = sam.claim()
    asker = work["envelope"]["from"]
    sam.reply(work["delivery_id"], "Done")
    assert person.replies() == [("Done", True)]
    eventually(lambda: person.replies() == [("Done", False)], what="marked as seen")

    bus.system.stop()
    bus.start()
    assert person.replies() == [("Done", False)]
    again = person.send("Sam", key="once")
    assert (again["message_id"], again["duplicate"]) == (receipt["message_id"], True)
    person.send("Sam")
    sam = PeerSession(bus.attach("Sam", "c1"))
    assert sam.claim()["envelope"]["from"] == asker


def test_a_late_answer_to_a_person_is_kept_and_told(bus: InProcessBus) -> None:
    person = Person(bus.paths.socket)
    sam = PeerSession(bus.attach("Sam"))
    receipt = person.send("Sam", expect_reply_within_seconds=60)
    (row,) = person.requests("awaiting")
    assert (row["message_id"], row["cause"]) == (receipt["message_id"], "unclaimed")
    pass_until(bus, 60, lambda: person.requests("overdue"))
    pass_until(bus, PEER_UNANSWERED_SECONDS / 20, lambda: person.requests("unanswered"))
    sam = PeerSession(bus.attach("Sam"))
    sam.reply(sam.claim()["delivery_id"], "Sorry")
    (row,) = person.requests("unanswered")
    assert row["late_reply_message_id"] is not None
    assert person.replies() == [("Sorry", True)]


def test_work_that_was_heard_nothing_of_waits_for_a_person_whatever_the_clock_says(
    bus: InProcessBus,
) -> None:
    person = Person(bus.paths.socket)
    sam = PeerSession(bus.attach("Sam"))
    person.send("Sam", expect_reply_within_seconds=604_800)
    for _ in range(5):  # sessions that take it and are gone
        delivery_id = sam.claim()["delivery_id"]
        bus.clock.set_wall(bus.clock.wall_us() - 3_600_000_000)
        pass_until(bus, 31, lambda: person.requests()[0]["delivery_state"] != "leased")
        sam.session.close()
        sam = PeerSession(bus.attach("Sam", new_id()))
    (waiting,) = person.ask("human_list")["interventions"]
    assert (waiting["delivery_id"], waiting["source"]) == (delivery_id, "attempts")
    decided = person.ask(
        "human_decide",
        intervention_id=waiting["intervention_id"],
        version=waiting["version"],
        action="approve",
    )
    assert decided["state"] == "queued"
    assert sam.claim()["attempt"] == 1


def test_what_a_person_sends_passes_the_inspection_like_everything_else(
    tmp_path: Path,
) -> None:
    hook = Hook(
        tmp_path / "hook",
        'answer("deny", "no secrets") if "secret" in json.dumps(read()) else answer("allow")',
    )
    with ThrowAwayBus(inspection_command=hook.argv) as bus:
        person = Person(bus.runtime.socket)
        bus.attach("Sam").close()
        with pytest.raises(InspectionRejectedError):
            person.send("Sam", body="The secret is 7.")
        refused = agentbus_admin(bus, "human", "send", "Sam", "--body", "The secret is 7.")
        assert refused.stderr.endswith("the reason: no secrets\n")
        assert person.send("Sam")["status"] == "accepted"


def test_a_reassigned_request_stays_the_askers(bus: InProcessBus) -> None:
    person = Person(bus.paths.socket)
    sam, kim = (PeerSession(bus.attach(name)) for name in ("Sam", "Kim"))
    receipt = person.send("Sam")
    delivery_id = sam.claim()["delivery_id"]
    sam.peer("human", delivery_id=delivery_id, reason="Not mine.")
    whole = person.ask("human_show", id=delivery_id)
    decision = {"intervention_id": whole["intervention_id"], "version": 1, "action": "reassign"}
    with pytest.raises(NotFoundError, match="'Nobody'"):
        person.ask("human_decide", **decision, to="Nobody")
    for unfit in ("Sam", whole["from"]):
        with pytest.raises(ValidationError):
            person.ask("human_decide", **decision, to=unfit)
    person.ask("human_decide", **decision, to="Kim")
    with pytest.raises(BusError) as refused:
        sam.reply(delivery_id, "Too late")
    assert refused.value.state == "unavailable"
    kim.reply(kim.claim()["delivery_id"], "Mine")
    assert person.replies() == [("Mine", True)]
    (row,) = person.requests("replied")
    assert (row["message_id"], row["to"]) == (receipt["message_id"], "Kim")
