"""kill -9 of the daemon at the named places: nothing is lost, nothing comes twice unmarked."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from agentbus.errors import UnavailableError, UnknownOutcomeError
from agentbus.failpoints import VARIABLE
from agentbus.launch import ensure_daemon
from agentbus.transport.client import NoAnswerError
from tests.bus_fixture import BusSession, ThrowAwayBus, stop_daemon
from tests.crash.conversation import Reader, attempt
from tests.eventually import eventually


@pytest.fixture
def bus() -> Iterator[ThrowAwayBus]:
    """Not started yet."""
    bus = ThrowAwayBus(send_messages_per_second=10_000, send_kib_per_second=65_536)
    yield bus
    bus.close()


def crash_at(bus: ThrowAwayBus, failpoint: str) -> None:
    """Start the daemon anew so that it dies there."""
    if bus.daemon is not None:
        assert bus.stop() == 0
    bus.environment[VARIABLE] = failpoint
    bus.start()


def restart(bus: ThrowAwayBus) -> None:
    """The daemon was killed: have one without failpoints."""
    assert bus.wait_ended() == -signal.SIGKILL
    del bus.environment[VARIABLE]
    bus.start()


def send(session: BusSession, content: str, operation_id: str) -> Any:
    return session.call("send", channel="general", content=content, operation_id=operation_id)


@pytest.mark.parametrize(
    ("failpoint", "was_committed"),
    [("before_commit", False), ("after_commit", True), ("after_projection", True)],
)
def test_killed_around_a_send_the_same_operation_id_answers_truly(
    bus: ThrowAwayBus, failpoint: str, was_committed: bool
) -> None:
    bus.start()
    reader = Reader(bus)
    sender = bus.attach("Sender", conversation="s")
    accepted = {mark: send(sender, mark, mark) for mark in ("a", "b", "c")}
    reader.hand_off_until(lambda handed: len(handed) == 3)
    reader.report()
    reader.confirm()
    crash_at(bus, failpoint)
    reader.attach()
    sender = bus.attach("Sender", conversation="s")
    answer = attempt(lambda: send(sender, "edge", "edge"))
    # After the projection the answer may have left already: it is told after the commit.
    if failpoint != "after_projection":
        assert isinstance(answer, NoAnswerError)
        assert answer.sent
    restart(bus)
    sender = bus.attach("Sender", conversation="s")
    reader.attach()
    accepted["edge"] = send(sender, "edge", "edge")
    assert accepted["edge"]["duplicate"] is was_committed
    accepted["after"] = send(sender, "after", "after")
    reader.hand_off_until(lambda handed: handed[-1].mark == "after")
    verdict = reader.verdict(accepted)
    assert verdict.clean, verdict
    assert verdict.counts["marked"] == 0
    assert len(sender.call("history", channel="general")["messages"]) == 5


@pytest.mark.parametrize("failpoint", ["during_rebuild", "before_mark", "during_replay"])
def test_killed_while_redis_is_filled_the_next_start_fills_it_and_is_ready(
    bus: ThrowAwayBus, failpoint: str
) -> None:
    bus.start()
    reader = Reader(bus)
    sender = bus.attach("Sender", conversation="s")
    accepted = {mark: send(sender, mark, mark) for mark in ("a", "b", "c")}
    if failpoint == "during_replay":
        crash_at(bus, "after_commit")  # Redis lives on and lacks what was committed last
        reader.attach()
        sender = bus.attach("Sender", conversation="s")
        assert isinstance(attempt(lambda: send(sender, "edge", "edge")), NoAnswerError)
        assert bus.wait_ended() == -signal.SIGKILL
    else:
        assert bus.stop() == 0
    bus.environment[VARIABLE] = failpoint
    bus.launch()
    restart(bus)
    sender = bus.attach("Sender", conversation="s")
    if failpoint == "during_replay":
        accepted["edge"] = send(sender, "edge", "edge")
        assert accepted["edge"]["duplicate"] is True
    reader.attach()
    accepted["after"] = send(sender, "after", "after")
    reader.hand_off_until(lambda handed: bool(handed) and handed[-1].mark == "after")
    verdict = reader.verdict(accepted)
    assert verdict.clean, verdict
    found = sender.call("history", channel="general")["messages"]
    assert [message["content"] for message in found] == [*accepted]


def test_killed_after_a_handoff_before_its_report_it_comes_again_marked(bus: ThrowAwayBus) -> None:
    bus.start()
    reader = Reader(bus)
    sender = bus.attach("Sender", conversation="s")
    accepted = {mark: send(sender, mark, mark) for mark in ("a", "b", "c", "d")}
    reader.hand_off_until(lambda handed: len(handed) == 4)
    reader.report()  # committed, not confirmed
    crash_at(bus, "before_cursor_commit")
    reader.attach()
    reader.hand_off_until(lambda handed: len(handed) == 8)
    assert [one.redelivered for one in reader.handed] == [False] * 4 + [True] * 4
    sender = bus.attach("Sender", conversation="s")
    accepted["last"] = send(sender, "last", "last")
    reader.hand_off_until(lambda handed: len(handed) == 9)
    lost_report = attempt(reader.report)
    assert isinstance(lost_report, NoAnswerError)
    restart(bus)
    reader.attach()
    accepted["new"] = send(bus.attach("Sender"), "new", "new")
    reader.hand_off_until(lambda handed: handed[-1].mark == "new")
    again = reader.handed[9:]
    assert [one.mark for one in again] == [*accepted]
    assert [one.redelivered for one in again] == [True] * 5 + [False]
    verdict = reader.verdict(accepted)
    assert verdict.clean, verdict


def test_a_confirmed_handoff_never_comes_again_after_a_kill(bus: ThrowAwayBus) -> None:
    bus.start()
    reader = Reader(bus)
    sender = bus.attach("Sender", conversation="s")
    accepted = {mark: send(sender, mark, mark) for mark in ("a", "b", "c", "d")}
    reader.hand_off_until(lambda handed: len(handed) == 4)
    reader.report()
    reader.confirm()
    bus.kill()
    bus.start()
    reader.attach()
    accepted["new"] = send(bus.attach("Sender"), "new", "new")
    reader.hand_off_until(lambda handed: handed[-1].mark == "new")
    verdict = reader.verdict(accepted)
    assert verdict.clean, verdict
    assert verdict.counts["marked"] == 0


def _stored(bus: ThrowAwayBus) -> list[str]:
    """Ids of all messages of the default channel, oldest first."""
    session = bus.attach("Auditor")
    found: list[str] = []
    after = 0
    while True:
        page = session.call("history", channel="general", after=after, count=500)
        found += [message["message_id"] for message in page["messages"]]
        if not page["more"]:
            return found
        after = page["messages"][-1]["sequence"]


def test_a_commit_that_raises_is_unknown_ends_the_daemon_and_a_repeat_tells_the_truth(
    bus: ThrowAwayBus,
) -> None:
    for failpoint, was_committed in (("commit:raise", False), ("after_commit:raise", True)):
        crash_at(bus, failpoint)
        sender = bus.attach("Sender", conversation="s")
        answer = attempt(lambda: send(sender, "edge", f"at {failpoint}"))  # noqa: B023
        assert isinstance(answer, UnknownOutcomeError), answer
        assert answer.retryable
        assert bus.wait_ended() == 1
        del bus.environment[VARIABLE]
        bus.start()
        sender = bus.attach("Sender", conversation="s")
        repeat = send(sender, "edge", f"at {failpoint}")
        assert repeat["duplicate"] is was_committed
        assert send(sender, "edge", f"at {failpoint}")["duplicate"] is True
    assert len(_stored(bus)) == 2


def test_a_failure_before_the_commit_refuses_and_the_daemon_goes_on(bus: ThrowAwayBus) -> None:
    crash_at(bus, "before_commit:raise")
    sender = bus.attach("Sender", conversation="s")
    answer = attempt(lambda: send(sender, "edge", "k"))
    assert isinstance(answer, UnavailableError), answer
    assert bus.state() == "ready"
    assert bus.stop() == 0
    del bus.environment[VARIABLE]
    bus.start()
    assert send(bus.attach("Sender", conversation="s"), "edge", "k")["duplicate"] is False


def test_20_clients_at_once_start_one_daemon_and_all_attach(bus: ThrowAwayBus) -> None:
    def come(number: int) -> tuple[int, BusSession]:
        client = ensure_daemon(bus.runtime, bus.config_path, deadline_s=40.0, env=bus.environment)
        client.close()
        eventually(lambda: bus.state() == "ready", 30)
        session = bus.attach(f"A{number}", conversation=f"c{number}")
        with bus.client() as asking:
            return asking.request("status", {}, 10.0)["pid"], session

    try:
        with ThreadPoolExecutor(20) as pool:
            came = list(pool.map(come, range(20)))
        assert len({pid for pid, _ in came}) == 1
        assert len({session.facts["session_id"] for _, session in came}) == 20
        with bus.client() as client:
            assert len(client.request("sessions", {}, 10.0)["sessions"]) == 20
    finally:
        stop_daemon(bus.runtime)
