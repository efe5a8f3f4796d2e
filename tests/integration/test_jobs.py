"""Jobs in a running daemon: who follows, who is lost, who is cancelled, what is posted where."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from actors import callback, job_desk
from actors.job_stream import RETRY_S
from agentbus.encoding import decode_strict
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
from agentbus.jobs.delivery import BACKOFF_MAX_MS, Outcome
from agentbus.jobs.events import decode_event
from agentbus.limits import JOBS_AGENT
from agentbus.transport.client import Client
from tests.eventually import PATIENCE_S, eventually
from tests.integration.in_process import InProcessBus, in_process_bus
from tests.jobs.emitting import TS, Emitting, connect
from tests.jobs.servers import Answer, ScriptedServer

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


def events(client: Client, job_id: str = "cake", **asked: Any) -> Any:
    return client.request("job_events", {"job_id": job_id, **asked}, PATIENCE_S)


def types(answer: Any) -> list[str]:
    return [event["type"] for event in answer["events"]]


def pass_time(bus: InProcessBus, seconds: float) -> None:
    """When the jobs' actors have heard of everything before."""
    jobs = bus.system._jobs
    assert jobs is not None

    def is_idle() -> bool:
        told = [address.statistics() for address, _ in list(jobs._streams._jobs.values())]
        return not any(actor.busy or actor.mailbox_length for actor in told)

    eventually(is_idle)
    bus.clock.advance(seconds)


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


def posted(server: ScriptedServer) -> list[tuple[str, str]]:
    return [(got.headers["idempotency-key"], decode_strict(got.body)["type"]) for got in server.got]


def letters(parent: Client) -> list[Any]:
    return list(parent.request("deadletters_list", {}, PATIENCE_S)["dead_letters"])


def test_events_are_posted_in_order_each_once(bus: InProcessBus, parent: Client) -> None:
    secret = "s3cret"
    with ScriptedServer() as server:
        with Emitting(bus.paths.socket, url=f"{server.url}/cake", secret=secret) as job:
            for seq, kind in enumerate(("accepted", "progress", "warning", "succeeded")):
                job.emit(seq, kind)
        eventually(lambda: len(server.got) == 4)
        assert posted(server) == [
            ("cake:0", "accepted"),
            ("cake:1", "progress"),
            ("cake:2", "warning"),
            ("cake:3", "succeeded"),
        ]
        assert all("x-signature-timed" in got.headers for got in server.got)
        assert {got.path for got in server.got} == {"/cake"}
        eventually(lambda: _callbacks(parent) == {"pending": 0, "dead": 0})


def _callbacks(parent: Client) -> Any:
    return parent.request("job_list", {}, PATIENCE_S)["callbacks"]


def test_what_is_not_taken_is_tried_again_and_the_next_event_waits(
    bus: InProcessBus, parent: Client
) -> None:
    with ScriptedServer(Answer(503), Answer(None), Answer(200)) as server:
        with Emitting(bus.paths.socket, url=server.url) as job:
            job.emit(0, "accepted")
            job.emit(1, "succeeded")
        for attempts in (1, 2):
            eventually(lambda attempts=attempts: len(server.got) == attempts)  # type: ignore[misc]
            _pass_time(bus, lambda attempts=attempts: len(server.got) > attempts)  # type: ignore[misc]
        eventually(lambda: len(server.got) == 4)
        assert [key for key, _ in posted(server)] == ["cake:0", "cake:0", "cake:0", "cake:1"]


def _pass_time(bus: InProcessBus, until: Any) -> None:
    """Let the pauses between attempts pass."""

    def look() -> bool:
        bus.clock.advance(BACKOFF_MAX_MS / 1000)
        return bool(until())

    eventually(look)


def test_after_the_last_attempt_it_is_a_dead_letter_that_can_be_replayed() -> None:
    # Hours may pass between the attempts on a slow machine, and no job may be lost meanwhile.
    with (
        in_process_bus(job_idle_seconds=86_400, job_total_seconds=604_800) as bus,
        connect(bus.paths.socket) as parent,
        ScriptedServer(Answer(500), Answer(500), Answer(200)) as server,
    ):
        with Emitting(bus.paths.socket, url=server.url, max_retries=2) as job:
            job.emit(0, "accepted")
            _pass_time(bus, lambda: letters(parent))
            [letter] = letters(parent)
            assert (letter["job_id"], letter["seq"], letter["attempts"]) == ("cake", 0, 2)
            assert "500" in letter["error"]
            job.emit(1)  # those behind it go on
            eventually(lambda: len(server.got) == 3)
        replayed = parent.request("deadletters_replay", {"id": letter["id"]}, PATIENCE_S)
        assert replayed == {"replayed": 1}
        eventually(lambda: len(server.got) == 4)
        assert [key for key, _ in posted(server)] == ["cake:0", "cake:0", "cake:1", "cake:0"]
        eventually(lambda: not letters(parent))
        with pytest.raises(NotFoundError):
            parent.request("deadletters_replay", {"id": letter["id"]}, PATIENCE_S)


def test_what_a_repeat_cannot_help_is_dead_at_once(bus: InProcessBus, parent: Client) -> None:
    with ScriptedServer(Answer(401)) as server:
        with Emitting(bus.paths.socket, url=server.url) as job:
            job.emit(0, "failed")
        assert eventually(lambda: letters(parent))[0]["terminal"]
        assert len(server.got) == 1
    assert parent.request("deadletters_replay", {"all": True}, PATIENCE_S) == {"replayed": 1}


def test_the_terminal_event_is_tried_for_longer(bus: InProcessBus, parent: Client) -> None:
    with ScriptedServer(Answer(503)) as server:
        with Emitting(bus.paths.socket, url=server.url, max_retries=1) as job:
            job.emit(0, "accepted")
            eventually(lambda: letters(parent))
            job.emit(1, "succeeded")
        _pass_time(bus, lambda: len(letters(parent)) == 2)
        assert [letter["attempts"] for letter in letters(parent)] == [1, 10]


def test_a_lost_job_is_posted_too(bus: InProcessBus, parent: Client) -> None:
    with ScriptedServer() as server:
        with Emitting(bus.paths.socket, url=server.url) as job:
            job.emit(0, "accepted")
        pass_time(bus, IDLE_S)
        eventually(lambda: len(server.got) == 2)
        assert posted(server)[-1] == ("cake:1", "failed")
        assert decode_strict(server.got[-1].body)["synthetic"]


@pytest.mark.parametrize(
    "callback",
    [
        {"url": "ftp://h/"},
        {"url": "http://user@h/"},
        {"url": "http://h/", "allowed_hosts": ["other"]},
        {"url": "http://h/", "max_retries": 0},
        {"url": "http://h/", "max_retries": 101},
        {"url": "http://h/", "extra": 1},
        {"url": 7},
    ],
)
def test_a_callback_that_must_not_be_called_is_refused_with_its_event(
    bus: InProcessBus, parent: Client, callback: dict[str, Any]
) -> None:
    with Emitting(bus.paths.socket, **callback) as job, pytest.raises(ValidationError):
        job.emit(0, "accepted")
    assert events(parent)["events"] == []


def test_an_attempt_that_fails_as_nobody_thought_of_is_one_of_its_attempts(
    bus: InProcessBus, parent: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attempt(*_: object) -> Outcome:
        raise ArithmeticError("told to")

    monkeypatch.setattr(callback, "attempt", attempt)
    with Emitting(bus.paths.socket, url="http://127.0.0.1:9/", max_retries=2) as job:
        job.emit(0, "accepted")
        _pass_time(bus, lambda: letters(parent))
    [letter] = letters(parent)
    assert letter["attempts"] == 2
    assert "ArithmeticError" in letter["error"]


def test_callbacks_go_on_after_a_restart(bus: InProcessBus) -> None:
    with ScriptedServer(Answer(503), Answer(200)) as server:
        with Emitting(bus.paths.socket, url=server.url) as job:
            job.emit(0, "succeeded")
        eventually(lambda: len(server.got) == 1)
        bus.system.stop()
        bus.clock.advance(BACKOFF_MAX_MS / 1000)
        bus.start()
        _pass_time(bus, lambda: len(server.got) == 2)
        assert {key for key, _ in posted(server)} == {"cake:0"}
