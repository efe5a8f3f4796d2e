"""Jobs in a running daemon: who follows, who is lost, who is cancelled, what is posted where."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from actors import job_desk
from actors.job_stream import RETRY_S
from agentbus.errors import (
    BusError,
    ConflictError,
    ForbiddenError,
    JobClosedError,
    NotFoundError,
    OverloadedError,
    SessionAlreadyConnectedError,
    ValidationError,
)
from agentbus.jobs.events import decode_event
from agentbus.limits import JOBS_AGENT
from agentbus.transport.client import Client
from tests.eventually import PATIENCE_S, eventually
from tests.integration.in_process import InProcessBus, in_process_bus
from tests.jobs.emitting import TS, Emitting, connect
from tests.jobs.waiting import events, pass_time

IDLE_S, TOTAL_S = 600, 3600


@pytest.fixture
def bus() -> Iterator[InProcessBus]:
    with in_process_bus(job_idle_seconds=IDLE_S, job_total_seconds=TOTAL_S) as bus:
        yield bus


@pytest.fixture
def parent(bus: InProcessBus) -> Iterator[Client]:
    with connect(bus.paths.socket) as client:
        yield client


@pytest.fixture
def job(bus: InProcessBus) -> Iterator[Emitting]:
    with Emitting(bus.paths.socket) as job:
        yield job


def types(answer: Any) -> list[str]:
    return [event["type"] for event in answer["events"]]


class Asking:
    """A request that waits, on a connection and a thread of its own."""

    def __init__(self, bus: InProcessBus, method: str, **asked: Any) -> None:
        self.answer: Any = None
        self.error: BusError | None = None
        self._client = connect(bus.paths.socket)
        self._asked = (method, {"wait_ms": 60_000, **asked})
        before = self._waiting(bus)
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()
        eventually(lambda: self._waiting(bus) > before or self.answer is not None)

    def _waiting(self, bus: InProcessBus) -> int:
        return int(bus.status()["jobs"]["waiting"])

    def _ask(self) -> None:
        try:
            self.answer = self._client.request(*self._asked, 100.0)
        except BusError as error:
            self.error = error

    def result(self) -> Any:
        self._thread.join(PATIENCE_S)
        self._client.close()
        assert self.error is None
        assert self.answer is not None
        return self.answer


# --- following ---


def test_a_reader_may_come_early_late_and_at_any_event(
    bus: InProcessBus, parent: Client, job: Emitting
) -> None:
    early = Asking(bus, "job_events", job_id="cake")
    job.emit(0, "accepted")
    assert types(early.result()) == ["accepted"]
    live = Asking(bus, "job_events", job_id="cake", **{"from": 1})
    job.emit(1)
    assert types(live.result()) == ["warning"]
    job.emit(2, "succeeded")
    late = events(parent)
    assert (types(late), late["closed"]) == (["accepted", "warning", "succeeded"], True)
    assert events(parent, **{"from": 2})["events"] == late["events"][2:]
    assert events(parent, **{"from": 3, "wait_ms": 60_000}) == {
        "events": [],
        "missing": [],
        "next": 3,
        "closed": True,
    }


def test_a_wait_ends_with_nothing_when_its_time_is_over(bus: InProcessBus, job: Emitting) -> None:
    job.emit(0, "accepted")
    for job_id in ("cake", "unknown"):
        wait = Asking(bus, "job_events", job_id=job_id, **{"from": 1})
        pass_time(bus, 60)
        assert wait.result()["events"] == []


def test_a_number_that_no_database_holds_is_refused(parent: Client, job: Emitting) -> None:
    job.emit(0, "accepted")
    with pytest.raises(ValidationError):
        events(parent, **{"from": 2**63})
    with pytest.raises(ValidationError):
        parent.request("deadletters_replay", {"id": 2**63}, PATIENCE_S)
    assert events(parent, **{"from": 2**63 - 1})["events"] == []


def test_requests_that_wait_are_bounded(
    bus: InProcessBus, parent: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_desk, "JOB_WAITS_MAX", 1)
    first = Asking(bus, "job_events", job_id="cake")
    with pytest.raises(OverloadedError):
        events(parent, wait_ms=60_000)
    assert events(parent)["events"] == []  # who does not wait is answered
    with Emitting(bus.paths.socket) as job:
        job.emit(0, "accepted")
    assert types(first.result()) == ["accepted"]


def test_what_was_passed_over_is_said(parent: Client, job: Emitting) -> None:
    for seq in (0, 1, 5):
        job.emit(seq)
    answer = events(parent)
    assert ([event["seq"] for event in answer["events"]], answer["missing"]) == (
        [0, 1, 5],
        [[2, 4]],
    )


def test_followers_come_and_go_without_a_trace(
    bus: InProcessBus, parent: Client, job: Emitting
) -> None:
    job.emit(0, "accepted")
    waits = [Asking(bus, "job_events", job_id="cake", **{"from": 1}) for _ in range(4)]
    other = Asking(bus, "job_events", job_id="other")
    job.emit(1, "succeeded")
    assert [types(wait.result()) for wait in waits] == [["succeeded"]] * 4
    pass_time(bus, 60)
    assert other.result()["events"] == []
    eventually(lambda: bus.status()["jobs"] == {"actors": 0, "waiting": 0})


def test_a_slow_reader_holds_nobody_up(bus: InProcessBus, parent: Client, job: Emitting) -> None:
    """It has asked for a page and reads the answer when it likes."""
    slow = connect(bus.paths.socket)
    job.emit(0, "accepted")
    for seq in range(1, 40):
        job.emit(seq, "progress", stage="s", message="m" * 400)
    position = 0
    for _ in range(4):
        answer = events(slow, **{"from": position, "count": 10})
        assert [event["seq"] for event in answer["events"]] == list(range(position, position + 10))
        position = answer["next"]
        job.emit(40 + position)
    slow.close()
    assert bus.status()["jobs"] == {"actors": 1, "waiting": 0}


def test_agents_follow_a_job_like_any_channel(bus: InProcessBus, job: Emitting) -> None:
    job.emit(0, "accepted")
    sam = bus.attach()
    sam.call("subscribe", channel="job/cake", **{"from": "oldest"})
    job.emit(1)
    job.emit(2, "succeeded", result={"title": "Plum cake"})
    records: list[Any] = []
    while len(records) < 3:
        records += sam.wait_for("deliver")["delivery"]["records"]
    envelopes = [envelope for _, envelope in records]
    assert [envelope["type"] for envelope in envelopes] == ["accepted", "warning", "succeeded"]
    assert {envelope["channel_kind"] for envelope in envelopes} == {"job"}
    assert [decode_event(envelope["content"]).seq for envelope in envelopes] == [0, 1, 2]
    history = sam.call("history", channel="job/cake")["messages"]
    assert [message["type"] for message in history] == ["accepted", "warning", "succeeded"]
    eventually(lambda: sam.call("search", text="plum", channel="job/cake")["messages"])
    assert {"job/cake": "job"}.items() <= {
        row["channel"]: row["kind"] for row in sam.call("list_channels")["channels"]
    }.items()
    with pytest.raises(ValidationError, match="jobs"):
        sam.call("send", channel="job/cake", content="hello")


# --- emitting ---


def test_only_the_session_of_a_job_emits_for_it(bus: InProcessBus) -> None:
    with pytest.raises(ValidationError, match="emitters of jobs"):
        bus.attach(JOBS_AGENT)
    other = Emitting(bus.paths.socket, application="other")
    with other, pytest.raises(ForbiddenError):
        other.emit(0, "accepted")
    with Emitting(bus.paths.socket) as job:
        job.job_id = "what the tool calls itself"
        with pytest.raises(ValidationError):
            job.emit(0, "accepted")
        job.job_id = "own-name"
        job.emit(0, "accepted")
        with connect(bus.paths.socket) as client:
            [event] = events(client)["events"]
    assert (event["job_id"], event["source_job_id"]) == ("cake", "own-name")


def test_one_emitter_lives_at_a_time_and_a_dead_one_is_replaced(bus: InProcessBus) -> None:
    first = Emitting(bus.paths.socket)
    first.emit(0, "accepted")
    with pytest.raises(SessionAlreadyConnectedError):
        Emitting(bus.paths.socket)
    first.close()
    with eventually(lambda: _emitting(bus)) as second:
        assert second.emit(0, "accepted")["duplicate"]
        second.emit(1)


def _emitting(bus: InProcessBus) -> Emitting | None:
    try:
        return Emitting(bus.paths.socket)
    except SessionAlreadyConnectedError:
        return None


GOOD = {"job_id": "cake", "seq": 0, "ts": TS, "type": "warning", "message": "m"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"type": "other"},
        {"seq": -1},
        {"ts": "yesterday"},
        {"extra": 1},
        {"message": 7},
        {"message": "m" * 501},
    ],
)
def test_what_is_no_event_is_refused_before_anything_is_done(
    parent: Client, job: Emitting, wrong: dict[str, Any]
) -> None:
    with pytest.raises(ValidationError):
        job.send({**GOOD, **wrong})
    assert events(parent)["events"] == []


def test_two_terminal_events_race_and_one_of_them_wins(bus: InProcessBus, parent: Client) -> None:
    for round_ in range(5):
        job_id = f"race-{round_}"
        with Emitting(bus.paths.socket, job_id) as job:
            job.emit(0, "accepted")
            job.client._send(_frame(job, 1, "succeeded", result=1), "job_event", 1e9)
            job.client._send(_frame(job, 2, "failed", code="c", message="m"), "job_event", 1e9)
            eventually(lambda job_id=job_id: events(parent, job_id)["closed"])  # type: ignore[misc]
            assert types(events(parent, job_id)) == ["accepted", "succeeded"]
            with pytest.raises(JobClosedError):
                job.emit(2)
            assert job.emit(1, "succeeded")["duplicate"]
            with pytest.raises((ConflictError, JobClosedError)):
                job.emit(1, "failed")


def _frame(job: Emitting, seq: int, kind: str, **fields: Any) -> bytes:
    from agentbus.protocol.jsonrpc import encode_request

    event = {"job_id": job.job_id, "seq": seq, "ts": TS, "type": kind, **fields}
    frame = {"attachment": job.attachment, "event": event}
    return encode_request(1000 + seq, "job_event", frame)


# --- lost ---


def test_a_silent_job_is_lost(bus: InProcessBus, parent: Client, job: Emitting) -> None:
    job.emit(0, "accepted")
    pass_time(bus, IDLE_S - 1)
    job.emit(1)
    pass_time(bus, IDLE_S - 1)
    assert not events(parent)["closed"]
    pass_time(bus, 1)
    answer = eventually(lambda: _closed(parent))
    end = answer["events"][-1]
    assert (end["type"], end["code"], end["synthetic"], end["seq"]) == ("failed", "lost", True, 2)
    assert str(IDLE_S) in end["message"]
    with pytest.raises(JobClosedError):
        job.emit(2)
    with pytest.raises(JobClosedError):
        job.emit(3, "succeeded")


def _closed(parent: Client, job_id: str = "cake") -> Any:
    answer = events(parent, job_id)
    return answer if answer["closed"] else None


def test_a_job_that_lives_too_long_is_lost_however_much_it_says(
    bus: InProcessBus, parent: Client, job: Emitting
) -> None:
    for seq in range(TOTAL_S // 300):
        job.emit(seq)
        pass_time(bus, 299)
    assert not events(parent)["closed"]
    pass_time(bus, 300)
    end = eventually(lambda: _closed(parent))["events"][-1]
    assert (end["code"], str(TOTAL_S) in end["message"]) == ("lost", True)


@pytest.mark.parametrize("down_s", [0, 200, 10_000])
def test_deadlines_go_on_over_a_restart(bus: InProcessBus, down_s: int) -> None:
    with Emitting(bus.paths.socket) as job:
        job.emit(0, "accepted")
    pass_time(bus, 100)
    bus.system.stop()
    bus.clock.advance(down_s)
    bus.start()
    with connect(bus.paths.socket) as parent:
        if down_s < IDLE_S:
            pass_time(bus, IDLE_S - 100 - down_s - 1)
            assert not events(parent)["closed"]
            pass_time(bus, 1)

        def look() -> Any:
            bus.clock.advance(RETRY_S if down_s >= IDLE_S else 0)  # it was fenced at the deadline
            return _closed(parent)

        end = eventually(look)["events"][-1]
        assert (end["code"], end["seq"]) == ("lost", 1)


def test_a_wall_clock_that_jumps_loses_nobody(
    bus: InProcessBus, parent: Client, job: Emitting
) -> None:
    job.emit(0, "accepted")
    bus.clock.set_wall(bus.clock.wall_us() + 10**12)
    job.emit(1)
    bus.clock.set_wall(bus.clock.wall_us() - 2 * 10**12)
    job.emit(2)
    assert not events(parent)["closed"]
    pass_time(bus, IDLE_S)
    assert eventually(lambda: _closed(parent))["events"][-1]["code"] == "lost"


def test_an_actor_of_a_job_that_fails_is_replaced_with_its_followers_and_deadlines(
    bus: InProcessBus, parent: Client, job: Emitting
) -> None:
    job.emit(0, "accepted")
    wait = Asking(bus, "job_events", job_id="cake", **{"from": 1})
    pass_time(bus, 0)
    jobs = bus.system._jobs
    assert jobs is not None
    jobs._streams.tell("cake", object())  # type: ignore[arg-type]  # nothing that it knows
    eventually(lambda: any("JobStream" in error["what"] for error in bus.status()["errors"]))
    job.emit(1)
    assert types(wait.result()) == ["warning"]
    pass_time(bus, IDLE_S)
    assert eventually(lambda: _closed(parent))["events"][-1]["code"] == "lost"


# --- cancel ---


@pytest.mark.parametrize("when", ["before it waits", "while it waits"])
def test_a_cancel_wakes_the_job_that_waits_for_it(
    bus: InProcessBus, parent: Client, job: Emitting, when: str
) -> None:
    job.emit(0, "accepted")
    asked = {"job_id": "cake", "reason": "no longer needed"}
    if when == "before it waits":
        parent.request("job_cancel", asked, PATIENCE_S)
        wait = parent.request("job_await_cancel", {"job_id": "cake"}, PATIENCE_S)
    else:
        waiting = Asking(bus, "job_await_cancel", job_id="cake")
        parent.request("job_cancel", asked, PATIENCE_S)
        wait = waiting.result()
    assert wait == {"cancel": "no longer needed", "closed": False}
    assert job.emit(1, "failed", code="cancelled", message="as you wish")["cancel"]
    [listed] = parent.request("job_list", {}, PATIENCE_S)["jobs"]
    assert (listed["outcome"], listed["code"], listed["cancel"]) == (
        "failed",
        "cancelled",
        "no longer needed",
    )


def test_who_waits_for_a_cancel_hears_of_the_end(bus: InProcessBus, job: Emitting) -> None:
    job.emit(0, "accepted")
    wait = Asking(bus, "job_await_cancel", job_id="cake")
    job.emit(1, "succeeded")
    assert wait.result() == {"cancel": None, "closed": True}


def test_a_cancel_of_an_unknown_job_is_said_and_one_ahead_is_forgotten_in_time(
    bus: InProcessBus, parent: Client
) -> None:
    with pytest.raises(NotFoundError):
        parent.request("job_cancel", {"job_id": "cake", "reason": "r"}, PATIENCE_S)
    parent.request("job_cancel", {"job_id": "cake", "reason": "r", "ahead": True}, PATIENCE_S)
    assert parent.request("job_list", {}, PATIENCE_S)["jobs"][0]["cancel"] == "r"
    pass_time(bus, IDLE_S)
    eventually(lambda: parent.request("job_list", {}, PATIENCE_S)["jobs"] == [])
    assert parent.request("job_await_cancel", {"job_id": "cake"}, PATIENCE_S)["cancel"] is None


def test_open_jobs_can_be_listed_alone(bus: InProcessBus, parent: Client, job: Emitting) -> None:
    job.emit(0, "succeeded")
    with Emitting(bus.paths.socket, "other") as other:
        other.emit(0, "accepted")
    both = parent.request("job_list", {}, PATIENCE_S)["jobs"]
    assert {row["job_id"]: row["state"] for row in both} == {"cake": "closed", "other": "open"}
    only = parent.request("job_list", {"open": True}, PATIENCE_S)["jobs"]
    assert [row["job_id"] for row in only] == ["other"]


# --- callbacks ---
