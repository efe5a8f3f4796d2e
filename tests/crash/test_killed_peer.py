"""kill -9 of the daemon around each step of directed work: one effect, one holder, every answer.

The sessions speak the daemon's own protocol, so that a test chooses which token it uses when. A
frozen adapter is a real one.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agentbus.errors import BusError, ConflictError
from agentbus.failpoints import VARIABLE
from agentbus.rules.peer import DELIVERY_UNAVAILABLE, STALE_LEASE
from agentbus.transport.client import NoAnswerError
from tests.adapter.adapter_process import AdapterProcess
from tests.bus_fixture import ThrowAwayBus
from tests.crash.conversation import attempt
from tests.eventually import PATIENCE_S
from tests.peer_sessions import PeerSession
from tests.signals import freeze

SHORT_LEASE_S = 5
"""The shortest there is."""

AROUND_A_COMMIT = [("before_commit", False), ("commit", False), ("after_commit", True)]


@pytest.fixture
def bus() -> Iterator[ThrowAwayBus]:
    """Not started yet; its leases outlast a restart."""
    bus = ThrowAwayBus()
    yield bus
    bus.close()


@pytest.fixture
def hasty_bus() -> Iterator[ThrowAwayBus]:
    """Runs, with the shortest leases."""
    with ThrowAwayBus(peer_lease_seconds=SHORT_LEASE_S) as bus:
        yield bus


class People:
    """Ann, who asks, and the one session of Bob, who answers. They live on, the daemon does not."""

    def __init__(self, bus: ThrowAwayBus) -> None:
        self._bus = bus
        self.ann = self._attached("Ann")
        self.bob = self._attached("Bob")

    def attach(self) -> None:
        """To the next daemon; Bob keeps his token, as an adapter does."""
        token = self.bob.token
        self.ann = self._attached("Ann")
        self.bob = self._attached("Bob")
        self.bob.token = token

    def _attached(self, agent: str) -> PeerSession:
        return PeerSession(self._bus.attach(agent, conversation=agent))

    def ask(self) -> Any:
        return self.ann.peer(
            "send", to=["Bob"], body="Which port?", kind="request", idempotency_key="question"
        )

    def reply(self, delivery_id: str) -> Any:
        return self.bob.peer(
            "reply", delivery_id=delivery_id, body="8080", idempotency_key="answer"
        )

    def collected(self, request: str) -> list[str]:
        """Bodies of the answers."""
        found = self.ann.peer("collect", message_id=request, timeout=PATIENCE_S)
        return [answer["body"] for answer in found["answers"]]


def people_on(bus: ThrowAwayBus, failpoint: str, at: int) -> People:
    """Whose daemon dies around the commit of their step of this number; each is a batch."""
    bus.environment[VARIABLE] = f"{failpoint}@{at}"
    bus.start()
    del bus.environment[VARIABLE]
    return People(bus)


def killed(bus: ThrowAwayBus, people: People, call: Callable[[], Any]) -> None:
    """The daemon dies of the call; afterwards a sound one runs."""
    assert isinstance(attempt(call), NoAnswerError)
    assert bus.wait_ended() == -signal.SIGKILL
    bus.start()
    people.attach()


def deliveries(people: People, request: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = people.ann.peer("status", message_id=request)["deliveries"]
    return found


@pytest.mark.parametrize(("failpoint", "was_committed"), AROUND_A_COMMIT)
def test_killed_around_a_request_its_repeat_is_the_same_request(
    bus: ThrowAwayBus, failpoint: str, was_committed: bool
) -> None:
    people = people_on(bus, failpoint, at=1)
    killed(bus, people, people.ask)
    receipt = people.ask()
    assert receipt["duplicate"] is was_committed
    assert people.ask() == {**receipt, "duplicate": True}
    assert people.bob.claim()["envelope"]["id"] == receipt["message_id"]
    assert len(people.ann.peer("recent")["messages"]) == 1


@pytest.mark.parametrize(("failpoint", "was_committed"), AROUND_A_COMMIT)
def test_killed_around_a_claim_the_same_session_gets_it_as_its_first_attempt(
    bus: ThrowAwayBus, failpoint: str, was_committed: bool
) -> None:
    people = people_on(bus, failpoint, at=2)
    request = people.ask()["message_id"]
    killed(bus, people, lambda: people.bob.peer("wait", timeout=PATIENCE_S))
    other = PeerSession(bus.attach("Bob"))
    [delivery] = deliveries(people, request)
    assert delivery["state"] == ("leased" if was_committed else "queued")
    if was_committed:  # by a session that may come back, and does
        assert other.peer("wait", timeout=0)["delivery"] is None
    claimed = people.bob.claim()
    assert (claimed["delivery_id"], claimed["attempt"]) == (delivery["id"], 1)
    assert other.peer("wait", timeout=0)["delivery"] is None
    people.reply(claimed["delivery_id"])
    assert people.collected(request) == ["8080"]


@pytest.mark.parametrize(("failpoint", "was_committed"), AROUND_A_COMMIT)
def test_killed_around_a_reply_its_repeat_is_the_same_reply(
    bus: ThrowAwayBus, failpoint: str, was_committed: bool
) -> None:
    people = people_on(bus, failpoint, at=3)
    request = people.ask()["message_id"]
    held = people.bob.claim()["delivery_id"]
    killed(bus, people, lambda: people.reply(held))
    assert people.collected(request) == ["8080"] if was_committed else not_yet(people, request)
    answer = people.reply(held)  # under the token from before the restart
    assert answer["duplicate"] is was_committed
    assert people.reply(held) == {**answer, "duplicate": True}
    assert people.collected(request) == ["8080"]
    [delivery] = deliveries(people, request)
    assert (delivery["state"], delivery["reply_state"]) == ("acked", "replied")
    assert delivery["reply_message_id"] == answer["message_id"]
    assert len(people.ann.peer("recent", reply_to=request)["messages"]) == 1


def not_yet(people: People, request: str) -> bool:
    found = people.ann.peer("collect", message_id=request, timeout=0)
    return bool(found["outcome"] == "no_reply")


@pytest.mark.parametrize(("failpoint", "was_committed"), AROUND_A_COMMIT)
def test_killed_around_an_ack_its_repeat_finds_the_work_finished(
    bus: ThrowAwayBus, failpoint: str, was_committed: bool
) -> None:
    people = people_on(bus, failpoint, at=3)
    request = people.ask()["message_id"]
    held = people.bob.claim()["delivery_id"]
    killed(bus, people, lambda: people.bob.peer("ack", delivery_id=held))
    [delivery] = deliveries(people, request)
    assert delivery["state"] == ("acked" if was_committed else "leased")
    again = people.bob.peer("ack", delivery_id=held)
    assert (again["state"], again["duplicate"]) == ("acked", was_committed)
    assert people.bob.peer("ack", delivery_id=held)["duplicate"] is True
    assert people.bob.peer("wait", timeout=0)["delivery"] is None


@pytest.mark.parametrize(("failpoint", "was_committed"), AROUND_A_COMMIT)
def test_killed_around_progress_its_repeat_extends_once(
    bus: ThrowAwayBus, failpoint: str, was_committed: bool
) -> None:
    people = people_on(bus, failpoint, at=3)
    people.ask()
    held = people.bob.claim()["delivery_id"]

    def progress() -> Any:
        return people.bob.peer("progress", delivery_id=held, summary="half", idempotency_key="p")

    killed(bus, people, progress)
    again = progress()
    assert (again["extension_count"], again["duplicate"]) == (1, was_committed)
    assert people.bob.claim()["extension_count"] == 1


def test_a_lease_outlives_the_daemon_and_nobody_else_gets_the_work(bus: ThrowAwayBus) -> None:
    bus.start()
    people = People(bus)
    request = people.ask()["message_id"]
    held = people.bob.claim()["delivery_id"]
    bus.kill()
    bus.start()
    people.attach()
    with PeerSession(bus.attach("Bob")) as other:
        assert other.peer("wait", timeout=0)["delivery"] is None
        assert people.reply(held)["duplicate"] is False
        assert other.peer("wait", timeout=0)["delivery"] is None
    assert people.collected(request) == ["8080"]


def test_a_holder_that_does_not_come_back_after_a_restart_loses_the_work_and_is_fenced(
    hasty_bus: ThrowAwayBus,
) -> None:
    bus = hasty_bus
    people = People(bus)
    request = people.ask()["message_id"]
    held = people.bob.claim()["delivery_id"]
    bus.kill()
    bus.start()
    with PeerSession(bus.attach("Bob")) as other:
        taken = other.claim()
        assert (taken["delivery_id"], taken["attempt"]) == (held, 2)
        people.attach()
        for stale in (people.reply, lambda held: people.bob.peer("ack", delivery_id=held)):
            with pytest.raises(ConflictError) as refused:
                stale(held)
            assert refused.value.reason == STALE_LEASE
        assert people.bob.peer("wait", timeout=0)["delivery"] is None
        other.reply(held, "9090")
        with pytest.raises(BusError) as gone:
            people.reply(held)
        assert gone.value.state == "unavailable"
    assert people.collected(request) == ["9090"]


def test_an_adapter_that_stood_still_beyond_its_lease_is_refused(hasty_bus: ThrowAwayBus) -> None:
    bus = hasty_bus
    ann = PeerSession(bus.attach("Ann"))
    with AdapterProcess(bus.environment, bus.config_path, agent="Bob") as adapter:
        adapter.initialize()
        assert adapter.use("peer", op="wait", args={"timeout": 0})["delivery"] is None
        request = ann.ask("Bob", body="Which port?")["message_id"]
        held = adapter.use("peer", op="wait", args={"timeout": PATIENCE_S})["delivery"]
        freeze(adapter.process.pid)
        with PeerSession(bus.attach("Bob")) as other:
            taken = other.claim()
            assert (taken["delivery_id"], taken["attempt"]) == (held["delivery_id"], 2)
            late = {"delivery_id": held["delivery_id"], "body": "1", "idempotency_key": "late"}
            call = adapter.call("peer", op="reply", args=late)
            os.kill(adapter.process.pid, signal.SIGCONT)
            error = adapter.answer(call)["error"]
            assert (error["reason"], error["state"]) == (DELIVERY_UNAVAILABLE, "unavailable")
            other.reply(taken["delivery_id"], "9090")
    found = ann.peer("collect", message_id=request, timeout=PATIENCE_S)
    assert [answer["body"] for answer in found["answers"]] == ["9090"]
